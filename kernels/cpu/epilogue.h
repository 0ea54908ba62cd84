// What follows a product: bias, activation, scale, residual, gate on fp32 sums, then one rounding
// to y's dtype. Works on a rectangle of y right after the product wrote its sums, while they are in
// cache.
#ifndef KERNELS_CPU_EPILOGUE_H
#define KERNELS_CPU_EPILOGUE_H

#include "kernels/types.h"

struct epilogue_call {
  const struct epilogue_op *ops;
  uint8_t n_ops;
  int32_t rows, cols;
  const float *sums; // [rows, cols], may be y itself when y is fp32
  int64_t sums_stride;
  struct view y; // data of the rectangle's first element
  // By position in ops: EPI_BIAS [cols], EPI_ADD and EPI_MUL [rows, cols], data of the rectangle's
  // first element.
  struct view operands[EPILOGUE_MAX];
};

// One rectangle of a larger epilogue: `whole` describes row 0, column 0; sums of the rectangle are
// at `sums`.
static inline void epilogue_rectangle(const struct epilogue_call *whole, const float *sums,
                                      int64_t sums_stride, int32_t row, int32_t rows, int32_t col,
                                      int32_t cols,
                                      void (*epilogue_run)(const struct epilogue_call *call)) {
  struct epilogue_call call = *whole;
  call.rows = rows, call.cols = cols, call.sums = sums, call.sums_stride = sums_stride;
  call.y.data =
      (char *)call.y.data + (row * call.y.stride + col) * (int64_t)dtype_bytes(call.y.dtype);
  for (int i = 0; i < call.n_ops; i++) {
    struct view *v = &call.operands[i];
    int64_t skip = (call.ops[i].kind == EPI_BIAS ? 0 : row * v->stride) + col;
    if (v->data) v->data = (char *)v->data + skip * (int64_t)dtype_bytes(v->dtype);
  }
  epilogue_run(&call);
}

#endif
