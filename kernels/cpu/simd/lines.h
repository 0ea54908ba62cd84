// Functions over one line of floats. Sums run in 4 x VL partial sums, which is both faster and more
// accurate than one.
#ifndef KERNELS_CPU_SIMD_LINES_H
#define KERNELS_CPU_SIMD_LINES_H

#include "kernels/cpu/simd/math.h"

static inline void add_floats(float *out, const float *x, int32_t n) {
  int32_t c = 0;
  for (; c + VL <= n; c += VL)
    vf_store(out + c, vf_load(out + c) + vf_load(x + c));
  for (; c < n; c++)
    out[c] += x[c];
}

static inline void max_floats(float *out, const float *x, int32_t n) {
  int32_t c = 0;
  for (; c + VL <= n; c += VL)
    vf_store(out + c, vf_max(vf_load(out + c), vf_load(x + c)));
  if (c < n) vf_store_n(out + c, vf_max(vf_load_n(out + c, n - c), vf_load_n(x + c, n - c)), n - c);
}

static inline void scale_floats(float *out, float factor, int32_t n) {
  int32_t c = 0;
  for (; c + VL <= n; c += VL)
    vf_store(out + c, vf_load(out + c) * factor);
  for (; c < n; c++)
    out[c] *= factor;
}

static inline float sum_of(const float *x, int32_t n) {
  vf s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
  int32_t c = 0;
  for (; c + 4 * VL <= n; c += 4 * VL) {
    s0 += vf_load(x + c);
    s1 += vf_load(x + c + VL);
    s2 += vf_load(x + c + 2 * VL);
    s3 += vf_load(x + c + 3 * VL);
  }
  for (; c + VL <= n; c += VL)
    s0 += vf_load(x + c);
  if (c < n) s1 += vf_load_n(x + c, n - c);
  return vf_sum((s0 + s1) + (s2 + s3));
}

static inline float square_sum_of(const float *x, int32_t n) {
  vf s0 = {0}, s1 = {0};
  int32_t c = 0;
  for (; c + 2 * VL <= n; c += 2 * VL) {
    vf a = vf_load(x + c), b = vf_load(x + c + VL);
    s0 += a * a;
    s1 += b * b;
  }
  for (; c < n; c += VL) {
    vf a = n - c >= VL ? vf_load(x + c) : vf_load_n(x + c, n - c);
    s0 += a * a;
  }
  return vf_sum(s0 + s1);
}

static inline float max_of(const float *x, int32_t n) {
  if (n < VL) return vf_reduce_max(vf_load_fill(x, n, x[0]));
  vf best = vf_load(x);
  int32_t c = VL;
  for (; c + VL <= n; c += VL)
    best = vf_max(best, vf_load(x + c));
  if (c < n) best = vf_max(best, vf_load(x + n - VL)); // the last vector may overlap the one before
  return vf_reduce_max(best);
}

// Sum and square sum of x - origin.
static inline void centred_sums(const float *x, int32_t n, float origin, float *sum,
                                float *square) {
  vf s0 = {0}, s1 = {0}, q0 = {0}, q1 = {0};
  int32_t c = 0;
  for (; c + 2 * VL <= n; c += 2 * VL) {
    vf a = vf_load(x + c) - origin, b = vf_load(x + c + VL) - origin;
    s0 += a, s1 += b;
    q0 += a * a, q1 += b * b;
  }
  float s = vf_sum(s0 + s1), q = vf_sum(q0 + q1);
  for (; c < n; c++) {
    float a = x[c] - origin;
    s += a;
    q += a * a;
  }
  *sum = s, *square = q;
}

// A value near the mean, to subtract before squaring: the mean of up to 64 elements. However far
// off it is, the variance loses no more than the ratio of its square to the variance, which an
// outlier among the 64 raises as well.
static inline float near_mean(const float *x, int32_t n) {
  int32_t few = n < 64 || n > 8192 ? n : 64;
  return sum_of(x, few) / (float)few;
}

// ((x - first) - shift) * scale * gamma + beta; gamma and beta may be NULL.
static inline void normalise_floats(float *d, const float *x, const float *gamma, const float *beta,
                                    int32_t n, float first, float shift, float scale) {
  int32_t c = 0;
  for (; c + VL <= n; c += VL) {
    vf y = (vf_load(x + c) - first - shift) * scale;
    if (gamma) y = y * vf_load(gamma + c);
    if (beta) y = y + vf_load(beta + c);
    vf_store(d + c, y);
  }
  for (; c < n; c++) {
    float y = (x[c] - first - shift) * scale;
    if (gamma) y = y * gamma[c];
    d[c] = beta ? y + beta[c] : y;
  }
}

static inline void scale_mul_floats(float *d, const float *x, const float *y, float factor,
                                    int32_t n) {
  int32_t c = 0;
  for (; c + VL <= n; c += VL)
    vf_store(d + c, vf_load(x + c) * factor * vf_load(y + c));
  for (; c < n; c++)
    d[c] = x[c] * factor * y[c];
}

// d <- exp(x - m); returns the sum. x <= m.
static inline float exp_floats(float *d, const float *x, float m, int32_t n) {
  vf s0 = {0}, s1 = {0};
  int32_t c = 0;
  for (; c + 2 * VL <= n; c += 2 * VL) {
    vf a = vf_exp_negative(vf_load(x + c) - m), b = vf_exp_negative(vf_load(x + c + VL) - m);
    vf_store(d + c, a), vf_store(d + c + VL, b);
    s0 += a, s1 += b;
  }
  for (; c + VL <= n; c += VL) {
    vf a = vf_exp_negative(vf_load(x + c) - m);
    vf_store(d + c, a);
    s0 += a;
  }
  if (c < n) {
    vf a =
        vf_exp_negative(vf_load_fill(x + c, n - c, -__builtin_inff()) - m); // 0 in the other lanes
    vf_store_n(d + c, a, n - c);
    s1 += a;
  }
  return vf_sum(s0 + s1);
}

static inline void softmax_floats(float *d, const float *x, int32_t n) {
  float m = max_of(x, n);
  if (m == -__builtin_inff()) {
    memset(d, 0, (size_t)n * sizeof *d);
    return;
  }
  float sum = exp_floats(d, x, m, n);
  scale_floats(d, 1.0f / sum, n);
}

#define ACTIVATE_CASE(act)                                                                         \
  case act:                                                                                        \
    for (; c + 2 * VL <= n; c += 2 * VL) {                                                         \
      vf a = vf_activate(act, vf_load(x + c)), b = vf_activate(act, vf_load(x + c + VL));          \
      vf_store(out + c, a);                                                                        \
      vf_store(out + c + VL, b);                                                                   \
    }                                                                                              \
    for (; c < n; c += VL) {                                                                       \
      int32_t m = n - c < VL ? n - c : VL;                                                         \
      vf a = vf_activate(act, m == VL ? vf_load(x + c) : vf_load_n(x + c, m));                     \
      if (m == VL)                                                                                 \
        vf_store(out + c, a);                                                                      \
      else                                                                                         \
        vf_store_n(out + c, a, m);                                                                 \
    }                                                                                              \
    break;

static inline void activate_floats(enum activation act, const float *x, float *out, int32_t n) {
  int32_t c = 0;
  switch (act) {
    ACTIVATE_CASE(ACT_GELU_ERF)
    ACTIVATE_CASE(ACT_GELU_TANH)
    ACTIVATE_CASE(ACT_RELU)
    ACTIVATE_CASE(ACT_SILU)
    ACTIVATE_CASE(ACT_TANH)
    ACTIVATE_CASE(ACT_SIGMOID)
  default:
    if (out != x) memcpy(out, x, (size_t)n * sizeof *out);
    break;
  }
}

#endif
