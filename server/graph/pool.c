// Poolings that make the rows they pool: work on token rows and the pooling of its result as one
// kernel, a few rows at a time, so that the rows are never in memory (legality; fuse.c asks).
#include "graph/planner.h"

static const char *const WHY_POOLED =
    "pooling reads all tokens of a sequence: they must be in memory";

// The tensor of token rows that a node of the group pools and another one makes; -1: none.
static int32_t pooled_inside(const struct planner *planner, const struct group *group,
                             const struct group *maker) {
  for (int32_t n = group->head; n >= 0; n = planner->next[n]) {
    const struct node *node = &planner->nodes[n];
    int32_t producer = planner->producer[node->in[0]];
    if (node->op == OP_POOL && producer >= 0 &&
        &planner->groups[planner->group_of[producer]] == maker)
      return node->in[0];
  }
  return -1;
}

bool planner_before_program(const struct planner *planner, const struct group *group,
                            const struct group *other, struct row_builder *builder,
                            struct row_program *out, int32_t index_tensors[ROW_MAX_INPUTS],
                            int *n_index) {
  int32_t pooled = pooled_inside(planner, group, other ? other : group);
  *out = (struct row_program){0};
  *n_index = 0;
  builder->refused = NULL;
  if (group->rows != ROWS_SEQS || pooled < 0) return true;
  int32_t cols = planner->graph->tensors[pooled].cols;
  row_builder_init(builder, planner->graph, ROWS_TOKENS, cols);
  planner_lower_nodes(planner, group, other, ROWS_TOKENS, builder);
  row_builder_store(builder, pooled);
  if (!row_builder_finish(builder, out, index_tensors, n_index)) return false;
  out->output_dtype[0] = DTYPE_F32; // it stays in the step
  return true;
}

int planner_operands_before(const struct planner *planner, const struct group *group) {
  struct row_builder builder;
  struct row_program program;
  int32_t index_tensors[ROW_MAX_INPUTS];
  int n_index;
  if (!planner_before_program(planner, group, NULL, &builder, &program, index_tensors, &n_index))
    return 0;
  return program.n_inputs + n_index;
}

// Inputs of one kernel that does both, and bytes of the values of a token's row that it holds.
static int operands_inside(const struct planner *planner, const struct group *a,
                           const struct group *b, int64_t *row_bytes) {
  struct row_builder builder;
  struct row_program program;
  int32_t index_tensors[ROW_MAX_INPUTS];
  int n_index, n = 0;
  if (!planner_row_program(planner, b, NULL, &builder, &program, index_tensors, &n_index))
    return STEP_MAX_IN + 1;
  n += program.n_inputs + n_index;
  if (!planner_before_program(planner, b, a, &builder, &program, index_tensors, &n_index))
    return STEP_MAX_IN + 1;
  *row_bytes = (program.n_regs + 1) * (int64_t)program.cols * (int64_t)sizeof(float);
  return n + program.n_inputs + n_index;
}

static bool pools_first_rows(const struct planner *planner, const struct group *group,
                             int32_t pooled) {
  for (int32_t n = group->head; n >= 0; n = planner->next[n])
    if (planner->nodes[n].op == OP_POOL && planner->nodes[n].in[0] == pooled)
      return planner->nodes[n].attrs.pool == POOL_CLS;
  return false;
}

// Work on token rows, and what pools its result: why one kernel should not do both.
const char *planner_pool_refusal(struct planner *planner, const struct group *a,
                                 const struct group *b) {
  const char *why;
  int32_t pooled =
      b->rows == ROWS_SEQS && a->rows == ROWS_TOKENS ? pooled_inside(planner, b, a) : -1;
  if (pooled < 0 || !planner->caps->pool_before) return WHY_POOLED;
  if (pooled_inside(planner, b, b) >= 0) return "what another pooling reads is made there already";
  if (planner_sole_reader(planner, pooled, &why) < 0) return "what is pooled has other readers";
  if (a->cols != planner->graph->tensors[pooled].cols)
    return "the rows have different numbers of columns";
  for (int32_t n = a->head; n >= 0; n = planner->next[n]) {
    const struct node *node = &planner->nodes[n];
    if (node->op == OP_EMBEDDING && !pools_first_rows(planner, b, pooled))
      return "rows of a table come faster to a kernel that does nothing else (measured)";
    if (node->out != pooled &&
        planner_is_written(planner, node->out, planner->group_of[n], planner->group_of[n]))
      return "others read what is made on the way to it";
    for (int i = 0; i < node->n_in; i++)
      if (planner_stays_in_tile(planner, node->in[i]) &&
          planner->group_of[planner->producer[node->in[i]]] != planner->group_of[n])
        return "its rows are made from a tile in cache, and the tile would be written in their "
               "place";
  }
  int64_t row_bytes = 0, most = planner->plan->rates.pool_row_bytes;
  if (a->n_nodes + b->n_nodes > STEP_MAX_NODES ||
      operands_inside(planner, a, b, &row_bytes) > STEP_MAX_IN)
    return PLANNER_WHY_NODES;
  if (most > 0 && row_bytes > most)
    return "a kernel that pools what it makes would hold more values of a row than fit";
  return planner->mode == FUSION_AUTO ? planner_pool_worth(planner, a, b) : NULL;
}
