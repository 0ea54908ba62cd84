// One row, in fp32: an operation on two operands, sums, and the norms, each of which reads the row
// in one pass for its sums (lines.h) and in another that writes.
#ifndef KERNELS_CPU_SIMD_WHOLE_ROW_H
#define KERNELS_CPU_SIMD_WHOLE_ROW_H

#include "kernels/cpu/simd/lines.h"

#include <math.h>

INLINE vf apply2(uint8_t op, vf x, vf y) {
  switch (op) {
  case RI_ADD:
    return x + y;
  case RI_SUB:
    return x - y;
  case RI_MUL:
    return x * y;
  case RI_DIV:
    return x / y;
  default:
    return vf_max(x, y);
  }
}

// One row of n: operands that are one value are given by `xs`, `ys` and a NULL pointer.
INLINE void binary_row(uint8_t op, float *d, const float *x, float xs, const float *y, float ys,
                       int32_t n) {
  int32_t c = 0;
  vf xv = vf_set(xs), yv = vf_set(ys);
  for (; c + VL <= n; c += VL)
    vf_store(d + c, apply2(op, x ? vf_load(x + c) : xv, y ? vf_load(y + c) : yv));
  if (c < n)
    vf_store_n(d + c,
               apply2(op, x ? vf_load_n(x + c, n - c) : xv, y ? vf_load_n(y + c, n - c) : yv),
               n - c);
}

static float row_reduce(uint8_t op, const float *x, int32_t n) {
  if (op == RI_MAX_ROW) return max_of(x, n);
  float sum = sum_of(x, n);
  return op == RI_MEAN ? sum / (float)n : sum;
}

static void layer_norm_row(float *d, const float *x, const float *gamma, const float *beta,
                           int32_t n, float eps) {
  // Mean and square of the differences from a value near the mean: an origin far from zero (1e6 and
  // a spread of 1) costs no digits, and one pass over the row is enough.
  float first = near_mean(x, n);
  float sum, square;
  centred_sums(x, n, first, &sum, &square);
  float shift = sum / (float)n;
  float variance = square / (float)n - shift * shift;
  float scale = 1.0f / sqrtf((variance > 0 || variance != variance ? variance : 0) + eps);
  normalise_floats(d, x, gamma, beta, n, first, shift, scale);
}

static void rms_norm_row(float *d, const float *x, const float *gamma, int32_t n, float eps) {
  float scale = 1.0f / sqrtf(square_sum_of(x, n) / (float)n + eps);
  if (gamma)
    scale_mul_floats(d, x, gamma, scale, n);
  else
    binary_row(RI_MUL, d, x, 0, NULL, scale, n);
}

static void normalize_row(float *d, const float *x, int32_t n, float eps) {
  float norm = sqrtf(square_sum_of(x, n));
  binary_row(RI_DIV, d, x, 0, NULL, norm > eps || norm != norm ? norm : eps, n);
}

#endif
