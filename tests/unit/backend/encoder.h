// A BERT-shaped encoder as a graph with random weights, and the same computed in double with
// kernels/ref: what the back end's tests and bench/cpu run. Names follow all-MiniLM-L6-v2.
#ifndef TESTS_BACKEND_ENCODER_H
#define TESTS_BACKEND_ENCODER_H

#include "graph/graph.h"
#include "graph/weights.h"
#include "kernels/ref/ref.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENCODER_WEIGHTS 512
#ifndef ENCODER_NARROW_VECTORS
#define ENCODER_NARROW_VECTORS 0 // 1: the device keeps vectors in the compute dtype (plan_caps)
#endif

struct encoder_shape {
  int32_t vocab, positions, hidden, heads, inter, layers;
  enum dtype compute;
  bool causal;
  bool reference; // keep what encoder_reference needs
};

// A small one: 100 words, 256 positions, whatever else is asked for.
static inline struct encoder_shape encoder_small(int32_t hidden, int32_t heads, int32_t inter,
                                                 int32_t layers, enum dtype compute) {
  return (struct encoder_shape){.vocab = 100,
                                .positions = 256,
                                .hidden = hidden,
                                .heads = heads,
                                .inter = inter,
                                .layers = layers,
                                .compute = compute};
}

struct encoder {
  struct encoder_shape shape;
  struct graph graph;
  struct weight weights[ENCODER_WEIGHTS];
  struct weight_table table;
  uint64_t seed;
};

static inline uint32_t encoder_random(uint64_t *seed) {
  *seed = *seed * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(*seed >> 33);
}

// Roughly normal, from four uniform numbers.
static inline float encoder_normal(uint64_t *seed) {
  float sum = 0;
  for (int i = 0; i < 4; i++)
    sum += (float)(encoder_random(seed) >> 7) * 0x1p-24f - 0.5f;
  return sum * 1.7320508f;
}

static inline void encoder_check(bool ok, const char *what) {
  if (ok) return;
  fprintf(stderr, "encoder: %s\n", what);
  exit(1);
}

// A weight tensor [rows, cols] of random values base + scale * normal; its tensor id. Vectors are
// as a model file's are for the device (server/model/build.c).
static inline int32_t encoder_weight(struct encoder *e, int32_t rows, int32_t cols, float base,
                                     float scale) {
  int32_t id = e->table.n_weights++;
  encoder_check(id < ENCODER_WEIGHTS, "too many weights");
  float *data = malloc((size_t)rows * (size_t)cols * sizeof *data);
  encoder_check(data, "no memory");
  for (int64_t i = 0; i < (int64_t)rows * cols; i++)
    data[i] = base + scale * encoder_normal(&e->seed);
  if (e->shape.compute == DTYPE_BF16) // so that the reference sees what the device sees
    for (int64_t i = 0; i < (int64_t)rows * cols; i++)
      data[i] = bf16_to_f32(f32_to_bf16(data[i]));
  if (e->shape.compute == DTYPE_F16)
    for (int64_t i = 0; i < (int64_t)rows * cols; i++)
      data[i] = f16_to_f32(f32_to_f16(data[i]));
  e->weights[id] = (struct weight){"w", DTYPE_F32, rows, cols, data};
  struct tensor tensor = {.kind = TENSOR_WEIGHT,
                          .dtype =
                              rows == 1 && !ENCODER_NARROW_VECTORS ? DTYPE_F32 : e->shape.compute,
                          .rows = ROWS_FIXED,
                          .n_rows = rows,
                          .cols = cols,
                          .index = id};
  snprintf(tensor.name, sizeof tensor.name, "w%d", id);
  int32_t at = graph_add_tensor(&e->graph, &tensor);
  encoder_check(at >= 0, "graph_add_tensor");
  return at;
}

static inline int32_t encoder_node(struct encoder *e, struct node node) {
  char name[32];
  int32_t out = -1;
  struct error err = {0};
  snprintf(name, sizeof name, "t%d", e->graph.n_tensors);
  for (int i = 0; i < NODE_MAX_INPUTS; i++)
    if (i >= node.n_in) node.in[i] = -1;
  enum status status = graph_add_node(&e->graph, &node, name, e->shape.compute, &out, &err);
  encoder_check(status == STATUS_OK, err.message);
  return out;
}

static inline int32_t encoder_input(struct encoder *e, const char *name, enum tensor_kind kind,
                                    enum dtype dtype, int index) {
  struct tensor tensor = {
      .kind = kind, .dtype = dtype, .rows = ROWS_TOKENS, .cols = 1, .index = index};
  snprintf(tensor.name, sizeof tensor.name, "%s", name);
  return graph_add_tensor(&e->graph, &tensor);
}

static inline int32_t encoder_linear(struct encoder *e, int32_t x, int32_t n, int32_t k) {
  int32_t w = encoder_weight(e, n, k, 0, 1 / sqrtf((float)k)), b = encoder_weight(e, 1, n, 0, 0.1f);
  return encoder_node(e, (struct node){.op = OP_LINEAR, .in = {x, w, b}, .n_in = 3});
}

static inline int32_t encoder_norm(struct encoder *e, int32_t x) {
  int32_t g = encoder_weight(e, 1, e->shape.hidden, 1, 0.1f),
          b = encoder_weight(e, 1, e->shape.hidden, 0, 0.1f);
  return encoder_node(
      e, (struct node){.op = OP_LAYER_NORM, .in = {x, g, b}, .n_in = 3, .attrs = {.eps = 1e-12f}});
}

static inline int32_t encoder_layer(struct encoder *e, int32_t x) {
  const struct encoder_shape *s = &e->shape;
  int32_t q = encoder_linear(e, x, s->hidden, s->hidden),
          k = encoder_linear(e, x, s->hidden, s->hidden);
  int32_t v = encoder_linear(e, x, s->hidden, s->hidden);
  struct node_attrs attrs = {.heads = s->heads, .kv_heads = s->heads, .causal = s->causal};
  int32_t a = encoder_node(
      e, (struct node){.op = OP_ATTENTION, .in = {q, k, v}, .n_in = 3, .attrs = attrs});
  int32_t o = encoder_linear(e, a, s->hidden, s->hidden);
  int32_t r = encoder_node(e, (struct node){.op = OP_ADD, .in = {o, x}, .n_in = 2});
  int32_t n = encoder_norm(e, r);
  int32_t up = encoder_linear(e, n, s->inter, s->hidden);
  int32_t g = encoder_node(e, (struct node){.op = OP_GELU, .in = {up}, .n_in = 1});
  int32_t down = encoder_linear(e, g, s->hidden, s->inter);
  return encoder_norm(e, encoder_node(e, (struct node){.op = OP_ADD, .in = {down, n}, .n_in = 2}));
}

// Outputs: 0 last hidden state [T, hidden], 1 mean-pooled and normalized [B, hidden].
static inline void encoder_build(struct encoder *e, const struct encoder_shape *shape,
                                 uint64_t seed) {
  memset(e, 0, sizeof *e);
  e->shape = *shape;
  e->seed = seed;
  e->table.weights = e->weights;
  encoder_check(graph_init(&e->graph) == STATUS_OK, "graph_init");
  int32_t ids = encoder_input(e, "input_ids", TENSOR_INPUT, DTYPE_I64, 0);
  int32_t positions = encoder_input(e, "positions", TENSOR_POSITIONS, DTYPE_I32, -1);
  int32_t words = encoder_weight(e, shape->vocab, shape->hidden, 0, 1);
  int32_t places = encoder_weight(e, shape->positions, shape->hidden, 0, 1);
  int32_t a = encoder_node(e, (struct node){.op = OP_EMBEDDING, .in = {ids, words}, .n_in = 2});
  int32_t b =
      encoder_node(e, (struct node){.op = OP_EMBEDDING, .in = {positions, places}, .n_in = 2});
  int32_t x =
      encoder_norm(e, encoder_node(e, (struct node){.op = OP_ADD, .in = {a, b}, .n_in = 2}));
  for (int32_t i = 0; i < shape->layers; i++)
    x = encoder_layer(e, x);
  int32_t pooled = encoder_node(
      e, (struct node){.op = OP_POOL, .in = {x}, .n_in = 1, .attrs = {.pool = POOL_MEAN}});
  int32_t unit = encoder_node(
      e, (struct node){.op = OP_NORMALIZE, .in = {pooled}, .n_in = 1, .attrs = {.eps = 1e-12f}});
  e->graph.outputs[0] = x, e->graph.outputs[1] = unit, e->graph.n_outputs = 2;
  e->graph.has_sequences = true;
}

static inline void encoder_free(struct encoder *e) {
  for (int32_t i = 0; i < e->table.n_weights; i++)
    free((void *)(uintptr_t)e->weights[i].data);
  graph_deinit(&e->graph);
}

// ---- the same in double, node by node ----
static inline double *encoder_doubles(const struct weight *w) {
  int64_t n = (int64_t)w->rows * w->cols;
  double *out = malloc((size_t)n * sizeof *out);
  for (int64_t i = 0; i < n; i++)
    out[i] = (double)((const float *)w->data)[i];
  return out;
}

static inline void encoder_reference_node(const struct encoder *e, const struct node *n,
                                          double **values, const struct batch_geometry *g,
                                          const int64_t *ids) {
  const struct tensor *t = e->graph.tensors, *x = &t[n->in[0]], *y = &t[n->out];
  int64_t rows = y->rows == ROWS_SEQS ? g->n_seqs : g->n_tokens;
  double *out = values[n->out] = malloc((size_t)rows * (size_t)y->cols * sizeof *out);
  double *in[NODE_MAX_INPUTS] = {0};
  for (int i = 0; i < n->n_in; i++)
    in[i] = t[n->in[i]].kind == TENSOR_WEIGHT ? encoder_doubles(&e->weights[t[n->in[i]].index])
                                              : values[n->in[i]];
  struct attention_problem p = {n->attrs.heads,
                                n->attrs.kv_heads,
                                n->attrs.heads ? y->cols / n->attrs.heads : 0,
                                n->attrs.causal,
                                0,
                                DTYPE_F32};
  p.scale = (float)(1 / sqrt((double)p.head_dim));
  int64_t *index = malloc((size_t)g->n_tokens * sizeof *index);
  double *work = malloc((size_t)g->max_seqlen * sizeof *work);
  switch (n->op) {
  case OP_EMBEDDING:
    for (int32_t i = 0; i < g->n_tokens; i++)
      index[i] = x->kind == TENSOR_POSITIONS ? g->positions[i] : ids[i];
    ref_embedding(out, in[1], index, rows, t[n->in[1]].n_rows, y->cols);
    break;
  case OP_LINEAR:
    ref_linear(out, in[0], in[1], in[2], rows, y->cols, x->cols);
    break;
  case OP_LAYER_NORM:
    ref_layer_norm(out, in[0], in[1], in[2], rows, y->cols, (double)n->attrs.eps);
    break;
  case OP_ADD:
    for (int64_t i = 0; i < rows * y->cols; i++)
      out[i] = in[0][i] + in[1][i];
    break;
  case OP_GELU:
    for (int64_t i = 0; i < rows * y->cols; i++)
      out[i] = ref_activate(ACT_GELU_ERF, in[0][i]);
    break;
  case OP_ATTENTION:
    ref_attention(out, in[0], in[1], in[2], &p, g, work);
    break;
  case OP_POOL:
    ref_pool(out, in[0], y->cols, g, 'm');
    break;
  case OP_NORMALIZE:
    ref_normalize(out, in[0], rows, y->cols, (double)n->attrs.eps);
    break;
  default:
    encoder_check(false, "op without a reference here");
  }
  for (int i = 0; i < n->n_in; i++)
    if (t[n->in[i]].kind == TENSOR_WEIGHT) free(in[i]);
  free(index), free(work);
}

// out0 [T, hidden], out1 [B, hidden]
static inline void encoder_reference(const struct encoder *e, const struct batch_geometry *g,
                                     const int64_t *ids, double *out0, double *out1) {
  double **values = calloc((size_t)e->graph.n_tensors, sizeof *values);
  for (int32_t i = 0; i < e->graph.n_nodes; i++)
    encoder_reference_node(e, &e->graph.nodes[i], values, g, ids);
  size_t row = (size_t)e->shape.hidden * sizeof(double);
  memcpy(out0, values[e->graph.outputs[0]], (size_t)g->n_tokens * row);
  memcpy(out1, values[e->graph.outputs[1]], (size_t)g->n_seqs * row);
  for (int32_t i = 0; i < e->graph.n_tensors; i++)
    free(values[i]);
  free(values);
}

// ---- batches ----
struct encoder_batch {
  struct batch_geometry geometry;
  int32_t *cu, *positions;
  int64_t *scores, *ids;
};

static inline void encoder_batch_make(struct encoder_batch *b, const int32_t *lengths, int32_t n,
                                      int32_t vocab, uint64_t *seed) {
  memset(b, 0, sizeof *b);
  b->cu = calloc((size_t)n + 1, sizeof *b->cu);
  b->scores = calloc((size_t)n + 1, sizeof *b->scores);
  for (int32_t i = 0; i < n; i++) {
    b->cu[i + 1] = b->cu[i] + lengths[i];
    b->scores[i + 1] = b->scores[i] + (int64_t)lengths[i] * lengths[i];
    if (lengths[i] > b->geometry.max_seqlen) b->geometry.max_seqlen = lengths[i];
  }
  int32_t total = b->cu[n];
  b->positions = calloc((size_t)total, sizeof *b->positions);
  b->ids = calloc((size_t)total, sizeof *b->ids);
  for (int32_t i = 0; i < n; i++)
    for (int32_t j = b->cu[i]; j < b->cu[i + 1]; j++)
      b->positions[j] = j - b->cu[i];
  for (int32_t i = 0; i < total; i++)
    b->ids[i] = encoder_random(seed) % (uint32_t)vocab;
  b->geometry.n_tokens = total;
  b->geometry.n_seqs = n;
  b->geometry.sum_sq = b->scores[n];
  b->geometry.cu_seqlens = b->cu;
  b->geometry.positions = b->positions;
  b->geometry.scores_offset = b->scores;
}

static inline void encoder_batch_free(struct encoder_batch *b) {
  free(b->cu), free(b->positions), free(b->scores), free(b->ids);
}

#endif
