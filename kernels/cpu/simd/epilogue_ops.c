// Epilogues of products, one strip of columns at a time. See kernels/cpu/epilogue.h.
#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/simd/convert.h"
#include "kernels/cpu/simd/lines.h"
#include "kernels/cpu/simd/table.h"

#define STRIP 512 // floats; a strip and its operand stay in the first-level cache

static const void *element(const struct view *v, int64_t row, int64_t col) {
  return (const char *)v->data + (row * v->stride + col) * (int64_t)dtype_bytes(v->dtype);
}

static void mul_floats(float *out, const float *x, int32_t n) {
  int32_t c = 0;
  for (; c + VL <= n; c += VL) vf_store(out + c, vf_load(out + c) * vf_load(x + c));
  for (; c < n; c++) out[c] *= x[c];
}

static void sum2_floats(float *out, const float *x, const float *y, int32_t n) {
  int32_t c = 0;
  for (; c + VL <= n; c += VL) vf_store(out + c, vf_load(x + c) + vf_load(y + c));
  for (; c < n; c++) out[c] = x[c] + y[c];
}

// out <- op(x); out may be x.
static void apply_op(const struct epilogue_call *call, int op, int32_t row, int32_t col, int32_t n, const float *x,
                     float *out) {
  const struct epilogue_op *e = &call->ops[op];
  float line[STRIP];
  const float *operand = NULL;
  if (e->kind == EPI_BIAS || e->kind == EPI_ADD || e->kind == EPI_MUL) {
    const struct view *v = &call->operands[op];
    operand = element(v, e->kind == EPI_BIAS ? 0 : row, col);
    if (v->dtype != DTYPE_F32) load_floats(line, operand, v->dtype, n), operand = line;
  }
  switch (e->kind) {
  case EPI_BIAS:
  case EPI_ADD: sum2_floats(out, x, operand, n); break;
  case EPI_ACT: activate_floats((enum activation)e->act, x, out, n); break;
  case EPI_SCALE:
    if (out != x) memcpy(out, x, (size_t)n * sizeof *out);
    scale_floats(out, e->imm, n);
    break;
  default:
    if (out != x) memcpy(out, x, (size_t)n * sizeof *out);
    mul_floats(out, operand, n);
    break;
  }
}

static void run_strip(const struct epilogue_call *call, int32_t row, int32_t col, int32_t n) {
  const float *x = call->sums + row * call->sums_stride + col;
  void *y = (void *)element(&call->y, row, col);
  float line[STRIP];
  bool in_place = call->y.dtype == DTYPE_F32;
  float *out = in_place ? y : line;
  for (int op = 0; op < call->n_ops; op++) {
    apply_op(call, op, row, col, n, x, out);
    x = out;
  }
  if (!in_place) store_floats(y, call->y.dtype, x, n);
  else if (x != y) memcpy(y, x, (size_t)n * sizeof *x);
}

void SIMD_NAME(epilogue_run)(const struct epilogue_call *call) {
  for (int32_t r = 0; r < call->rows; r++) {
    for (int32_t c = 0; c < call->cols; c += STRIP) {
      int32_t n = call->cols - c < STRIP ? call->cols - c : STRIP;
      run_strip(call, r, c, n);
    }
  }
}
