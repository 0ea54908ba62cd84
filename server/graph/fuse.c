// Which nodes one kernel runs, and why. `off` gives every node a group of its own. `on` fuses all
// that is legal, `auto` what of that pays (worth.c):
//   1. products take the element-wise ops that follow them into their epilogue, and on devices that
//      can, products and attentions what else is element-wise on their result (finish.c);
//   2. products of one input whose results only feed one attention become one product; on devices
//      that can, others take the norm of their result (norm.c);
//   3. what is left runs as row programs, merged along producer-consumer edges, then with others
//      that read the same tensor.
// Legality is a matter of data flow (no group may need its own result from outside), of one
// iteration space, and of the limits of epilogues and row programs. Every edge keeps its reason.
#include "base/log.h"
#include "graph/planner.h"

#include <string.h>

#define SIBLINGS_MAX 48 // readers of a tensor that are looked at in pairs

static const char *const WHY_READERS =
    "the product's result has other readers, and a product writes one result";
static const char *const WHY_OUTPUT = "the product's result is an output of the model";
static const char *const WHY_MEMORY = "a product reads its operand from memory";
static const char *const WHY_BESIDE = "a product's epilogue reads its second operand from memory";
static const char *const WHY_CYCLE =
    "one kernel would need a result that is computed from its own in between";
static const char *const WHY_ROUNDED = "the product rounds its result to a narrower dtype first";
static const char *const WHY_OPERAND = "what makes its other operand could be done with it";
const char *const PLANNER_WHY_NODES = "one kernel would cover too many nodes";

// ---- groups as lists ----
static int32_t group_new(struct planner *planner, enum group_kind kind, int32_t node) {
  const struct tensor *out = &planner->graph->tensors[planner->nodes[node].out];
  int32_t id = planner->n_groups++;
  planner->groups[id] = (struct group){.kind = kind,
                                       .rows = out->rows,
                                       .cols = out->cols,
                                       .cols_fixed = true,
                                       .head = node,
                                       .tail = node,
                                       .n_nodes = 1};
  planner->group_of[node] = id;
  return id;
}

// Move the nodes of `from` into `to`, in graph order. O(nodes of both).
static void group_absorb(struct planner *planner, int32_t to, int32_t from) {
  struct group *a = &planner->groups[to], *b = &planner->groups[from];
  int32_t left = a->head, right = b->head, head = -1, tail = -1;
  while (left >= 0 || right >= 0) {
    bool take_left = right < 0 || (left >= 0 && left < right);
    int32_t node = take_left ? left : right;
    if (take_left)
      left = planner->next[left];
    else
      right = planner->next[right];
    if (tail >= 0)
      planner->next[tail] = node;
    else
      head = node;
    tail = node;
    planner->group_of[node] = to;
  }
  planner->next[tail] = -1;
  a->head = head;
  a->tail = tail;
  a->n_nodes += b->n_nodes;
  b->kind = GROUP_DEAD;
  b->n_nodes = 0;
}

static void set_why(struct planner *planner, int32_t consumer, int32_t tensor, const char *reason) {
  const struct node *node = &planner->nodes[consumer];
  for (int i = 0; i < node->n_in; i++)
    if (node->in[i] == tensor) planner->why[consumer * NODE_MAX_INPUTS + i] = reason;
}

static void set_why_readers(struct planner *planner, int32_t tensor, const char *reason) {
  for (int32_t i = planner->reader_start[tensor]; i < planner->reader_start[tensor + 1]; i++)
    set_why(planner, planner->readers[i], tensor, reason);
}

// ---- 1. products and their epilogues ----
static int32_t linear_group(struct planner *planner, int32_t index) {
  const struct node *node = &planner->nodes[index];
  int32_t id = group_new(planner, GROUP_LINEAR, index);
  struct group *group = &planner->groups[id];
  group->n_parts = 1;
  group->weight[0] = node->in[1];
  group->bias[0] = node->n_in > 2 ? node->in[2] : -1;
  group->out[0] = node->out;
  group->n_epilogue = node->n_in > 2;
  return id;
}

static int32_t attention_group(struct planner *planner, int32_t index) {
  int32_t id = group_new(planner, GROUP_ATTENTION, index);
  planner->groups[id].out[0] = planner->nodes[index].out;
  return id;
}

int32_t planner_sole_reader(const struct planner *planner, int32_t tensor, const char **why) {
  int32_t first = planner->reader_start[tensor], count = planner->reader_start[tensor + 1] - first;
  *why = planner->wanted[tensor] ? WHY_OUTPUT : WHY_READERS;
  return planner->wanted[tensor] || count != 1 ? -1 : planner->readers[first];
}

// Is the other operand element-wise work for this alone? Then a finish does both.
static bool finish_does_operand(const struct planner *planner, int32_t reader, int32_t operand) {
  const char *why;
  int32_t producer = operand >= 0 ? planner->producer[operand] : -1;
  if (!planner->caps->product_finish || producer < 0 || planner->group_of[producer] >= 0)
    return false;
  const struct op_def *def = op_def_get(planner->nodes[producer].op);
  return def->cls == OPC_ROW && !def->whole_row &&
         planner_sole_reader(planner, operand, &why) == reader;
}

// `all`: also what a finish would do better.
static const char *fold_refusal(const struct planner *planner, const struct group *group,
                                int32_t reader, bool all, struct op_fold *fold) {
  const struct node *node = &planner->nodes[reader];
  const struct op_def *def = op_def_get(node->op);
  if (def->cls == OPC_LINEAR) return WHY_MEMORY;
  if (def->cls == OPC_ATTENTION) return "attention reads the keys and values of whole sequences";
  if (planner->group_of[reader] >= 0)
    return "it is in the epilogue of another product, which reads this one's result";
  if (!def->fold) return "it needs whole rows of the product, which an epilogue does not see";
  if (!def->fold(planner->graph, node, group->out[0], fold)) return fold->refused;
  if (group->n_nodes == STEP_MAX_NODES) return PLANNER_WHY_NODES;
  if (!fold->has_epilogue) return NULL;
  if (!all && finish_does_operand(planner, reader, fold->operand)) return WHY_OPERAND;
  if (!(planner->caps->epilogue_kinds >> fold->epilogue.kind & 1u))
    return "the device's products cannot do it in their epilogue";
  if (group->n_epilogue >= planner->caps->epilogue_max || group->n_epilogue >= EPILOGUE_MAX)
    return "the product's epilogue is full";
  return NULL;
}

// Returns why it ended where it did.
static const char *fold_epilogue(struct planner *planner, int32_t id, bool all) {
  struct group *group = &planner->groups[id];
  for (bool ended = false; !ended;) {
    const char *why;
    int32_t tensor = group->out[0], reader = planner_sole_reader(planner, tensor, &why);
    if (reader < 0) {
      set_why_readers(planner, tensor, why);
      return why;
    }
    struct op_fold fold = {.operand = -1};
    why = fold_refusal(planner, group, reader, all, &fold);
    if (why) {
      set_why_readers(planner, tensor, why);
      return why;
    }
    planner->next[group->tail] = reader;
    group->tail = reader;
    group->n_nodes++;
    group->n_epilogue += fold.has_epilogue;
    group->out[0] = planner->nodes[reader].out;
    planner->group_of[reader] = id;
    ended = fold.ends;
  }
  set_why_readers(planner, group->out[0], WHY_ROUNDED);
  return WHY_ROUNDED;
}

// Nodes that were taken into an epilogue go back to be row work, from number `n_keep` on.
static void unfold(struct planner *planner, int32_t id, int n_keep, const char *why) {
  struct group *group = &planner->groups[id];
  int32_t last = group->head;
  for (int i = 1; i < n_keep; i++)
    last = planner->next[last];
  for (int32_t node = planner->next[last], next; node >= 0; node = next) {
    next = planner->next[node];
    planner->group_of[node] = planner->next[node] = -1;
    set_why_readers(planner, planner->nodes[node].out, NULL);
  }
  planner->next[last] = -1;
  group->tail = last;
  group->n_left = (uint8_t)(group->n_nodes - n_keep);
  group->n_nodes = n_keep;
  group->out[0] = planner->nodes[last].out;
  set_why_readers(planner, group->out[0], why);
}

// What does not pay does not stay.
static void trim_epilogue(struct planner *planner, int32_t id) {
  const char *why = NULL;
  int n_keep = planner_epilogue_worth(planner, &planner->groups[id], &why);
  if (n_keep < planner->groups[id].n_nodes) unfold(planner, id, n_keep, why);
}

static void fill_epilogue(struct planner *planner, int32_t id) {
  bool trim = planner->mode == FUSION_AUTO;
  const char *why = fold_epilogue(planner, id, false);
  if (trim) trim_epilogue(planner, id);
  planner_add_finish(planner, id);
  const struct group *group = &planner->groups[id];
  if (why != WHY_OPERAND || group->n_finish > 0 || group->n_left > 0) return;
  fold_epilogue(planner, id, true);                                    // no finish came of it
  if (trim || planner->caps->finish_lists) trim_epilogue(planner, id); // since it did not pay
  planner_add_finish(planner, id);
}

// What ended up in an epilogue is in no finish, though one that it was to be in did not pay: costs
// and reasons of its edges are those of an epilogue.
static void settle_finishes(struct planner *planner, const struct group *group) {
  int32_t node = group->head;
  for (int i = 0; i < group->n_nodes - group->n_finish; i++, node = planner->next[node])
    planner->finishes[node] = 0;
}

// With the norm behind it a product has its whole epilogue again, or it is as it was.
static void take_norm(struct planner *planner, int32_t id) {
  struct group *group = &planner->groups[id];
  int n_keep = group->n_nodes, n_left = group->n_left;
  const char *why = NULL;
  if (group->kind != GROUP_LINEAR || planner->caps->product_norm_dtypes == 0) return;
  if (n_left > 0) {
    int32_t tensor = group->out[0], reader = planner->readers[planner->reader_start[tensor]];
    for (int i = 0; i < planner->nodes[reader].n_in; i++)
      if (planner->nodes[reader].in[i] == tensor) why = planner->why[reader * NODE_MAX_INPUTS + i];
    group->n_left = 0;
    fold_epilogue(planner, id, true);
  }
  planner_add_norm(planner, id, n_keep);
  if (!group->norm && n_left > 0) unfold(planner, id, n_keep, why);
}

// ---- 2. products side by side ----
// Is the group one product whose epilogue is at most a bias? Its bias tensor, or -1.
static bool is_plain_product(const struct planner *planner, const struct group *group,
                             int32_t *bias) {
  *bias = group->bias[0];
  if (group->kind != GROUP_LINEAR || group->n_parts != 1 || group->n_finish > 0) return false;
  if (group->n_nodes == 1) return true;
  const struct node *last = &planner->nodes[group->tail];
  if (group->n_nodes != 2 || group->bias[0] >= 0 || last->op != OP_BIAS) return false;
  *bias = last->in[1];
  return true;
}

static enum dtype bias_dtype(const struct planner *planner, int32_t bias) {
  return bias >= 0 ? planner->graph->tensors[bias].dtype : DTYPE_INVALID;
}

// Why the products `a` (which may be several already) and `b` cannot be one; NULL when they can.
static const char *side_by_side_refusal(const struct planner *planner, const struct group *a,
                                        const struct group *b, int32_t a_bias, int32_t b_bias) {
  const struct tensor *tensors = planner->graph->tensors;
  if (planner->nodes[a->head].in[0] != planner->nodes[b->head].in[0])
    return "the products read different inputs";
  if (bias_dtype(planner, a_bias) != bias_dtype(planner, b_bias))
    return "the products' biases are not alike";
  if (tensors[a->weight[0]].dtype != tensors[b->weight[0]].dtype ||
      tensors[a->out[0]].dtype != tensors[b->out[0]].dtype)
    return "the products have different dtypes";
  if (a->n_parts == OPERAND_PARTS || a->n_nodes + b->n_nodes > STEP_MAX_NODES)
    return PLANNER_WHY_NODES;
  return NULL;
}

static bool feeds_only(const struct planner *planner, int32_t tensor, int32_t reader) {
  const char *why;
  return planner_sole_reader(planner, tensor, &why) == reader;
}

static void join_products(struct planner *planner, int32_t to, int32_t from, int32_t from_bias) {
  struct group *a = &planner->groups[to], *b = &planner->groups[from];
  int part = a->n_parts++;
  a->weight[part] = b->weight[0];
  a->bias[part] = from_bias;
  a->out[part] = b->out[0];
  group_absorb(planner, to, from);
}

// The product behind operand `input` of the attention, if nothing else reads it: its group, or -1.
static int32_t product_of(const struct planner *planner, int32_t attention, int input,
                          int32_t *bias) {
  int32_t tensor = planner->nodes[attention].in[input], producer = planner->producer[tensor];
  if (producer < 0 || !feeds_only(planner, tensor, attention)) return -1;
  int32_t group = planner->group_of[producer]; // -1: a row op, which is grouped later
  if (group < 0) return -1;
  return is_plain_product(planner, &planner->groups[group], bias) ? group : -1;
}

// q, k and v of one attention: products of the same input become columns of one.
static void join_attention_products(struct planner *planner, int32_t attention) {
  const struct node *node = &planner->nodes[attention];
  for (int i = 0; i < node->n_in; i++) {
    int32_t to_bias, to = product_of(planner, attention, i, &to_bias);
    if (to < 0) continue;
    for (int j = i + 1; j < node->n_in; j++) {
      int32_t from_bias, from = product_of(planner, attention, j, &from_bias);
      if (from < 0 || from == to) continue;
      if (side_by_side_refusal(planner, &planner->groups[to], &planner->groups[from], to_bias,
                               from_bias))
        continue;
      planner->groups[to].bias[0] = to_bias;
      join_products(planner, to, from, from_bias);
    }
  }
}

// ---- 3. row programs ----
static void row_group(struct planner *planner, int32_t index) {
  const struct node *node = &planner->nodes[index];
  const struct op_def *def = op_def_get(node->op);
  struct group *group = &planner->groups[group_new(planner, GROUP_ROW, index)];
  int32_t in_cols = planner->graph->tensors[node->in[0]].cols;
  if (def->whole_row && in_cols > group->cols)
    group->cols = in_cols; // a reduction's space is its input's
  group->cols_fixed = def->whole_row || group->cols > 1;
}

bool planner_is_written(const struct planner *planner, int32_t tensor, int32_t a, int32_t b) {
  if (planner->wanted[tensor]) return true;
  for (int32_t i = planner->reader_start[tensor]; i < planner->reader_start[tensor + 1]; i++) {
    int32_t reader = planner->group_of[planner->readers[i]];
    if (reader != a && reader != b) return true;
  }
  return false;
}

void planner_lower_nodes(const struct planner *planner, const struct group *group,
                         const struct group *other, enum row_kind rows,
                         struct row_builder *builder) {
  int32_t a = (int32_t)(group - planner->groups),
          b = other ? (int32_t)(other - planner->groups) : a;
  int32_t left = group->head, right = other ? other->head : -1;
  while ((left >= 0 || right >= 0) && !builder->refused) {
    bool take_left = right < 0 || (left >= 0 && left < right);
    int32_t index = take_left ? left : right;
    if (take_left)
      left = planner->next[left];
    else
      right = planner->next[right];
    const struct node *node = &planner->nodes[index];
    if (planner->graph->tensors[node->out].rows != rows) continue;
    row_builder_node(builder, node);
    if (planner_is_written(planner, node->out, a, b)) row_builder_store(builder, node->out);
  }
}

bool planner_row_program(const struct planner *planner, const struct group *group,
                         const struct group *other, struct row_builder *builder,
                         struct row_program *out, int32_t index_tensors[ROW_MAX_INPUTS],
                         int *n_index) {
  int32_t cols = other && !group->cols_fixed ? other->cols : group->cols;
  row_builder_init(builder, planner->graph, group->rows, cols);
  planner_lower_nodes(planner, group, other, group->rows, builder);
  return row_builder_finish(builder, out, index_tensors, n_index);
}

// Is there a way from group `from` to group `to` through a third group? Depth first over groups.
static bool has_detour(struct planner *planner, int32_t from, int32_t to) {
  uint32_t mark = ++planner->seen_mark;
  int32_t depth = 0;
  planner->stack[depth++] = from;
  planner->seen[from] = mark;
  while (depth > 0) {
    int32_t current = planner->stack[--depth];
    for (int32_t node = planner->groups[current].head; node >= 0; node = planner->next[node]) {
      int32_t tensor = planner->nodes[node].out;
      for (int32_t i = planner->reader_start[tensor]; i < planner->reader_start[tensor + 1]; i++) {
        int32_t reader = planner->group_of[planner->readers[i]];
        if (reader == to && current != from) return true;
        if (reader == to || planner->seen[reader] == mark) continue;
        planner->seen[reader] = mark;
        planner->stack[depth++] = reader;
      }
    }
  }
  return false;
}

static const char *merge_refusal(struct planner *planner, int32_t first, int32_t second) {
  const struct group *a = &planner->groups[first], *b = &planner->groups[second];
  if (a->kind == GROUP_ATTENTION) return "attention works by sequence and head, not by whole rows";
  if (b->kind == GROUP_LINEAR) return WHY_MEMORY;
  if (b->kind == GROUP_ATTENTION) return "attention reads the keys and values of whole sequences";
  if (a->kind != GROUP_ROW) return NULL; // a product's reason is known from its epilogue
  if (a->rows != b->rows) return planner_pool_refusal(planner, a, b);
  if (a->cols_fixed && b->cols_fixed && a->cols != b->cols)
    return "the rows have different numbers of columns";
  if (a->n_nodes + b->n_nodes > STEP_MAX_NODES) return PLANNER_WHY_NODES;
  if (has_detour(planner, first, second) || has_detour(planner, second, first)) return WHY_CYCLE;
  struct row_builder builder;
  struct row_program program;
  int32_t index_tensors[ROW_MAX_INPUTS];
  int n_index;
  if (!planner_row_program(planner, a, b, &builder, &program, index_tensors, &n_index))
    return builder.refused;
  int before_a = planner_operands_before(planner, a),
      before_b = planner_operands_before(planner, b);
  if (before_a && before_b) return "each makes the rows that it pools";
  if (program.n_inputs + n_index + before_a + before_b > STEP_MAX_IN) return PLANNER_WHY_NODES;
  return planner->mode == FUSION_AUTO ? planner_merge_worth(planner, a, b) : NULL;
}

// What is computed again is so for the sake of its readers, and goes with them alone.
static bool is_copy(const struct planner *planner, int32_t node) {
  return planner->n_own_tensors > 0 && planner->nodes[node].out >= planner->n_own_tensors;
}

static void merge_producers(struct planner *planner, int32_t index) {
  const struct node *node = &planner->nodes[index];
  for (int i = 0; i < node->n_in; i++) {
    int32_t producer = planner->producer[node->in[i]];
    if (producer < 0) continue;
    int32_t first = planner->group_of[producer], second = planner->group_of[index];
    if (first == second) continue;
    const char *why = is_copy(planner, index) && !is_copy(planner, producer)
                          ? "what follows is computed again elsewhere, from this in memory"
                          : merge_refusal(planner, first, second),
               **kept = &planner->why[index * NODE_MAX_INPUTS + i];
    if (why == WHY_MEMORY && op_def_get(node->op)->cls != OPC_LINEAR) why = WHY_BESIDE;
    if (why && !*kept) *kept = why; // a product's epilogue may have said it better
    if (why || planner->groups[first].kind != GROUP_ROW) continue;
    struct group *a = &planner->groups[first], *b = &planner->groups[second];
    if (a->rows != b->rows) { // what is pooled is made inside the pooling
      group_absorb(planner, second, first);
      continue;
    }
    if (!a->cols_fixed) {
      a->cols = b->cols;
      a->cols_fixed = b->cols_fixed;
    }
    group_absorb(planner, first, second);
  }
}

// The outputs that a group leads to. A batch that wants one of them only must not pay for others.
static uint8_t leads_to(const struct planner *planner, const struct group *group) {
  uint8_t outputs = 0;
  for (int32_t node = group->head; node >= 0; node = planner->next[node])
    outputs |= planner->leads_to[node];
  return outputs;
}

static const char *sibling_refusal(struct planner *planner, int32_t first, int32_t second) {
  const struct group *a = &planner->groups[first], *b = &planner->groups[second];
  if (a->kind != GROUP_ROW || b->kind != GROUP_ROW || a->cols != b->cols) return "unlike";
  if (leads_to(planner, a) != leads_to(planner, b)) return "for other outputs";
  return merge_refusal(planner, first, second);
}

// Row groups that read one tensor and are not connected otherwise: together they read it once.
static void merge_siblings(struct planner *planner, int32_t tensor) {
  const struct tensor *t = &planner->graph->tensors[tensor];
  if (t->kind == TENSOR_WEIGHT || t->kind == TENSOR_POSITIONS || t->cols == 1) return;
  int32_t first = planner->reader_start[tensor], end = planner->reader_start[tensor + 1];
  if (end - first > SIBLINGS_MAX) end = first + SIBLINGS_MAX;
  for (int32_t i = first; i < end; i++)
    for (int32_t j = i + 1; j < end; j++) {
      int32_t a = planner->group_of[planner->readers[i]],
              b = planner->group_of[planner->readers[j]];
      if (a == b || planner->groups[a].cols != t->cols) continue;
      if (!sibling_refusal(planner, a, b)) group_absorb(planner, a, b);
    }
}

// ---- the whole ----
static void group_single_nodes(struct planner *planner, bool fold) {
  for (int32_t n = 0; n < planner->graph->n_nodes; n++) {
    if (!planner->live[n] || planner->group_of[n] >= 0) continue;
    enum op_class cls = op_def_get(planner->nodes[n].op)->cls;
    if (cls == OPC_ROW && !fold) row_group(planner, n);
    if (cls != OPC_LINEAR && cls != OPC_ATTENTION) continue;
    int32_t id = cls == OPC_LINEAR ? linear_group(planner, n) : attention_group(planner, n);
    if (fold && cls == OPC_LINEAR) fill_epilogue(planner, id);
    if (fold && cls == OPC_ATTENTION) planner_add_finish(planner, id);
  }
}

static void group_on(struct planner *planner) {
  int32_t n_nodes = planner->graph->n_nodes;
  group_single_nodes(planner, true);
  for (int32_t n = 0; n < n_nodes; n++)
    if (planner->live[n] && op_def_get(planner->nodes[n].op)->cls == OPC_ATTENTION)
      join_attention_products(planner, n);
  for (int32_t g = 0; g < planner->n_groups; g++) {
    take_norm(planner, g);
    if (planner->groups[g].kind == GROUP_LINEAR) settle_finishes(planner, &planner->groups[g]);
  }
  for (int32_t n = 0; n < n_nodes; n++)
    if (planner->live[n] && planner->group_of[n] < 0) row_group(planner, n);
  for (int32_t n = 0; n < n_nodes; n++)
    if (planner->live[n]) merge_producers(planner, n);
  for (int32_t t = 0; t < planner->graph->n_tensors; t++)
    merge_siblings(planner, t);
}

void planner_group(struct planner *planner) {
  if (planner->mode == FUSION_OFF)
    group_single_nodes(planner, false);
  else
    group_on(planner);
}
