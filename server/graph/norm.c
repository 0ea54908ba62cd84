// The norm of a product's result by the product's own kernel, on devices whose kernels hold whole
// rows between their blocks (plan_caps.product_norm):
//
//   s = x W^T + b + r          others may read s: it is written as well
//   y = norm(s)                y is what the kernel is for
//
// Not where more work on whole rows would be one program with the norm: what follows it, or what
// else reads s. That program reads and writes as much as this saves.
#include "base/log.h"
#include "graph/planner.h"

static bool is_norm(const struct node *node) {
  return node->op == OP_LAYER_NORM || node->op == OP_RMS_NORM;
}

// The norm that reads the product's result, or -1.
static int32_t norm_of(const struct planner *planner, int32_t sum) {
  int32_t found = -1;
  for (int32_t i = planner->reader_start[sum]; i < planner->reader_start[sum + 1]; i++) {
    int32_t reader = planner->readers[i];
    if (!is_norm(&planner->nodes[reader]) || planner->group_of[reader] >= 0) continue;
    if (found >= 0) return -1;
    found = reader;
  }
  return found;
}

// Is there work on rows, beside `except`, that reads the tensor and is in no kernel yet?
static bool has_row_reader(const struct planner *planner, int32_t tensor, int32_t except) {
  for (int32_t i = planner->reader_start[tensor]; i < planner->reader_start[tensor + 1]; i++) {
    int32_t reader = planner->readers[i];
    if (reader != except && planner->group_of[reader] < 0 &&
        op_def_get(planner->nodes[reader].op)->cls == OPC_ROW)
      return true;
  }
  return false;
}

static bool fits_columns(const struct plan_caps *caps, int32_t cols) {
  for (int i = 0; i < NORM_COLUMNS; i++) {
    const struct norm_columns *c = &caps->product_norm[i];
    if (c->step > 0 && cols % c->step == 0 && cols <= c->most) return true;
  }
  return false;
}

// A bias and a residual, each once, and nothing else.
static bool is_plain_sum(const struct planner *planner, const struct group *group) {
  const struct node *head = &planner->nodes[group->head];
  const struct tensor *tensors = planner->graph->tensors;
  int n_bias = head->n_in > 2, n_add = 0;
  int32_t product = head->out;
  for (int32_t n = planner->next[group->head]; n >= 0; n = planner->next[n]) {
    const struct node *node = &planner->nodes[n];
    struct op_fold fold;
    bool folds = op_def_get(node->op)->fold(planner->graph, node, product, &fold);
    FW_ASSERT(folds);
    if (!fold.has_epilogue || (fold.epilogue.kind != EPI_BIAS && fold.epilogue.kind != EPI_ADD))
      return false;
    n_bias += fold.epilogue.kind == EPI_BIAS;
    n_add += fold.epilogue.kind == EPI_ADD;
    if (fold.epilogue.kind == EPI_ADD && tensors[fold.operand].dtype != tensors[head->out].dtype)
      return false;
    product = node->out;
  }
  return n_bias <= 1 && n_add <= 1;
}

static bool is_of_dtype(const struct planner *planner, const struct group *group, int32_t norm) {
  const struct tensor *tensors = planner->graph->tensors;
  const struct node *head = &planner->nodes[group->head], *node = &planner->nodes[norm];
  enum dtype dtype = tensors[head->in[0]].dtype;
  bool weights = true;
  for (int i = 1; i < node->n_in; i++)
    weights =
        weights && (tensors[node->in[i]].dtype == dtype || tensors[node->in[i]].dtype == DTYPE_F32);
  return (planner->caps->product_norm_dtypes >> dtype & 1u) && weights &&
         tensors[head->in[1]].dtype == dtype && tensors[group->out[0]].dtype == dtype &&
         tensors[node->out].dtype == dtype;
}

static const char *refusal(struct planner *planner, const struct group *group, int n_keep,
                           int32_t norm) {
  if (!is_of_dtype(planner, group, norm))
    return "the device's products do no norm of their result in these dtypes";
  if (!fits_columns(planner->caps, planner->graph->tensors[group->out[0]].cols))
    return "rows of so many columns are not held between the blocks of a product's kernel";
  if (!is_plain_sum(planner, group))
    return "a product that does the norm of its result takes a bias and a residual before it, and "
           "no more";
  if (has_row_reader(planner, group->out[0], norm))
    return "what else reads the product's result is done in one program with the norm";
  if (has_row_reader(planner, planner->nodes[norm].out, -1))
    return "what follows the norm is done in one program with it";
  if (group->n_nodes == STEP_MAX_NODES) return PLANNER_WHY_NODES;
  if (planner->mode == FUSION_AUTO) return planner_norm_worth(planner, group, n_keep, norm);
  return planner->caps->product_norm_weighed
             ? "a product that does the norm of its result pays for many rows only, which fusion: "
               "auto weighs"
             : NULL;
}

void planner_add_norm(struct planner *planner, int32_t id, int n_keep) {
  struct group *group = &planner->groups[id];
  if (group->n_parts != 1 || group->n_finish > 0) return;
  int32_t norm = norm_of(planner, group->out[0]);
  if (norm < 0) return;
  const char *why = refusal(planner, group, n_keep, norm);
  if (why) {
    planner->why[norm * NODE_MAX_INPUTS] = why;
    return;
  }
  planner->next[group->tail] = norm;
  group->tail = norm;
  group->n_nodes++;
  group->norm = true;
  planner->group_of[norm] = id;
}
