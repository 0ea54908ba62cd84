// What the tests of the CPU kernels share: random numbers, typed buffers with guarded ends,
// relative error.
#ifndef TESTS_KERNELS_CPU_TEST_H
#define TESTS_KERNELS_CPU_TEST_H

#include "kernels/cpu/features.h"
#include "kernels/ref/ref.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define GUARD_BYTES 256

static uint64_t test_seed;

static inline uint32_t test_random(void) {
  test_seed = test_seed * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(test_seed >> 33);
}

static inline float test_float(void) {
  float sum = 0;
  for (int i = 0; i < 3; i++)
    sum += (float)(test_random() >> 7) * 0x1p-24f - 0.5f;
  return 2 * sum;
}

static inline void test_seed_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  test_seed = (uint64_t)t.tv_nsec * 31 + (uint64_t)t.tv_sec;
  printf("seed %llu\n", (unsigned long long)test_seed);
}

static inline float typed_value(const void *data, enum dtype dtype, int64_t i) {
  switch (dtype) {
  case DTYPE_BF16:
    return bf16_to_f32(((const uint16_t *)data)[i]);
  case DTYPE_F16:
    return f16_to_f32(((const uint16_t *)data)[i]);
  case DTYPE_I64:
    return (float)((const int64_t *)data)[i];
  case DTYPE_I32:
    return (float)((const int32_t *)data)[i];
  default:
    return ((const float *)data)[i];
  }
}

static inline void typed_set(void *data, enum dtype dtype, int64_t i, float value) {
  switch (dtype) {
  case DTYPE_BF16:
    ((uint16_t *)data)[i] = f32_to_bf16(value);
    break;
  case DTYPE_F16:
    ((uint16_t *)data)[i] = f32_to_f16(value);
    break;
  case DTYPE_I64:
    ((int64_t *)data)[i] = (int64_t)value;
    break;
  case DTYPE_I32:
    ((int32_t *)data)[i] = (int32_t)value;
    break;
  default:
    ((float *)data)[i] = value;
    break;
  }
}

// A matrix of rows x stride elements between two guards; poisoned with 0xff bytes (NaN in every
// float dtype).
struct matrix {
  char *memory;
  struct view view;
  int64_t rows;
};

static inline struct matrix matrix_make(int64_t rows, int32_t cols, int64_t stride,
                                        enum dtype dtype) {
  size_t bytes = (size_t)(rows * stride) * dtype_bytes(dtype);
  struct matrix m = {.memory = malloc(bytes + 2 * GUARD_BYTES), .rows = rows};
  memset(m.memory, 0xff, bytes + 2 * GUARD_BYTES);
  m.view = (struct view){m.memory + GUARD_BYTES, stride, cols, dtype};
  return m;
}

static inline struct matrix matrix_random(int64_t rows, int32_t cols, int64_t stride,
                                          enum dtype dtype) {
  struct matrix m = matrix_make(rows, cols, stride, dtype);
  for (int64_t r = 0; r < rows; r++)
    for (int32_t c = 0; c < cols; c++)
      typed_set(m.view.data, dtype, r * stride + c, test_float());
  return m;
}

static inline float matrix_at(const struct matrix *m, int64_t r, int64_t c) {
  return typed_value(m->view.data, m->view.dtype, r * m->view.stride + c);
}

// Contiguous doubles [rows, cols].
static inline double *matrix_doubles(const struct matrix *m) {
  double *out = malloc((size_t)(m->rows * m->view.cols + 1) * sizeof *out);
  for (int64_t r = 0; r < m->rows; r++)
    for (int32_t c = 0; c < m->view.cols; c++)
      out[r * m->view.cols + c] = (double)matrix_at(m, r, c);
  return out;
}

// Nothing outside [rows, cols] was written: guards and the gap between cols and stride keep their
// poison.
static inline bool matrix_intact(const struct matrix *m) {
  size_t element = dtype_bytes(m->view.dtype);
  size_t bytes = (size_t)(m->rows * m->view.stride) * element;
  for (int i = 0; i < GUARD_BYTES; i++)
    if ((uint8_t)m->memory[i] != 0xff ||
        (uint8_t)m->memory[GUARD_BYTES + bytes + (size_t)i] != 0xff)
      return false;
  for (int64_t r = 0; r < m->rows; r++) {
    const char *gap =
        (const char *)m->view.data + (size_t)(r * m->view.stride + m->view.cols) * element;
    for (size_t i = 0; i < (size_t)(m->view.stride - m->view.cols) * element; i++)
      if ((uint8_t)gap[i] != 0xff) return false;
  }
  return true;
}

static inline void matrix_free(struct matrix *m) {
  free(m->memory);
}

// Relative L2 distance; NaN and infinities have to agree element by element.
static inline double matrix_distance(const struct matrix *m, const double *want) {
  double difference = 0, norm = 0;
  for (int64_t r = 0; r < m->rows; r++)
    for (int32_t c = 0; c < m->view.cols; c++) {
      double w = want[r * m->view.cols + c], got = (double)matrix_at(m, r, c);
      if (isnan(w) != isnan(got) || isinf(w) != isinf(got)) return INFINITY;
      if (isnan(w) || isinf(w)) continue;
      difference += (got - w) * (got - w);
      norm += w * w;
    }
  return difference == 0 ? 0 : norm == 0 ? sqrt(difference) : sqrt(difference / norm);
}

static inline double bound_of(enum dtype dtype) {
  return dtype == DTYPE_F32 ? 1e-5 : dtype == DTYPE_F16 ? 1e-3 : 8e-3;
}

#endif
