// Choice of the product kernel: pure arithmetic on the shape, then the first kernel that takes the operands.
#include "kernels/gemm/gemm.h"

static int64_t waves(int64_t m, int32_t n, int tile_m, int tile_n, int sms) {
  int64_t tiles = (m + 2 * tile_m - 1) / (2 * tile_m) * ((n + tile_n - 1) / tile_n);
  int64_t clusters = sms / 2;
  return (tiles + clusters - 1) / clusters;
}

enum gemm_tile gemm_pick_tile(int64_t m, int32_t n, int32_t k, int sms) {
  // a wave of cooperative tiles does twice the products of a ping-pong one
  int64_t pingpong = waves(m, n, 128, 128, sms), cooperative = 2 * waves(m, n, 128, 256, sms);
  if (k <= 2048 || cooperative > pingpong + pingpong / 16) return GEMM_PINGPONG_128x128;
  return GEMM_COOPERATIVE_128x256;
}

int linear_run(const struct linear_problem *p, const struct view *in, const struct view *y, int64_t m, struct CUstream_st *stream) {
  if (m == 0) return 0;
  enum gemm_tile tile = gemm_pick_tile(m, p->n, p->k, 132);
  int rc = gemm_sm90_bf16(p, in, y, m, tile, stream);
  if (rc == CUDA_UNSUPPORTED) rc = gemm_sm90_f16(p, in, y, m, tile, stream);
  if (rc == CUDA_UNSUPPORTED) rc = gemm_simple(p, in, y, m, stream);
  return rc;
}
