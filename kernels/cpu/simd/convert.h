// Lines of any dtype to floats and back.
#ifndef KERNELS_CPU_SIMD_CONVERT_H
#define KERNELS_CPU_SIMD_CONVERT_H

#include "kernels/cpu/simd/simd.h"

// A copy in place: rows of a head are too short for a call.
INLINE void copy_floats(float *out, const float *src, int32_t n) {
  int32_t c = 0;
  for (; c + VL <= n; c += VL)
    vf_store(out + c, vf_load(src + c));
  if (c < n) vf_store_n(out + c, vf_load_n(src + c, n - c), n - c);
}

INLINE void load_bf16_floats(float *out, const uint16_t *src, int32_t n) {
  int32_t c = 0;
  for (; c + VL <= n; c += VL)
    vf_store(out + c, vf_load_bf16(src + c));
  for (; c < n; c++)
    out[c] = bf16_to_f32(src[c]);
}

INLINE void load_f16_floats(float *out, const uint16_t *src, int32_t n) {
  int32_t c = 0;
#if defined(__F16C__)
  for (; c + 8 <= n; c += 8)
    _mm256_storeu_ps(out + c, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(src + c))));
#endif
  for (; c < n; c++)
    out[c] = f16_to_f32(src[c]);
}

// A line read as floats; integers are converted (exact up to 2^24).
static inline void load_floats(float *out, const void *src, enum dtype dtype, int32_t n) {
  switch (dtype) {
  case DTYPE_F32:
    copy_floats(out, src, n);
    break;
  case DTYPE_BF16:
    load_bf16_floats(out, src, n);
    break;
  case DTYPE_F16:
    load_f16_floats(out, src, n);
    break;
  case DTYPE_I64:
    for (int32_t c = 0; c < n; c++)
      out[c] = (float)((const int64_t *)src)[c];
    break;
  default:
    for (int32_t c = 0; c < n; c++)
      out[c] = (float)((const int32_t *)src)[c];
    break;
  }
}

INLINE void store_bf16_floats(uint16_t *out, const float *src, int32_t n) {
  int32_t c = 0;
  for (; c + VL <= n; c += VL)
    vf_store_bf16(out + c, vf_load(src + c));
  for (; c < n; c++)
    out[c] = f32_to_bf16(src[c]);
}

INLINE void store_f16_floats(uint16_t *out, const float *src, int32_t n) {
  int32_t c = 0;
#if defined(__F16C__)
  for (; c + 8 <= n; c += 8)
    _mm_storeu_si128((__m128i *)(out + c),
                     _mm256_cvtps_ph(_mm256_loadu_ps(src + c), _MM_FROUND_TO_NEAREST_INT));
#endif
  for (; c < n; c++)
    out[c] = f32_to_f16(src[c]);
}

static inline void store_floats(void *out, enum dtype dtype, const float *src, int32_t n) {
  switch (dtype) {
  case DTYPE_F32:
    copy_floats(out, src, n);
    break;
  case DTYPE_BF16:
    store_bf16_floats(out, src, n);
    break;
  case DTYPE_F16:
    store_f16_floats(out, src, n);
    break;
  case DTYPE_I64:
    for (int32_t c = 0; c < n; c++)
      ((int64_t *)out)[c] = (int64_t)src[c];
    break;
  default:
    for (int32_t c = 0; c < n; c++)
      ((int32_t *)out)[c] = (int32_t)src[c];
    break;
  }
}

static inline void store_repeated(void *out, enum dtype dtype, float value, int32_t n) {
  char *at = out;
  for (int32_t c = 0; c < n; c++)
    store_floats(at + (size_t)c * dtype_bytes(dtype), dtype, &value, 1);
}

// out <- src rounded as a store to `dtype` and a load back would.
static inline void round_floats(enum dtype dtype, const float *src, float *out, int32_t n) {
  int32_t c = 0;
  if (dtype == DTYPE_BF16) {
    for (; c + VL <= n; c += VL)
      vf_store(out + c, (vf)(vf_bf16_bits(vf_load(src + c)) << 16));
    for (; c < n; c++)
      out[c] = bf16_to_f32(f32_to_bf16(src[c]));
    return;
  }
  uint16_t line[256];
  for (; dtype == DTYPE_F16 && c < n; c += 256) {
    int32_t m = n - c < 256 ? n - c : 256;
    store_f16_floats(line, src + c, m);
    load_f16_floats(out + c, line, m);
  }
  if (dtype != DTYPE_F16 && out != src) memcpy(out, src, (size_t)n * sizeof *out);
}

#endif
