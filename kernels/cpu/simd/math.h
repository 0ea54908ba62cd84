// exp, erfc-form GELU, tanh, sigmoid on vectors. Relative error of each a few units in the last place over all of
// fp32 (tests/kernels/test_cpu_math.c sweeps it); results below the smallest normal number are zero.
#ifndef KERNELS_CPU_SIMD_MATH_H
#define KERNELS_CPU_SIMD_MATH_H

#include "kernels/cpu/simd/simd.h"

// exp(x + low): low is a small correction of x that a float could not hold.
INLINE vf vf_exp2part(vf x, vf low) {
  const float magic = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer
  vf clamped = vf_clamp(x, -88.0f, 89.0f);
  vf shifted = clamped * 1.44269504088896f + magic;
  vf n = shifted - magic;
  vf r = clamped - n * 0.693359375f;
  r = r - n * -2.12194440e-4f + low;
  vf p = vf_set(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  vf e = p * (r * r) + r + 1.0f;
  // 2^n in two factors, so that n = 128 (results just below the largest float) does not overflow early.
  vi k = (vi)shifted - 0x4b400000;
  vi half = k >> 1;
  vf s1 = (vf)((half + 127) << 23), s2 = (vf)((k - half + 127) << 23);
  vf y = e * s1 * s2;
  y = vf_select(x < vf_set(-87.33654f), (vf){0}, y);
  return vf_select(x > vf_set(88.72284f), vf_set(__builtin_inff()), y);
}

INLINE vf vf_exp(vf x) {
  return vf_exp2part(x, (vf){0});
}

// For x <= 0 only (softmax, GELU's tail): no overflow to care for.
INLINE vf vf_exp_negative(vf x, vf low) {
  const float magic = 12582912.0f;
  vf clamped = vf_clamp(x, -88.0f, 0.5f);
  vf shifted = clamped * 1.44269504088896f + magic;
  vf n = shifted - magic;
  vf r = clamped - n * 0.693359375f;
  r = r - n * -2.12194440e-4f + low;
  vf p = vf_set(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  vf e = p * (r * r) + r + 1.0f;
#if defined(__AVX512F__)
  vf y = (vf)_mm512_scalef_ps((__m512)e, (__m512)n);
  return (vf)_mm512_maskz_mov_ps(_mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.33654f), _CMP_NLT_UQ), (__m512)y);
#else
  vi k = (vi)shifted - 0x4b400000;
  vf y = e * (vf)((k + 127) << 23);
  return vf_select(x < vf_set(-87.33654f), (vf){0}, y);
#endif
}

#include "kernels/cpu/simd/erfc_table.h"

// x*x - square, exactly, where the processor multiplies and adds in one rounding; else 0.
INLINE vf vf_square_error(vf x, vf square) {
#if defined(__AVX512F__)
  return (vf)_mm512_fmsub_ps((__m512)x, (__m512)x, (__m512)square);
#elif defined(__FMA__)
  return (vf)_mm256_fmsub_ps((__m256)x, (__m256)x, (__m256)square);
#else
  (void)x, (void)square;
  return (vf){0};
#endif
}

// x/2 erfc(-x/sqrt2). With a = |x|/sqrt2 and t = 1/(1 + c a): erfc(a) = exp(-a^2) * erfcx(a), erfcx a polynomial in t.
// Beyond 64 nothing is left of the tail; clamping there keeps infinities from meeting zeros.
INLINE vf vf_gelu_erf(vf x) {
  vf near = vf_clamp(x, -64.0f, 64.0f);
  vf t = 1.0f / (vf_abs(near) * (float)(ERFCX_C * 0.70710678118654752) + 1.0f);
  vf square = near * near;
  vf e = vf_exp_negative(square * -0.5f, vf_square_error(near, square) * -0.5f);
  vf p = vf_set(erfcx_coefficient[ERFCX_DEGREE]);
  for (int i = ERFCX_DEGREE - 1; i >= 0; i--) p = p * t + erfcx_coefficient[i];
  vf tail = p * e * (near * 0.5f); // x/2 erfc(|x|/sqrt2)
  return vf_select(x > (vf){0}, x - tail, tail);
}

INLINE vf vf_sigmoid(vf x) {
  return 1.0f / (1.0f + vf_exp(-x));
}

INLINE vf vf_silu(vf x) {
  // Below -80 the division's result would leave the normal numbers before x * exp(x) does.
  vf low = vf_clamp(x, -104.0f, __builtin_inff());
  return vf_select(x < vf_set(-80.0f), low * vf_exp(low), x * vf_sigmoid(x));
}

INLINE vf vf_gelu_tanh(vf x) {
  vf near = vf_clamp(x, -64.0f, 64.0f);
  vf u2 = near * (1.5957691216057308f + 0.07135481282644771f * (near * near));
  return vf_select(x > vf_set(64.0f), x, near * vf_sigmoid(u2));
}

INLINE vf vf_tanh(vf x) {
  vf ax = vf_abs(x), z = x * x;
  vf big = 1.0f - 2.0f / (1.0f + vf_exp(2.0f * ax));
  big = (vf)((vi)big | ((vi)x & (int32_t)0x80000000));
  vf p = vf_set(-5.70498872745e-3f);
  p = p * z + 2.06390887954e-2f;
  p = p * z + -5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z + -3.33332819422e-1f;
  vf small = p * z * x + x;
  return vf_select(ax < vf_set(0.625f), small, big);
}

INLINE vf vf_relu(vf x) {
  return vf_select(x < (vf){0}, (vf){0}, x); // NaN stays
}

INLINE vf vf_activate(enum activation act, vf x) {
  switch (act) {
  case ACT_GELU_ERF: return vf_gelu_erf(x);
  case ACT_GELU_TANH: return vf_gelu_tanh(x);
  case ACT_RELU: return vf_relu(x);
  case ACT_SILU: return vf_silu(x);
  case ACT_TANH: return vf_tanh(x);
  case ACT_SIGMOID: return vf_sigmoid(x);
  default: return x;
  }
}

#endif
