// What follows a product: bias, activation, scale, residual, gate on fp32 sums, then one rounding to y's dtype. Works
// on a rectangle of y right after the product wrote its sums, while they are in cache.
#ifndef KERNELS_CPU_EPILOGUE_H
#define KERNELS_CPU_EPILOGUE_H

#include "kernels/types.h"

struct epilogue_call {
  const struct epilogue_op *ops;
  uint8_t n_ops;
  int32_t rows, cols;
  const float *sums;     // [rows, cols], may be y itself when y is fp32
  int64_t sums_stride;
  struct view y;         // data of the rectangle's first element
  // By position in ops: EPI_BIAS [cols], EPI_ADD and EPI_MUL [rows, cols], data of the rectangle's first element.
  struct view operands[EPILOGUE_MAX];
};

#endif
