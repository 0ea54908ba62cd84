// out[c][j] = src[j][c] for j < rows, c < cols; zeros from there to the next multiple of VL.
#ifndef KERNELS_CPU_SIMD_TRANSPOSE_H
#define KERNELS_CPU_SIMD_TRANSPOSE_H

#include "kernels/cpu/simd/simd.h"

#if defined(__AVX512F__)
// Up to 16 rows of 16 floats, in registers: pairs of lanes, then pairs of pairs, then 128-bit lanes
// twice. Rows that are not there read as zeros.
INLINE void transpose16(float *out, int64_t out_stride, const float *src, int64_t stride,
                        int32_t rows) {
  __m512 a[16], b[16];
  for (int i = 0; i < 16; i++)
    a[i] = i < rows ? _mm512_loadu_ps(src + i * stride) : _mm512_setzero_ps();
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xee);
    a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xee);
  }
  for (int i = 0; i < 4; i++) {
    b[i] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88);
    b[i + 4] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd);
    b[i + 8] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x88);
    b[i + 12] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; i++) {
    _mm512_storeu_ps(out + i * out_stride, _mm512_shuffle_f32x4(b[i], b[i + 8], 0x88));
    _mm512_storeu_ps(out + (i + 4) * out_stride, _mm512_shuffle_f32x4(b[i + 4], b[i + 12], 0x88));
    _mm512_storeu_ps(out + (i + 8) * out_stride, _mm512_shuffle_f32x4(b[i], b[i + 8], 0xdd));
    _mm512_storeu_ps(out + (i + 12) * out_stride, _mm512_shuffle_f32x4(b[i + 4], b[i + 12], 0xdd));
  }
}
#elif defined(__AVX2__)
// Up to 8 rows of 8 floats, likewise.
INLINE void transpose8(float *out, int64_t out_stride, const float *src, int64_t stride,
                       int32_t rows) {
  __m256 a[8], b[8];
  for (int i = 0; i < 8; i++)
    a[i] = i < rows ? _mm256_loadu_ps(src + i * stride) : _mm256_setzero_ps();
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
    a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
  }
  for (int i = 0; i < 4; i++) {
    _mm256_storeu_ps(out + i * out_stride, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
    _mm256_storeu_ps(out + (i + 4) * out_stride, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
  }
}
#endif

static inline void transpose_floats(float *out, int64_t out_stride, const float *src,
                                    int64_t stride, int32_t rows, int32_t cols) {
  int32_t c = 0;
#if defined(__AVX512F__)
  for (; c + 16 <= cols; c += 16)
    for (int32_t j = 0; j < rows; j += 16) {
      float *to = out + c * out_stride + j;
      if (rows - j >= 16)
        transpose16(to, out_stride, src + j * stride + c, stride, 16);
      else
        transpose16(to, out_stride, src + j * stride + c, stride, rows - j);
    }
#elif defined(__AVX2__)
  for (; c + 8 <= cols; c += 8)
    for (int32_t j = 0; j < rows; j += 8) {
      float *to = out + c * out_stride + j;
      if (rows - j >= 8)
        transpose8(to, out_stride, src + j * stride + c, stride, 8);
      else
        transpose8(to, out_stride, src + j * stride + c, stride, rows - j);
    }
#endif
  for (; c < cols; c++) {
    for (int32_t j = 0; j < rows; j++)
      out[c * out_stride + j] = src[j * stride + c];
    for (int32_t j = rows; j % VL != 0; j++)
      out[c * out_stride + j] = 0;
  }
}

#endif
