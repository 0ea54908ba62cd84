// Tensor maps for the bulk copy engine: encoded on the host, passed by value as __grid_constant__
// parameters.
#ifndef COMMON_TENSOR_MAP_H
#define COMMON_TENSOR_MAP_H

#include "kernels/types.h"

#include <cuda.h>

#ifdef __cplusplus
extern "C" {
#endif

// A matrix [rows, cols] of 16-bit elements, `stride` elements from row to row, read or written in
// boxes of box_rows x 64 columns under the 128-byte swizzle; what lies outside reads as zero and is
// not written. 0, or a cudaError_t; CUDA_UNSUPPORTED where the address or the stride is not a
// multiple of 16 bytes.
int tensor_map_matrix(CUtensorMap *out, enum dtype dtype, const void *data, int64_t rows,
                      int64_t cols, int64_t stride, int box_rows);
// The same, box_rows a multiple of 32; in a box, row 8i + 2c + e of each 32 is row 8c + 2i + e of
// the matrix (i, c < 4; e < 2). CUDA_UNSUPPORTED also where rows are not a multiple of 32.
// Coordinates: column, 0, 0, 0, row / 32.
int tensor_map_interleaved(CUtensorMap *out, enum dtype dtype, const void *data, int64_t rows,
                           int64_t cols, int64_t stride, int box_rows);
// [tokens, heads, dim]: `stride` elements from token to token, heads side by side. Boxes of
// box_tokens x 1 x box_dim.
int tensor_map_heads(CUtensorMap *out, enum dtype dtype, const void *data, int64_t tokens,
                     int heads, int dim, int64_t stride, int box_tokens, int box_dim);

#ifdef __cplusplus
}
#endif
#endif
