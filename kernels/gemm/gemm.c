// Choice of the product kernel: pure arithmetic on the shape, then the first kernel that takes the operands.
#include "kernels/gemm/gemm.h"

// Work of the busiest block, in columns of 128 x 64 x 1 products: what is left over in the last wave counts in full.
static int64_t busiest(int64_t m, int32_t n, int tile_n, int sms) {
  int64_t tiles = (m + 255) / 256 * ((n + tile_n - 1) / tile_n), clusters = sms / 2;
  return (tiles + clusters - 1) / clusters * tile_n;
}

enum gemm_tile gemm_pick_tile(int64_t m, int32_t n, int32_t k, int sms) {
  (void)k;
  int64_t pingpong = busiest(m, n, 128, sms), cooperative = busiest(m, n, 192, sms);
  // the cooperative tile does not hide its epilogue: it must save a tenth
  return cooperative + cooperative / 10 < pingpong ? GEMM_COOPERATIVE_128x192 : GEMM_PINGPONG_128x128;
}

int linear_run(const struct linear_problem *p, const struct view *in, const struct view *y, int64_t m, struct CUstream_st *stream) {
  if (m == 0) return 0;
  enum gemm_tile tile = gemm_pick_tile(m, p->n, p->k, 132);
  int rc = gemm_sm90_bf16(p, in, y, m, tile, stream);
  if (rc == CUDA_UNSUPPORTED) rc = gemm_sm90_f16(p, in, y, m, tile, stream);
  if (rc == CUDA_UNSUPPORTED) rc = gemm_simple(p, in, y, m, stream);
  return rc;
}
