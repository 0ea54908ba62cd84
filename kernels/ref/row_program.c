// A row program, one row at a time, in double. The meaning of every instruction of kernels/types.h,
// written plainly.
#include "kernels/ref/ref.h"

#include <math.h>

// Of one run: the program's registers and the row that is being worked on.
struct machine {
  const struct row_program *program;
  const struct view *inputs;
  const struct batch_geometry *geometry;
  double *regs;
  bool scalar[ROW_MAX_REGS];
  int64_t row;
};

static double element(const struct view *view, int64_t row, int64_t col) {
  int64_t at = row * view->stride + col;
  switch (view->dtype) {
  case DTYPE_F32:
    return (double)((const float *)view->data)[at];
  case DTYPE_F16:
    return (double)f16_to_f32(((const uint16_t *)view->data)[at]);
  case DTYPE_BF16:
    return (double)bf16_to_f32(((const uint16_t *)view->data)[at]);
  case DTYPE_I64:
    return (double)((const int64_t *)view->data)[at];
  case DTYPE_I32:
    return (double)((const int32_t *)view->data)[at];
  default:
    return 0;
  }
}

static double *reg(const struct machine *m, int r) {
  return m->regs + (int64_t)r * m->program->cols;
}

// Operand value at a column; a row scalar is the same in all of them.
static double at(const struct machine *m, int r, int64_t col) {
  return reg(m, r)[m->scalar[r] ? 0 : col];
}

// ---- loads ----
static double pooled(const struct machine *m, const struct view *x, enum row_input_class cls,
                     int64_t col) {
  int64_t first = m->geometry->cu_seqlens[m->row], end = m->geometry->cu_seqlens[m->row + 1];
  if (first == end) return 0;
  if (cls == IN_POOL_CLS) return element(x, first, col);
  double sum = 0, max = -INFINITY;
  for (int64_t r = first; r < end; r++) {
    double value = element(x, r, col);
    sum += value;
    if (isnan(value) || value > max) max = isnan(max) ? max : value;
  }
  return cls == IN_POOL_MAX ? max : sum / (double)(end - first);
}

// The table row of this program row, or -1: reads as zeros. (The table's row count is not known
// here.)
static int64_t gathered_row(const struct machine *m, const struct row_input *input) {
  if (input->index_operand == ROW_NONE) return m->geometry->positions[m->row];
  const struct view *index = &m->inputs[input->index_operand];
  int64_t at_row = m->row * index->stride;
  int64_t id = index->dtype == DTYPE_I32 ? ((const int32_t *)index->data)[at_row]
                                         : ((const int64_t *)index->data)[at_row];
  return id < 0 ? -1 : id;
}

static void load(struct machine *m, int dst, int which) {
  const struct row_input *input = &m->program->inputs[which];
  const struct view *view = &m->inputs[which];
  m->scalar[dst] = input->cls == IN_PER_ROW || input->cls == IN_SCALAR;
  int64_t row = m->row;
  if (input->cls == IN_PER_COL || input->cls == IN_SCALAR) row = 0;
  if (input->cls == IN_GATHER) row = gathered_row(m, input);
  for (int64_t c = 0; c < (m->scalar[dst] ? 1 : m->program->cols); c++)
    reg(m, dst)[c] = input->cls >= IN_POOL_MEAN ? pooled(m, view, input->cls, c)
                     : row < 0                  ? 0
                                                : element(view, row, c);
}

// ---- arithmetic ----
static double rounded(double x, enum dtype to) {
  if (to == DTYPE_BF16) return (double)bf16_to_f32(f32_to_bf16((float)x));
  if (to == DTYPE_F16) return (double)f16_to_f32(f32_to_f16((float)x));
  return to == DTYPE_F32 ? (double)(float)x : x;
}

static double one(const struct row_inst *inst, double a, double b) {
  switch ((enum row_opcode)inst->op) {
  case RI_ADD:
    return a + b;
  case RI_SUB:
    return a - b;
  case RI_MUL:
    return a * b;
  case RI_DIV:
    return a / b;
  case RI_MAX:
    return isnan(a) || a > b ? a : b;
  case RI_SCALE:
    return a * (double)inst->imm;
  case RI_ADD_IMM:
    return a + (double)inst->imm;
  case RI_ACT:
    return ref_activate((enum activation)inst->aux, a);
  case RI_CAST:
    return rounded(a, (enum dtype)inst->aux);
  default:
    return NAN;
  }
}

static void element_wise(struct machine *m, const struct row_inst *inst) {
  bool scalar = m->scalar[inst->a] && (inst->b == ROW_NONE || m->scalar[inst->b]);
  for (int64_t c = 0; c < (scalar ? 1 : m->program->cols); c++)
    reg(m, inst->dst)[c] =
        one(inst, at(m, inst->a, c), inst->b == ROW_NONE ? 0 : at(m, inst->b, c));
  m->scalar[inst->dst] = scalar;
}

static void reduction(struct machine *m, const struct row_inst *inst) {
  char kind = inst->op == RI_SUM ? 's' : inst->op == RI_MEAN ? 'm' : 'x';
  ref_reduce(reg(m, inst->dst), reg(m, inst->a), 1, m->program->cols, kind);
  m->scalar[inst->dst] = true;
}

static void whole_row(struct machine *m, const struct row_inst *inst) {
  double *y = reg(m, inst->dst), *x = reg(m, inst->a);
  const double *b = inst->b == ROW_NONE ? NULL : reg(m, inst->b),
               *c = inst->c == ROW_NONE ? NULL : reg(m, inst->c);
  int64_t cols = m->program->cols;
  double imm = (double)inst->imm;
  if (inst->op == RI_LAYER_NORM) ref_layer_norm(y, x, b, c, 1, cols, imm);
  if (inst->op == RI_RMS_NORM) ref_rms_norm(y, x, b, 1, cols, imm);
  if (inst->op == RI_SOFTMAX) ref_softmax(y, x, 1, cols);
  if (inst->op == RI_NORMALIZE) ref_normalize(y, x, 1, cols, imm);
  m->scalar[inst->dst] = false;
}

static void store(const struct machine *m, const struct row_inst *inst, double *output) {
  int64_t cols = m->program->output_is_scalar[inst->dst] ? 1 : m->program->cols;
  for (int64_t c = 0; c < cols; c++)
    output[m->row * cols + c] = at(m, inst->a, c); // [rows, cols] or [rows, 1], contiguous
}

void ref_row_program(const struct row_program *prog, const struct view *inputs,
                     double *const *outputs, int64_t rows, const struct batch_geometry *g,
                     double *regs) {
  struct machine m = {.program = prog, .inputs = inputs, .geometry = g, .regs = regs};
  for (m.row = 0; m.row < rows; m.row++)
    for (int i = 0; i < prog->n_insts; i++) {
      const struct row_inst *inst = &prog->insts[i];
      if (inst->op == RI_LOAD)
        load(&m, inst->dst, inst->a);
      else if (inst->op == RI_STORE)
        store(&m, inst, outputs[inst->dst]);
      else if (inst->op < RI_SUM)
        element_wise(&m, inst);
      else if (inst->op <= RI_MAX_ROW)
        reduction(&m, inst);
      else
        whole_row(&m, inst);
    }
}
