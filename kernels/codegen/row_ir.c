// From a row program's instructions to single-assignment operations, segments and liveness.
#include "kernels/codegen/codegen.h"

#include <string.h>

struct build {
  struct row_ir *ir;
  int16_t reg[256]; // latest value of each program register
  bool ok;
};

static int16_t emit(struct build *b, enum ir_kind kind, int16_t x, int16_t y, int16_t z,
                    float imm) {
  struct row_ir *ir = b->ir;
  if (ir->n >= ROW_IR_MAX) {
    b->ok = false;
    return IR_NONE;
  }
  struct ir_op *op = &ir->op[ir->n];
  *op = (struct ir_op){.kind = (uint8_t)kind, .a = x, .b = y, .c = z, .imm = imm};
  op->scalar = kind >= IR_RSQRT;
  if (kind >= IR_ADD && kind <= IR_SOFTMAX) {
    op->scalar = ir->op[x].scalar && (y == IR_NONE || ir->op[y].scalar) &&
                 (z == IR_NONE || ir->op[z].scalar);
  }
  return (int16_t)ir->n++;
}

static int16_t operand(struct build *b, uint8_t reg) {
  int16_t value = reg < ROW_MAX_REGS ? b->reg[reg] : IR_NONE;
  if (value == IR_NONE) b->ok = false;
  return value == IR_NONE ? 0 : value;
}

static int16_t emit_load(struct build *b, uint8_t input) {
  const struct row_program *prog = b->ir->prog;
  if (input >= prog->n_inputs) {
    b->ok = false;
    return IR_NONE;
  }
  const struct row_input *in = &prog->inputs[input];
  if (in->dtype != DTYPE_F32 && in->dtype != DTYPE_F16 && in->dtype != DTYPE_BF16) b->ok = false;
  int16_t value = emit(b, IR_LOAD, IR_NONE, IR_NONE, IR_NONE, 0);
  if (value == IR_NONE) return value;
  b->ir->op[value].index = input;
  b->ir->op[value].scalar = in->cls == IN_PER_ROW || in->cls == IN_SCALAR;
  if (in->cls >= IN_POOL_MEAN) b->ir->pools = true;
  return value;
}

static int16_t emit_layer_norm(struct build *b, const struct row_inst *in) {
  int16_t x = operand(b, in->a);
  int16_t mean = emit(b, IR_MEAN, x, IR_NONE, IR_NONE, 0);
  int16_t var = emit(b, IR_MEAN_SQ_DEV, x, mean, IR_NONE, 0);
  int16_t y = emit(b, IR_CENTER, x, mean, emit(b, IR_RSQRT, var, IR_NONE, IR_NONE, in->imm), 0);
  if (in->b != ROW_NONE) y = emit(b, IR_MUL, y, operand(b, in->b), IR_NONE, 0);
  if (in->c != ROW_NONE) y = emit(b, IR_ADD, y, operand(b, in->c), IR_NONE, 0);
  return y;
}

static int16_t emit_norm(struct build *b, const struct row_inst *in) {
  int16_t x = operand(b, in->a);
  bool rms = in->op == RI_RMS_NORM;
  int16_t square = emit(b, rms ? IR_MEAN_SQ : IR_SUM_SQ, x, IR_NONE, IR_NONE, 0);
  int16_t factor = emit(b, rms ? IR_RSQRT : IR_INVERSE, square, IR_NONE, IR_NONE, in->imm);
  int16_t y = emit(b, IR_MUL, x, factor, IR_NONE, 0);
  if (rms && in->b != ROW_NONE) y = emit(b, IR_MUL, y, operand(b, in->b), IR_NONE, 0);
  return y;
}

static int16_t emit_softmax(struct build *b, const struct row_inst *in) {
  int16_t x = operand(b, in->a);
  int16_t top =
      emit(b, IR_FINITE, emit(b, IR_MAX_ROW, x, IR_NONE, IR_NONE, 0), IR_NONE, IR_NONE, 0);
  return emit(b, IR_SOFTMAX, x, top, emit(b, IR_SUM_EXP, x, top, IR_NONE, 0), 0);
}

static int16_t emit_simple(struct build *b, const struct row_inst *in) {
  static const uint8_t kinds[] = {
      [RI_ADD] = IR_ADD,         [RI_SUB] = IR_SUB,   [RI_MUL] = IR_MUL,
      [RI_DIV] = IR_DIV,         [RI_MAX] = IR_MAX,   [RI_SCALE] = IR_SCALE,
      [RI_ADD_IMM] = IR_ADD_IMM, [RI_ACT] = IR_ACT,   [RI_CAST] = IR_CAST,
      [RI_SUM] = IR_SUM,         [RI_MEAN] = IR_MEAN, [RI_MAX_ROW] = IR_MAX_ROW,
  };
  bool binary = in->op >= RI_ADD && in->op <= RI_MAX;
  int16_t x = operand(b, in->a), y = binary ? operand(b, in->b) : IR_NONE;
  if (!b->ok) return IR_NONE;
  int16_t value = emit(b, (enum ir_kind)kinds[in->op], x, y, IR_NONE, in->imm);
  if (value != IR_NONE) b->ir->op[value].aux = in->aux;
  if (in->op == RI_ACT && in->aux >= ACT_COUNT) b->ok = false;
  if (in->op == RI_CAST && (in->aux < DTYPE_F32 || in->aux > DTYPE_BF16)) b->ok = false;
  return value;
}

static void emit_store(struct build *b, const struct row_inst *in) {
  const struct row_program *prog = b->ir->prog;
  if (in->dst >= prog->n_outputs) {
    b->ok = false;
    return;
  }
  int16_t x = operand(b, in->a);
  enum dtype dtype = prog->output_dtype[in->dst];
  if (dtype != DTYPE_F32 && dtype != DTYPE_F16 && dtype != DTYPE_BF16) b->ok = false;
  if (!b->ok) return;
  if (prog->output_is_scalar[in->dst] && !b->ir->op[x].scalar && prog->cols != 1) b->ok = false;
  int16_t value = emit(b, IR_STORE, x, IR_NONE, IR_NONE, 0);
  if (value == IR_NONE) return;
  b->ir->op[value].index = in->dst;
  b->ir->op[value].scalar = prog->output_is_scalar[in->dst] && b->ir->op[x].scalar;
  if (dtype == DTYPE_F32) b->ir->exact = true;
}

static void emit_inst(struct build *b, const struct row_inst *in) {
  int16_t value = IR_NONE;
  if (in->op == RI_STORE) {
    emit_store(b, in);
    return;
  }
  switch (in->op) {
  case RI_LOAD:
    value = emit_load(b, in->a);
    break;
  case RI_LAYER_NORM:
    value = emit_layer_norm(b, in);
    break;
  case RI_RMS_NORM:
  case RI_NORMALIZE:
    value = emit_norm(b, in);
    break;
  case RI_SOFTMAX:
    value = emit_softmax(b, in);
    break;
  default:
    if (in->op > RI_NORMALIZE)
      b->ok = false;
    else
      value = emit_simple(b, in);
  }
  if (in->dst >= ROW_MAX_REGS || value == IR_NONE) b->ok = false;
  if (b->ok) b->reg[in->dst] = value;
}

// A segment ends with its reduction. What a later segment reads of a vector must be kept (or read
// again).
static void split_segments(struct row_ir *ir) {
  int segment = 0;
  for (int i = 0; i < ir->n; i++) {
    struct ir_op *op = &ir->op[i];
    op->segment = (uint8_t)segment;
    const int16_t args[3] = {op->a, op->b, op->c};
    for (int k = 0; k < 3; k++) {
      if (args[k] == IR_NONE) continue;
      struct ir_op *arg = &ir->op[args[k]];
      if (!arg->scalar && arg->segment < segment) arg->crosses = true;
    }
    if (op->kind >= IR_FIRST_REDUCTION) segment++;
  }
  ir->n_segments = segment + 1;
}

bool row_ir_build(const struct row_program *prog, struct row_ir *out) {
  memset(out, 0, sizeof *out);
  out->prog = prog;
  if (prog->cols < 1 || prog->n_inputs > ROW_MAX_INPUTS || prog->n_outputs < 1 ||
      prog->n_outputs > ROW_MAX_OUTPUTS || prog->n_insts > ROW_MAX_INSTS) {
    return false;
  }
  struct build b = {.ir = out, .ok = true};
  for (int i = 0; i < 256; i++)
    b.reg[i] = IR_NONE;
  for (int i = 0; i < prog->n_insts && b.ok; i++)
    emit_inst(&b, &prog->insts[i]);
  if (b.ok) split_segments(out);
  return b.ok;
}

bool row_ir_build_before(const struct row_program *before, uint8_t first_input, uint8_t made,
                         struct row_ir *before_ir, struct row_ir *ir) {
  const struct row_program *prog = ir->prog;
  if (made >= prog->n_inputs || prog->inputs[made].cls < IN_POOL_MEAN ||
      prog->inputs[made].dtype != DTYPE_F32 || before->cols != prog->cols ||
      before->n_outputs != 1 || before->output_dtype[0] != DTYPE_F32 ||
      first_input + before->n_inputs > ROW_MAX_INPUTS || !row_ir_build(before, before_ir))
    return false;
  int stores = 0;
  for (int i = 0; i < before_ir->n; i++) {
    struct ir_op *op = &before_ir->op[i];
    if (op->kind != IR_STORE) continue;
    op->scalar = false; // each thread adds up columns of its own, however few there are
    stores++;
  }
  before_ir->first_input = first_input;
  before_ir->exact = ir->exact; // what is pooled is no more exact than what comes of it
  ir->before = before_ir;
  ir->made = made;
  return stores == 1 && !before_ir->pools;
}
