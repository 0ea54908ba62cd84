// What bench_audit counts: graphs of one op or a few, and whole encoder stacks.
#ifndef GPU_AUDIT_CASES_H
#define GPU_AUDIT_CASES_H

#include "graph/plan.h"
#define ENCODER_NARROW_VECTORS 1
#include "unit/backend/encoder.h"

struct audit_case {
  const char *name;
  int32_t (*build)(struct encoder *e, int32_t x); // x: [T, cols]; the output's tensor
  int32_t cols, n, heads;                         // what build looks at
  enum dtype dtype;
  int32_t seqs, length; // T = seqs * length
  enum fusion_mode mode;
  int32_t layers; // whole stacks
};
static const struct audit_case *the_case;

static int32_t op1(struct encoder *e, enum op op, int32_t x, struct node_attrs attrs) {
  return encoder_node(e, (struct node){.op = op, .in = {x}, .n_in = 1, .attrs = attrs});
}
static int32_t build_chain(struct encoder *e, int32_t x) {
  for (int i = 0; i < 8; i++) {
    x = op1(e, OP_SCALE, x, (struct node_attrs){.factor = 1.001f});
    int32_t b = encoder_weight(e, 1, the_case->cols, 0.001f, 0);
    x = encoder_node(e, (struct node){.op = OP_BIAS, .in = {x, b}, .n_in = 2});
  }
  return x;
}
static int32_t build_gelu(struct encoder *e, int32_t x) {
  return op1(e, OP_GELU, x, (struct node_attrs){0});
}
static int32_t build_softmax(struct encoder *e, int32_t x) {
  return op1(e, OP_SOFTMAX, x, (struct node_attrs){0});
}
static int32_t build_norm(struct encoder *e, int32_t x) {
  return encoder_norm(e, x);
}
static int32_t build_add_norm(struct encoder *e, int32_t x) {
  struct tensor input = {.name = "r",
                         .kind = TENSOR_INPUT,
                         .dtype = e->shape.compute,
                         .rows = ROWS_TOKENS,
                         .cols = the_case->cols,
                         .index = 1};
  int32_t r = graph_add_tensor(&e->graph, &input);
  return encoder_norm(e, encoder_node(e, (struct node){.op = OP_ADD, .in = {x, r}, .n_in = 2}));
}
static int32_t build_pool(struct encoder *e, int32_t x) {
  int32_t p = op1(e, OP_POOL, x, (struct node_attrs){.pool = POOL_MEAN});
  return op1(e, OP_NORMALIZE, p, (struct node_attrs){.eps = 1e-12f});
}
static int32_t build_linear(struct encoder *e, int32_t x) {
  return encoder_linear(e, x, the_case->n, the_case->cols);
}
static int32_t build_linear_gelu(struct encoder *e, int32_t x) {
  return build_gelu(e, build_linear(e, x));
}
// Rows of which some are masked: a factor a row behind the activation.
static int32_t build_linear_masked(struct encoder *e, int32_t x) {
  struct tensor input = {.name = "keep",
                         .kind = TENSOR_INPUT,
                         .dtype = e->shape.compute,
                         .rows = ROWS_TOKENS,
                         .cols = 1,
                         .index = 1};
  int32_t keep = graph_add_tensor(&e->graph, &input), y = build_linear_gelu(e, x);
  return encoder_node(e, (struct node){.op = OP_MUL, .in = {y, keep}, .n_in = 2});
}
// Two results of one product.
static int32_t build_linear_twice(struct encoder *e, int32_t x) {
  int32_t y = build_linear_gelu(e, x);
  e->graph.outputs[1] = y, e->graph.n_outputs = 2;
  return op1(e, OP_RELU, y, (struct node_attrs){0});
}
// The input is q, k and v side by side as a product of no depth would leave them: three inputs.
static int32_t build_attention(struct encoder *e, int32_t x) {
  int32_t in[3] = {x};
  for (int i = 1; i < 3; i++) {
    struct tensor input = {.kind = TENSOR_INPUT,
                           .dtype = e->shape.compute,
                           .rows = ROWS_TOKENS,
                           .cols = the_case->cols,
                           .index = i};
    snprintf(input.name, sizeof input.name, "in%d", i);
    in[i] = graph_add_tensor(&e->graph, &input);
  }
  struct node_attrs attrs = {.heads = the_case->heads, .kv_heads = the_case->heads};
  return encoder_node(
      e, (struct node){.op = OP_ATTENTION, .in = {in[0], in[1], in[2]}, .n_in = 3, .attrs = attrs});
}
static int32_t build_stack(struct encoder *e, int32_t x) {
  for (int32_t i = 0; i < the_case->layers; i++)
    x = encoder_layer(e, x);
  return x;
}

#define BERT(name, b, s, mode)                                                                     \
  { name, build_stack, 768, 3072, 12, DTYPE_BF16, b, s, mode, 12 }
static const struct audit_case cases[] = {
    {"chain of 16, 32768x1024", build_chain, 1024, 0, 0, DTYPE_F32, 32, 1024, FUSION_ON, 0},
    {"gelu 16384x4096", build_gelu, 4096, 0, 0, DTYPE_BF16, 32, 512, FUSION_ON, 0},
    {"layer norm 65536x768", build_norm, 768, 0, 0, DTYPE_BF16, 128, 512, FUSION_ON, 0},
    {"layer norm 16384x4096", build_norm, 4096, 0, 0, DTYPE_BF16, 32, 512, FUSION_ON, 0},
    {"layer norm 8192x8192", build_norm, 8192, 0, 0, DTYPE_BF16, 16, 512, FUSION_ON, 0},
    {"layer norm 16384x4096", build_norm, 4096, 0, 0, DTYPE_F32, 32, 512, FUSION_ON, 0},
    {"add, layer norm 16384x4096", build_add_norm, 4096, 0, 0, DTYPE_BF16, 32, 512, FUSION_ON, 0},
    {"softmax 16384x4096", build_softmax, 4096, 0, 0, DTYPE_BF16, 32, 512, FUSION_ON, 0},
    {"mean pool, normalize 256x256x768", build_pool, 768, 0, 0, DTYPE_BF16, 256, 256, FUSION_ON, 0},
    {"layer norm 4096x768", build_norm, 768, 0, 0, DTYPE_BF16, 32, 128, FUSION_ON, 0},
    {"linear 16384x768->3072", build_linear, 768, 3072, 0, DTYPE_BF16, 32, 512, FUSION_ON, 0},
    {"linear 16384x3072->768", build_linear, 3072, 768, 0, DTYPE_BF16, 32, 512, FUSION_ON, 0},
    {"linear 16384x1024->4096", build_linear, 1024, 4096, 0, DTYPE_BF16, 32, 512, FUSION_ON, 0},
    {"linear 8192x4096->16384", build_linear, 4096, 16384, 0, DTYPE_BF16, 16, 512, FUSION_ON, 0},
    {"linear 16384x4096->4096", build_linear, 4096, 4096, 0, DTYPE_BF16, 32, 512, FUSION_ON, 0},
    {"linear+gelu 16384x768->3072", build_linear_gelu, 768, 3072, 0, DTYPE_BF16, 32, 512, FUSION_ON,
     0},
    {"linear+gelu 16384x1024->4096", build_linear_gelu, 1024, 4096, 0, DTYPE_BF16, 32, 512,
     FUSION_ON, 0},
    {"linear+gelu 8192x4096->16384", build_linear_gelu, 4096, 16384, 0, DTYPE_BF16, 16, 512,
     FUSION_ON, 0},
    {"linear+gelu 65536x256->1024", build_linear_gelu, 256, 1024, 0, DTYPE_BF16, 128, 512,
     FUSION_ON, 0},
    {"linear+gelu 64x4096->16384", build_linear_gelu, 4096, 16384, 0, DTYPE_BF16, 1, 64, FUSION_ON,
     0},
    {"linear+gelu 8192x1024->4096", build_linear_gelu, 1024, 4096, 0, DTYPE_F32, 16, 512, FUSION_ON,
     0},
    {"linear+gelu 8192x1020->4092", build_linear_gelu, 1020, 4092, 0, DTYPE_BF16, 16, 512,
     FUSION_ON, 0},
    {"linear+gelu of masked rows 16384x768->3072", build_linear_masked, 768, 3072, 0, DTYPE_BF16,
     32, 512, FUSION_ON, 0},
    {"linear+gelu and relu of it 16384x768->3072", build_linear_twice, 768, 3072, 0, DTYPE_BF16, 32,
     512, FUSION_ON, 0},
    {"attention 64x512, 12 of 64", build_attention, 768, 0, 12, DTYPE_BF16, 64, 512, FUSION_ON, 0},
    {"attention 16x2048, 16 of 128", build_attention, 2048, 0, 16, DTYPE_BF16, 16, 2048, FUSION_ON,
     0},
    {"attention 4x8192, 16 of 128", build_attention, 2048, 0, 16, DTYPE_BF16, 4, 8192, FUSION_ON,
     0},
    {"attention 64x512, 12 of 64", build_attention, 768, 0, 12, DTYPE_F32, 64, 512, FUSION_ON, 0},
    {"unfused attention 32x512, 12 of 64", build_attention, 768, 0, 12, DTYPE_BF16, 32, 512,
     FUSION_OFF, 0},
    {"linear 24576x1280->5120", build_linear, 1280, 5120, 0, DTYPE_BF16, 48, 512, FUSION_ON, 0},
    {"linear 20480x1536->6144", build_linear, 1536, 6144, 0, DTYPE_BF16, 40, 512, FUSION_ON, 0},
    {"linear 8192x2048->8192", build_linear, 2048, 8192, 0, DTYPE_BF16, 16, 512, FUSION_ON, 0},
    // shapes that no constant of the model was fitted to
    {"attention 24x1024, 20 of 64", build_attention, 1280, 0, 20, DTYPE_BF16, 24, 1024, FUSION_ON,
     0},
    {"linear+gelu 24576x1280->5120", build_linear_gelu, 1280, 5120, 0, DTYPE_BF16, 48, 512,
     FUSION_ON, 0},
    {"linear+gelu 12288x2048->8192", build_linear_gelu, 2048, 8192, 0, DTYPE_BF16, 24, 512,
     FUSION_ON, 0},
    {"linear+gelu 16384x512->2048", build_linear_gelu, 512, 2048, 0, DTYPE_F32, 32, 512, FUSION_ON,
     0},
    {"bert-large 24x384", build_stack, 1024, 4096, 16, DTYPE_BF16, 24, 384, FUSION_ON, 8},
    {"bert-large unfused 24x384", build_stack, 1024, 4096, 16, DTYPE_BF16, 24, 384, FUSION_OFF, 8},
    BERT("bert-base 1x128", 1, 128, FUSION_ON),
    BERT("bert-base 32x128", 32, 128, FUSION_ON),
    BERT("bert-base 32x512", 32, 512, FUSION_ON),
    BERT("bert-base 128x128", 128, 128, FUSION_ON),
    BERT("bert-base unfused 1x128", 1, 128, FUSION_OFF),
    BERT("bert-base unfused 32x128", 32, 128, FUSION_OFF),
    BERT("bert-base unfused 32x512", 32, 512, FUSION_OFF),
};

#endif
