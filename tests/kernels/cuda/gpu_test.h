// What the device tests share: typed host arrays, device buffers between poisoned guards,
// comparison, a counter. A program prints each failure with its case and seed, and returns 1; 77
// where there is no GPU (ctest: skipped).
#ifndef CUDA_GPU_TEST_H
#define CUDA_GPU_TEST_H

#include "kernels/cuda.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD_BYTES 256
#define POISON 0xa5

#define CHECK_CUDA(call)                                                                           \
  do {                                                                                             \
    cudaError_t rc_ = (cudaError_t)(call);                                                         \
    if (rc_ != cudaSuccess) {                                                                      \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(rc_));      \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)

static int failures, checks;
static uint64_t rng_state = 0x9e3779b97f4a7c15u;

static inline double uniform(void) {
  rng_state ^= rng_state << 13;
  rng_state ^= rng_state >> 7;
  rng_state ^= rng_state << 17;
  return (double)(rng_state >> 11) * 0x1p-53;
}

static inline double normal(void) {
  return sqrt(-2 * log(uniform() + 1e-300)) * cos(6.283185307179586 * uniform());
}

// A matrix of `rows` x `stride` elements, of which `cols` of a row count; guards on both sides on
// the device.
struct matrix {
  enum dtype dtype;
  int64_t rows, cols, stride;
  size_t bytes, shift; // shift: bytes by which the device address is off its alignment
  uint8_t *host;
  uint8_t *block; // device
  void *data;     // device, behind the guard
};

static inline double matrix_get(const struct matrix *m, int64_t r, int64_t c) {
  int64_t i = r * m->stride + c;
  switch (m->dtype) {
  case DTYPE_F32:
    return ((float *)m->host)[i];
  case DTYPE_F16:
    return f16_to_f32(((uint16_t *)m->host)[i]);
  case DTYPE_BF16:
    return bf16_to_f32(((uint16_t *)m->host)[i]);
  case DTYPE_I64:
    return (double)((int64_t *)m->host)[i];
  default:
    return ((int32_t *)m->host)[i];
  }
}

static inline void matrix_set(struct matrix *m, int64_t r, int64_t c, double x) {
  int64_t i = r * m->stride + c;
  switch (m->dtype) {
  case DTYPE_F32:
    ((float *)m->host)[i] = (float)x;
    break;
  case DTYPE_F16:
    ((uint16_t *)m->host)[i] = f32_to_f16((float)x);
    break;
  case DTYPE_BF16:
    ((uint16_t *)m->host)[i] = f32_to_bf16((float)x);
    break;
  case DTYPE_I64:
    ((int64_t *)m->host)[i] = (int64_t)x;
    break;
  default:
    ((int32_t *)m->host)[i] = (int32_t)x;
  }
}

// Poisoned all over: what a test does not set, and what a kernel does not write, shows. The poison
// is a large negative number as bf16, fp16 and fp32; with `nan_poison` it is NaN, so that reading a
// neighbour cannot go unseen.
static inline struct matrix matrix_make(enum dtype dtype, int64_t rows, int64_t cols,
                                        int64_t stride, size_t shift, bool nan_poison) {
  struct matrix m = {.dtype = dtype, .rows = rows, .cols = cols, .stride = stride, .shift = shift};
  m.bytes = (size_t)(rows * stride) * dtype_bytes(dtype);
  m.host = malloc(m.bytes + 1);
  memset(m.host, nan_poison ? 0xff : POISON, m.bytes);
  CHECK_CUDA(cudaMalloc((void **)&m.block, m.bytes + 2 * GUARD_BYTES + shift));
  CHECK_CUDA(cudaMemset(m.block, nan_poison ? 0xff : POISON, m.bytes + 2 * GUARD_BYTES + shift));
  m.data = m.block + GUARD_BYTES + shift;
  return m;
}

static inline void matrix_free(struct matrix *m) {
  free(m->host);
  cudaFree(m->block);
  *m = (struct matrix){0};
}

static inline void matrix_normal(struct matrix *m, double scale, double mean) {
  for (int64_t r = 0; r < m->rows; r++) {
    for (int64_t c = 0; c < m->cols; c++)
      matrix_set(m, r, c, normal() * scale + mean);
  }
}

static inline void matrix_upload(const struct matrix *m) {
  CHECK_CUDA(cudaMemcpy(m->data, m->host, m->bytes, cudaMemcpyHostToDevice));
}

// Download and look at what must not have changed: guards, and the gaps between rows.
static inline void matrix_download(struct matrix *m, const char *what) {
  uint8_t *guards = malloc(2 * GUARD_BYTES + m->shift);
  size_t front = GUARD_BYTES + m->shift;
  CHECK_CUDA(cudaMemcpy(guards, m->block, front, cudaMemcpyDeviceToHost));
  CHECK_CUDA(
      cudaMemcpy(guards + front, m->block + front + m->bytes, GUARD_BYTES, cudaMemcpyDeviceToHost));
  CHECK_CUDA(cudaMemcpy(m->host, m->data, m->bytes, cudaMemcpyDeviceToHost));
  size_t wrong = 0, es = dtype_bytes(m->dtype);
  for (size_t i = 0; i < front + GUARD_BYTES; i++)
    wrong += guards[i] != POISON;
  for (int64_t r = 0; r < m->rows; r++) {
    const uint8_t *gap = m->host + (size_t)(r * m->stride + m->cols) * es;
    for (size_t i = 0; i < (size_t)(m->stride - m->cols) * es; i++)
      wrong += gap[i] != POISON;
  }
  if (wrong) {
    printf("FAIL %s: %zu bytes outside the output were written\n", what, wrong);
    failures++;
  }
  free(guards);
}

// Allowed error of a stored value: `ulps` steps of the dtype at that size, plus `absolute`.
static inline double tolerance(enum dtype dtype, double want, double ulps, double absolute) {
  double step = dtype == DTYPE_BF16 ? 0x1p-8 : dtype == DTYPE_F16 ? 0x1p-11 : 0x1p-23;
  double least = dtype == DTYPE_F16 ? 0x1p-24 : 0x1p-126;
  return ulps * fmax(fabs(want) * step, least) + absolute;
}

// Compare one value; the first few failures of a case are printed. inf and NaN must agree.
static inline bool same(double got, double want, enum dtype dtype, double ulps, double absolute) {
  if (isnan(want)) return isnan(got);
  double top = dtype == DTYPE_F16 ? 65504 : 3.3895e38;
  if (fabs(want) > top) return fabs(got) >= top * 0.99 && (got > 0) == (want > 0);
  return fabs(got - want) <= tolerance(dtype, want, ulps, absolute);
}

static inline void compare(const char *what, int64_t r, int64_t c, double got, double want,
                           enum dtype dtype, double ulps, double absolute, int *shown) {
  checks++;
  if (same(got, want, dtype, ulps, absolute)) return;
  if ((*shown)++ < 3)
    printf("FAIL %s: (%ld, %ld) got %.9g want %.9g\n", what, (long)r, (long)c, got, want);
  failures++;
}

static inline void need_gpu(void) {
  int n = 0;
  if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
    printf("SKIP: no GPU here\n");
    exit(77);
  }
}

static inline int report(const char *name) {
  printf("%s: %d checks, %d failures\n", name, checks, failures);
  return failures != 0;
}

#endif
