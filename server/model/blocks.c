// Blocks: mlp, attention_block, encoder_layer, each expanded into ops. See build.h and
// docs/MODELS.md.
//
// Tensors inside a block are called "<out>/<part>", so that a plan or a trace reads like the model.
#include "model/build.h"

#include <stdio.h>
#include <string.h>

#define ACTIVATIONS                                                                                \
  "gelu|gelu_tanh|relu|silu|tanh|sigmoid" // order of enum activation, from ACT_GELU_ERF

enum norm_place { AT_NONE, AT_PRE, AT_POST };

// What all blocks have: their keys, read once.
struct block {
  const struct conf_node *step;
  int32_t x;
  char out[LIMIT_NAME_BYTES];
  char prefix[LIMIT_NAME_BYTES]; // "" or "prefix."
  bool bias, residual;
  enum norm_place norm;
  enum norm_kind norm_kind;
  double eps;
  int32_t heads, kv_heads, head_dim; // 0: not given
  bool causal;
  int32_t hidden, features;
  enum activation activation;
};

static bool read_size(struct builder *b, const struct conf_node *step, const char *key, int64_t max,
                      int32_t *out) {
  int64_t value = 0;
  const struct conf_node *node = conf_find(step, key);
  if (node != NULL && !conf_int(b->report, node, 1, max, &value)) return false;
  *out = (int32_t)value;
  return true;
}

static bool read_flag(struct builder *b, const struct conf_node *step, const char *key, bool *out) {
  const struct conf_node *node = conf_find(step, key);
  return node == NULL || conf_bool(b->report, node, out);
}

static bool read_norm(struct builder *b, struct block *block) {
  const struct conf_node *norm = conf_find(block->step, "norm"),
                         *kind = conf_find(block->step, "norm_kind"),
                         *eps = conf_find(block->step, "eps");
  int place = block->norm, form = NORM_LAYER;
  bool ok = norm == NULL || conf_enum(b->report, norm, "none|pre|post", &place);
  ok &= kind == NULL || conf_enum(b->report, kind, "layer_norm|rms_norm", &form);
  block->norm = (enum norm_place)place;
  block->norm_kind = (enum norm_kind)form;
  block->eps = form == NORM_LAYER ? 1e-5 : 1e-6;
  ok &= eps == NULL || conf_float(b->report, eps, 0, 1, &block->eps);
  return ok;
}

static bool read_prefix(struct builder *b, struct block *block) {
  const struct conf_node *node = conf_find(block->step, "weights");
  if (node == NULL) return true;
  if (!build_name(b, node, block->prefix)) return false;
  size_t bytes = strlen(block->prefix);
  if (bytes + 2 > sizeof block->prefix) {
    conf_fail(b->report, node, "a name of more than %d bytes", LIMIT_NAME_BYTES - 2);
    return false;
  }
  memcpy(block->prefix + bytes, ".", 2);
  return true;
}

// `defaults` are in *block already: residual and norm differ between blocks.
static bool read_block(struct builder *b, const struct conf_node *step, const char *word,
                       struct block *block) {
  block->step = step;
  block->bias = true;
  int activation = 0;
  const struct conf_node *act = conf_find(step, "activation");
  bool ok = build_ends(b, step, 1, &block->x, word, block->out);
  ok &= read_prefix(b, block);
  ok &= read_norm(b, block);
  ok &= read_flag(b, step, "bias", &block->bias);
  ok &= read_flag(b, step, "residual", &block->residual);
  ok &= read_flag(b, step, "causal", &block->causal);
  ok &= read_size(b, step, "heads", LIMIT_HEADS, &block->heads);
  ok &= read_size(b, step, "kv_heads", LIMIT_HEADS, &block->kv_heads);
  ok &= read_size(b, step, "head_dim", LIMIT_DIM, &block->head_dim);
  ok &= read_size(b, step, "hidden", LIMIT_DIM, &block->hidden);
  ok &= read_size(b, step, "features", LIMIT_DIM, &block->features);
  ok &= act == NULL || conf_enum(b->report, act, ACTIVATIONS, &activation);
  block->activation = (enum activation)(ACT_GELU_ERF + activation);
  return ok;
}

// Weight prefix of a part: "<weights>.<text of key `key`, or its default>".
static bool part_name(struct builder *b, const struct block *block, const char *key,
                      const char *def, char *out) {
  char text[LIMIT_NAME_BYTES];
  const struct conf_node *node = conf_find(block->step, key);
  if (node != NULL && !build_name(b, node, text)) return false;
  int n = snprintf(out, LIMIT_NAME_BYTES, "%s%s", block->prefix, node != NULL ? text : def);
  if (n < LIMIT_NAME_BYTES) return true;
  conf_fail(b->report, block->step, "a weight's name of more than %d bytes", LIMIT_NAME_BYTES - 1);
  return false;
}

// Name of an inner tensor; the block's own name for its last one.
static const char *inner(struct builder *b, const struct block *block, const char *part,
                         char *out) {
  int n = snprintf(out, LIMIT_NAME_BYTES, "%s/%s", block->out, part);
  if (n >= LIMIT_NAME_BYTES) // the graph would say "taken"; say what is wrong
    conf_fail(b->report, block->step, "the block's name is too long for its parts");
  return out;
}

static int32_t part_linear(struct builder *b, const struct block *block, int32_t x, const char *key,
                           int32_t features, const char *features_key, const char *out_name) {
  char prefix[LIMIT_NAME_BYTES];
  if (!part_name(b, block, key, key, prefix)) return BUILD_UNKNOWN;
  return build_linear(b, block->step, x, prefix, block->bias, features, features_key, out_name);
}

static int32_t part_norm(struct builder *b, const struct block *block, int32_t x, const char *key,
                         const char *out_name) {
  char prefix[LIMIT_NAME_BYTES];
  if (!part_name(b, block, key, strcmp(key, "norm_weights") == 0 ? "norm" : key, prefix))
    return BUILD_UNKNOWN;
  return build_norm(b, block->step, x, block->norm_kind, prefix, block->eps, out_name);
}

// ---- the two halves -------------------------------------------------------------------------

// How one half (attention or mlp) sits between norm and residual, and what its pieces are called.
struct half {
  const char *scope;    // "attention" in an encoder layer, "" in a block of its own
  const char *norm_key; // key of the norm's weights
  const char *out_key;  // key of the last product's weights
  const char *out_name; // of the half's last tensor
  int32_t features;     // of the last product; 0: given by the file
  int32_t (*body)(struct builder *b, const struct block *block, const struct half *half, int32_t x,
                  const char *out_name);
};

static const char *half_name(struct builder *b, const struct block *block, const struct half *half,
                             const char *part, char *out) {
  char scoped[64];
  snprintf(scoped, sizeof scoped, "%s%s%s", half->scope, half->scope[0] != '\0' ? "." : "", part);
  return inner(b, block, scoped, out);
}

static int32_t build_half(struct builder *b, const struct block *block, const struct half *half,
                          int32_t x) {
  char name[LIMIT_NAME_BYTES];
  int32_t in = x, out;
  if (block->norm == AT_PRE)
    in = part_norm(b, block, x, half->norm_key, half_name(b, block, half, "norm", name));
  bool more = block->residual || block->norm == AT_POST;
  out = half->body(b, block, half, in,
                   more ? half_name(b, block, half, "output", name) : half->out_name);
  if (block->residual) {
    bool last = block->norm != AT_POST;
    out = build_pair(b, block->step, OP_ADD, out, x,
                     last ? half->out_name : half_name(b, block, half, "residual", name));
  }
  if (block->norm == AT_POST) out = part_norm(b, block, out, half->norm_key, half->out_name);
  return out;
}

// y = down(act(up(x))), or down(act(gate(x)) * up(x)) when the step names a gate.
static int32_t mlp_body(struct builder *b, const struct block *block, const struct half *half,
                        int32_t x, const char *out_name) {
  char name[LIMIT_NAME_BYTES];
  bool gated = conf_find(block->step, "gate") != NULL;
  int32_t up = part_linear(b, block, x, "up", block->hidden, "hidden",
                           half_name(b, block, half, "up", name));
  int32_t h = up;
  if (gated)
    h = part_linear(b, block, x, "gate", block->hidden, "hidden",
                    half_name(b, block, half, "gate", name));
  h = build_activation(b, block->step, h, block->activation,
                       half_name(b, block, half, "activation", name));
  if (gated)
    h = build_pair(b, block->step, OP_MUL, h, up, half_name(b, block, half, "gated", name));
  return part_linear(b, block, h, half->out_key, half->features, "features", out_name);
}

// Head count and size against the columns of x; false: reported.
static bool head_sizes(struct builder *b, const struct block *block, int32_t cols,
                       int32_t *kv_heads, int32_t *head_dim) {
  const struct conf_node *heads = conf_find(block->step, "heads");
  if (block->heads == 0) {
    (void)conf_need(b->report, block->step, "heads");
    return false;
  }
  *kv_heads = block->kv_heads != 0 ? block->kv_heads : block->heads;
  if (block->heads % *kv_heads != 0) {
    conf_fail(b->report, conf_find(block->step, "kv_heads"),
              "%d kv heads do not divide %d heads evenly", *kv_heads, block->heads);
    return false;
  }
  if (block->head_dim == 0 && cols % block->heads != 0) {
    conf_fail(b->report, heads, "%d heads do not divide %d columns evenly", block->heads, cols);
    return false;
  }
  *head_dim = block->head_dim != 0 ? block->head_dim : cols / block->heads;
  if ((int64_t)*head_dim * block->heads <= LIMIT_DIM) return true;
  conf_fail(b->report, heads, "heads x head_dim is more than %d", LIMIT_DIM);
  return false;
}

static int32_t attention_body(struct builder *b, const struct block *block, const struct half *half,
                              int32_t x, const char *out_name) {
  char name[LIMIT_NAME_BYTES];
  int32_t kv_heads, head_dim;
  if (x < 0 || !head_sizes(b, block, build_tensor(b, x)->cols, &kv_heads, &head_dim))
    return BUILD_UNKNOWN;
  struct node node = {.op = OP_ATTENTION, .n_in = 3};
  node.attrs.heads = block->heads;
  node.attrs.kv_heads = kv_heads;
  node.attrs.causal = block->causal;
  node.in[0] = part_linear(b, block, x, "query", block->heads * head_dim, "head_dim",
                           half_name(b, block, half, "query", name));
  node.in[1] = part_linear(b, block, x, "key", kv_heads * head_dim, "head_dim",
                           half_name(b, block, half, "key", name));
  node.in[2] = part_linear(b, block, x, "value", kv_heads * head_dim, "head_dim",
                           half_name(b, block, half, "value", name));
  int32_t context = build_node(b, block->step, node, half_name(b, block, half, "context", name),
                               b->model->compute);
  return part_linear(b, block, context, half->out_key, half->features, "features", out_name);
}

// ---- the blocks -----------------------------------------------------------------------------

int32_t build_mlp(struct builder *b, const struct conf_node *step) {
  struct block block = {0};
  if (!read_block(b, step, "mlp", &block) || block.x < 0) return BUILD_UNKNOWN;
  struct half half = {"", "norm_weights", "down", block.out, block.features, mlp_body};
  if (half.features == 0) half.features = build_tensor(b, block.x)->cols;
  return build_half(b, &block, &half, block.x);
}

int32_t build_attention_block(struct builder *b, const struct conf_node *step) {
  struct block block = {0};
  if (!read_block(b, step, "attention_block", &block) || block.x < 0) return BUILD_UNKNOWN;
  struct half half = {
      "", "norm_weights", "output", block.out, build_tensor(b, block.x)->cols, attention_body};
  return build_half(b, &block, &half, block.x);
}

int32_t build_encoder_layer(struct builder *b, const struct conf_node *step) {
  struct block block = {.residual = true, .norm = AT_POST};
  char middle[LIMIT_NAME_BYTES];
  if (!read_block(b, step, "encoder_layer", &block) || block.x < 0) return BUILD_UNKNOWN;
  int32_t cols = build_tensor(b, block.x)->cols;
  struct half attention = {
      "attention", "attention_norm", "attention_output", inner(b, &block, "attention", middle),
      cols,        attention_body};
  struct half mlp = {"mlp", "output_norm", "down", block.out, cols, mlp_body};
  return build_half(b, &block, &mlp, build_half(b, &block, &attention, block.x));
}
