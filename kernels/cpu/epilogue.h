// What follows a product: bias, activation, scale, residual, gate on fp32 sums, then one rounding
// to y's dtype. Works on a rectangle of y right after the product wrote its sums, while they are in
// cache. What no list can say follows as a row program on the same rectangle.
#ifndef KERNELS_CPU_EPILOGUE_H
#define KERNELS_CPU_EPILOGUE_H

#include "kernels/cpu/row.h"

// An element-wise row program on the sums, after the list of operations: its input 0 is the sums,
// its outputs take the place of y. Made ready for FINISH_COLS columns; views are of row 0, column 0
// of the whole result.
#define FINISH_COLS 64
struct finish {
  const struct row_kernel *kernel;
  const struct view *inputs; // from input 1 on
  const struct view *outputs;
  float *scratch; // row_scratch_bytes
  void (*row_run)(const struct row_kernel *kernel, const struct row_call *call);
};

// Rows and columns from (row, col) on, of which the values lie at `sums`. They are not kept.
void finish_run(const struct finish *finish, float *sums, int64_t stride, int64_t row, int32_t rows,
                int64_t col, int32_t cols);

// Asks for what a finish will read there.
void finish_fetch(const struct finish *finish, int64_t row, int32_t rows, int64_t col,
                  int32_t cols);

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
  const struct finish *finish; // NULL: y is written. Otherwise it is, and y is not used
  int64_t first_col;           // column 0 of the call in the whole result
};

// One rectangle of a larger epilogue: `whole` describes row 0, column 0; sums of the rectangle are
// at `sums`.
static inline void epilogue_rectangle(const struct epilogue_call *whole, const float *sums,
                                      int64_t sums_stride, int32_t row, int32_t rows, int32_t col,
                                      int32_t cols,
                                      void (*epilogue_run)(const struct epilogue_call *call)) {
  struct epilogue_call call = *whole;
  call.rows = rows, call.cols = cols, call.sums = sums, call.sums_stride = sums_stride;
  if (call.finish)
    call.y = (struct view){(void *)(uintptr_t)sums, sums_stride, cols, DTYPE_F32};
  else
    call.y.data =
        (char *)call.y.data + (row * call.y.stride + col) * (int64_t)dtype_bytes(call.y.dtype);
  for (int i = 0; i < call.n_ops; i++) {
    struct view *v = &call.operands[i];
    int64_t skip = (call.ops[i].kind == EPI_BIAS ? 0 : row * v->stride) + col;
    if (v->data) v->data = (char *)v->data + skip * (int64_t)dtype_bytes(v->dtype);
  }
  if (!call.finish || call.n_ops > 0) epilogue_run(&call);
  if (call.finish)
    finish_run(call.finish, call.y.data, sums_stride, row, rows, call.first_col + col, cols);
}

#endif
