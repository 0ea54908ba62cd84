// The keys of a model file around its graph: name, weights, limits, inputs, outputs. See
// model_conf.h.
#include "model/model_conf.h"
#include "model/ab_conf.h"
#include "model/build.h"
#include "model/signature_conf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEYS                                                                                       \
  "name|version|weights|compute|fusion|fusion_tokens|ab|max_seqlen|batch|inputs|graph|outputs"

struct loader {
  struct conf_report *report;
  const struct conf_node *root;
  const struct server_conf *conf;
  struct model *model;
  struct builder *build;
};

// ---- who it is ------------------------------------------------------------------------------

static bool name_is_plain(const char *text, const char *also) {
  for (; *text != '\0'; text++) {
    bool alnum = (*text >= '0' && *text <= '9') || (*text >= 'A' && *text <= 'Z') ||
                 (*text >= 'a' && *text <= 'z');
    if (!alnum && strchr(also, *text) == NULL) return false;
  }
  return true;
}

static void read_identity(struct loader *l) {
  const struct conf_node *name = conf_need(l->report, l->root, "name"),
                         *version = conf_find(l->root, "version");
  const char *text;
  if (name != NULL && conf_text(l->report, name, sizeof l->model->name, false, &text)) {
    if (!name_is_plain(text, "._-"))
      conf_fail(l->report, name,
                "expected letters, digits, \".\", \"_\" and \"-\", found \"%.100s\"", text);
    else
      snprintf(l->model->name, sizeof l->model->name, "%s", text);
  }
  snprintf(l->model->version, sizeof l->model->version, "1");
  if (version != NULL && conf_text(l->report, version, sizeof l->model->version, false, &text)) {
    if (!name_is_plain(text, "._-"))
      conf_fail(l->report, version,
                "expected letters, digits, \".\", \"_\" and \"-\", found \"%.100s\"", text);
    else
      snprintf(l->model->version, sizeof l->model->version, "%s", text);
  }
}

static void read_modes(struct loader *l) {
  const struct conf_node *compute = conf_find(l->root, "compute"),
                         *fusion = conf_find(l->root, "fusion");
  int word = 0;
  if (compute != NULL) (void)conf_enum(l->report, compute, SIGNATURE_FLOATS, &word);
  l->model->compute = signature_dtypes[word];
  (void)build_dtype(l->build, compute != NULL ? compute : l->root, l->model->compute);
  word = 0;
  enum { WORD_ON, WORD_OFF, WORD_AB, WORD_AUTO };
  static const char *const words[] = {"on", "off", "ab", "auto"};
  if (fusion != NULL) (void)conf_enum(l->report, fusion, "on|off|ab|auto", &word);
  snprintf(l->model->fusion_word, sizeof l->model->fusion_word, "%s", words[word]);
  l->model->fusion_available[FUSION_ON] = word == WORD_ON || word == WORD_AB;
  l->model->fusion_available[FUSION_OFF] = word == WORD_OFF || word == WORD_AB;
  l->model->fusion_available[FUSION_AUTO] = word == WORD_AUTO || word == WORD_AB;
  l->model->fusion_default = word == WORD_OFF    ? FUSION_OFF
                             : word == WORD_AUTO ? FUSION_AUTO
                                                 : FUSION_ON;
}

// ---- batch limits ---------------------------------------------------------------------------

static int64_t read_limit(struct loader *l, const struct conf_node *batch, const char *key,
                          int64_t min, int64_t max, int64_t def) {
  const struct conf_node *node = batch != NULL ? conf_find(batch, key) : NULL;
  int64_t value = def;
  if (node != NULL) (void)conf_int(l->report, node, min, max, &value);
  return value;
}

static void read_batch(struct loader *l) {
  const struct conf_node *batch = conf_find(l->root, "batch");
  const struct server_conf *conf = l->conf;
  if (batch != NULL && !conf_is_map(l->report, batch)) batch = NULL;
  if (batch != NULL)
    (void)conf_check_keys(l->report, batch, "max_tokens|max_requests|max_delay|queue_requests");
  struct batch_limits *out = &l->model->batch;
  out->max_tokens = (int32_t)read_limit(l, batch, "max_tokens", 1, 1 << 20, conf->batch_max_tokens);
  out->max_requests = (int32_t)read_limit(l, batch, "max_requests", 1, LIMIT_BATCH_REQUESTS,
                                          conf->batch_max_requests);
  out->max_delay_ns =
      1000 * read_limit(l, batch, "max_delay", 0, 1000000, conf->batch_max_delay_us);
  out->queue_requests =
      (int32_t)read_limit(l, batch, "queue_requests", 1, 1 << 20, conf->queue_requests);
  l->model->max_request_rows = out->max_tokens;
}

static void read_fusion_tokens(struct loader *l) {
  const struct conf_node *node = conf_find(l->root, "fusion_tokens");
  int64_t value = 0;
  if (node == NULL || !conf_int(l->report, node, 1, 1 << 20, &value)) return;
  if (value > l->model->batch.max_tokens)
    conf_fail(l->report, node, "%lld tokens in a batch, but batch.max_tokens is %d",
              (long long)value, l->model->batch.max_tokens);
  l->model->fusion_tokens = (int32_t)value;
}

// ---- weights --------------------------------------------------------------------------------

static enum status open_file(struct loader *l, const struct conf_node *node, const char *text,
                             struct error *err) {
  char path[sizeof l->model->path];
  const char *slash = strrchr(l->model->path, '/');
  int folder = text[0] != '/' && slash != NULL ? (int)(slash - l->model->path) + 1 : 0;
  int n = snprintf(path, sizeof path, "%.*s%s", folder, l->model->path, text);
  if ((size_t)n >= sizeof path)
    return error_set(err, STATUS_INVALID_ARGUMENT, "a path of %d bytes", n);
  enum status code = weights_open_file(path, &l->build->weights, err);
  if (code != STATUS_OK) conf_fail(l->report, node, "%s: %s", path, err->message);
  return code;
}

static enum status open_synthetic(struct loader *l, const struct conf_node *node,
                                  struct error *err) {
  int64_t seed = 0;
  double scale = 0.02;
  const struct conf_node *seed_node = conf_find(node, "seed"),
                         *scale_node = conf_find(node, "scale");
  (void)conf_check_keys(l->report, node, "seed|scale");
  if (seed_node != NULL) (void)conf_int(l->report, seed_node, 0, INT64_MAX, &seed);
  if (scale_node != NULL) (void)conf_float(l->report, scale_node, 0, 1e6, &scale);
  return weights_open_synthetic((uint64_t)seed, scale, &l->build->weights, err);
}

static void read_weights(struct loader *l) {
  const struct conf_node *weights = conf_find(l->root, "weights");
  struct error err;
  const char *text;
  if (weights == NULL) return;
  l->build->weights_broken = true; // until it is open
  if (!conf_is_map(l->report, weights)) return;
  (void)conf_check_keys(l->report, weights, "file|synthetic");
  const struct conf_node *file = conf_find(weights, "file"),
                         *synthetic = conf_find(weights, "synthetic");
  if ((file != NULL) == (synthetic != NULL)) {
    conf_fail(l->report, weights, "expected one of the keys \"file\" and \"synthetic\", found %s",
              file != NULL ? "both" : "none");
    return;
  }
  enum status code = STATUS_INVALID_ARGUMENT;
  if (file != NULL && conf_text(l->report, file, sizeof l->model->path, false, &text))
    code = open_file(l, file, text, &err);
  else if (synthetic != NULL && conf_is_map(l->report, synthetic))
    code = open_synthetic(l, synthetic, &err);
  l->build->weights_broken = code != STATUS_OK;
  l->model->weights_owner = l->build->weights;
}

// ---- outputs --------------------------------------------------------------------------------

// The tensor as the client gets it: an activation of the wire dtype.
static int32_t wire_tensor(struct loader *l, const struct conf_node *node, int32_t id,
                           enum dtype dtype) {
  struct graph *graph = &l->model->graph;
  struct node last = {.op = OP_CAST, .in = {id, -1, -1, -1}, .n_in = 1};
  char name[LIMIT_NAME_BYTES];
  last.attrs.to = dtype;
  if (graph->tensors[id].dtype == dtype) {
    if (graph->tensors[id].kind == TENSOR_ACTIVATION) return id;
    last.op = OP_IDENTITY; // an input that is an output as well
  }
  snprintf(name, sizeof name, "%s#%d", op_name(last.op), graph->n_nodes);
  return build_node(l->build, node, last, name, dtype);
}

// The shape that the graph gives, or the one in the file when it says the same.
static void output_shape(struct loader *l, const struct conf_node *node,
                         const struct tensor *tensor, struct signature_tensor *out) {
  const struct conf_node *shape = node->kind == CONF_MAP ? conf_find(node, "shape") : NULL;
  bool per_token = l->model->has_sequences && tensor->rows == ROWS_TOKENS;
  if (shape != NULL) {
    if (!signature_read_shape(l->report, shape, out)) return;
    if (out->per_token == per_token && out->row_elements == tensor->cols) return;
    conf_fail(l->report, shape, "the graph makes [batch, %s%d] of it", per_token ? "seq, " : "",
              tensor->cols);
    return;
  }
  out->per_token = per_token;
  out->row_elements = tensor->cols;
  out->dims[out->rank++] = DIM_BATCH;
  if (per_token) out->dims[out->rank++] = DIM_SEQ;
  out->dims[out->rank++] = tensor->cols;
}

static void read_output(struct loader *l, const struct conf_node *node) {
  struct model *model = l->model;
  struct signature_tensor *out = &model->outputs[model->n_outputs];
  const struct conf_node *name = node, *from = NULL, *dtype_node = NULL;
  int dtype = 0, errors = l->report->n_errors;
  if (node->kind == CONF_MAP) {
    (void)conf_check_keys(l->report, node, "name|from|dtype|shape");
    name = conf_need(l->report, node, "name");
    from = conf_find(node, "from");
    dtype_node = conf_find(node, "dtype");
  }
  char source[LIMIT_NAME_BYTES];
  signature_read_name(l->build, name, out);
  if (dtype_node != NULL && conf_enum(l->report, dtype_node, SIGNATURE_FLOATS, &dtype))
    (void)build_dtype(l->build, dtype_node, signature_dtypes[dtype]);
  if (from != NULL ? !build_name(l->build, from, source) : name == NULL) return;
  if (l->report->n_errors != errors) return;
  int32_t id = build_find(l->build, from != NULL ? from : name, from != NULL ? source : out->name);
  out->dtype = signature_dtypes[dtype];
  if (id >= 0 && signature_is_index(model->graph.tensors[id].dtype)) {
    conf_fail(l->report, node, "an output is floating point; \"%s\" holds indices",
              model->graph.tensors[id].name);
    return;
  }
  if (id >= 0) id = wire_tensor(l, node, id, out->dtype);
  if (id < 0) return;
  int32_t same = 0;
  while (same < model->n_outputs && strcmp(model->outputs[same].name, out->name) != 0 &&
         model->graph.outputs[same] != id)
    same++;
  if (same < model->n_outputs)
    conf_fail(l->report, node, "output \"%s\" already %s", model->outputs[same].name,
              model->graph.outputs[same] == id ? "is this tensor" : "exists");
  output_shape(l, node, &model->graph.tensors[id], out);
  model->graph.outputs[model->n_outputs++] = id;
  model->graph.n_outputs = model->n_outputs;
}

static void read_outputs(struct loader *l) {
  const struct conf_node *list = conf_need(l->report, l->root, "outputs");
  if (list == NULL || !conf_is_list(l->report, list)) return;
  if (list->n_items < 1 || list->n_items > LIMIT_MODEL_OUTPUTS) {
    conf_fail(l->report, list, "expected 1 to %d outputs, found %d", LIMIT_MODEL_OUTPUTS,
              list->n_items);
    return;
  }
  for (int i = 0; i < list->n_items; i++)
    read_output(l, list->items[i]);
}

// ---- the graph ------------------------------------------------------------------------------

static void read_graph(struct loader *l) {
  const struct conf_node *list = conf_need(l->report, l->root, "graph");
  if (list == NULL || !conf_is_list(l->report, list)) {
    build_forgive_names(l->build);
    return;
  }
  l->model->graph.has_sequences = l->model->has_sequences;
  if (list->n_items == 0) {
    conf_fail(l->report, list, "expected at least one step");
    build_forgive_names(l->build);
  }
  build_steps(l->build, list);
}

// Rows of the tables that an input, or `positions`, picks from.
static void find_index_limits(struct loader *l, int64_t *positions_limit) {
  const struct graph *graph = &l->model->graph;
  *positions_limit = INT64_MAX;
  for (int32_t i = 0; i < graph->n_nodes; i++) {
    const struct node *node = &graph->nodes[i];
    if (node->op != OP_EMBEDDING) continue;
    const struct tensor *ids = &graph->tensors[node->in[0]];
    int64_t rows = graph->tensors[node->in[1]].n_rows;
    if (ids->kind == TENSOR_POSITIONS && rows < *positions_limit) *positions_limit = rows;
    if (ids->kind != TENSOR_INPUT) continue;
    int64_t *limit = &l->model->inputs[ids->index].index_limit;
    if (*limit == 0 || rows < *limit) *limit = rows;
  }
}

// Ids named as a mask that nobody reads: most likely its role was forgotten, and padding would
// count as tokens without a word.
static bool forgotten_mask(const struct signature_tensor *in) {
  size_t bytes = strlen(in->name);
  return signature_is_index(in->dtype) && in->rank == 2 && in->per_token && bytes >= 4 &&
         strcmp(in->name + bytes - 4, "mask") == 0;
}

static void check_unused_inputs(struct loader *l) {
  const struct conf_node *list = conf_find(l->root, "inputs");
  for (int32_t i = 0; i < l->model->n_inputs; i++) {
    const struct signature_tensor *in = &l->model->inputs[i];
    if (in->role != ROLE_DATA || l->build->input_tensor[i] != BUILD_NONE) continue;
    if (forgotten_mask(in))
      conf_fail(l->report, list->items[i],
                "no step reads \"%s\", so padding would count as tokens; expected role: mask",
                in->name);
    else if (!in->optional)
      conf_fail(l->report, list->items[i],
                "no step reads \"%s\"; an input that is ignored must be optional", in->name);
  }
}

static void read_max_seqlen(struct loader *l, int64_t positions_limit) {
  const struct conf_node *node = conf_find(l->root, "max_seqlen");
  struct model *model = l->model;
  int64_t limit = model->batch.max_tokens, value;
  model->max_seqlen = 1;
  if (!model->has_sequences) {
    if (node != NULL && !l->build->rows_unknown)
      conf_fail_key(l->report, node, "no input has a seq dimension");
    return;
  }
  value = positions_limit < limit ? positions_limit : limit;
  if (node != NULL && conf_int(l->report, node, 1, 1 << 20, &value)) {
    if (value > positions_limit)
      conf_fail(l->report, node, "%lld positions, but the position table has %lld rows",
                (long long)value, (long long)positions_limit);
    if (value > limit)
      conf_fail(l->report, node, "%lld tokens in a sequence, but batch.max_tokens is %lld",
                (long long)value, (long long)limit);
  }
  model->max_seqlen = (int32_t)value;
}

static void load_parts(struct loader *l) {
  int64_t positions_limit;
  if (l->root->n_items == 0) {
    conf_fail(l->report, l->root,
              "the file has no keys; expected \"name\", \"inputs\", \"graph\" and \"outputs\"");
    return;
  }
  if (conf_find(l->root, "graph") == NULL &&
      (conf_find(l->root, "server") != NULL || conf_find(l->root, "models") != NULL)) {
    conf_fail(l->report, l->root, "settings, not a model file; settings are given with --config");
    return;
  }
  (void)conf_check_keys(l->report, l->root, KEYS);
  read_identity(l);
  read_modes(l);
  read_batch(l);
  read_fusion_tokens(l);
  read_weights(l);
  signature_read_inputs(l->build, l->root);
  int errors = l->report->n_errors;
  read_graph(l);
  read_outputs(l);
  find_index_limits(l, &positions_limit);
  read_max_seqlen(l, positions_limit);
  ab_conf_read(l->report, l->root, l->model);
  if (l->report->n_errors == errors) check_unused_inputs(l);
}

bool model_conf_load(const char *path, const struct server_conf *conf, const struct plan_caps *caps,
                     struct conf_report *report, struct model *model, enum status *code) {
  struct builder *build = calloc(1, sizeof *build);
  struct conf_doc *doc = build != NULL ? conf_load(path, report, code) : NULL;
  if (build == NULL) {
    conf_fail_at(report, 0, 0, "out of memory");
    *code = STATUS_RESOURCE_EXHAUSTED;
  }
  if (doc != NULL) {
    struct loader loader = {report, conf_root(doc), conf, model, build};
    build->report = report;
    build->model = model;
    build->caps = caps;
    build->current = BUILD_NONE;
    for (int i = 0; i < LIMIT_MODEL_INPUTS; i++)
      build->input_tensor[i] = BUILD_NONE;
    load_parts(&loader);
    *code = report->n_errors == 0 ? STATUS_OK : STATUS_INVALID_ARGUMENT;
  }
  conf_free(doc);
  free(build);
  return doc != NULL && report->n_errors == 0;
}
