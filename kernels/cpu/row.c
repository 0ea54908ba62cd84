// Preparation of row programs: shapes of registers, borrowed loads, direct stores, passes, block
// size.
#include "kernels/cpu/row.h"
#include "kernels/cpu/row_pass.h"

#include <string.h>

#define BLOCK_FLOATS 3072 // of one register: a handful of registers fit a 32 KiB first-level cache
#define STREAM_FLOATS 65536 // of a block when no register is used: nothing has to stay in cache
#define BLOCK_ROWS_MAX 64
// Pointwise programs with registers that are wider than this are cut into columns too: what each
// row shares (a bias) is then read from the first-level cache by several rows.
#define WIDE_COLS 1024

static bool is_reduction(uint8_t op) {
  return op == RI_SUM || op == RI_MEAN || op == RI_MAX_ROW;
}

static bool needs_whole_row(uint8_t op) {
  return is_reduction(op) || op == RI_LAYER_NORM || op == RI_RMS_NORM || op == RI_SOFTMAX ||
         op == RI_NORMALIZE;
}

static bool is_binary(uint8_t op) {
  return op == RI_ADD || op == RI_SUB || op == RI_MUL || op == RI_DIV || op == RI_MAX;
}

static enum row_shape load_shape(enum row_input_class cls) {
  if (cls == IN_PER_COL) return SHAPE_COL;
  if (cls == IN_PER_ROW || cls == IN_SCALAR) return SHAPE_ROW;
  return SHAPE_FULL;
}

// Shape of what instruction `in` writes; false when it reads something undefined.
static bool result_shape(const struct row_program *p, const struct row_inst *in,
                         const uint8_t *shape_of, uint8_t *out) {
  if (in->op == RI_LOAD) {
    if (in->a >= p->n_inputs) return false;
    *out = load_shape(p->inputs[in->a].cls);
    return true;
  }
  if (in->a >= p->n_regs || shape_of[in->a] == ROW_NONE) return false;
  if (is_binary(in->op)) {
    if (in->b >= p->n_regs || shape_of[in->b] == ROW_NONE) return false;
    *out = shape_of[in->a] == SHAPE_ROW && shape_of[in->b] == SHAPE_ROW ? SHAPE_ROW : SHAPE_FULL;
    return true;
  }
  if (in->op == RI_LAYER_NORM || in->op == RI_RMS_NORM) {
    if (in->b != ROW_NONE &&
        (in->b >= p->n_regs || shape_of[in->b] == ROW_NONE || shape_of[in->b] == SHAPE_ROW))
      return false;
    if (in->op == RI_LAYER_NORM && in->c != ROW_NONE &&
        (in->c >= p->n_regs || shape_of[in->c] == ROW_NONE || shape_of[in->c] == SHAPE_ROW))
      return false;
  }
  if (needs_whole_row(in->op) && shape_of[in->a] == SHAPE_ROW && p->cols != 1) return false;
  // What a norm makes of a row scalar (of one column) is a row, as types.h has it.
  bool scalar = is_reduction(in->op) || (!needs_whole_row(in->op) && shape_of[in->a] == SHAPE_ROW);
  *out = scalar ? SHAPE_ROW : SHAPE_FULL;
  return in->op <= RI_NORMALIZE;
}

// The instruction before `store` that wrote its register, when that one may write the output
// itself.
static int direct_writer(const struct row_kernel *k, int store) {
  const struct row_program *p = &k->program;
  uint8_t reg = p->insts[store].a, out = p->insts[store].dst;
  if (p->output_dtype[out] != DTYPE_F32 || p->output_is_scalar[out]) return -1;
  for (int i = store - 1; i >= 0; i--) {
    const struct row_inst *in = &p->insts[i];
    if (in->op == RI_STORE || in->dst != reg) continue;
    bool plain = in->op != RI_LOAD ||
                 p->inputs[in->a].cls >= IN_GATHER; // gathers and pools write their result
    return plain && k->shape[i] == SHAPE_FULL && k->direct[i] == ROW_NONE ? i : -1;
  }
  return -1;
}

static void choose_block(struct row_kernel *k) {
  const struct row_program *p = &k->program;
  bool whole = false;
  for (int i = 0; i < p->n_insts; i++)
    whole |= needs_whole_row(p->insts[i].op);
  k->block_cols = k->registers && !whole && p->cols > WIDE_COLS ? WIDE_COLS : p->cols;
  int32_t rows = (k->registers ? BLOCK_FLOATS : STREAM_FLOATS) / k->block_cols;
  k->block_rows = rows < 1 ? 1 : rows > BLOCK_ROWS_MAX ? BLOCK_ROWS_MAX : rows;
}

// Shapes of all results and who reads whose; false when the program is not well formed.
static bool check_program(struct row_kernel *out, struct row_uses *uses) {
  const struct row_program *p = &out->program;
  if (p->cols < 1 || p->n_inputs > ROW_MAX_INPUTS || p->n_outputs > ROW_MAX_OUTPUTS ||
      p->n_insts > ROW_MAX_INSTS || p->n_regs > ROW_MAX_REGS)
    return false;
  uint8_t shape_of[ROW_MAX_REGS];
  int8_t writer_of[ROW_MAX_REGS];
  memset(writer_of, -1, sizeof writer_of);
  memset(shape_of, ROW_NONE, sizeof shape_of);
  for (int i = 0; i < p->n_insts; i++) {
    const struct row_inst *in = &p->insts[i];
    bool two = is_binary(in->op) || in->op == RI_LAYER_NORM || in->op == RI_RMS_NORM;
    uses->a[i] = in->op != RI_LOAD && in->a < p->n_regs ? writer_of[in->a] : -1;
    uses->b[i] = two && in->b < p->n_regs ? writer_of[in->b] : -1;
    uses->c[i] = in->op == RI_LAYER_NORM && in->c < p->n_regs ? writer_of[in->c] : -1;
    if (in->op == RI_STORE) {
      if (in->dst >= p->n_outputs || in->a >= p->n_regs || shape_of[in->a] == ROW_NONE)
        return false;
      if (p->output_is_scalar[in->dst] && shape_of[in->a] != SHAPE_ROW) return false;
      continue;
    }
    if (in->dst >= p->n_regs || !result_shape(p, in, shape_of, &out->shape[i])) return false;
    // One line for all rows, or one value a row, does not survive the first row of something else.
    if (in->op != RI_LOAD && in->dst == in->a && shape_of[in->a] != out->shape[i]) return false;
    shape_of[in->dst] = out->shape[i];
    writer_of[in->dst] = (int8_t)i;
  }
  return true;
}

bool row_prepare(struct row_kernel *out, const struct row_program *program, bool overlap) {
  struct row_uses uses;
  memset(out, 0, sizeof *out);
  out->program = *program;
  memset(out->direct, ROW_NONE, sizeof out->direct);
  const struct row_program *p = &out->program;
  if (!check_program(out, &uses)) return false;
  for (int i = 0; i < p->n_inputs; i++)
    out->borrow[i] = !overlap;
  for (int i = 0; i < p->n_insts && !overlap; i++) {
    if (p->insts[i].op != RI_STORE) continue;
    int writer = direct_writer(out, i);
    if (writer < 0) continue;
    out->direct[writer] = p->insts[i].dst;
    out->done[i] = true;
  }
  out->registers = row_plan_steps(out, &uses, !overlap);
  choose_block(out);
  return true;
}

size_t row_before_floats(const struct row_kernel *kernel) {
  return (size_t)kernel->block_rows * (size_t)((kernel->program.cols + 15) & ~15);
}

size_t row_scratch_bytes(const struct row_kernel *kernel) {
  if (!kernel->registers) return sizeof(float);
  size_t floats = (size_t)kernel->block_rows * (size_t)((kernel->block_cols + 15) & ~15);
  return (kernel->program.n_regs + 1u) * floats * sizeof(float); // one more line for pools
}
