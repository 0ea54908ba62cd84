// Epilogues of products: four vectors of a row at a time go through all operations in registers.
// See kernels/cpu/epilogue.h.
#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/simd/convert.h"
#include "kernels/cpu/simd/lines.h"
#include "kernels/cpu/simd/table.h"

#define WIDTH 4 // vectors

INLINE const void *element(const struct view *v, int64_t row, int64_t col) {
  return (const char *)v->data + (row * v->stride + col) * element_bytes(v->dtype);
}

// v[i] <- element of operand `view` under it.
INLINE void load_operand(const struct view *view, int64_t row, int32_t col, vf out[WIDTH]) {
  if (view->dtype == DTYPE_F32) {
    const float *p = (const float *)view->data + row * view->stride + col;
    for (int i = 0; i < WIDTH; i++)
      out[i] = vf_load(p + i * VL);
  } else if (view->dtype == DTYPE_BF16) {
    const uint16_t *p = (const uint16_t *)view->data + row * view->stride + col;
    for (int i = 0; i < WIDTH; i++)
      out[i] = vf_load_bf16(p + i * VL);
  } else {
    float line[WIDTH * VL];
    load_floats(line, element(view, row, col), view->dtype, WIDTH * VL);
    for (int i = 0; i < WIDTH; i++)
      out[i] = vf_load(line + i * VL);
  }
}

INLINE void apply_activation(enum activation act, vf v[WIDTH]) {
#define CASE(kind)                                                                                 \
  case kind:                                                                                       \
    for (int i = 0; i < WIDTH; i++)                                                                \
      v[i] = vf_activate(kind, v[i]);                                                              \
    break;
  switch (act) {
    CASE(ACT_GELU_ERF)
    CASE(ACT_GELU_TANH)
    CASE(ACT_RELU)
    CASE(ACT_SILU)
    CASE(ACT_TANH)
    CASE(ACT_SIGMOID)
  default:
    break;
  }
#undef CASE
}

INLINE void apply_op(const struct epilogue_op *op, const struct view *operand, int32_t row,
                     int32_t col, vf v[WIDTH]) {
  vf other[WIDTH];
  switch (op->kind) {
  case EPI_BIAS:
  case EPI_ADD:
    load_operand(operand, op->kind == EPI_BIAS ? 0 : row, col, other);
    for (int i = 0; i < WIDTH; i++)
      v[i] += other[i];
    break;
  case EPI_MUL:
    load_operand(operand, row, col, other);
    for (int i = 0; i < WIDTH; i++)
      v[i] *= other[i];
    break;
  case EPI_SCALE:
    for (int i = 0; i < WIDTH; i++)
      v[i] *= op->imm;
    break;
  default:
    apply_activation((enum activation)op->act, v);
    break;
  }
}

INLINE void store_vectors(const struct view *view, int64_t row, int32_t col, const vf v[WIDTH]) {
  if (view->dtype == DTYPE_F32) {
    float *y = (float *)view->data + row * view->stride + col;
    for (int i = 0; i < WIDTH; i++)
      vf_store(y + i * VL, v[i]);
  } else if (view->dtype == DTYPE_BF16) {
    uint16_t *y = (uint16_t *)view->data + row * view->stride + col;
    for (int i = 0; i < WIDTH; i++)
      vf_store_bf16(y + i * VL, v[i]);
  } else {
    float line[WIDTH * VL];
    for (int i = 0; i < WIDTH; i++)
      vf_store(line + i * VL, v[i]);
    store_floats((void *)element(view, row, col), view->dtype, line, WIDTH * VL);
  }
}

INLINE void run_vectors(const struct epilogue_call *call, int32_t row, int32_t col) {
  vf v[WIDTH];
  const float *x = call->sums + row * call->sums_stride + col;
  for (int i = 0; i < WIDTH; i++)
    v[i] = vf_load(x + i * VL);
  for (int op = 0; op < call->n_ops; op++)
    apply_op(&call->ops[op], &call->operands[op], row, col, v);
  store_vectors(&call->y, row, col, v);
}

// The last columns, fewer than WIDTH vectors: the same on copies that are whole.
static void run_tail(const struct epilogue_call *call, int32_t row, int32_t col) {
  int32_t n = call->cols - col;
  float sums[WIDTH * VL] = {0}, operands[EPILOGUE_MAX][WIDTH * VL];
  memcpy(sums, call->sums + row * call->sums_stride + col, (size_t)n * sizeof(float));
  struct epilogue_call tail = {.ops = call->ops,
                               .n_ops = call->n_ops,
                               .rows = 1,
                               .cols = WIDTH * VL,
                               .sums = sums,
                               .y = {sums, WIDTH * VL, WIDTH * VL, DTYPE_F32}};
  for (int op = 0; op < call->n_ops; op++) {
    uint8_t kind = call->ops[op].kind;
    if (kind != EPI_BIAS && kind != EPI_ADD && kind != EPI_MUL) continue;
    memset(operands[op], 0, sizeof operands[op]);
    load_floats(operands[op], element(&call->operands[op], kind == EPI_BIAS ? 0 : row, col),
                call->operands[op].dtype, n);
    tail.operands[op] = (struct view){operands[op], WIDTH * VL, WIDTH * VL, DTYPE_F32};
  }
  run_vectors(&tail, 0, 0);
  store_floats((void *)element(&call->y, row, col), call->y.dtype, sums, n);
}

// ---- the usual ones: a bias and at most one more operation, everything of one dtype ----
enum second { SECOND_NONE, SECOND_ADD, SECOND_GELU };

// Columns outside, rows inside: the bias stays in registers, and no branch is left.
INLINE void run_usual(const struct epilogue_call *call, const enum second second,
                      const enum dtype dtype) {
  struct view bias = call->operands[0], other = call->operands[1], y = call->y;
  bias.dtype = other.dtype = y.dtype = dtype; // constants, from here on
  for (int32_t c = 0; c + WIDTH * VL <= call->cols; c += WIDTH * VL) {
    vf b[WIDTH];
    load_operand(&bias, 0, c, b);
    for (int32_t r = 0; r < call->rows; r++) {
      const float *x = call->sums + r * call->sums_stride + c;
      vf v[WIDTH], o[WIDTH];
      if (second == SECOND_ADD) load_operand(&other, r, c, o);
      for (int i = 0; i < WIDTH; i++) {
        v[i] = vf_load(x + i * VL) + b[i];
        if (second == SECOND_ADD) v[i] += o[i];
        if (second == SECOND_GELU)
          v[i] = dtype == DTYPE_BF16 ? vf_gelu_erf_for_bf16(v[i]) : vf_gelu_erf(v[i]);
      }
      store_vectors(&y, r, c, v);
    }
  }
}

#define USUAL(second)                                                                              \
  do {                                                                                             \
    if (dtype == DTYPE_F32)                                                                        \
      run_usual(call, second, DTYPE_F32);                                                          \
    else                                                                                           \
      run_usual(call, second, DTYPE_BF16);                                                         \
    return true;                                                                                   \
  } while (0)

// True when the whole vectors of all rows are done.
static bool try_usual(const struct epilogue_call *call) {
  enum dtype dtype = call->y.dtype;
  if ((dtype != DTYPE_F32 && dtype != DTYPE_BF16) || call->n_ops < 1 || call->n_ops > 2 ||
      call->ops[0].kind != EPI_BIAS || call->operands[0].dtype != dtype)
    return false;
  if (call->n_ops == 1) USUAL(SECOND_NONE);
  const struct epilogue_op *op = &call->ops[1];
  if (op->kind == EPI_ADD && call->operands[1].dtype == dtype) USUAL(SECOND_ADD);
  if (op->kind == EPI_ACT && op->act == ACT_GELU_ERF) USUAL(SECOND_GELU);
  return false;
}

void SIMD_NAME(epilogue_run)(const struct epilogue_call *call) {
  bool whole_done = try_usual(call);
  int32_t whole = call->cols / (WIDTH * VL) * (WIDTH * VL);
  for (int32_t r = 0; r < call->rows; r++) {
    for (int32_t c = 0; c < whole && !whole_done; c += WIDTH * VL)
      run_vectors(call, r, c);
    if (whole < call->cols) run_tail(call, r, whole);
  }
}
