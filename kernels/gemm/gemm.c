// Choice of the product kernel: pure arithmetic on the shape, then the first kernel that takes the
// operands.
#include "kernels/gemm/gemm.h"

// Work of the busiest block, in columns of 128 x 64 x 1 products: what is left over in the last
// wave counts in full.
static int64_t busiest(int64_t m, int32_t n, int tile_n, int sms) {
  int64_t tiles = (m + 255) / 256 * ((n + tile_n - 1) / tile_n), clusters = sms / 2;
  return (tiles + clusters - 1) / clusters * tile_n;
}

enum gemm_tile gemm_pick_tile(int64_t m, int32_t n, int32_t k, int sms) {
  (void)k;
  int64_t pingpong = busiest(m, n, 128, sms), cooperative = busiest(m, n, 192, sms);
  // the cooperative tile does not hide its epilogue: it must save a tenth
  return cooperative + cooperative / 10 < pingpong ? GEMM_COOPERATIVE_128x192
                                                   : GEMM_PINGPONG_128x128;
}

// Few rows, or so few tiles that most multiprocessors would stand idle.
bool gemm_pick_small(int64_t m, int32_t n, int sms) {
  int64_t blocks = 2 * ((m + 255) / 256) * (((int64_t)n + 127) / 128);
  return m <= 64 || blocks * 2 < sms;
}

int gemm_pick_small_n(int64_t m, int32_t n, int sms) {
  return (m + 63) / 64 * (((int64_t)n + 63) / 64) < sms ? 32 : 64;
}

int gemm_pick_split(int64_t m, int32_t n, int32_t k, int bn, int sms) {
  int64_t blocks = (m + 63) / 64 * (((int64_t)n + bn - 1) / bn);
  int split = 1;
  while (split < 8 && blocks * split * 2 <= sms && k / 64 / (split * 2) >= 3)
    split *= 2;
  return split;
}

#define SMS                                                                                        \
  132 // of the H100 and H200 that these tiles are for; a different count costs speed, not results

static int run(const struct linear_problem *p, const struct view *in, const struct view *y,
               int64_t m, bool may_split, struct CUstream_st *stream) {
  if (m == 0) return 0;
  int rc = CUDA_UNSUPPORTED;
  if (gemm_pick_small(m, p->n, SMS)) {
    int bn = gemm_pick_small_n(m, p->n, SMS),
        split = may_split ? gemm_pick_split(m, p->n, p->k, bn, SMS) : 1;
    rc = gemm_small_bf16(p, in, y, m, bn, split, stream);
    if (rc == CUDA_UNSUPPORTED) rc = gemm_small_f16(p, in, y, m, bn, split, stream);
  }
  enum gemm_tile tile = gemm_pick_tile(m, p->n, p->k, SMS);
  if (rc == CUDA_UNSUPPORTED) rc = gemm_sm90_bf16(p, in, y, m, tile, stream);
  if (rc == CUDA_UNSUPPORTED) rc = gemm_sm90_f16(p, in, y, m, tile, stream);
  if (rc == CUDA_UNSUPPORTED) rc = gemm_simple(p, in, y, m, stream);
  return rc;
}

int linear_run(const struct linear_problem *p, const struct view *in, const struct view *y,
               int64_t m, struct CUstream_st *stream) {
  return run(p, in, y, m, false, stream);
}

int linear_run_fastest(const struct linear_problem *p, const struct view *in, const struct view *y,
                       int64_t m, struct CUstream_st *stream) {
  return run(p, in, y, m, true, stream);
}
