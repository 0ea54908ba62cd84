// Bytes and operations of a step as linear functions of the batch. docs/TRAFFIC.md has the model
// and every formula.
#include "graph/planner.h"
#include "graph/row_builder.h"

#include <stdlib.h>

#define FLOPS_ACTIVATION                                                                           \
  8 // a polynomial or an exp and a division; a convention, not a count of instructions

void rate_add(struct traffic_rate *rate, enum row_kind rows, double per_row) {
  if (rows == ROWS_TOKENS) rate->per_token += per_row;
  if (rows == ROWS_SEQS) rate->per_seq += per_row;
  if (rows == ROWS_SCORES) rate->per_score += per_row;
  if (rows == ROWS_FIXED) rate->fixed += per_row;
}

static double row_bytes(const struct operand *operand) {
  return (double)operand->cols * (double)dtype_bytes(operand->dtype);
}

// ---- bytes ----
// Read twice by one step, moved once: is operand i the same data as an earlier one?
static bool is_repeated(const struct step *step, int i) {
  for (int j = 0; j < i; j++)
    if (step->in[j].tensor == step->in[i].tensor && step->in[j].place == step->in[i].place)
      return true;
  return false;
}

static void read_row_input(struct step *step, int i) {
  const struct row_input *input = step_row_input(step, i);
  const struct operand *operand = &step->in[i];
  struct traffic_rate *read = &step->traffic.read;
  if (input->cls == IN_GATHER) { // the rows that are touched, not the table; tables may be gathered
                                 // from repeatedly
    enum row_kind rows = step_row_space(step, i);
    rate_add(read, rows, row_bytes(operand));
    if (input->index_operand == ROW_NONE) rate_add(read, rows, sizeof(int32_t)); // positions
    return;
  }
  if (operand->place == PLACE_TILE || operand->place == PLACE_STEP || is_repeated(step, i)) return;
  bool first = input->cls == IN_POOL_CLS ||
               (operand->rows == ROWS_TOKENS && step_row_space(step, i) == ROWS_SEQS &&
                input->cls < IN_POOL_MEAN);
  rate_add(read, first ? ROWS_SEQS : operand->rows, row_bytes(operand));
}

static void read_bytes(struct step *step) {
  for (int i = 0; i < step->n_in; i++) {
    const struct operand *operand = &step->in[i];
    if (step_row_input(step, i))
      read_row_input(step, i);
    else if (operand->place != PLACE_TILE && !is_repeated(step, i))
      rate_add(&step->traffic.read, operand->rows,
               row_bytes(operand) * (step->kind == STEP_LINEAR && i == 1 ? step->linear.n : 1));
  }
}

static void write_bytes(struct step *step) {
  for (int i = 0; i < step->n_out; i++)
    if (step->out[i].place != PLACE_TILE)
      rate_add(&step->traffic.write, step->out[i].rows, row_bytes(&step->out[i]));
}

// ---- operations ----
double activation_flops(uint8_t act) {
  return act == ACT_NONE ? 0 : act == ACT_RELU ? 1 : FLOPS_ACTIVATION;
}

double inst_flops(const struct row_inst *inst) {
  switch ((enum row_opcode)inst->op) {
  case RI_LOAD:
  case RI_STORE:
  case RI_CAST:
    return 0;
  case RI_ACT:
    return activation_flops(inst->aux);
  case RI_LAYER_NORM:
    return 7; // sum; subtract, square, sum; scale; gamma, beta
  case RI_RMS_NORM:
    return 4;
  case RI_SOFTMAX:
    return 5; // max; subtract, exp, sum; divide
  case RI_NORMALIZE:
    return 3;
  default:
    return 1;
  }
}

double inst_special_flops(const struct row_inst *inst) {
  return inst->op == RI_ACT && inst->aux != ACT_RELU ? activation_flops(inst->aux) : 0;
}

double inst_reduced_flops(const struct row_inst *inst) {
  return inst->op >= RI_SUM ? inst_flops(inst) : 0;
}

// Is what the instruction makes one value a row? `scalar`: the registers that hold such.
static bool makes_scalar(const struct row_program *program, const struct row_inst *inst,
                         const bool *scalar) {
  if (inst->op == RI_LOAD) {
    uint8_t cls = program->inputs[inst->a].cls;
    return cls == IN_PER_ROW || cls == IN_SCALAR;
  }
  return row_result_is_scalar((enum row_opcode)inst->op, scalar[inst->a],
                              inst->b < ROW_MAX_REGS && scalar[inst->b]);
}

struct program_flops program_flops(const struct row_program *program) {
  struct program_flops flops = {0};
  bool scalar[ROW_MAX_REGS] = {false};
  for (int i = 0; i < program->n_insts; i++) {
    const struct row_inst *inst = &program->insts[i];
    if (inst->op == RI_STORE) continue;
    bool one = makes_scalar(program, inst, scalar);
    // A reduction makes one value of a whole row; all else does as much as it makes.
    double times = one && inst->op < RI_SUM ? 1 : program->cols;
    scalar[inst->dst] = one;
    flops.all += times * inst_flops(inst);
    flops.special += times * inst_special_flops(inst);
    flops.reduced += times * inst_reduced_flops(inst);
  }
  return flops;
}

static void row_flops(struct step *step) {
  rate_add(&step->traffic.flops, step->rows, program_flops(&step->row).all);
  rate_add(&step->traffic.flops, step_before_rows(step), program_flops(&step->before).all);
  for (int i = 0; i < step->row.n_inputs; i++) // pooling: one addition or comparison an element
    if (step->row.inputs[i].cls == IN_POOL_MEAN || step->row.inputs[i].cls == IN_POOL_MAX)
      rate_add(&step->traffic.flops, ROWS_TOKENS, step->row.cols);
}

static void linear_flops(struct step *step) {
  const struct linear_problem *linear = &step->linear;
  double per_row = 2.0 * linear->n * linear->k;
  for (int i = 0; i < linear->n_epilogue; i++)
    per_row +=
        linear->n *
        (linear->epilogue[i].kind == EPI_ACT ? activation_flops(linear->epilogue[i].act) : 1.0);
  struct row_inst norm = {.op = step->norm.kind == ROW_NORM_RMS ? RI_RMS_NORM : RI_LAYER_NORM};
  if (step->norm.kind != ROW_NORM_NONE) per_row += linear->n * inst_flops(&norm);
  rate_add(&step->traffic.flops, step->rows, per_row);
}

void attention_flops(const struct attention_problem *problem, enum step_kind kind,
                     struct traffic_rate *flops) {
  double product = 2.0 * problem->head_dim * problem->heads, heads = problem->heads;
  double softmax = 5 * heads, all = 2 * product + heads + softmax;
  switch (kind) {
  case STEP_SCORES:
  case STEP_CONTEXT:
    flops->per_score = product;
    break;
  case STEP_SCORES_SCALE:
    flops->per_score = heads;
    break;
  case STEP_SCORES_SOFTMAX:
    flops->per_score = softmax;
    break;
  default: // fused: a causal mask leaves (s^2 + s) / 2 of a sequence's scores
    flops->per_score = problem->causal ? all / 2 : all;
    flops->per_token = problem->causal ? all / 2 : 0;
  }
}

void step_traffic(struct step *step) {
  read_bytes(step);
  write_bytes(step);
  if (step->kind == STEP_ROW)
    row_flops(step);
  else if (step->kind == STEP_LINEAR)
    linear_flops(step);
  else
    attention_flops(&step->attention, step->kind, &step->traffic.flops);
  if (step->kind != STEP_ROW)
    rate_add(&step->traffic.flops, step->rows, program_flops(&step->finish).all);
}

// ---- totals ----
static double rate_at(const struct traffic_rate *rate, double fixed_share, int64_t n_tokens,
                      int64_t n_seqs, int64_t sum_sq) {
  return rate->fixed * fixed_share + rate->per_token * (double)n_tokens +
         rate->per_seq * (double)n_seqs + rate->per_score * (double)sum_sq;
}

static void rate_sum(struct traffic_rate *sum, const struct traffic_rate *rate) {
  sum->fixed += rate->fixed, sum->per_token += rate->per_token;
  sum->per_seq += rate->per_seq, sum->per_score += rate->per_score;
}

enum status plan_sum_traffic(struct plan *plan) {
  size_t n_masks = (size_t)1 << plan->n_outputs;
  plan->sums = calloc(n_masks, sizeof *plan->sums);
  if (!plan->sums) return STATUS_RESOURCE_EXHAUSTED;
  for (size_t mask = 0; mask < n_masks; mask++)
    for (int32_t s = 0; s < plan->n_steps; s++) {
      const struct step *step = &plan->steps[s];
      struct traffic_sum *sum = &plan->sums[mask];
      if (!(step->needed_by & mask)) continue;
      rate_sum(&sum->traffic.read, &step->traffic.read);
      rate_sum(&sum->traffic.write, &step->traffic.write);
      rate_sum(&sum->traffic.flops, &step->traffic.flops);
      sum->kernels++;
    }
  return STATUS_OK;
}

static struct traffic_total total_at(const struct plan *plan, uint8_t outputs, double fixed_share,
                                     int64_t n_tokens, int64_t n_seqs, int64_t sum_sq) {
  const struct traffic_sum *sum = &plan->sums[outputs & ((1u << plan->n_outputs) - 1)];
  const struct traffic *traffic = &sum->traffic;
  return (struct traffic_total){
      .read_bytes = rate_at(&traffic->read, fixed_share, n_tokens, n_seqs, sum_sq),
      .write_bytes = rate_at(&traffic->write, fixed_share, n_tokens, n_seqs, sum_sq),
      .flops = rate_at(&traffic->flops, fixed_share, n_tokens, n_seqs, sum_sq),
      .kernels = sum->kernels};
}

struct traffic_total plan_traffic(const struct plan *plan, uint8_t outputs, int64_t n_tokens,
                                  int64_t n_seqs, int64_t sum_sq) {
  return total_at(plan, outputs, 1, n_tokens, n_seqs, sum_sq);
}

struct traffic_total plan_traffic_share(const struct plan *plan, uint8_t outputs, int64_t n_tokens,
                                        int64_t n_seqs, int64_t sum_sq, int64_t batch_tokens) {
  double share = batch_tokens > 0 ? (double)n_tokens / (double)batch_tokens : 1;
  return total_at(plan, outputs, share, n_tokens, n_seqs, sum_sq);
}
