// How long the tiles of the products in fp32 (gemm_tf32x3.cu) take: by this the kernel chooses its
// tile, and the planner predicts it (server/graph/tiles.c). Plain arithmetic, no CUDA.
#ifndef GEMM_X3_TILES_H
#define GEMM_X3_TILES_H

#include <stdint.h>

enum x3_tile_size { X3_32x32, X3_64x64, X3_128x64, X3_TILES };

// Of an H200, fitted to 14 products with a bias by each tile
// (bench/results/gpu-mixed-2026-11-30.txt; tests/unit/graph/test_recorded_kernels.c compares): what a
// launch takes with its first and last tile, and for each element of k a tile on a multiprocessor
// that has no other, and one of many.
struct x3_tile {
  int rows, cols;
  double start_us, alone_us, busy_us;
};
static const struct x3_tile x3_tiles[X3_TILES] = { // in their order
    {32, 32, 2.8, 0.0075, 0.0075},
    {64, 64, 4.2, 0.0203, 0.0178},
    {128, 64, 6.7, 0.0338, 0.0300}};

// Tiles of the busiest of `sms` multiprocessors.
static inline int64_t x3_rounds(const struct x3_tile *tile, int64_t m, int32_t n, int sms) {
  int64_t down = (m + tile->rows - 1) / tile->rows,
          across = ((int64_t)n + tile->cols - 1) / tile->cols;
  return (down * across + sms - 1) / sms;
}

// Microseconds for each element of k, of all of a multiprocessor's tiles.
static inline double x3_us_of_k(const struct x3_tile *tile, int64_t rounds) {
  double busy = (double)rounds * tile->busy_us;
  return busy > tile->alone_us ? busy : tile->alone_us;
}

static inline enum x3_tile_size x3_pick(int64_t m, int32_t n, int32_t k, int sms) {
  enum x3_tile_size best = X3_128x64;
  double least = 0;
  for (int i = X3_TILES - 1; i >= 0; i--) {
    const struct x3_tile *tile = &x3_tiles[i];
    double us = tile->start_us + k * x3_us_of_k(tile, x3_rounds(tile, m, n, sms));
    if (i == X3_TILES - 1 || us < least) least = us, best = (enum x3_tile_size)i;
  }
  return best;
}

#endif
