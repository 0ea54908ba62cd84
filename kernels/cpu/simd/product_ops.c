// Our own fp32 product, compiled once for each instruction set. See kernels/cpu/own.h.
//
// The micro-kernel keeps ROWS x 2 vectors of sums in registers: one weight vector pair is loaded for ROWS x 2
// multiply-adds, and x comes as broadcasts. 14 rows fill the 32 registers of AVX-512, 6 the 16 of AVX2.
#include "kernels/cpu/own.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/simd/table.h"

#if SIMD_BYTES == 64
#define MR 14
#else
#define MR 6
#endif
#define PANEL (2 * VL)
#define PREFETCH_BYTES 4096 // ahead in the stream of weights, which comes from beyond the second-level cache

INLINE void micro(const int rows, const float *x, int64_t x_stride, const float *w, int32_t k, float *out,
                  int64_t out_stride, const bool prefetch) {
  vf a[MR][2];
  for (int r = 0; r < rows; r++) a[r][0] = a[r][1] = (vf){0};
  for (int32_t i = 0; i < k; i++, w += PANEL) {
    vf w0 = vf_load(w), w1 = vf_load(w + VL);
    if (prefetch) {
      __builtin_prefetch((const char *)w + PREFETCH_BYTES, 0, 2);
      if (SIMD_BYTES == 64) __builtin_prefetch((const char *)w + PREFETCH_BYTES + 64, 0, 2);
    }
    for (int r = 0; r < rows; r++) {
      vf b = vf_set(x[r * x_stride + i]);
      a[r][0] += b * w0;
      a[r][1] += b * w1;
    }
  }
  for (int r = 0; r < rows; r++) {
    vf_store(out + r * out_stride, a[r][0]);
    vf_store(out + r * out_stride + VL, a[r][1]);
  }
}

#define MICRO_CASE(n) \
  case n: \
    if (prefetch) micro(n, x, x_stride, w, k, out, OWN_GROUP_COLS, true); \
    else micro(n, x, x_stride, w, k, out, OWN_GROUP_COLS, false); \
    break;

static void micro_rows(int rows, const float *x, int64_t x_stride, const float *w, int32_t k, float *out, bool prefetch) {
  switch (rows) {
    MICRO_CASE(1)
    MICRO_CASE(2)
    MICRO_CASE(3)
    MICRO_CASE(4)
    MICRO_CASE(5)
    MICRO_CASE(6)
#if MR > 6
    MICRO_CASE(7)
    MICRO_CASE(8)
    MICRO_CASE(9)
    MICRO_CASE(10)
    MICRO_CASE(11)
    MICRO_CASE(12)
    MICRO_CASE(13)
    MICRO_CASE(14)
#endif
  default: break;
  }
}

// Columns [first, first + cols) of the slice: sums, then the epilogue, a block of rows at a time.
static void run_group(const struct product_call *c, int32_t first, int32_t cols) {
  int32_t blocks = (c->rows + MR - 1) / MR;
  for (int32_t b = 0; b < blocks; b++) {
    int32_t begin = c->rows * b / blocks, rows = c->rows * (b + 1) / blocks - begin;
    const float *x = (const float *)c->x + begin * c->x_stride;
    for (int32_t col = 0; col < cols; col += PANEL) {
      const float *w = (const float *)c->weights + (int64_t)(first + col) * c->k;
      micro_rows(rows, x, c->x_stride, w, c->k, c->sums + col, b == 0);
    }
    epilogue_rectangle(&c->epilogue, c->sums, OWN_GROUP_COLS, begin, rows, first, cols, SIMD_NAME(epilogue_run));
  }
}

void SIMD_NAME(product_f32_run)(const struct product_call *call) {
  // Panels of a group are read again by every block of rows, so a group's weights should stay in the second-level cache.
  int32_t group = OWN_GROUP_COLS;
  for (int32_t first = 0; first < call->n; first += group) {
    int32_t cols = call->n - first < group ? call->n - first : group;
    run_group(call, first, cols);
  }
}
