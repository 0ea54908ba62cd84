// The interpreter of row programs, compiled once for each instruction set. See kernels/cpu/row.h.
#include "kernels/cpu/row.h"
#include "kernels/cpu/simd/convert.h"
#include "kernels/cpu/simd/lines.h"
#include "kernels/cpu/simd/row_tile.h"
#include "kernels/cpu/simd/table.h"
#include "kernels/cpu/simd/whole_row.h"

struct reg {
  float *data;
  int64_t stride; // between rows; 0 for SHAPE_COL
  enum row_shape shape;
};

struct block {
  const struct row_kernel *kernel;
  const struct row_call *call;
  int64_t row;        // first row of the block, counted from call->row0
  int32_t rows, cols; // of the block
  int32_t col;        // first column
  struct reg regs[ROW_MAX_REGS];
};

static float *slot_of(const struct block *b, int reg) {
  size_t floats = (size_t)b->kernel->block_rows * (size_t)((b->kernel->block_cols + 15) & ~15);
  return b->call->scratch + (size_t)reg * floats;
}

// Register `in->dst` with memory for its result: its slot of the scratch, or the output that takes
// it directly.
static struct reg destination(const struct block *b, int index) {
  const struct row_inst *in = &b->kernel->program.insts[index];
  enum row_shape shape = b->kernel->shape[index];
  uint8_t out = b->kernel->direct[index];
  if (out != ROW_NONE) {
    const struct view *v = &b->call->outputs[out];
    return (struct reg){(float *)v->data + b->row * v->stride + b->col, v->stride, shape};
  }
  return (struct reg){slot_of(b, in->dst),
                      shape == SHAPE_FULL  ? (b->cols + 15) & ~15
                      : shape == SHAPE_ROW ? 1
                                           : 0,
                      shape};
}

// ---- loads and stores ----
static const char *view_at(const struct view *v, int64_t row, int64_t col) {
  return (const char *)v->data + (row * v->stride + col) * element_bytes(v->dtype);
}

static int64_t gather_index(const struct block *b, const struct row_input *input, int64_t row) {
  if (input->index_operand == ROW_NONE) return b->call->geometry->positions[b->call->row0 + row];
  const struct view *v = &b->call->inputs[input->index_operand];
  const char *at = view_at(v, row, 0);
  return v->dtype == DTYPE_I64 ? *(const int64_t *)at : *(const int32_t *)at;
}

static void load_gather(const struct block *b, const struct row_input *input, const struct view *v,
                        struct reg dst, int64_t table_rows) {
  for (int32_t r = 0; r < b->rows; r++) {
    int64_t index = gather_index(b, input, b->row + r);
    float *out = dst.data + r * dst.stride;
    if (index < 0 || index >= table_rows)
      memset(out, 0, (size_t)b->cols * sizeof *out);
    else
      load_floats(out, view_at(v, index, b->col), v->dtype, b->cols);
  }
}

static void fold_row(enum row_input_class cls, float *out, const float *x, int32_t n, bool first) {
  if (first)
    memcpy(out, x, (size_t)n * sizeof *out);
  else if (cls == IN_POOL_MEAN)
    add_floats(out, x, n);
  else
    max_floats(out, x, n);
}

// Tokens [token, token + n) of what is pooled, into before->rows.
static void make_rows(const struct row_before *before, const struct batch_geometry *geometry,
                      int64_t token, int32_t n) {
  const struct row_program *program = &before->kernel->program;
  struct view inputs[ROW_MAX_INPUTS];
  for (int i = 0; i < before->n_inputs; i++) {
    inputs[i] = before->inputs[i];
    bool by_row = i >= program->n_inputs || program->inputs[i].cls == IN_FULL ||
                  program->inputs[i].cls == IN_PER_ROW;
    if (by_row) inputs[i].data = (void *)(uintptr_t)view_at(&inputs[i], token, 0);
  }
  struct view rows = {before->rows, (program->cols + 15) & ~15, program->cols, DTYPE_F32};
  SIMD_NAME(row_run)
  (before->kernel, &(struct row_call){.inputs = inputs,
                                      .outputs = &rows,
                                      .table_rows = before->table_rows,
                                      .row0 = token,
                                      .n_rows = n,
                                      .geometry = geometry,
                                      .scratch = before->scratch});
}

// A sequence whose rows are made for it, some at a time; added one after the other, as they are
// when they lie in memory.
static void pool_made(const struct block *b, enum row_input_class cls, int32_t first, int32_t last,
                      float *out) {
  const struct row_before *before = b->call->before;
  int64_t stride = (before->kernel->program.cols + 15) & ~15;
  int32_t end = cls == IN_POOL_CLS ? first + 1 : last, most = before->kernel->block_rows;
  for (int32_t t = first, n; t < end; t += n) {
    n = end - t < most ? end - t : most;
    make_rows(before, b->call->geometry, t, n);
    for (int32_t r = 0; r < n; r++)
      fold_row(cls, out, before->rows + r * stride, b->cols, t + r == first);
  }
  if (cls == IN_POOL_MEAN) scale_floats(out, 1.0f / (float)(last - first), b->cols);
}

static void pool_row(const struct block *b, const struct view *v, enum row_input_class cls,
                     int64_t seq, float *out, float *line) {
  const int32_t *cu = b->call->geometry->cu_seqlens;
  int32_t first = cu[seq], last = cu[seq + 1], n = b->cols;
  if (first == last) {
    memset(out, 0, (size_t)n * sizeof *out);
    return;
  }
  if (!v->data) {
    pool_made(b, cls, first, last, out);
    return;
  }
  load_floats(out, view_at(v, first, b->col), v->dtype, n);
  if (cls == IN_POOL_CLS) return;
  for (int32_t t = first + 1; t < last; t++) {
    const float *x = (const float *)view_at(v, t, b->col);
    if (v->dtype != DTYPE_F32) load_floats(line, x, v->dtype, n), x = line;
    if (cls == IN_POOL_MEAN)
      add_floats(out, x, n);
    else
      max_floats(out, x, n);
  }
  if (cls == IN_POOL_MEAN) scale_floats(out, 1.0f / (float)(last - first), n);
}

static void load_per_row(const struct block *b, const struct view *v, bool scalar, float *out) {
  for (int32_t r = 0; r < b->rows; r++)
    load_floats(&out[r], view_at(v, scalar ? 0 : b->row + r, 0), v->dtype, 1);
}

static struct reg run_load(struct block *b, int index) {
  const struct row_inst *in = &b->kernel->program.insts[index];
  const struct row_input *input = &b->kernel->program.inputs[in->a];
  const struct view *v = &b->call->inputs[in->a];
  struct reg dst = destination(b, index);
  bool borrow =
      b->kernel->borrow[in->a] && v->dtype == DTYPE_F32 && b->kernel->direct[index] == ROW_NONE;
  switch (input->cls) {
  case IN_FULL:
    if (borrow) return (struct reg){(float *)view_at(v, b->row, b->col), v->stride, SHAPE_FULL};
    for (int32_t r = 0; r < b->rows; r++)
      load_floats(dst.data + r * dst.stride, view_at(v, b->row + r, b->col), v->dtype, b->cols);
    return dst;
  case IN_PER_COL:
    if (borrow) return (struct reg){(float *)view_at(v, 0, b->col), 0, SHAPE_COL};
    load_floats(dst.data, view_at(v, 0, b->col), v->dtype, b->cols);
    return dst;
  case IN_PER_ROW:
  case IN_SCALAR:
    load_per_row(b, v, input->cls == IN_SCALAR, dst.data);
    return dst;
  case IN_GATHER:
    load_gather(b, input, v, dst, b->call->table_rows[in->a]);
    return dst;
  default:
    for (int32_t r = 0; r < b->rows; r++)
      pool_row(b, v, input->cls, b->call->row0 + b->row + r, dst.data + r * dst.stride,
               slot_of(b, b->kernel->program.n_regs));
    return dst;
  }
}

static void run_store(const struct block *b, const struct row_inst *in) {
  const struct view *v = &b->call->outputs[in->dst];
  struct reg src = b->regs[in->a];
  bool scalar = b->kernel->program.output_is_scalar[in->dst];
  for (int32_t r = 0; r < b->rows; r++) {
    char *out = (char *)view_at(v, b->row + r, scalar ? 0 : b->col);
    if (scalar)
      store_floats(out, v->dtype, &src.data[r], 1);
    else if (src.shape == SHAPE_ROW)
      store_repeated(out, v->dtype, src.data[r], b->cols);
    else
      store_floats(out, v->dtype, src.data + r * src.stride, b->cols);
  }
}

// ---- element-wise ----
INLINE void binary_rows(uint8_t op, struct reg d, struct reg x, struct reg y, int32_t rows,
                        int32_t n) {
  if (d.shape == SHAPE_ROW) {
    binary_row(op, d.data, x.data, 0, y.data, 0, rows);
    return;
  }
  for (int32_t r = 0; r < rows; r++) {
    float *out = d.data + r * d.stride;
    const float *px = x.data + r * x.stride, *py = y.data + r * y.stride;
    if (x.shape != SHAPE_ROW && y.shape != SHAPE_ROW)
      binary_row(op, out, px, 0, py, 0, n);
    else if (y.shape == SHAPE_ROW)
      binary_row(op, out, px, 0, NULL, y.data[r], n);
    else
      binary_row(op, out, NULL, x.data[r], py, 0, n);
  }
}

static void run_binary(const struct block *b, uint8_t op, struct reg d, struct reg x,
                       struct reg y) {
  switch (op) {
  case RI_ADD:
    binary_rows(RI_ADD, d, x, y, b->rows, b->cols);
    break;
  case RI_SUB:
    binary_rows(RI_SUB, d, x, y, b->rows, b->cols);
    break;
  case RI_MUL:
    binary_rows(RI_MUL, d, x, y, b->rows, b->cols);
    break;
  case RI_DIV:
    binary_rows(RI_DIV, d, x, y, b->rows, b->cols);
    break;
  default:
    binary_rows(RI_MAX, d, x, y, b->rows, b->cols);
    break;
  }
}

static void run_unary(const struct block *b, const struct row_inst *in, struct reg d,
                      struct reg x) {
  int32_t rows = d.shape == SHAPE_ROW ? 1 : b->rows, n = d.shape == SHAPE_ROW ? b->rows : b->cols;
  for (int32_t r = 0; r < rows; r++) {
    float *out = d.data + r * d.stride;
    const float *src = x.data + r * x.stride;
    if (in->op == RI_ACT)
      activate_floats((enum activation)in->aux, src, out, n);
    else if (in->op == RI_CAST)
      round_floats((enum dtype)in->aux, src, out, n);
    else if (in->op == RI_SCALE)
      binary_row(RI_MUL, out, src, 0, NULL, in->imm, n);
    else
      binary_row(RI_ADD, out, src, 0, NULL, in->imm, n);
  }
}

// ---- reductions and whole-row functions ----
static void run_whole_row(const struct block *b, const struct row_inst *in, struct reg d,
                          struct reg x) {
  // Rows of one column may come as row scalars.
  int64_t xs = x.shape == SHAPE_ROW ? 1 : x.stride, ds = d.shape == SHAPE_ROW ? 1 : d.stride;
  bool has_b = in->op <= RI_RMS_NORM && in->op >= RI_LAYER_NORM && in->b != ROW_NONE;
  bool has_c = in->op == RI_LAYER_NORM && in->c != ROW_NONE;
  for (int32_t r = 0; r < b->rows; r++) {
    float *out = d.data + r * ds;
    const float *src = x.data + r * xs;
    const float *pb = has_b ? b->regs[in->b].data + r * b->regs[in->b].stride : NULL;
    const float *pc = has_c ? b->regs[in->c].data + r * b->regs[in->c].stride : NULL;
    switch (in->op) {
    case RI_LAYER_NORM:
      layer_norm_row(out, src, pb, pc, b->cols, in->imm);
      break;
    case RI_RMS_NORM:
      rms_norm_row(out, src, pb, b->cols, in->imm);
      break;
    case RI_SOFTMAX:
      softmax_floats(out, src, b->cols);
      break;
    case RI_NORMALIZE:
      normalize_row(out, src, b->cols, in->imm);
      break;
    default:
      out[0] = row_reduce(in->op, src, b->cols);
      break;
    }
  }
}

static void run_alone(struct block *b, int index) {
  const struct row_inst *in = &b->kernel->program.insts[index];
  if (in->op == RI_STORE) {
    run_store(b, in);
    return;
  }
  if (in->op == RI_LOAD) {
    b->regs[in->dst] = run_load(b, index);
    return;
  }
  struct reg d = destination(b, index), x = b->regs[in->a];
  if (in->op <= RI_MAX)
    run_binary(b, in->op, d, x, b->regs[in->b]);
  else if (in->op <= RI_CAST)
    run_unary(b, in, d, x);
  else
    run_whole_row(b, in, d, x);
  b->regs[in->dst] = d;
}

// ---- passes ----
static void point_at_register(struct tile_op *op, struct reg r) {
  op->at = (char *)r.data;
  op->dtype = DTYPE_F32;
  op->moves = -1;
  op->per_row = r.shape == SHAPE_ROW;
  op->row_bytes = (op->per_row ? 1 : r.stride) * (int64_t)sizeof(float);
}

static void point_at_view(const struct block *b, struct tile_op *op, const struct view *v,
                          enum row_input_class cls) {
  bool every_row = cls == IN_PER_COL || cls == IN_SCALAR;
  op->per_row = cls == IN_PER_ROW || cls == IN_SCALAR;
  op->at = (char *)view_at(v, every_row ? 0 : b->row, op->per_row ? 0 : b->col);
  op->dtype = (uint8_t)v->dtype;
  op->moves = -1;
  op->row_bytes = every_row ? 0 : v->stride * element_bytes(v->dtype);
}

static struct tile_op point(const struct block *b, const struct pass_op *from, float *stash) {
  struct tile_op op = {
      .dtype = DTYPE_F32, .code = from->code, .aux = from->aux, .scalar = {from->imm, from->imm}};
  switch (from->where) {
  case AT_STASH:
    op.at = (char *)(stash + from->index * WIDE_FLOATS);
    break;
  case AT_REGISTER:
    point_at_register(&op, b->regs[from->index]);
    break;
  case AT_RESULT:
    point_at_register(&op, destination(b, from->index));
    break;
  case AT_INPUT:
    point_at_view(b, &op, &b->call->inputs[from->index],
                  b->kernel->program.inputs[from->index].cls);
    break;
  case AT_OUTPUT:
    point_at_view(b, &op, &b->call->outputs[from->index], IN_FULL);
    break;
  default: // the address is not used
    op.at = (char *)stash;
    break;
  }
  return op;
}

// Readies the operations for one row or two from `at` on.
static void take_rows(struct tile_op *ops, int n, int32_t rows) {
  for (int i = 0; i < n; i++) {
    struct tile_op *op = &ops[i];
    op->gap =
        rows == 2 && op->moves ? op->row_bytes : HALF_FLOATS * element_bytes((enum dtype)op->dtype);
    for (int r = 0; op->per_row && r < rows; r++)
      load_floats(&op->scalar[r], op->at + r * op->row_bytes, (enum dtype)op->dtype, 1);
    if (op->per_row && rows == 1) op->scalar[1] = op->scalar[0];
  }
}

static void next_row(struct tile_op *ops, int n) {
  for (int i = 0; i < n; i++) {
    ops[i].at += ops[i].row_bytes;
    ops[i].scalar[0] = ops[i].scalar[1];
  }
}

// Do the rows of the pass read a line that is the same for all of them?
static bool shares_a_line(const struct tile_op *ops, int n) {
  for (int i = 0; i < n; i++)
    if (ops[i].moves && ops[i].row_bytes == 0 && !ops[i].per_row) return true;
  return false;
}

// Do rows of so many columns lie one after another wherever the pass reads and writes, as one row?
static bool is_one_row(const struct tile_op *ops, int n, int32_t cols) {
  for (int i = 0; i < n; i++) {
    int64_t step = ops[i].per_row ? 0 : cols * element_bytes((enum dtype)ops[i].dtype);
    if (ops[i].moves && ops[i].row_bytes != step) return false;
  }
  return true;
}

static void run_pass(struct block *b, const struct row_pass *pass) {
  float stash[STASH_FLOATS] __attribute__((aligned(64)));
  struct tile_op ops[PASS_OPS_MAX + 1];
  int n = pass->n;
  for (int i = 0; i < n; i++)
    ops[i] = point(b, &b->kernel->pass_ops[pass->first + i], stash);
  ops[n] = (struct tile_op){.code = PASS_END};
  ready_tiles(ops, n);
  int32_t all = b->rows, cols = b->cols;
  if (is_one_row(ops, n, cols)) cols *= all, all = 1;
  bool shared = all > 1 && shares_a_line(ops, n);
  int32_t wide = shared ? 0 : wide_cols(cols);
  // Two short rows fill a tile, and are readied for once.
  int32_t at_once = shared || cols <= TILE_FLOATS ? 2 : 1;
  for (int32_t r = 0, rows; r < all; r += rows) {
    rows = all - r < at_once ? all - r : at_once;
    take_rows(ops, n, rows);
    if (wide) wide_tiles(ops, wide, stash);
    int32_t c = tiles_of_rows(ops, rows, wide, cols, stash);
    for (int32_t i = 0; i < rows; i++) {
      if (c < cols) rest_of_row(ops, c, cols, stash);
      next_row(ops, n);
    }
  }
  for (uint64_t kept = pass->kept; kept; kept &= kept - 1) {
    int i = __builtin_ctzll(kept);
    b->regs[b->kernel->program.insts[i].dst] = destination(b, i);
  }
}

static void run_block(struct block *b) {
  for (int i = 0; i < b->kernel->n_steps; i++) {
    struct row_step step = b->kernel->steps[i];
    if (step.is_pass)
      run_pass(b, &b->kernel->passes[step.index]);
    else
      run_alone(b, step.index);
  }
}

void SIMD_NAME(row_run)(const struct row_kernel *kernel, const struct row_call *call) {
  struct block b = {.kernel = kernel, .call = call};
  int32_t all = call->n_cols ? call->n_cols : kernel->program.cols;
  for (int64_t row = 0; row < call->n_rows; row += kernel->block_rows) {
    int64_t left = call->n_rows - row;
    b.row = row;
    b.rows = left < kernel->block_rows ? (int32_t)left : kernel->block_rows;
    for (b.col = 0; b.col < all; b.col += kernel->block_cols) {
      int32_t cols = all - b.col;
      b.cols = cols < kernel->block_cols ? cols : kernel->block_cols;
      run_block(&b);
    }
  }
}
