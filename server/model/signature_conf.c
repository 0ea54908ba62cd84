// See signature_conf.h.
#include "model/signature_conf.h"

#include <string.h>

const enum dtype signature_dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I64, DTYPE_I32};

// One dimension: a number, `batch` (only the first) or `seq` (only the second).
static bool read_dim(struct conf_report *report, const struct conf_node *node, int index,
                     int64_t *dim) {
  bool word = node->kind == CONF_SCALAR; // also in quotes, as all words: JSON has no others
  if (word && strcmp(node->text, "batch") == 0 && index == 0) {
    *dim = DIM_BATCH;
    return true;
  }
  if (word && strcmp(node->text, "seq") == 0 && index == 1) {
    *dim = DIM_SEQ;
    return true;
  }
  if (index == 0) {
    conf_fail(report, node, "the first dimension is always batch");
    return false;
  }
  if (word && (strcmp(node->text, "batch") == 0 || strcmp(node->text, "seq") == 0)) {
    conf_fail(report, node, "batch stands first and seq second");
    return false;
  }
  return conf_int(report, node, 1, LIMIT_DIM, dim);
}

bool signature_read_shape(struct conf_report *report, const struct conf_node *node,
                          struct signature_tensor *out) {
  if (!conf_is_list(report, node)) return false;
  if (node->n_items < 1 || node->n_items > LIMIT_TENSOR_RANK) {
    conf_fail(report, node, "expected 1 to %d dimensions, found %d", LIMIT_TENSOR_RANK,
              node->n_items);
    return false;
  }
  out->rank = node->n_items;
  out->row_elements = 1;
  for (int i = 0; i < node->n_items; i++) {
    if (!read_dim(report, node->items[i], i, &out->dims[i])) return false;
    if (out->dims[i] == DIM_SEQ) out->per_token = true;
    if (out->dims[i] > 0 && (out->row_elements *= out->dims[i]) > LIMIT_DIM) {
      conf_fail(report, node, "more than %d elements in one row", LIMIT_DIM);
      return false;
    }
  }
  return true;
}

bool signature_is_index(enum dtype dtype) {
  return dtype == DTYPE_I64 || dtype == DTYPE_I32;
}

static bool role_fits(struct builder *b, const struct conf_node *node,
                      const struct signature_tensor *in) {
  int errors = b->report->n_errors;
  if (in->role != ROLE_DATA && !signature_is_index(in->dtype))
    conf_fail(b->report, node, "a mask or lengths input is int64 or int32, found %s",
              dtype_name(in->dtype));
  if (in->role == ROLE_MASK && !(in->rank == 2 && in->per_token))
    conf_fail(b->report, node, "a mask has the shape [batch, seq]");
  if (in->role == ROLE_LENGTHS && in->rank != 1)
    conf_fail(b->report, node, "lengths have the shape [batch]");
  if (in->role == ROLE_DATA && signature_is_index(in->dtype) && in->row_elements != 1)
    conf_fail(b->report, node, "an input of %s has one index per row: [batch] or [batch, seq]",
              dtype_name(in->dtype));
  return b->report->n_errors == errors;
}

static void check_optional(struct builder *b, const struct conf_node *node,
                           const struct signature_tensor *in) {
  int64_t bytes = in->row_elements * (int64_t)dtype_bytes(in->dtype);
  if (in->optional && in->role == ROLE_DATA && bytes > LIMIT_OPTIONAL_ROW_BYTES)
    conf_fail(b->report, node, "an optional input has rows of at most %d bytes, these have %lld",
              LIMIT_OPTIONAL_ROW_BYTES, (long long)bytes);
}

void signature_read_name(struct builder *b, const struct conf_node *node,
                         struct signature_tensor *out) {
  if (node == NULL) return;
  if (!build_name(b, node, out->name)) {
    out->name[0] = '\0'; // it may be there in part
    return;
  }
  out->name_bytes = strlen(out->name);
  if (strchr(out->name, '/') != NULL || strcmp(out->name, "positions") == 0)
    conf_fail(b->report, node, "\"%s\" is a name that the graph uses itself", out->name);
}

// What is wrong with an input goes no further than it must.
struct doubt {
  bool broken;    // something is
  bool nameless;  // nobody knows its name
  bool shapeless; // nobody knows its shape, or whether its rows are data
};

static void read_input(struct builder *b, const struct conf_node *node, struct doubt *doubt) {
  struct signature_tensor *in = &b->model->inputs[b->model->n_inputs++];
  *doubt = (struct doubt){true, true, true};
  if (!conf_is_map(b->report, node)) return;
  int errors = b->report->n_errors, dtype = 0, role = ROLE_DATA;
  (void)conf_check_keys(b->report, node, "name|dtype|shape|role|optional");
  const struct conf_node *dtype_node = conf_need(b->report, node, "dtype"),
                         *shape = conf_need(b->report, node, "shape"),
                         *role_node = conf_find(node, "role"),
                         *optional = conf_find(node, "optional");
  signature_read_name(b, conf_need(b->report, node, "name"), in);
  if (dtype_node != NULL && conf_enum(b->report, dtype_node, SIGNATURE_DTYPES, &dtype))
    (void)build_dtype(b, dtype_node, signature_dtypes[dtype]);
  doubt->shapeless = shape == NULL || !signature_read_shape(b->report, shape, in);
  if (role_node != NULL && !conf_enum(b->report, role_node, "data|mask|lengths", &role))
    doubt->shapeless = true;
  if (optional != NULL) (void)conf_bool(b->report, optional, &in->optional);
  in->dtype = signature_dtypes[dtype];
  in->role = (enum input_role)role;
  if (b->report->n_errors == errors) doubt->shapeless = !role_fits(b, node, in);
  check_optional(b, node, in);
  const struct signature_tensor *other = b->model->inputs;
  while (other < in && strcmp(other->name, in->name) != 0)
    other++;
  if (other < in && in->name[0] != '\0')
    conf_fail(b->report, node, "a second input \"%s\"", in->name);
  if (in->per_token) b->model->has_sequences = true;
  doubt->nameless = in->name[0] == '\0';
  doubt->broken = b->report->n_errors != errors;
}

// What only all inputs together can get wrong.
static void check_inputs(struct builder *b, const struct conf_node *list) {
  int n_shaping = 0;
  bool required = false, sequences = false;
  for (int32_t i = 0; i < b->model->n_inputs; i++) {
    const struct signature_tensor *in = &b->model->inputs[i];
    n_shaping += in->role != ROLE_DATA;
    required |=
        in->role == ROLE_DATA && !in->optional && (in->per_token || !b->model->has_sequences);
    sequences |= in->role == ROLE_DATA && in->per_token;
  }
  if (n_shaping > 1)
    conf_fail(b->report, list, "expected one mask or lengths input, found several");
  if (n_shaping != 0 && !b->model->has_sequences)
    conf_fail(b->report, list, "a mask or lengths input needs a data input with a seq dimension");
  if (!required)
    conf_fail(b->report, list,
              "expected an input that is no mask and not optional%s: it gives a request its size",
              b->model->has_sequences ? ", with a seq dimension" : "");
  b->rows_unknown = n_shaping != 0 && !sequences;
}

// What steps may know: nothing of a broken input, and nothing of any where nobody can say whether
// rows are tokens.
static void settle(struct builder *b, const struct doubt *doubts, const struct conf_node *list) {
  bool broken = false, shapeless = false, sequences = false;
  for (int32_t i = 0; i < b->model->n_inputs; i++) {
    const struct signature_tensor *in = &b->model->inputs[i];
    broken |= doubts[i].broken;
    shapeless |= doubts[i].shapeless;
    sequences |= !doubts[i].broken && in->per_token && in->role == ROLE_DATA;
    if (doubts[i].nameless) build_forgive_names(b);
  }
  b->rows_unknown = shapeless && !sequences;
  if (!broken) check_inputs(b, list);
  for (int32_t i = 0; i < b->model->n_inputs; i++)
    if (doubts[i].broken || b->rows_unknown) b->input_tensor[i] = BUILD_UNKNOWN;
}

void signature_read_inputs(struct builder *b, const struct conf_node *root) {
  const struct conf_node *list = conf_need(b->report, root, "inputs");
  struct doubt doubts[LIMIT_MODEL_INPUTS];
  b->rows_unknown = true;
  if (list == NULL || !conf_is_list(b->report, list)) {
    build_forgive_names(b);
    return;
  }
  if (list->n_items < 1 || list->n_items > LIMIT_MODEL_INPUTS) {
    conf_fail(b->report, list, "expected 1 to %d inputs, found %d", LIMIT_MODEL_INPUTS,
              list->n_items);
    build_forgive_names(b);
    return;
  }
  for (int i = 0; i < list->n_items; i++)
    read_input(b, list->items[i], &doubts[i]);
  settle(b, doubts, list);
}
