// A model file's graph: one row of `steps` per op and block. See build.h and docs/MODELS.md.
#include "model/build.h"
#include "model/signature_conf.h"

#include <stdio.h>
#include <string.h>

static struct node unary(enum op op, int32_t x) {
  return (struct node){.op = op, .in = {x, -1, -1, -1}, .n_in = 1};
}

static int32_t read_int(struct builder *b, const struct conf_node *step, const char *key,
                        int64_t max, int32_t def) {
  int64_t value = def;
  const struct conf_node *node = conf_find(step, key);
  if (node != NULL && !conf_int(b->report, node, 1, max, &value)) return -1;
  return (int32_t)value;
}

static bool read_float(struct builder *b, const struct conf_node *step, const char *key, double min,
                       double max, double *value) {
  const struct conf_node *node = conf_find(step, key);
  return node == NULL || conf_float(b->report, node, min, max, value);
}

static bool read_word(struct builder *b, const struct conf_node *step, const char *key,
                      const char *words, int *index) {
  const struct conf_node *node = conf_find(step, key);
  return node == NULL || conf_enum(b->report, node, words, index);
}

static bool need_word(struct builder *b, const struct conf_node *step, const char *key,
                      const char *words, int *index) {
  const struct conf_node *node = conf_need(b->report, step, key);
  return node != NULL && conf_enum(b->report, node, words, index);
}

// ---- pieces that blocks use as well ---------------------------------------------------------

static bool join(struct builder *b, const struct conf_node *at, const char *prefix,
                 const char *suffix, char *out) {
  int n = snprintf(out, LIMIT_NAME_BYTES, "%s%s", prefix, suffix);
  if (n < LIMIT_NAME_BYTES) return true;
  conf_fail(b->report, at, "a weight's name of more than %d bytes", LIMIT_NAME_BYTES - 1);
  return false;
}

// x [., k] times a matrix [n, k], plus a vector [n] when `bias` names one.
static int32_t linear(struct builder *b, const struct conf_node *at, int32_t x, const char *weight,
                      const char *bias, int32_t features, const char *features_key,
                      const char *out_name) {
  int32_t rows = build_rows(b, at, weight, features, features_key);
  if (x < 0 || rows <= 0) return BUILD_UNKNOWN;
  struct node node = {.op = OP_LINEAR, .n_in = 2};
  node.in[0] = x;
  node.in[1] = build_weight(b, at, weight, WEIGHT_MATRIX, rows, build_tensor(b, x)->cols);
  if (bias != NULL) node.in[node.n_in++] = build_weight(b, at, bias, WEIGHT_VECTOR, 1, rows);
  return build_node(b, at, node, out_name, b->model->compute);
}

int32_t build_linear(struct builder *b, const struct conf_node *at, int32_t x, const char *prefix,
                     bool bias, int32_t features, const char *features_key, const char *out_name) {
  char weight[LIMIT_NAME_BYTES], vector[LIMIT_NAME_BYTES];
  if (!join(b, at, prefix, ".weight", weight) || !join(b, at, prefix, ".bias", vector))
    return BUILD_UNKNOWN;
  return linear(b, at, x, weight, bias ? vector : NULL, features, features_key, out_name);
}

// `beta` NULL: none.
static int32_t norm(struct builder *b, const struct conf_node *at, int32_t x, enum norm_kind kind,
                    const char *gamma, const char *beta, double eps, const char *out_name) {
  if (x < 0) return BUILD_UNKNOWN;
  int32_t cols = build_tensor(b, x)->cols;
  struct node node = {.op = kind == NORM_LAYER ? OP_LAYER_NORM : OP_RMS_NORM, .n_in = 2};
  node.attrs.eps = (float)eps;
  node.in[0] = x;
  node.in[1] = build_weight(b, at, gamma, WEIGHT_GAIN, 1, cols);
  if (beta != NULL) node.in[node.n_in++] = build_weight(b, at, beta, WEIGHT_VECTOR, 1, cols);
  return build_node(b, at, node, out_name, b->model->compute);
}

int32_t build_norm(struct builder *b, const struct conf_node *at, int32_t x, enum norm_kind kind,
                   const char *prefix, double eps, const char *out_name) {
  char gamma[LIMIT_NAME_BYTES], beta[LIMIT_NAME_BYTES];
  if (!join(b, at, prefix, ".weight", gamma) || !join(b, at, prefix, ".bias", beta))
    return BUILD_UNKNOWN;
  return norm(b, at, x, kind, gamma, kind == NORM_LAYER ? beta : NULL, eps, out_name);
}

int32_t build_activation(struct builder *b, const struct conf_node *at, int32_t x,
                         enum activation act, const char *out_name) {
  static const enum op ops[ACT_COUNT] = {
      [ACT_NONE] = OP_IDENTITY,  [ACT_GELU_ERF] = OP_GELU, [ACT_GELU_TANH] = OP_GELU,
      [ACT_RELU] = OP_RELU,      [ACT_SILU] = OP_SILU,     [ACT_TANH] = OP_TANH,
      [ACT_SIGMOID] = OP_SIGMOID};
  struct node node = unary(ops[act], x);
  node.attrs.approximate_tanh = act == ACT_GELU_TANH;
  return build_node(b, at, node, out_name, b->model->compute);
}

int32_t build_pair(struct builder *b, const struct conf_node *at, enum op op, int32_t x, int32_t y,
                   const char *out_name) {
  struct node node = {.op = op, .in = {x, y, -1, -1}, .n_in = 2};
  return build_node(b, at, node, out_name, b->model->compute);
}

// ---- ops ------------------------------------------------------------------------------------

// Names of a step's matrix and vector: `weights: prefix` (then prefix.weight and prefix.bias), or
// `weight:` and `bias:` in full. `bias: false` drops it. An empty vector name means none.
static bool weight_names(struct builder *b, const struct conf_node *step, bool bias_default,
                         char *matrix, char *vector) {
  const struct conf_node *prefix = conf_find(step, "weights"), *weight = conf_find(step, "weight"),
                         *bias = conf_find(step, "bias");
  char text[LIMIT_NAME_BYTES];
  vector[0] = '\0';
  if ((prefix == NULL) == (weight == NULL)) {
    conf_fail(b->report, step,
              "expected one of the keys \"weights\" (a prefix) and \"weight\" (a name), found %s",
              prefix == NULL ? "none" : "both");
    return false;
  }
  if (!build_name(b, prefix != NULL ? prefix : weight, text) ||
      !join(b, step, text, prefix != NULL ? ".weight" : "", matrix))
    return false;
  bool use = bias_default && prefix != NULL;
  if (bias != NULL && bias->kind == CONF_SCALAR && !bias->quoted &&
      (strcmp(bias->text, "true") == 0 || strcmp(bias->text, "false") == 0))
    use = bias->text[0] == 't';
  else if (bias != NULL)
    return build_name(b, bias, vector);
  if (use && prefix == NULL) {
    conf_fail(b->report, bias, "expected a name: with \"weight\" the bias is named in full");
    return false;
  }
  return !use || join(b, step, text, ".bias", vector);
}

static int32_t step_linear(struct builder *b, const struct conf_node *step) {
  char out[LIMIT_NAME_BYTES], weight[LIMIT_NAME_BYTES], bias[LIMIT_NAME_BYTES];
  int32_t x, features = read_int(b, step, "features", LIMIT_DIM, 0);
  bool ok = build_ends(b, step, 1, &x, "linear", out);
  ok &= weight_names(b, step, true, weight, bias);
  if (!ok || features < 0) return BUILD_UNKNOWN;
  return linear(b, step, x, weight, bias[0] != '\0' ? bias : NULL, features, "features", out);
}

static int32_t step_norm(struct builder *b, const struct conf_node *step, enum norm_kind kind) {
  char out[LIMIT_NAME_BYTES], gamma[LIMIT_NAME_BYTES], beta[LIMIT_NAME_BYTES];
  double eps = kind == NORM_LAYER ? 1e-5 : 1e-6;
  int32_t x;
  bool ok = build_ends(b, step, 1, &x, kind == NORM_LAYER ? "layer_norm" : "rms_norm", out);
  ok &= weight_names(b, step, kind == NORM_LAYER, gamma, beta);
  ok &= read_float(b, step, "eps", 0, 1, &eps);
  return ok ? norm(b, step, x, kind, gamma, beta[0] != '\0' ? beta : NULL, eps, out)
            : BUILD_UNKNOWN;
}

static int32_t step_layer_norm(struct builder *b, const struct conf_node *step) {
  return step_norm(b, step, NORM_LAYER);
}

static int32_t step_rms_norm(struct builder *b, const struct conf_node *step) {
  return step_norm(b, step, NORM_RMS);
}

// An op of one input; `attrs` is all that it takes. `ok`: they could be read; its ends are checked
// all the same.
static int32_t plain(struct builder *b, const struct conf_node *step, enum op op,
                     struct node_attrs attrs, bool ok) {
  char out[LIMIT_NAME_BYTES];
  int32_t x;
  ok &= build_ends(b, step, 1, &x, op_name(op), out);
  struct node node = unary(op, x);
  node.attrs = attrs;
  return ok ? build_node(b, step, node, out, DTYPE_INVALID) : BUILD_UNKNOWN;
}

static int32_t step_gelu(struct builder *b, const struct conf_node *step) {
  int form = 0;
  bool ok = read_word(b, step, "form", "erf|tanh", &form);
  return plain(b, step, OP_GELU, (struct node_attrs){.approximate_tanh = form == 1}, ok);
}

static int32_t step_scale(struct builder *b, const struct conf_node *step) {
  double factor = 1;
  const struct conf_node *node = conf_need(b->report, step, "factor");
  bool ok = node != NULL && conf_float(b->report, node, -1e30, 1e30, &factor);
  return plain(b, step, OP_SCALE, (struct node_attrs){.factor = (float)factor}, ok);
}

static int32_t step_cast(struct builder *b, const struct conf_node *step) {
  int to = 0;
  bool ok = need_word(b, step, "to", SIGNATURE_FLOATS, &to) &&
            build_dtype(b, conf_find(step, "to"), signature_dtypes[to]);
  return plain(b, step, OP_CAST, (struct node_attrs){.to = signature_dtypes[to]}, ok);
}

static int32_t step_reduce(struct builder *b, const struct conf_node *step) {
  int kind = 0;
  bool ok = need_word(b, step, "kind", "sum|mean|max", &kind);
  return plain(b, step, OP_REDUCE, (struct node_attrs){.reduce = (enum reduce_kind)kind}, ok);
}

static int32_t step_pool(struct builder *b, const struct conf_node *step) {
  int kind = 0;
  bool ok = need_word(b, step, "kind", "mean|cls|max", &kind);
  return plain(b, step, OP_POOL, (struct node_attrs){.pool = (enum pool_kind)kind}, ok);
}

static int32_t step_normalize(struct builder *b, const struct conf_node *step) {
  double eps = 1e-12;
  bool ok = read_float(b, step, "eps", 0, 1, &eps);
  return plain(b, step, OP_NORMALIZE, (struct node_attrs){.eps = (float)eps}, ok);
}

// x + vector, or x * vector: a weight over the columns.
static int32_t with_vector(struct builder *b, const struct conf_node *step, enum op op,
                           enum weight_form form) {
  char out[LIMIT_NAME_BYTES], name[LIMIT_NAME_BYTES];
  int32_t x;
  const struct conf_node *weight = conf_need(b->report, step, "weight");
  bool ok = build_ends(b, step, 1, &x, op_name(op), out);
  ok &= weight != NULL && build_name(b, weight, name);
  if (!ok || x < 0) return BUILD_UNKNOWN;
  int32_t y = build_weight(b, step, name, form, 1, build_tensor(b, x)->cols);
  return build_pair(b, step, op, x, y, out);
}

static int32_t step_bias(struct builder *b, const struct conf_node *step) {
  return with_vector(b, step, OP_BIAS, WEIGHT_VECTOR);
}

static int32_t step_pair(struct builder *b, const struct conf_node *step, enum op op) {
  char out[LIMIT_NAME_BYTES];
  int32_t in[2];
  if (conf_find(step, "weight") != NULL)
    return with_vector(b, step, op, op == OP_MUL ? WEIGHT_GAIN : WEIGHT_VECTOR);
  bool ok = build_ends(b, step, 2, in, op_name(op), out);
  return ok ? build_pair(b, step, op, in[0], in[1], out) : BUILD_UNKNOWN;
}

static int32_t step_add(struct builder *b, const struct conf_node *step) {
  return step_pair(b, step, OP_ADD);
}

static int32_t step_mul(struct builder *b, const struct conf_node *step) {
  return step_pair(b, step, OP_MUL);
}

static int32_t step_attention(struct builder *b, const struct conf_node *step) {
  char out[LIMIT_NAME_BYTES];
  struct node node = {.op = OP_ATTENTION, .n_in = 3};
  const struct conf_node *heads = conf_need(b->report, step, "heads"),
                         *causal = conf_find(step, "causal");
  double factor = 0;
  node.attrs.heads = read_int(b, step, "heads", LIMIT_HEADS, 1);
  node.attrs.kv_heads = read_int(b, step, "kv_heads", LIMIT_HEADS, node.attrs.heads);
  bool ok = build_ends(b, step, 3, node.in, "attention", out);
  ok &= read_float(b, step, "factor", 1e-30, 1e6, &factor);
  ok &= (causal == NULL || conf_bool(b->report, causal, &node.attrs.causal));
  if (!ok || heads == NULL || node.attrs.heads < 0 || node.attrs.kv_heads < 0) return BUILD_UNKNOWN;
  node.attrs.factor = (float)factor;
  return build_node(b, step, node, out, b->model->compute);
}

static int32_t step_embedding(struct builder *b, const struct conf_node *step) {
  char out[LIMIT_NAME_BYTES], table[LIMIT_NAME_BYTES], none[LIMIT_NAME_BYTES];
  int32_t ids, rows = read_int(b, step, "rows", LIMIT_DIM, 0),
               cols = read_int(b, step, "features", LIMIT_DIM, 0), file_rows, file_cols;
  bool ok = build_ends(b, step, 1, &ids, "embedding", out);
  ok &= weight_names(b, step, false, table, none);
  if (!ok || rows < 0 || cols < 0) return BUILD_UNKNOWN;
  rows = build_rows(b, step, table, rows, "rows");
  if (rows == 0) return BUILD_UNKNOWN;
  if (cols == 0 && b->weights != NULL && weights_shape(b->weights, table, &file_rows, &file_cols))
    cols = file_cols;
  if (cols == 0) {
    conf_fail(b->report, step,
              "key \"features\" is missing: synthetic weights have no shape of their own");
    return BUILD_UNKNOWN;
  }
  struct node node = {.op = OP_EMBEDDING, .n_in = 2};
  node.in[0] = ids;
  node.in[1] = build_weight(b, step, table, WEIGHT_TABLE, rows, cols);
  return build_node(b, step, node, out, b->model->compute);
}

// ---- repeat ---------------------------------------------------------------------------------

static bool counter_is_free(struct builder *b, const struct conf_node *at, const char *as) {
  if (as[strcspn(as, "{}+- ")] != '\0') {
    conf_fail(b->report, at, "expected a word, found \"%s\"", as);
    return false;
  }
  for (int s = 0; s < b->n_scopes; s++) {
    if (strcmp(b->scopes[s].as, as) != 0) continue;
    conf_fail(b->report, at, "a repeat around this one counts with \"%s\" already", as);
    return false;
  }
  return true;
}

// Remembers the name of what a broken step would have made. `keys`: those that the step has.
static void mark_broken(struct builder *b, const struct conf_node *step, const char *keys) {
  const struct conf_node *out = step->kind == CONF_MAP ? conf_find(step, "out") : NULL;
  const char *text;
  struct conf_report silent = {0};
  if (b->n_broken == BUILD_BROKEN) return;
  if (out == NULL) { // a key that it does not have may be a misspelt `out`
    if (step->kind == CONF_MAP && !conf_check_keys(&silent, step, keys)) build_forgive_names(b);
    return;
  }
  struct conf_report *report = b->report;
  b->report = &silent;
  if (conf_text(&silent, out, LIMIT_NAME_BYTES, false, &text) &&
      build_expand(b, out, text, b->broken[b->n_broken]))
    b->n_broken++;
  else
    build_forgive_names(b);
  b->report = report;
}

// What the rest of a repeat that an error cut short would have made, so that nobody misses it.
static void mark_rest(struct builder *b, const char *as, int32_t from, int32_t times,
                      const struct conf_node *body) {
  int scope = b->n_scopes++, before = -1;
  b->scopes[scope].as = as;
  for (int32_t i = from; i < times && b->n_broken != before; i++) {
    before = b->n_broken;
    b->scopes[scope].value = i;
    for (int s = 0; s < body->n_items; s++) {
      const struct conf_node *item = body->items[s];
      if (item->kind != CONF_MAP || item->n_items != 1) continue;
      const struct conf_node *step = item->items[0];
      if (strcmp(step->key, "repeat") == 0)
        build_forgive_names(b); // nobody counts what it would have made
      else if (conf_find(step, "out") != NULL)
        mark_broken(b, step, "");
    }
  }
  b->n_scopes--;
}

// The steps of a repeat and its counter's name; NULL: reported.
static const struct conf_node *repeat_body(struct builder *b, const struct conf_node *step,
                                           const char **as) {
  const struct conf_node *body = conf_need(b->report, step, "body"),
                         *as_node = conf_find(step, "as");
  if (as_node != NULL && !conf_text(b->report, as_node, 32, false, as)) return NULL;
  if (b->n_scopes == BUILD_SCOPES) {
    conf_fail(b->report, step, "repeats nested more than %d deep", BUILD_SCOPES);
    return NULL;
  }
  if (body == NULL || !conf_is_list(b->report, body) ||
      !counter_is_free(b, as_node != NULL ? as_node : step, *as))
    return NULL;
  if (body->n_items != 0) return body;
  conf_fail(b->report, body, "expected at least one step"); // nested, they would count to 2^40
  return NULL;
}

static int32_t step_repeat(struct builder *b, const struct conf_node *step) {
  const struct conf_node *times_node = conf_need(b->report, step, "times");
  const char *as = "i";
  int32_t times = read_int(b, step, "times", LIMIT_REPEAT, 1);
  const struct conf_node *body = repeat_body(b, step, &as);
  if (body == NULL) {
    build_forgive_names(b);
    return BUILD_UNKNOWN;
  }
  int errors = b->report->n_errors, s = b->n_scopes++;
  b->scopes[s].as = as;
  int32_t i = 0;
  bool countless = times_node == NULL || times < 0; // once, for the mistakes in it
  if (countless) times = 1;
  // An error is told once, and behind one made before nothing comes of any number of steps.
  for (; i < times && b->report->n_errors == errors && b->n_steps < BUILD_STEPS; i++) {
    b->scopes[s].value = i;
    build_steps(b, body);
  }
  b->n_scopes--;
  mark_rest(b, as, i, countless ? LIMIT_REPEAT : times, body);
  return b->report->n_errors == errors && !countless ? b->current : BUILD_UNKNOWN;
}

// ---- the table ------------------------------------------------------------------------------

// Ops that are not here have no keys but `in` and `out` (relu, ...): kernels/ops.def is enough.
static const struct {
  const char *word, *keys;
  build_fn build;
} steps[] = {
    {"linear", "in|out|weights|weight|bias|features", step_linear},
    {"layer_norm", "in|out|weights|weight|bias|eps", step_layer_norm},
    {"rms_norm", "in|out|weights|weight|eps", step_rms_norm},
    {"gelu", "in|out|form", step_gelu},
    {"add", "in|out|weight", step_add},
    {"mul", "in|out|weight", step_mul},
    {"scale", "in|out|factor", step_scale},
    {"bias", "in|out|weight", step_bias},
    {"cast", "in|out|to", step_cast},
    {"reduce", "in|out|kind", step_reduce},
    {"attention", "in|out|heads|kv_heads|causal|factor", step_attention},
    {"embedding", "in|out|weights|weight|rows|features", step_embedding},
    {"pool", "in|out|kind", step_pool},
    {"normalize", "in|out|eps", step_normalize},
    {"mlp",
     "in|out|weights|up|gate|down|norm_weights|hidden|features|activation|bias|norm|norm_kind|eps|"
     "residual",
     build_mlp},
    {"attention_block",
     "in|out|weights|query|key|value|output|norm_weights|heads|kv_heads|head_dim|causal|bias|norm|"
     "norm_kind|eps|residual",
     build_attention_block},
    {"encoder_layer",
     "in|out|weights|query|key|value|attention_output|attention_norm|up|gate|down|output_norm|"
     "heads|kv_heads|"
     "head_dim|causal|hidden|activation|bias|norm|norm_kind|eps",
     build_encoder_layer},
    {"repeat", "times|as|body", step_repeat},
};
enum { N_STEPS = sizeof steps / sizeof *steps };

static void unknown_step(struct builder *b, const struct conf_node *at, const char *word,
                         bool key) {
  char words[1024], near[64];
  size_t used = 0;
  for (int i = 0; i < N_STEPS && used < sizeof words; i++)
    used += (size_t)snprintf(words + used, sizeof words - used, "%s|", steps[i].word);
  for (int op = OP_INVALID + 1; op < OP_COUNT && used < sizeof words; op++)
    used += (size_t)snprintf(words + used, sizeof words - used, "%s|", op_name((enum op)op));
  const char *best = conf_nearest(word, words, near, sizeof near);
  void (*fail)(struct conf_report *, const struct conf_node *, const char *, ...) =
      key ? conf_fail_key : conf_fail;
  if (best != NULL)
    fail(b->report, at, "unknown op or block \"%.100s\"; did you mean \"%s\"?", word, best);
  else
    fail(b->report, at, "unknown op or block \"%.100s\"; docs/MODELS.md lists them", word);
}

// `- relu`, `- relu:` or `- relu: {...}`; the node of the arguments, or NULL when reported.
static const struct conf_node *step_arguments(struct builder *b, const struct conf_node *item,
                                              const char **word) {
  if (item->kind == CONF_SCALAR) {
    if (!conf_text(b->report, item, LIMIT_NAME_BYTES, false, word)) return NULL;
    return item;
  }
  if (item->kind != CONF_MAP || item->n_items != 1) {
    conf_fail(b->report, item,
              "expected one op or block, as in \"- linear: {weights: a}\", found %s%s",
              item->kind == CONF_MAP ? "a map of " : "a list",
              item->kind != CONF_MAP ? ""
              : item->n_items == 0   ? "no keys"
                                     : "several keys");
    return NULL;
  }
  const struct conf_node *args = item->items[0];
  *word = args->key;
  bool empty = args->kind == CONF_SCALAR && !args->quoted && args->text[0] == '\0';
  return empty || conf_is_map(b->report, args) ? args : NULL;
}

static int32_t run_step(struct builder *b, const struct conf_node *args, const char *word,
                        bool key) {
  enum op op = op_find(word);
  int i = 0;
  while (i < N_STEPS && strcmp(steps[i].word, word) != 0)
    i++;
  const char *keys = i < N_STEPS ? steps[i].keys : "in|out";
  int32_t made = BUILD_UNKNOWN;
  if (i == N_STEPS && op == OP_INVALID) {
    keys = "in|weights|weight|bias|features"; // what else it has may be a misspelt `out`
    unknown_step(b, args, word, key);
  } else if (args->kind != CONF_MAP || conf_check_keys(b->report, args, keys)) {
    made = i < N_STEPS ? steps[i].build(b, args) : plain(b, args, op, (struct node_attrs){0}, true);
  }
  if (made < 0) mark_broken(b, args, keys);
  return made;
}

static bool may_go_on(struct builder *b, const struct conf_node *item) {
  if (b->n_steps < BUILD_STEPS) return b->n_steps++, true;
  if (b->report->n_errors == 0)
    conf_fail(b->report, item, "more than %d steps, with repeats written out", BUILD_STEPS);
  return false;
}

static void build_step(struct builder *b, const struct conf_node *item) {
  const char *word;
  const struct conf_node *args = step_arguments(b, item, &word);
  bool run = args != NULL && may_go_on(b, item);
  b->current = run ? run_step(b, args, word, item->kind == CONF_MAP) : BUILD_UNKNOWN;
  if (!run && item->kind != CONF_SCALAR) build_forgive_names(b);
}

void build_steps(struct builder *b, const struct conf_node *list) {
  for (int i = 0; i < list->n_items && b->report->n_errors < LIMIT_CONF_ERRORS; i++)
    build_step(b, list->items[i]);
}
