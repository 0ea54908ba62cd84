// exp, erfc-form GELU, tanh, sigmoid on vectors. Relative error of each a few units in the last
// place over all of fp32 (tests/kernels/test_cpu_math.c sweeps it); results below the smallest
// normal number are zero.
#ifndef KERNELS_CPU_SIMD_MATH_H
#define KERNELS_CPU_SIMD_MATH_H

#include "kernels/cpu/simd/simd.h"

#include "kernels/cpu/simd/erfc_table.h"

// 1/x to about 1e-7, x a normal number in [2^-100, 2^100].
INLINE vf vf_reciprocal(vf x) {
#if defined(__AVX512F__)
  vf y = (vf)_mm512_rcp14_ps(
      (__m512)x); // 14 bits; one Newton step makes 28, for a third of a division's price
  return y * (2.0f - x * y);
#else
  return 1.0f / x;
#endif
}

// p * 2^n for integral n: infinity and zero beyond the range where there is an instruction, else n
// >= -126.
INLINE vf vf_scale2(vf p, vf n) {
#if defined(__AVX512F__)
  return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  vi k = __builtin_convertvector(n, vi), half = k >> 1; // two factors: 2^128 itself is not a float
  return p * (vf)((half + 127) << 23) * (vf)((k - half + 127) << 23);
#endif
}

// e^r for |r| <= ln2/2: relative error 9e-8.
INLINE vf vf_exp_reduced(vf r) {
  vf p = vf_set(8.2903110748e-03f);
  p = p * r + 4.1897938810e-02f;
  p = p * r + 1.6667636299e-01f;
  p = p * r + 4.9999149458e-01f;
  p = p * r + 9.9999970715e-01f;
  return p * r + 1.0f;
}

// e^x for x in [-88, 89], NaN stays NaN.
INLINE vf vf_exp_inside(vf x) {
  const float magic = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer
  vf n = (x * 1.44269504088896f + magic) - magic;
  vf r = x - n * 0.693359375f; // ln2 in two parts, the first of few bits
  return vf_scale2(vf_exp_reduced(r - n * -2.12194440e-4f), n);
}

// The same for x in [-88, 0.5], where 2^n is one factor; a result below the smallest normal number
// may have lost its last bits.
INLINE vf vf_exp_low(vf x) {
#if defined(__AVX512F__)
  return vf_exp_inside(x);
#else
  const float magic = 12582912.0f; // the sum's last bits are n: they become an exponent
  vf sum = x * 1.44269504088896f + magic, n = sum - magic;
  vf r = x - n * 0.693359375f;
  return vf_exp_reduced(r - n * -2.12194440e-4f) * (vf)(((vu)sum << 23) + 0x3f800000u);
#endif
}

INLINE vf vf_exp(vf x) {
  vf y = vf_exp_inside(vf_clamp(x, -88.0f, 89.0f));
  y = vf_select(x < vf_set(-87.33654f), (vf){0}, y);
  return vf_select(x > vf_set(88.72283f), vf_set(__builtin_inff()), y);
}

// For x <= 0 only (softmax): no overflow to care for.
INLINE vf vf_exp_negative(vf x) {
  vf y = vf_exp_low(vf_clamp(x, -88.0f, 0.5f));
#if defined(__AVX512F__)
  return (vf)_mm512_maskz_mov_ps(
      _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.33654f), _CMP_NLT_UQ), (__m512)y);
#else
  return vf_select(x < vf_set(-87.33654f), (vf){0}, y);
#endif
}

// x/2 erfc(-x/sqrt2) = max(x, 0) - |x|/2 erfc(|x|/sqrt2): no cancellation on either side. With a =
// |x|/sqrt2 and t = 1/(1 + c a): erfc(a) = exp(-a^2) erfcx(a), erfcx a polynomial in t. Beyond 13.1
// the tail is below every normal number and is left out.
INLINE vf vf_gelu_erf(vf x) {
  vf a = vf_abs(x);
#if defined(__AVX512F__)
  __mmask16 inside =
      _mm512_cmp_ps_mask((__m512)a, _mm512_set1_ps(13.1f), _CMP_NGT_UQ); // true for NaN
  a = (vf)_mm512_min_ps(_mm512_set1_ps(13.1f), (__m512)a);
#else
  vi outside = a > vf_set(13.1f);
  a = vf_select(outside, vf_set(13.1f), a);
#endif
  vf t = vf_reciprocal(a * (float)(ERFCX_C * 0.70710678118654752) + 1.0f);
  vf e = vf_exp_low(a * a * -0.5f);
  vf p = vf_set(erfcx_coefficient[ERFCX_DEGREE]);
  for (int i = ERFCX_DEGREE - 1; i >= 0; i--)
    p = p * t + erfcx_coefficient[i];
#if defined(__AVX512F__)
  vf erfc = (vf)_mm512_maskz_mul_ps(inside, (__m512)p, (__m512)e);
  vf positive =
      (vf)_mm512_max_ps((__m512)x, _mm512_setzero_ps()); // 0 for NaN; the tail is NaN then
#else
  vf erfc = (vf)((vi)(p * e) & ~outside);
  vf positive = vf_larger(x, (vf){0});
#endif
  return positive - a * 0.5f * erfc;
}

// The same for a result that is rounded to bf16 (2e-3): good to 3e-4, with a third fewer
// instructions.
INLINE vf vf_gelu_erf_for_bf16(vf x) {
#if defined(__AVX512F__)
  vf a = vf_abs(x);
  __mmask16 inside = _mm512_cmp_ps_mask((__m512)a, _mm512_set1_ps(13.1f), _CMP_NGT_UQ);
  a = (vf)_mm512_min_ps(_mm512_set1_ps(13.1f), (__m512)a);
  // 14 bits of 1/x; erfcx by degree 4 (1.0e-4), e^r by degree 3 (7.5e-5).
  vf t = (vf)_mm512_rcp14_ps((__m512)(a * (float)(0.66 * 0.70710678118654752) + 1.0f));
  vf y = a * a * -0.72134752044f; // log2 of e^(-a^2/2)
  vf n = (vf)_mm512_roundscale_ps((__m512)y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  vf r = (y - n) * 0.69314718056f;
  vf e = vf_set(1.65668250e-01f);
  e = e * r + 5.04963439e-01f;
  e = e * r + 1.00016421e+00f;
  e = vf_scale2(e * r + 9.99928069e-01f, n);
  vf p = vf_set(-2.49478487e-01f);
  p = p * t + 5.91724167e-01f;
  p = p * t + 2.70637496e-01f;
  p = p * t + 3.88013028e-01f;
  p = p * t + -8.85680562e-04f;
  vf erfc = (vf)_mm512_maskz_mul_ps(inside, (__m512)p, (__m512)e);
  return (vf)_mm512_max_ps((__m512)x, _mm512_setzero_ps()) - a * 0.5f * erfc;
#else
  return vf_gelu_erf(x);
#endif
}

INLINE vf vf_sigmoid(vf x) {
  return 1.0f / (1.0f + vf_exp(-x)); // a true division: the sum may be infinite
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
  case ACT_GELU_ERF:
    return vf_gelu_erf(x);
  case ACT_GELU_TANH:
    return vf_gelu_tanh(x);
  case ACT_RELU:
    return vf_relu(x);
  case ACT_SILU:
    return vf_silu(x);
  case ACT_TANH:
    return vf_tanh(x);
  case ACT_SIGMOID:
    return vf_sigmoid(x);
  default:
    return x;
  }
}

#endif
