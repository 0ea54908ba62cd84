// Groups into steps. Operands name their tensors here; place.c says later where they lie.
#include "base/log.h"
#include "graph/planner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct operand operand_of(const struct planner *planner, int32_t tensor) {
  const struct tensor *t = &planner->graph->tensors[tensor];
  struct operand operand = {
      .tensor = tensor, .cols = t->cols, .stride = t->cols, .dtype = t->dtype, .rows = t->rows};
  if (t->kind == TENSOR_POSITIONS) operand.place = PLACE_POSITIONS;
  if (t->kind == TENSOR_WEIGHT) {
    operand.place = PLACE_WEIGHT;
    operand.n_parts = 1;
    operand.n_rows = t->n_rows;
    operand.weight[0] = t->index;
  }
  return operand;
}

static struct operand scores_operand(const struct node *node) {
  // fp32 for every dtype: scores rounded to bf16 are an error in the exponent, and the unfused plan
  // keeps the same accuracy contract as the fused one.
  return (struct operand){.tensor = -1,
                          .cols = node->attrs.heads,
                          .stride = node->attrs.heads,
                          .dtype = DTYPE_F32,
                          .rows = ROWS_SCORES};
}

static void step_add_in(struct step *step, struct operand operand) {
  FW_ASSERT(step->n_in < STEP_MAX_IN);
  step->in[step->n_in++] = operand;
}

static void step_add_out(struct step *step, struct operand operand) {
  FW_ASSERT(step->n_out < STEP_MAX_OUT);
  step->out[step->n_out++] = operand;
}

// "linear+bias+gelu"; equal neighbours are counted, as in "embedding*3". Cut with "..." when it
// does not fit.
static void step_label(const struct planner *planner, struct step *step) {
  size_t used = 0, room = sizeof step->label;
  for (int i = 0, count; i < step->n_nodes; i += count) {
    const struct node *node = &planner->nodes[step->nodes[i]];
    for (count = 1;
         i + count < step->n_nodes && planner->nodes[step->nodes[i + count]].op == node->op;)
      count++;
    char times[16] = "";
    if (count > 1) snprintf(times, sizeof times, "*%d", count);
    int length =
        snprintf(step->label + used, room - used, "%s%s%s%s", used ? "+" : "", op_name(node->op),
                 times, node->op == OP_LINEAR && node->n_in > 2 ? "+bias" : "");
    if ((size_t)length >= room - used) {
      snprintf(step->label + room - 4, 4, "...");
      return;
    }
    used += (size_t)length;
  }
}

static struct step *step_begin(struct planner *planner, enum step_kind kind,
                               const struct group *group) {
  struct step *step = &planner->plan->steps[planner->plan->n_steps++];
  step->kind = kind;
  step->rows = group->rows;
  for (int32_t node = group->head; node >= 0; node = planner->next[node]) {
    FW_ASSERT(step->n_nodes < STEP_MAX_NODES);
    step->nodes[step->n_nodes++] = node;
  }
  step_label(planner, step);
  return step;
}

// ---- rows ----
// The operands of the program that makes what the step pools, behind the step's own.
static enum status add_before(struct planner *planner, const struct group *group,
                              struct step *step) {
  struct row_builder builder;
  int32_t index_tensors[ROW_MAX_INPUTS];
  int n_index;
  if (!planner_before_program(planner, group, NULL, &builder, &step->before, index_tensors,
                              &n_index))
    return error_set(planner->err, STATUS_INTERNAL, "step %s: %s", step->label, builder.refused);
  if (step->before.n_insts == 0) return STATUS_OK;
  for (int i = 0; i < step->row.n_inputs; i++)
    if (step->row.inputs[i].cls >= IN_POOL_MEAN && step->in[i].tensor == builder.outputs[0]) {
      step->in[i].place = PLACE_STEP;
      step->row.inputs[i].dtype = DTYPE_F32;
      step->in[i].dtype = DTYPE_F32;
    }
  step->before_in = step->n_in;
  for (int i = 0; i < builder.n_inputs; i++)
    step_add_in(step, operand_of(planner, builder.inputs[i].tensor));
  for (int i = 0; i < n_index; i++)
    step_add_in(step, operand_of(planner, index_tensors[i]));
  return STATUS_OK;
}

static enum status row_step(struct planner *planner, const struct group *group) {
  struct step *step = step_begin(planner, STEP_ROW, group);
  struct row_builder builder;
  int32_t index_tensors[ROW_MAX_INPUTS];
  int n_index;
  if (!planner_row_program(planner, group, NULL, &builder, &step->row, index_tensors, &n_index))
    return error_set(planner->err, STATUS_INTERNAL, "step %s: %s", step->label, builder.refused);
  for (int i = 0; i < builder.n_inputs; i++)
    step_add_in(step, operand_of(planner, builder.inputs[i].tensor));
  for (int i = 0; i < n_index; i++)
    step_add_in(step, operand_of(planner, index_tensors[i]));
  for (int i = 0; i < builder.n_outputs; i++)
    step_add_out(step, operand_of(planner, builder.outputs[i]));
  return add_before(planner, group, step);
}

// ---- products ----
// Weights or biases side by side as one operand. The parts are alike in dtype; a weight's columns
// are k, a bias's are those of all parts.
static struct operand parts_operand(const struct planner *planner, const int32_t *tensors,
                                    int n_parts, bool is_bias) {
  struct operand operand = operand_of(planner, tensors[0]);
  for (int i = 1; i < n_parts; i++) {
    operand.weight[operand.n_parts++] = planner->graph->tensors[tensors[i]].index;
    if (is_bias) operand.cols += planner->graph->tensors[tensors[i]].cols;
  }
  operand.stride = operand.cols;
  return operand;
}

static void epilogue_add(const struct planner *planner, struct step *step, struct epilogue_op op,
                         int32_t operand) {
  struct linear_problem *linear = &step->linear;
  FW_ASSERT(linear->n_epilogue < EPILOGUE_MAX);
  op.operand = ROW_NONE;
  if (operand >= 0) {
    op.operand = step->n_in;
    step_add_in(step, operand_of(planner, operand));
  }
  linear->epilogue[linear->n_epilogue++] = op;
}

// After the bias of a product was added: as it is kept.
static void settle_bias(const struct planner *planner, struct step *step) {
  struct operand *bias = &step->in[step->n_in - 1];
  if (planner->caps->vectors_as_compute && bias->place == PLACE_WEIGHT)
    bias->dtype = step->linear.y_dtype;
}

// The epilogue of one product: its own bias, then the folded nodes in order.
static void single_epilogue(const struct planner *planner, const struct group *group,
                            struct step *step) {
  const struct node *node = &planner->nodes[group->head];
  if (node->n_in > 2) {
    epilogue_add(planner, step, (struct epilogue_op){.kind = EPI_BIAS}, node->in[2]);
    settle_bias(planner, step);
  }
  int32_t product = node->out, n = planner->next[group->head];
  for (int i = 1; i < group->n_nodes - group->n_finish - group->norm; i++, n = planner->next[n]) {
    struct op_fold fold;
    bool folds =
        op_def_get(planner->nodes[n].op)->fold(planner->graph, &planner->nodes[n], product, &fold);
    FW_ASSERT(folds);
    if (fold.has_epilogue) epilogue_add(planner, step, fold.epilogue, fold.operand);
    product = planner->nodes[n].out;
  }
}

// Operands of the finish behind the step's own, its results as the step's.
static enum status add_finish(struct planner *planner, const struct group *group,
                              struct step *step) {
  struct row_builder builder;
  if (group->n_finish == 0) return STATUS_OK;
  if (!planner_finish_program(planner, group, &builder, &step->finish))
    return error_set(planner->err, STATUS_INTERNAL, "step %s: %s", step->label, builder.refused);
  step->finish_in = step->n_in;
  for (int i = 1; i < builder.n_inputs; i++)
    step_add_in(step, operand_of(planner, builder.inputs[i].tensor));
  step->n_out = 0;
  for (int i = 0; i < builder.n_outputs; i++)
    step_add_out(step, operand_of(planner, builder.outputs[i]));
  return STATUS_OK;
}

// The norm's weights behind the step's own operands; its result in place of the product's, which
// follows where it is wanted.
static void add_norm(const struct planner *planner, const struct group *group, struct step *step) {
  if (!group->norm) return;
  const struct node *node = &planner->nodes[group->tail];
  int32_t sum = group->out[0], id = (int32_t)(group - planner->groups);
  step->norm =
      (struct norm_problem){.kind = node->op == OP_RMS_NORM ? ROW_NORM_RMS : ROW_NORM_LAYER,
                            .gamma = step->n_in,
                            .beta = node->n_in > 2 ? (uint8_t)(step->n_in + 1) : ROW_NONE,
                            .sum = planner_is_written(planner, sum, id, id),
                            .eps = node->attrs.eps};
  for (int i = 1; i < node->n_in; i++)
    step_add_in(step, operand_of(planner, node->in[i]));
  step->out[0] = operand_of(planner, node->out);
  if (step->norm.sum) step_add_out(step, operand_of(planner, sum));
}

static enum status linear_step(struct planner *planner, const struct group *group) {
  struct step *step = step_begin(planner, STEP_LINEAR, group);
  const struct tensor *tensors = planner->graph->tensors;
  int32_t x = planner->nodes[group->head].in[0];
  struct operand y = operand_of(planner, group->out[0]);
  for (int i = 1; i < group->n_parts;
       i++) { // the other parts are columns of the first one's buffer
    planner->buffer_of[group->out[i]] = group->out[0];
    planner->slice_col[group->out[i]] = y.cols;
    y.cols += tensors[group->out[i]].cols;
  }
  y.stride = y.cols;
  planner->buffers[group->out[0]].cols = y.cols;
  step_add_in(step, operand_of(planner, x));
  step_add_in(step, parts_operand(planner, group->weight, group->n_parts, false));
  step_add_out(step, y);
  step->linear = (struct linear_problem){.n = y.cols,
                                         .k = tensors[x].cols,
                                         .x_dtype = tensors[x].dtype,
                                         .w_dtype = tensors[group->weight[0]].dtype,
                                         .y_dtype = group->n_finish ? DTYPE_F32 : y.dtype};
  if (group->n_parts == 1) {
    single_epilogue(planner, group, step);
  } else if (group->bias[0] >= 0) {
    epilogue_add(planner, step, (struct epilogue_op){.kind = EPI_BIAS}, group->bias[0]);
    step->in[step->n_in - 1] = parts_operand(planner, group->bias, group->n_parts, true);
    settle_bias(planner, step);
  }
  add_norm(planner, group, step);
  return add_finish(planner, group, step);
}

// ---- attention ----
struct attention_problem attention_problem_of(const struct planner *planner,
                                              const struct node *node) {
  const struct tensor *q = &planner->graph->tensors[node->in[0]];
  struct attention_problem problem = {
      .heads = node->attrs.heads, .causal = node->attrs.causal, .dtype = q->dtype};
  problem.kv_heads = node->attrs.kv_heads ? node->attrs.kv_heads : node->attrs.heads;
  problem.head_dim = q->cols / node->attrs.heads;
  problem.scale = node->attrs.factor;
  if (problem.scale == 0) problem.scale = (float)(1.0 / __builtin_sqrt((double)problem.head_dim));
  return problem;
}

static enum status attention_step(struct planner *planner, const struct group *group) {
  const struct node *node = &planner->nodes[group->head];
  struct step *step = step_begin(planner, STEP_ATTENTION, group);
  step->attention = attention_problem_of(planner, node);
  for (int i = 0; i < 3; i++)
    step_add_in(step, operand_of(planner, node->in[i]));
  step_add_out(step, operand_of(planner, node->out));
  return add_finish(planner, group, step);
}

// One op at a time: the score matrix is in memory between four steps.
static void attention_steps_unfused(struct planner *planner, const struct group *group) {
  const struct node *node = &planner->nodes[group->head];
  static const enum step_kind kinds[] = {STEP_SCORES, STEP_SCORES_SCALE, STEP_SCORES_SOFTMAX,
                                         STEP_CONTEXT};
  for (int i = 0; i < 4; i++) {
    struct step *step = step_begin(planner, kinds[i], group);
    step->attention = attention_problem_of(planner, node);
    snprintf(step->label, sizeof step->label, "attention.%s", step_kind_name(kinds[i]));
    if (kinds[i] == STEP_SCORES) {
      step_add_in(step, operand_of(planner, node->in[0]));
      step_add_in(step, operand_of(planner, node->in[1]));
    } else {
      step_add_in(step, scores_operand(node));
    }
    if (kinds[i] == STEP_CONTEXT) step_add_in(step, operand_of(planner, node->in[2]));
    step_add_out(step,
                 kinds[i] == STEP_CONTEXT ? operand_of(planner, node->out) : scores_operand(node));
    if (kinds[i] != STEP_CONTEXT) step->rows = ROWS_SCORES;
  }
}

// ---- the whole ----
static void buffers_init(struct planner *planner) {
  const struct graph *graph = planner->graph;
  for (int32_t t = 0; t < graph->n_tensors; t++) {
    const struct tensor *tensor = &graph->tensors[t];
    planner->buffer_of[t] = t;
    planner->buffers[t] =
        (struct buffer){.rows = tensor->rows, .dtype = tensor->dtype, .cols = tensor->cols};
  }
  for (int32_t n = 0; n < graph->n_nodes; n++) {
    if (!planner->live[n] || planner->nodes[n].op != OP_ATTENTION) continue;
    struct operand scores = scores_operand(&planner->nodes[n]);
    planner->buffers[graph->n_tensors + n] =
        (struct buffer){.rows = ROWS_SCORES, .dtype = scores.dtype, .cols = scores.cols};
  }
}

struct buffer *planner_buffer(struct planner *planner, const struct step *step,
                              const struct operand *operand) {
  if (operand->tensor < 0) return &planner->buffers[planner->graph->n_tensors + step->nodes[0]];
  return &planner->buffers[planner->buffer_of[operand->tensor]];
}

enum status planner_steps(struct planner *planner) {
  struct plan *plan = planner->plan;
  size_t n_steps = 0; // unfused attention is four steps
  for (int32_t i = 0; i < planner->n_order; i++)
    n_steps +=
        planner->mode == FUSION_OFF && planner->groups[planner->order[i]].kind == GROUP_ATTENTION
            ? 4
            : 1;
  plan->steps = calloc(n_steps + 1, sizeof *plan->steps);
  if (!plan->steps)
    return error_set(planner->err, STATUS_RESOURCE_EXHAUSTED, "out of memory while planning");
  buffers_init(planner);
  for (int32_t i = 0; i < planner->n_order; i++) {
    const struct group *group = &planner->groups[planner->order[i]];
    enum status status = STATUS_OK;
    if (group->kind == GROUP_ROW) status = row_step(planner, group);
    if (group->kind == GROUP_LINEAR) status = linear_step(planner, group);
    if (group->kind == GROUP_ATTENTION && planner->mode != FUSION_OFF)
      status = attention_step(planner, group);
    if (group->kind == GROUP_ATTENTION && planner->mode == FUSION_OFF)
      attention_steps_unfused(planner, group);
    if (status != STATUS_OK) return status;
  }
  return STATUS_OK;
}
