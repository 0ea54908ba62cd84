// The finish of a product or an attention: element-wise work on its result that a list of epilogue
// operations cannot say. Trees, broadcasts, factors of a residual, and results that others read
// too: a small row program, run on each piece of the result while that is in registers or in the
// first-level cache.
//
//   y = x W^T + b          nodes that lead from y, element-wise, over y's rows and columns;
//   s = scale(r)           nodes that only feed those;
//   z = y * gamma + s      z is written; y, too, if others read it
//
// Which nodes: the largest set such that
//   - nothing from outside that it reads is computed from its own results, through whatever kernel;
//   - of the row ops that read one of its tensors all are in it, or none: those left would read the
//     tensor again, next to what they could have been one program with.
#include "base/log.h"
#include "graph/finish_list.h"
#include "graph/planner.h"

#include <string.h>

#define FINISH_NODES (STEP_MAX_NODES - 4)

struct search {
  struct planner *planner;
  struct group *group;
  int32_t id, from, cols; // `from`: the tensor that it starts from
  int32_t nodes[FINISH_NODES];
  int n;
};

static const struct tensor *out_of(const struct search *s, int32_t node) {
  return &s->planner->graph->tensors[s->planner->nodes[node].out];
}

static bool is_taken(const struct search *s, int32_t node) {
  return node >= 0 && s->planner->in_finish[node];
}

// Is the tensor the result, or made by a node of the set?
static bool is_own(const struct search *s, int32_t tensor) {
  return tensor == s->from || is_taken(s, s->planner->producer[tensor]);
}

static bool is_candidate(const struct search *s, int32_t node) {
  const struct planner *planner = s->planner;
  const struct op_def *def = op_def_get(planner->nodes[node].op);
  return planner->live[node] && planner->group_of[node] < 0 && def->cls == OPC_ROW &&
         !def->whole_row && out_of(s, node)->rows == s->group->rows &&
         out_of(s, node)->cols == s->cols;
}

static bool leads_on(const struct search *s, int32_t node) {
  const struct node *n = &s->planner->nodes[node];
  for (int i = 0; i < n->n_in; i++)
    if (is_own(s, n->in[i])) return true;
  return false;
}

// Does nothing but the set read what the node makes?
static bool only_feeds(const struct search *s, int32_t node) {
  const struct planner *planner = s->planner;
  int32_t tensor = planner->nodes[node].out;
  if (planner->wanted[tensor]) return false;
  for (int32_t i = planner->reader_start[tensor]; i < planner->reader_start[tensor + 1]; i++)
    if (!is_taken(s, planner->readers[i])) return false;
  return true;
}

static void add(struct search *s, int32_t node) {
  s->planner->in_finish[node] = 1;
  s->nodes[s->n++] = node;
}

static void drop(struct search *s, int at) {
  s->planner->in_finish[s->nodes[at]] = 0;
  s->nodes[at] = s->nodes[--s->n];
}

// ---- what may be in it ----
static void find_candidates(struct search *s) {
  const struct planner *planner = s->planner;
  for (int32_t n = 0; n < planner->graph->n_nodes && s->n < FINISH_NODES; n++)
    if (is_candidate(s, n) && leads_on(s, n)) add(s, n);
  // Backwards: what makes an operand of theirs, and nothing else.
  for (int32_t n = planner->graph->n_nodes - 1; n >= 0 && s->n < FINISH_NODES; n--)
    if (s->n > 0 && is_candidate(s, n) && !is_taken(s, n) && only_feeds(s, n)) add(s, n);
}

// ---- what may stay ----
// All row ops that could be one program read the tensor, or none of the set does.
static bool shares_a_reader(const struct search *s, int32_t tensor) {
  const struct planner *planner = s->planner;
  for (int32_t i = planner->reader_start[tensor]; i < planner->reader_start[tensor + 1]; i++) {
    int32_t reader = planner->readers[i];
    bool row = op_def_get(planner->nodes[reader].op)->cls == OPC_ROW &&
               planner->nodes[reader].op != OP_POOL && planner->group_of[reader] < 0;
    if (row && !is_taken(s, reader)) return true;
  }
  return false;
}

static bool reads_shared(const struct search *s, int32_t node) {
  const struct node *n = &s->planner->nodes[node];
  for (int i = 0; i < n->n_in; i++)
    if (is_own(s, n->in[i]) && shares_a_reader(s, n->in[i])) return true;
  return false;
}

static void reach(struct planner *planner, int32_t node, int32_t *depth, uint32_t mark) {
  if (planner->node_seen[node] == mark) return;
  planner->node_seen[node] = mark;
  planner->stack[(*depth)++] = node;
}

static void reach_readers(struct search *s, int32_t node, int32_t *depth, uint32_t mark) {
  struct planner *planner = s->planner;
  int32_t tensor = planner->nodes[node].out;
  for (int32_t i = planner->reader_start[tensor]; i < planner->reader_start[tensor + 1]; i++) {
    int32_t reader = planner->readers[i];
    if (!planner->live[reader] || is_taken(s, reader)) continue;
    int32_t group = planner->group_of[reader];
    if (group == s->id) continue;
    if (group < 0) reach(planner, reader, depth, mark);
    for (int32_t n = group < 0 ? -1 : planner->groups[group].head; n >= 0; n = planner->next[n])
      reach(planner, n, depth, mark); // a kernel runs as a whole
  }
}

// Marks every node outside that needs something of the group or the set.
static uint32_t mark_dependants(struct search *s) {
  struct planner *planner = s->planner;
  uint32_t mark = ++planner->seen_mark;
  int32_t depth = 0;
  for (int32_t n = s->group->head; n >= 0; n = planner->next[n])
    reach_readers(s, n, &depth, mark);
  for (int i = 0; i < s->n; i++)
    reach_readers(s, s->nodes[i], &depth, mark);
  while (depth > 0)
    reach_readers(s, planner->stack[--depth], &depth, mark);
  return mark;
}

static bool reads_dependant(const struct search *s, int32_t node, uint32_t mark) {
  const struct planner *planner = s->planner;
  for (int i = 0; i < planner->nodes[node].n_in; i++) {
    int32_t tensor = planner->nodes[node].in[i], producer = planner->producer[tensor];
    if (producer >= 0 && !is_own(s, tensor) && planner->group_of[producer] != s->id &&
        planner->node_seen[producer] == mark)
      return true;
  }
  return false;
}

static bool group_reads_dependant(const struct search *s, uint32_t mark) {
  for (int32_t n = s->group->head; n >= 0; n = s->planner->next[n])
    if (reads_dependant(s, n, mark)) return true;
  return false;
}

// Takes out what may not stay until all that is left may.
static void prune(struct search *s) {
  for (bool changed = true; changed && s->n > 0;) {
    changed = false;
    uint32_t mark = mark_dependants(s);
    if (group_reads_dependant(s, mark)) {
      while (s->n > 0)
        drop(s, s->n - 1);
      return;
    }
    for (int i = s->n - 1; i >= 0; i--) {
      int32_t node = s->nodes[i];
      bool stays = !reads_dependant(s, node, mark) && !reads_shared(s, node) &&
                   (leads_on(s, node) || only_feeds(s, node));
      if (stays) continue;
      drop(s, i);
      changed = true;
    }
  }
}

// ---- its program ----
static bool last_rounds(const struct planner *planner, const struct group *group) {
  int32_t producer = planner->producer[group->out[0]];
  const struct node *node = &planner->nodes[producer];
  return node->op == OP_CAST && node->attrs.to != DTYPE_F32;
}

static bool build(const struct planner *planner, const struct group *group, const int32_t *nodes,
                  int n, struct row_builder *builder, struct row_program *out) {
  int32_t index_tensors[ROW_MAX_INPUTS], id = (int32_t)(group - planner->groups);
  int n_index;
  const struct node *head = &planner->nodes[group->head];
  row_builder_init(builder, planner->graph, group->rows, planner->graph->tensors[head->out].cols);
  int value = row_builder_load(builder, group->out[0], IN_FULL, -1);
  if (last_rounds(planner, group))
    value = row_builder_emit(builder, RI_CAST, value, ROW_NO_VALUE, ROW_NO_VALUE,
                             (uint8_t)planner->graph->tensors[group->out[0]].dtype, 0);
  row_builder_define(builder, group->out[0], value);
  if (planner_is_written(planner, group->out[0], id, id)) row_builder_store(builder, group->out[0]);
  for (int i = 0; i < n && !builder->refused; i++) {
    const struct node *node = &planner->nodes[nodes[i]];
    row_builder_node(builder, node);
    if (planner_is_written(planner, node->out, id, id)) row_builder_store(builder, node->out);
  }
  if (!row_builder_finish(builder, out, index_tensors, &n_index)) return false;
  FW_ASSERT(n_index == 0);
  out->inputs[0].dtype = DTYPE_F32; // the accumulators
  return true;
}

bool planner_finish_program(const struct planner *planner, const struct group *group,
                            struct row_builder *builder, struct row_program *out) {
  int32_t nodes[STEP_MAX_NODES], n = 0, skip = group->n_nodes - group->n_finish;
  for (int32_t node = group->head; node >= 0; node = planner->next[node])
    if (skip-- <= 0) nodes[n++] = node;
  return build(planner, group, nodes, n, builder, out);
}

// ---- the whole ----
static void sort_nodes(struct search *s) {
  for (int i = 1; i < s->n; i++)
    for (int j = i; j > 0 && s->nodes[j] < s->nodes[j - 1]; j--) {
      int32_t node = s->nodes[j];
      s->nodes[j] = s->nodes[j - 1], s->nodes[j - 1] = node;
    }
}

static int operands_of(const struct group *group) {
  return group->kind == GROUP_LINEAR ? 2 + group->n_epilogue : 3;
}

// Do fast kernels read and save it? Pairs of neighbours, in fp32 or the product's own dtype.
static bool suits_lists(const struct row_program *program, enum dtype own) {
  if (program->cols % 2 != 0) return false;
  for (int i = 1; i < program->n_inputs; i++)
    if (program->inputs[i].dtype != DTYPE_F32 && program->inputs[i].dtype != own) return false;
  for (int i = 0; i + 1 < program->n_outputs; i++)
    if (program->output_dtype[i] != DTYPE_F32 && program->output_dtype[i] != own) return false;
  return true;
}

// Can the device's kernel do it? Only how long the group's own list is counts: it stands before.
static bool device_can(const struct planner *planner, const struct group *group,
                       const struct row_program *program) {
  struct linear_problem problem = {.n_epilogue = group->n_epilogue};
  if (group->kind != GROUP_LINEAR || !planner->caps->finish_lists) return true;
  int32_t x = planner->nodes[group->head].in[0];
  return suits_lists(program, planner->graph->tensors[x].dtype) &&
         finish_as_list(program, 0, &problem);
}

// Puts the nodes into the group; false, and they are out again, when the program does not fit.
static bool join(struct search *s) {
  struct planner *planner = s->planner;
  struct group *group = s->group;
  struct row_builder builder;
  struct row_program program;
  int32_t last = group->tail;
  sort_nodes(s);
  for (int i = 0; i < s->n; i++) {
    planner->next[group->tail] = s->nodes[i];
    planner->group_of[s->nodes[i]] = s->id;
    group->tail = s->nodes[i];
  }
  group->n_nodes += s->n, group->n_finish = s->n;
  bool fits = group->n_nodes <= STEP_MAX_NODES &&
              planner_finish_program(planner, group, &builder, &program) &&
              operands_of(group) + program.n_inputs - 1 <= STEP_MAX_IN &&
              device_can(planner, group, &program);
  if (fits) return true;
  for (int i = 0; i < s->n; i++)
    planner->next[s->nodes[i]] = planner->group_of[s->nodes[i]] = -1;
  planner->next[last] = -1;
  group->tail = last;
  group->n_nodes -= s->n, group->n_finish = 0;
  return false;
}

// Costs know by this what a node of the set would be.
static void mark_finish(const struct search *s, bool is) {
  for (int i = 0; i < s->n; i++)
    s->planner->finishes[s->nodes[i]] = is;
}

static const char *does_not_pay(struct search *s) {
  struct node_set set = {.n = 0};
  sort_nodes(s);
  for (int i = 0; i < s->n; i++)
    node_set_add(&set, s->nodes[i]);
  mark_finish(s, true); // whatever the mode: explain asks for the costs, too
  bool listed = s->group->kind == GROUP_LINEAR && s->planner->caps->finish_lists;
  if (s->planner->mode != FUSION_AUTO && !listed) return NULL;
  return planner_finish_worth(s->planner, s->group, &set);
}

static void tell_why(struct search *s, const char *why) {
  struct planner *planner = s->planner;
  for (int i = 0; i < s->n; i++) {
    const struct node *node = &planner->nodes[s->nodes[i]];
    for (int in = 0; in < node->n_in; in++)
      if (node->in[in] == s->from) planner->why[s->nodes[i] * NODE_MAX_INPUTS + in] = why;
  }
}

// Why a reader of the result, or of what the finish makes, is not in it.
static const char *why_left(const struct search *s, int32_t reader) {
  const struct planner *planner = s->planner;
  const struct op_def *def = op_def_get(planner->nodes[reader].op);
  if (def->cls == OPC_LINEAR) return "a product reads its operand from memory";
  if (def->cls == OPC_ATTENTION) return "attention reads the keys and values of whole sequences";
  if (planner->group_of[reader] >= 0)
    return "it is in the epilogue of another product, which reads this one's result";
  if (planner->nodes[reader].op == OP_POOL)
    return "pooling reads all tokens of a sequence: they must be in memory";
  if (def->whole_row && s->group->kind == GROUP_LINEAR)
    return "it needs whole rows of the product, which an epilogue does not see";
  if (def->whole_row) return "attention works by sequence and head, not by whole rows";
  return "it goes with work on whole rows of the same tensor, or needs a result from there";
}

static void tell_left(const struct search *s, int32_t tensor) {
  struct planner *planner = s->planner;
  for (int32_t i = planner->reader_start[tensor]; i < planner->reader_start[tensor + 1]; i++) {
    int32_t reader = planner->readers[i];
    if (planner->group_of[reader] == s->id) continue;
    for (int in = 0; in < planner->nodes[reader].n_in; in++)
      if (planner->nodes[reader].in[in] == tensor)
        planner->why[reader * NODE_MAX_INPUTS + in] = why_left(s, reader);
  }
}

// Of a result that is left to a chain: why its readers are apart, should it not end up in a tile.
static void tell_tile(struct planner *planner, int32_t tensor) {
  int32_t start = planner->reader_start[tensor], end = planner->reader_start[tensor + 1];
  if (end - start == 1) return; // the epilogue's reason holds
  for (int32_t i = start; i < end; i++)
    for (int in = 0; in < planner->nodes[planner->readers[i]].n_in; in++)
      if (planner->nodes[planner->readers[i]].in[in] == tensor)
        planner->why[planner->readers[i] * NODE_MAX_INPUTS + in] =
            "its readers are not all in the pass over tiles that makes it: it goes through memory";
}

void planner_add_finish(struct planner *planner, int32_t id) {
  struct group *group = &planner->groups[id];
  bool able =
      group->kind == GROUP_LINEAR ? planner->caps->product_finish : planner->caps->attention_finish;
  // A chain that keeps the result in a tile moves as little, and its row kernel runs over longer
  // rows: measured 2 to 5 % faster than a finish (bench/results/README.md).
  if (!able || group->n_left > 0) return;
  if (planner_stays_in_tile(planner, group->out[0])) {
    tell_tile(planner, group->out[0]);
    return;
  }
  struct search search = {.planner = planner,
                          .group = group,
                          .id = id,
                          .from = group->out[0],
                          .cols = planner->graph->tensors[group->out[0]].cols};
  find_candidates(&search);
  bool pays = true;
  for (;;) {
    prune(&search);
    if (search.n == 0) break;
    const char *why = does_not_pay(&search);
    if (why) {
      tell_why(&search, why);
      pays = false;
      break;
    }
    if (join(&search)) break;
    mark_finish(&search, false);
    drop(&search, search.n - 1); // the last one in graph order
  }
  for (int i = 0; i < search.n; i++)
    planner->in_finish[search.nodes[i]] = 0;
  if (pays) tell_left(&search, group->out[0]);
  for (int i = 0; i < search.n && pays; i++)
    tell_left(&search, planner->nodes[search.nodes[i]].out);
}
