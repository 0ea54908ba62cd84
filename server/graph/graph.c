// Tensors and nodes as plain arrays. Names are found through a small open-addressing hash, because
// a model file of thousands of tensors looks up every one by name.
#include "graph/graph.h"

#include "graph/op/op.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_SLOTS (LIMIT_GRAPH_TENSORS * 2) // a power of two, never more than half full
_Static_assert((NAME_SLOTS & (NAME_SLOTS - 1)) == 0, "slots are masked");

enum status graph_init(struct graph *graph) {
  memset(graph, 0, sizeof *graph);
  graph->name_slots = malloc(NAME_SLOTS * sizeof *graph->name_slots);
  if (!graph->name_slots) return STATUS_RESOURCE_EXHAUSTED;
  memset(graph->name_slots, 0xFF, NAME_SLOTS * sizeof *graph->name_slots); // all -1
  return STATUS_OK;
}

void graph_deinit(struct graph *graph) {
  free(graph->tensors);
  free(graph->nodes);
  free(graph->name_slots);
  memset(graph, 0, sizeof *graph);
}

// Slot of `name`, or the empty slot where it would go.
static uint32_t name_slot(const struct graph *graph, const char *name) {
  uint32_t hash = 2166136261u; // FNV-1a
  for (const char *c = name; *c; c++)
    hash = (hash ^ (uint8_t)*c) * 16777619u;
  uint32_t slot = hash & (NAME_SLOTS - 1);
  while (graph->name_slots[slot] >= 0 &&
         strcmp(graph->tensors[graph->name_slots[slot]].name, name) != 0)
    slot = (slot + 1) & (NAME_SLOTS - 1);
  return slot;
}

int32_t graph_find_tensor(const struct graph *graph, const char *name) {
  return graph->name_slots[name_slot(graph, name)];
}

// Room for one more element; doubles up to `limit`.
static bool array_grow(void **array, int32_t *capacity, int32_t count, int32_t limit,
                       size_t element_bytes) {
  if (count < *capacity) return true;
  if (count >= limit) return false;
  int32_t wanted = *capacity ? *capacity * 2 : 64;
  if (wanted > limit) wanted = limit;
  void *grown = realloc(*array, (size_t)wanted * element_bytes);
  if (!grown) return false;
  *array = grown;
  *capacity = wanted;
  return true;
}

int32_t graph_add_tensor(struct graph *graph, const struct tensor *tensor) {
  if (!tensor->name[0] || !memchr(tensor->name, 0, sizeof tensor->name)) return -1;
  uint32_t slot = name_slot(graph, tensor->name);
  if (graph->name_slots[slot] >= 0) return -1;
  if (!array_grow((void **)&graph->tensors, &graph->tensor_capacity, graph->n_tensors,
                  LIMIT_GRAPH_TENSORS, sizeof *graph->tensors))
    return -1;
  graph->tensors[graph->n_tensors] = *tensor;
  graph->name_slots[slot] = graph->n_tensors;
  return graph->n_tensors++;
}

static enum status refuse_at(const struct node *node, struct error *err, enum status code) {
  if (err && code != STATUS_OK) err->line = node->line;
  return code;
}

static enum status check_operands(const struct graph *graph, const struct node *node,
                                  const struct op_def *def, struct error *err) {
  const char *name = op_name(node->op);
  if (node->n_in < def->min_in || node->n_in > def->max_in) {
    char expected[32];
    if (def->min_in == def->max_in)
      snprintf(expected, sizeof expected, "%d", def->min_in);
    else
      snprintf(expected, sizeof expected, "%d to %d", def->min_in, def->max_in);
    return error_set(err, STATUS_INVALID_ARGUMENT, "%s: %d inputs found, expected %s", name,
                     node->n_in, expected);
  }
  for (int i = 0; i < node->n_in; i++)
    if (node->in[i] < 0 || node->in[i] >= graph->n_tensors)
      return error_set(err, STATUS_INVALID_ARGUMENT, "%s: input %d is no tensor of this graph",
                       name, i);
  return STATUS_OK;
}

// The dtype that `tensor_out` gets when neither the caller nor the op says otherwise.
static enum dtype dtype_default(const struct op_check *check) {
  for (int i = 0; i < check->node->n_in; i++) {
    enum dtype dtype = check->in[i]->dtype;
    if (dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16) return dtype;
  }
  return DTYPE_F32;
}

static enum status infer_output(const struct graph *graph, const struct node *node,
                                enum dtype out_dtype, struct tensor *out, struct error *err) {
  const struct op_def *def = op_def_get(node->op);
  if (!def) return error_set(err, STATUS_INVALID_ARGUMENT, "%s: unknown op", op_name(node->op));
  enum status status = check_operands(graph, node, def, err);
  if (status != STATUS_OK) return status;
  struct op_check check = {.node = node, .out = out, .err = err};
  for (int i = 0; i < node->n_in; i++)
    check.in[i] = &graph->tensors[node->in[i]];
  out->kind = TENSOR_ACTIVATION;
  out->index = -1;
  out->dtype = out_dtype != DTYPE_INVALID ? out_dtype : dtype_default(&check);
  if (out->dtype != DTYPE_F32 && out->dtype != DTYPE_F16 && out->dtype != DTYPE_BF16)
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "%s: output dtype %s found, expected fp32, fp16 or bf16", op_name(node->op),
                     dtype_name(out->dtype));
  return def->infer(&check);
}

enum status graph_add_node(struct graph *graph, const struct node *node, const char *out_name,
                           enum dtype out_dtype, int32_t *out_tensor, struct error *err) {
  struct tensor out = {0};
  enum status status = infer_output(graph, node, out_dtype, &out, err);
  if (status != STATUS_OK) return refuse_at(node, err, status);
  size_t length = strlen(out_name);
  if (length == 0 || length >= sizeof out.name)
    return refuse_at(node, err,
                     error_set(err, STATUS_INVALID_ARGUMENT,
                               "%s: output name of %zu bytes, expected 1..%zu", op_name(node->op),
                               length, sizeof out.name - 1));
  memcpy(out.name, out_name, length + 1);
  if (graph_find_tensor(graph, out_name) >= 0)
    return refuse_at(node, err,
                     error_set(err, STATUS_INVALID_ARGUMENT,
                               "%s: the name \"%s\" is taken by another tensor", op_name(node->op),
                               out_name));
  if (!array_grow((void **)&graph->nodes, &graph->node_capacity, graph->n_nodes, LIMIT_GRAPH_NODES,
                  sizeof *graph->nodes))
    return refuse_at(node, err,
                     error_set(err, STATUS_RESOURCE_EXHAUSTED,
                               "%s: more than %d nodes, or out of memory", op_name(node->op),
                               LIMIT_GRAPH_NODES));
  int32_t tensor = graph_add_tensor(graph, &out);
  if (tensor < 0)
    return refuse_at(node, err,
                     error_set(err, STATUS_RESOURCE_EXHAUSTED,
                               "%s: more than %d tensors, or out of memory", op_name(node->op),
                               LIMIT_GRAPH_TENSORS));
  struct node *added = &graph->nodes[graph->n_nodes++];
  *added = *node;
  for (int i = node->n_in; i < NODE_MAX_INPUTS; i++)
    added->in[i] = -1;
  added->out = tensor;
  if (out_tensor) *out_tensor = tensor;
  return STATUS_OK;
}

// ---- the op table ----
static const struct op_row {
  const char *name;
  const struct op_def *def;
} op_table[OP_COUNT] = {
#define OP_ROW(upper, word) [OP_##upper] = {#word, &op_def_##word},
#include "kernels/ops.def"
#undef OP_ROW
};

const struct op_def *op_def_get(enum op op) {
  return (unsigned)op < OP_COUNT ? op_table[op].def : NULL;
}

const char *op_name(enum op op) {
  return (unsigned)op < OP_COUNT && op_table[op].name ? op_table[op].name : "invalid";
}

enum op op_find(const char *name) {
  for (int i = OP_INVALID + 1; i < OP_COUNT; i++)
    if (strcmp(op_table[i].name, name) == 0) return (enum op)i;
  return OP_INVALID;
}
