// Vectors of floats as the compiler's vector extension, so that one source serves every instruction
// set. SIMD_BYTES (16, 32, 64) and SIMD_ISA (portable, avx2, avx512) come from the build.
#ifndef KERNELS_CPU_SIMD_SIMD_H
#define KERNELS_CPU_SIMD_SIMD_H

#include "kernels/types.h"

#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define SIMD_PASTE2(a, b) a##_##b
#define SIMD_PASTE(a, b) SIMD_PASTE2(a, b)
#define SIMD_NAME(name) SIMD_PASTE(name, SIMD_ISA) // row_run -> row_run_avx512
#define VL (SIMD_BYTES / 4)                        // floats in a vector
#define INLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(SIMD_BYTES)));
typedef int32_t vi __attribute__((vector_size(SIMD_BYTES)));
typedef uint32_t vu __attribute__((vector_size(SIMD_BYTES)));
typedef uint16_t vh __attribute__((vector_size(SIMD_BYTES / 2)));
typedef float vf_unaligned __attribute__((vector_size(SIMD_BYTES), aligned(4), may_alias));
typedef uint16_t vh_unaligned __attribute__((vector_size(SIMD_BYTES / 2), aligned(2), may_alias));

// dtype_bytes in place: a call costs as much as a short row.
INLINE int64_t element_bytes(enum dtype dtype) {
  return dtype == DTYPE_F32 || dtype == DTYPE_I32 ? 4 : dtype == DTYPE_I64 ? 8 : 2;
}

INLINE vf vf_set(float x) {
  return x - (vf){0};
}

INLINE vf vf_load(const float *p) {
  return *(const vf_unaligned *)p;
}

INLINE void vf_store(float *p, vf v) {
  *(vf_unaligned *)p = v;
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// All bits set in the first n lanes.
INLINE __m256i vi_below(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
#endif

// The first n < VL floats; the rest reads as zero and is not touched in memory.
INLINE vf vf_load_n(const float *p, int n) {
#if defined(__AVX512F__)
  return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p);
#elif defined(__AVX2__)
  return (vf)_mm256_maskload_ps(p, vi_below(n));
#else
  vf v = {0};
  float lanes[VL] = {0};
  for (int i = 0; i < n; i++)
    lanes[i] = p[i];
  memcpy(&v, lanes, sizeof v);
  return v;
#endif
}

INLINE void vf_store_n(float *p, vf v, int n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), (__m512)v);
#else
  float lanes[VL];
  memcpy(lanes, &v, sizeof lanes);
  for (int i = 0; i < n; i++)
    p[i] = lanes[i];
#endif
}

// The first n < VL floats of memory, `fill` in the other lanes.
INLINE vf vf_load_fill(const float *p, int n, float fill) {
#if defined(__AVX512F__)
  return (vf)_mm512_mask_loadu_ps(_mm512_set1_ps(fill), (__mmask16)((1u << n) - 1u), p);
#elif defined(__AVX2__)
  __m256i mask = vi_below(n);
  return (vf)_mm256_blendv_ps(_mm256_set1_ps(fill), _mm256_maskload_ps(p, mask), (__m256)mask);
#else
  vf v;
  float lanes[VL];
  for (int i = 0; i < VL; i++)
    lanes[i] = i < n ? p[i] : fill;
  memcpy(&v, lanes, sizeof v);
  return v;
#endif
}

// `mask` is a comparison's: all bits of a lane or none.
INLINE vf vf_select(vi mask, vf yes, vf no) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return (vf)_mm256_blendv_ps((__m256)no, (__m256)yes, (__m256)mask);
#else
  return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
#endif
}

// The larger of two; `b` when either is NaN.
INLINE vf vf_larger(vf a, vf b) {
#if defined(__AVX512F__)
  return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return vf_select(a > b, a, b);
#endif
}

// The larger of two; when either is NaN the result is NaN (a or b).
INLINE vf vf_max(vf a, vf b) {
#if defined(__AVX512F__)
  __m512 m = _mm512_max_ps((__m512)a, (__m512)b); // b when either is NaN
  return (vf)_mm512_mask_mov_ps(m, _mm512_cmp_ps_mask((__m512)a, (__m512)a, _CMP_UNORD_Q),
                                (__m512)a);
#else
  return vf_select((a > b) | (a != a), a, b);
#endif
}

// Clamps; NaN stays NaN.
INLINE vf vf_clamp(vf x, float low, float high) {
#if defined(__AVX512F__)
  return (vf)_mm512_min_ps(_mm512_set1_ps(high), _mm512_max_ps(_mm512_set1_ps(low), (__m512)x));
#elif defined(__AVX2__)
  return (vf)_mm256_min_ps(_mm256_set1_ps(high), _mm256_max_ps(_mm256_set1_ps(low), (__m256)x));
#else
  x = vf_select(x < vf_set(low), vf_set(low), x);
  return vf_select(x > vf_set(high), vf_set(high), x);
#endif
}

INLINE vf vf_abs(vf x) {
  return (vf)((vi)x & 0x7fffffff);
}

INLINE float vf_sum(vf v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#elif defined(__AVX2__)
  __m128 s = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
#else
  float lanes[VL], sum = 0;
  memcpy(lanes, &v, sizeof lanes);
  for (int i = 0; i < VL; i++)
    sum += lanes[i];
  return sum;
#endif
}

// NaN when any lane is.
INLINE float vf_reduce_max(vf v) {
#if defined(__AVX512F__)
  if (_mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q)) return __builtin_nanf("");
  return _mm512_reduce_max_ps((__m512)v);
#elif defined(__AVX2__)
  if (_mm256_movemask_ps((__m256)(v != v))) return __builtin_nanf("");
  __m128 m = _mm_max_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
#else
  float lanes[VL];
  memcpy(lanes, &v, sizeof lanes);
  float best = lanes[0];
  for (int i = 1; i < VL; i++)
    best = lanes[i] > best || lanes[i] != lanes[i] ? lanes[i] : best;
  return best;
#endif
}

INLINE vf vf_load_bf16(const uint16_t *p) {
#if defined(__AVX512F__)
  return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
#else
  vh bits = *(const vh_unaligned *)p;
  return (vf)(__builtin_convertvector(bits, vu) << 16);
#endif
}

// Round to nearest even; NaN stays NaN (quiet).
INLINE vu vf_bf16_bits(vf v) {
  vu bits = (vu)v;
  vu rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  vu nan = (bits >> 16) | 0x40u;
  vi mask = v != v;
  return (vu)(((vi)nan & mask) | ((vi)rounded & ~mask));
}

INLINE void vf_store_bf16(uint16_t *p, vf v) {
#if defined(__AVX512BF16__)
  __m256bh half = _mm512_cvtneps_pbh((__m512)v);
  memcpy(p, &half, sizeof half);
#else
  *(vh_unaligned *)p = __builtin_convertvector(vf_bf16_bits(v), vh);
#endif
}

#endif
