// Names, tensors, weights and nodes of a model file's graph. See build.h.
#include "model/build.h"

#include <stdio.h>
#include <string.h>

const struct tensor *build_tensor(const struct builder *b, int32_t id) {
  return &b->model->graph.tensors[id];
}

// ---- names ----------------------------------------------------------------------------------

// "{i}" or "{i+3}" at `text` (which points behind the brace): its value, and where it ends.
static bool template_value(const struct builder *b, const char *text, int64_t *value,
                           const char **end) {
  size_t bytes = strcspn(text, "}+-");
  for (int s = 0; s < b->n_scopes; s++) {
    if (strlen(b->scopes[s].as) != bytes || memcmp(b->scopes[s].as, text, bytes) != 0) continue;
    const char *at = text + bytes;
    int64_t offset = 0, sign = *at == '-' ? -1 : 1;
    if (*at == '+' || *at == '-')
      for (at++; *at >= '0' && *at <= '9' && offset < LIMIT_REPEAT; at++)
        offset = offset * 10 + (*at - '0');
    if (*at != '}') return false;
    *value = b->scopes[s].value + sign * offset;
    *end = at + 1;
    return true;
  }
  return false;
}

bool build_expand(struct builder *b, const struct conf_node *at, const char *text, char *out) {
  size_t used = 0;
  while (*text != '\0') {
    char piece[24] = {*text};
    if (*text == '{') {
      int64_t value;
      const char *end;
      if (!template_value(b, text + 1, &value, &end)) {
        conf_fail(b->report, at,
                  "\"%.40s\" names no counter of a repeat around it; expected {%s} or {%s+1}", text,
                  b->n_scopes != 0 ? b->scopes[b->n_scopes - 1].as : "i",
                  b->n_scopes != 0 ? b->scopes[b->n_scopes - 1].as : "i");
        return false;
      }
      snprintf(piece, sizeof piece, "%lld", (long long)value);
      text = end;
    } else {
      text++;
    }
    size_t bytes = strlen(piece);
    if (used + bytes >= LIMIT_NAME_BYTES) {
      conf_fail(b->report, at, "a name of more than %d bytes", LIMIT_NAME_BYTES - 1);
      return false;
    }
    memcpy(out + used, piece, bytes);
    used += bytes;
  }
  out[used] = '\0';
  return true;
}

bool build_name(struct builder *b, const struct conf_node *at, char *out) {
  const char *text;
  if (!conf_text(b->report, at, LIMIT_NAME_BYTES, false, &text) || !build_expand(b, at, text, out))
    return false;
  for (const char *c = out; *c != '\0'; c++) {
    if (*c > ' ' && *c < 0x7f && *c != '#' && *c != '"') continue;
    conf_fail(b->report, at, "a name may not contain blanks, quotes, # or what is not ASCII");
    return false;
  }
  return true;
}

bool build_out_name(struct builder *b, const struct conf_node *step, const char *word, char *out) {
  const struct conf_node *key = step->kind == CONF_MAP ? conf_find(step, "out") : NULL;
  if (key == NULL) {
    snprintf(out, LIMIT_NAME_BYTES, "%s#%d", word, b->model->graph.n_nodes);
    return true;
  }
  if (!build_name(b, key, out)) return false;
  bool taken = graph_find_tensor(&b->model->graph, out) >= 0 || strcmp(out, "positions") == 0;
  for (int32_t i = 0; i < b->model->n_inputs; i++)
    if (strcmp(b->model->inputs[i].name, out) == 0) taken = true;
  if (taken)
    conf_fail(b->report, key, "there is a tensor \"%s\" already%s", out,
              b->n_scopes != 0 ? "; inside a repeat, use its counter in the name" : "");
  return !taken;
}

// ---- tensors --------------------------------------------------------------------------------

static int32_t add_tensor(struct builder *b, const struct conf_node *at,
                          const struct tensor *tensor) {
  int32_t id = graph_add_tensor(&b->model->graph, tensor);
  if (id >= 0) return id;
  if (graph_find_tensor(&b->model->graph, tensor->name) >= 0)
    conf_fail(b->report, at, "\"%s\" names a weight and another tensor", tensor->name);
  else
    conf_fail(b->report, at, "more than %d tensors, or out of memory", LIMIT_GRAPH_TENSORS);
  return BUILD_UNKNOWN;
}

static bool is_float(enum dtype dtype) {
  return dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16;
}

bool build_dtype(struct builder *b, const struct conf_node *at, enum dtype dtype) {
  if (b->caps == NULL || !is_float(dtype) || b->caps->dtype_ok[dtype]) return true;
  char able[64] = "";
  for (int d = 0, used = 0; d < DTYPE_COUNT; d++)
    if (is_float((enum dtype)d) && b->caps->dtype_ok[d])
      used += snprintf(able + used, sizeof able - (size_t)used, "%s%s", used ? ", " : "",
                       dtype_name((enum dtype)d));
  conf_fail(b->report, at, "this device does not compute in %s; it does in %s", dtype_name(dtype),
            able);
  return false;
}

// Graph tensor of signature input `index`, cast to the compute dtype when it is floating point.
static int32_t input_tensor(struct builder *b, const struct conf_node *at, int32_t index) {
  struct model *model = b->model;
  const struct signature_tensor *input = &model->inputs[index];
  if (b->input_tensor[index] != BUILD_NONE) return b->input_tensor[index];
  if (input->role != ROLE_DATA) {
    conf_fail(b->report, at, "\"%s\" says which positions count; it is no data for a step",
              input->name);
    return BUILD_UNKNOWN;
  }
  struct tensor tensor = {.kind = TENSOR_INPUT, .dtype = input->dtype, .index = index};
  memcpy(tensor.name, input->name, sizeof tensor.name);
  tensor.rows = model->has_sequences && !input->per_token ? ROWS_SEQS : ROWS_TOKENS;
  tensor.cols = (int32_t)input->row_elements;
  int32_t id = add_tensor(b, at, &tensor);
  if (id >= 0 && is_float(input->dtype) && input->dtype != model->compute) {
    struct node cast = {.op = OP_CAST, .in = {id, -1, -1, -1}, .n_in = 1};
    char name[LIMIT_NAME_BYTES];
    cast.attrs.to = model->compute;
    snprintf(name, sizeof name, "cast#%d", model->graph.n_nodes);
    id = build_node(b, at, cast, name, model->compute);
  }
  b->input_tensor[index] = id;
  return id;
}

static int32_t positions_tensor(struct builder *b, const struct conf_node *at) {
  int32_t id = graph_find_tensor(&b->model->graph, "positions");
  if (id >= 0) return id;
  if (b->rows_unknown) return BUILD_UNKNOWN;
  if (!b->model->has_sequences) {
    conf_fail(b->report, at, "\"positions\" needs an input with a seq dimension");
    return BUILD_UNKNOWN;
  }
  struct tensor tensor = {.name = "positions",
                          .kind = TENSOR_POSITIONS,
                          .dtype = DTYPE_I32,
                          .rows = ROWS_TOKENS,
                          .cols = 1,
                          .index = -1};
  return add_tensor(b, at, &tensor);
}

// Also the parts of a block: "<its name>/<part>".
static bool is_broken(const struct builder *b, const char *name) {
  if (b->n_broken == BUILD_BROKEN) return true;
  for (int i = 0; i < b->n_broken; i++) {
    size_t bytes = strlen(b->broken[i]);
    bool begins = strncmp(b->broken[i], name, bytes) == 0;
    if (begins && (name[bytes] == '\0' || name[bytes] == '/')) return true;
  }
  return false;
}

void build_forgive_names(struct builder *b) {
  b->n_broken = BUILD_BROKEN; // with so many, none is missed
}

static void no_such_tensor(struct builder *b, const struct conf_node *at, const char *name) {
  const char *best = NULL;
  size_t bytes = strlen(name);
  int best_distance = 1 + (bytes < 12 ? 2 : 3);
  int32_t n_inputs = b->model->n_inputs;
  for (int32_t i = 0; i < n_inputs + b->model->graph.n_tensors; i++) {
    if (i >= n_inputs && build_tensor(b, i - n_inputs)->kind == TENSOR_WEIGHT) continue;
    const char *other =
        i < n_inputs ? b->model->inputs[i].name : build_tensor(b, i - n_inputs)->name;
    int distance = conf_distance_within(name, bytes, other, strlen(other), best_distance - 1);
    if (distance >= best_distance || distance >= (int)bytes) continue;
    best_distance = distance;
    best = other;
  }
  if (best != NULL)
    conf_fail(b->report, at, "no tensor \"%s\" above; did you mean \"%s\"?", name, best);
  else
    conf_fail(b->report, at, "no input and no output of an earlier step is called \"%s\"%s%s%s",
              name, b->current >= 0 ? "; the last step above makes \"" : "",
              b->current >= 0 ? build_tensor(b, b->current)->name : "",
              b->current >= 0 ? "\"" : "");
}

int32_t build_find(struct builder *b, const struct conf_node *at, const char *name) {
  for (int32_t i = 0; i < b->model->n_inputs; i++)
    if (strcmp(b->model->inputs[i].name, name) == 0) return input_tensor(b, at, i);
  if (strcmp(name, "positions") == 0) return positions_tensor(b, at);
  int32_t id = graph_find_tensor(&b->model->graph, name);
  if (id >= 0 && build_tensor(b, id)->kind != TENSOR_WEIGHT) return id;
  if (!is_broken(b, name)) no_such_tensor(b, at, name);
  return BUILD_UNKNOWN;
}

static int32_t find_node(struct builder *b, const struct conf_node *at) {
  char name[LIMIT_NAME_BYTES];
  return build_name(b, at, name) ? build_find(b, at, name) : BUILD_UNKNOWN;
}

bool build_inputs(struct builder *b, const struct conf_node *step, int n, int32_t *ids) {
  const struct conf_node *in = step->kind == CONF_MAP ? conf_find(step, "in") : NULL;
  int given = in == NULL ? 1 : in->kind == CONF_LIST ? in->n_items : 1;
  for (int i = 0; i < n; i++)
    ids[i] = BUILD_UNKNOWN;
  if (given != n) {
    conf_fail(b->report, in != NULL ? in : step, "expected %d tensors in `in`, found %d", n,
              in == NULL ? 0 : given);
    return false;
  }
  if (in != NULL) {
    for (int i = 0; i < n; i++)
      ids[i] = find_node(b, in->kind == CONF_LIST ? in->items[i] : in);
  } else if (b->current != BUILD_NONE) {
    ids[0] = b->current;
  } else if (b->model->n_inputs != 0) {
    ids[0] = input_tensor(b, step, 0);
  }
  return true;
}

bool build_ends(struct builder *b, const struct conf_node *step, int n, int32_t *ids,
                const char *word, char *out) {
  bool ok = build_inputs(b, step, n, ids);
  return build_out_name(b, step, word, out) && ok;
}

// ---- nodes ----------------------------------------------------------------------------------

int32_t build_node(struct builder *b, const struct conf_node *at, struct node node,
                   const char *out_name, enum dtype out_dtype) {
  for (int i = 0; i < node.n_in; i++)
    if (node.in[i] < 0) return BUILD_UNKNOWN;
  for (int i = node.n_in; i < NODE_MAX_INPUTS; i++)
    node.in[i] = -1;
  struct error err;
  int32_t out = BUILD_UNKNOWN;
  node.line = at->key != NULL ? at->key_line : at->line; // of the word "linear", not of its keys
  if (graph_add_node(&b->model->graph, &node, out_name, out_dtype, &out, &err) == STATUS_OK)
    return out;
  conf_fail(b->report, at, "%s", err.message);
  return BUILD_UNKNOWN;
}

// ---- weights --------------------------------------------------------------------------------

static bool have_weights(struct builder *b, const struct conf_node *at, const char *name) {
  if (b->weights == NULL && !b->weights_broken)
    conf_fail(b->report, at, "weight \"%s\" is needed, but the model has no `weights:`", name);
  return b->weights != NULL;
}

int32_t build_rows(struct builder *b, const struct conf_node *at, const char *name, int32_t given,
                   const char *key) {
  int32_t rows, cols;
  if (given > 0) return given;
  if (!have_weights(b, at, name)) return 0;
  if (weights_shape(b->weights, name, &rows, &cols)) return rows;
  struct error err;
  int32_t id;
  if (weights_synthetic(b->weights))
    conf_fail(b->report, at, "key \"%s\" is missing: synthetic weights have no shape of their own",
              key);
  else if (weights_add(b->weights, name, WEIGHT_MATRIX, 0, 0, &id, &err) != STATUS_OK)
    conf_fail(b->report, at, "%s", err.message);
  return 0;
}

int32_t build_weight(struct builder *b, const struct conf_node *at, const char *name,
                     enum weight_form form, int32_t rows, int32_t cols) {
  struct error err;
  struct tensor tensor = {.kind = TENSOR_WEIGHT, .rows = ROWS_FIXED, .n_rows = rows, .cols = cols};
  if (!have_weights(b, at, name)) return BUILD_UNKNOWN;
  if (weights_add(b->weights, name, form, rows, cols, &tensor.index, &err) != STATUS_OK) {
    conf_fail(b->report, at, "%s", err.message);
    return BUILD_UNKNOWN;
  }
  int32_t known = graph_find_tensor(&b->model->graph, name);
  if (known >= 0 && build_tensor(b, known)->kind == TENSOR_WEIGHT) return known;
  snprintf(tensor.name, sizeof tensor.name, "%s", name);
  bool vector = form == WEIGHT_VECTOR || form == WEIGHT_GAIN;
  bool wide = vector && !(b->caps != NULL && b->caps->vectors_as_compute);
  tensor.dtype = wide ? DTYPE_F32 : b->model->compute;
  return add_tensor(b, at, &tensor);
}
