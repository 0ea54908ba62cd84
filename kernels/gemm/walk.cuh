// The order in which a product's tiles are computed: groups of 2048 rows, in a group column by
// column of tiles. What runs at a time is then about square, W passes by once a group of rows, and
// x once for each 1056 columns or so (server/graph/rates.c, where bytes are predicted by it).
#ifndef GEMM_WALK_CUH
#define GEMM_WALK_CUH

#include <stdint.h>

#define WALK_ROWS 2048

struct walk_place {
  int64_t row; // the tile's first
  int col;
};

// Of block `block` of walk_blocks.
template <int BM, int BN>
static __device__ __forceinline__ walk_place walk_tile(int block, int64_t m, int n) {
  constexpr int GROUP = WALK_ROWS / BM;
  const int rows = (int)((m + BM - 1) / BM), cols = (int)(((int64_t)n + BN - 1) / BN);
  const int first = block / (GROUP * cols) * GROUP, at = block % (GROUP * cols),
            here = rows - first < GROUP ? rows - first : GROUP;
  return walk_place{(int64_t)(first + at % here) * BM, at / here * BN};
}

// How many blocks; 0: more than can be counted.
template <int BM, int BN> static inline unsigned walk_blocks(int64_t m, int32_t n) {
  constexpr int GROUP = WALK_ROWS / BM;
  const int64_t rows = (m + BM - 1) / BM, cols = ((int64_t)n + BN - 1) / BN;
  if (cols > INT32_MAX / (rows > GROUP ? rows : GROUP)) return 0;
  return (unsigned)(rows * cols);
}

#endif
