// The product kernels as plain C: the host side of kernels/gemm, shared by its launchers.
#ifndef GEMM_GEMM_H
#define GEMM_GEMM_H

#include "kernels/gemm/x3_tiles.h"
#include "kernels/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

// Tiles of Hopper's kernel. All but the first take the common epilogues alone, with rows of W by
// the 32; the kernel uses the first where they do not suit.
enum gemm_tile {
  GEMM_PINGPONG_128x128,
  GEMM_DIRECT_128x128,
  GEMM_DEFERRED_128x192,
  GEMM_DEFERRED_128x64,
  GEMM_TILES
};

// By how full the last wave is.
enum gemm_tile gemm_pick_tile(int64_t m, int32_t n, int sms);
// Do tiles of 128 x 64 make one wave, where the kernel for few rows would need more than one?
bool gemm_pick_narrow(int64_t m, int32_t n, int sms);
bool gemm_pick_small(int64_t m, int32_t n, int sms);  // the kernel for few rows instead
int gemm_pick_small_n(int64_t m, int32_t n, int sms); // its tile's columns
int gemm_pick_split(int64_t m, int32_t n, int32_t k, int bn,
                    int sms); // blocks that share k, where that is allowed

// May it do the call's list straight from registers: 32 columns at a time, 16 bytes of each
// operand's row? Pure.
bool gemm_list_direct(const struct kernel_call *call);
// Hopper's kernel, one file a dtype so that they compile side by side. The call is one that
// kernel_gemm_sm90 supports; CUDA_UNSUPPORTED: the other dtype.
int gemm_sm90_bf16(const struct kernel_call *call, enum gemm_tile tile, struct CUstream_st *stream);
int gemm_sm90_f16(const struct kernel_call *call, enum gemm_tile tile, struct CUstream_st *stream);
// For few rows: tiles of 64 x bn (32 or 64), k shared by `split` blocks (1, 2, 4, 8; above 1 the
// order of the sum changes).
int gemm_small_bf16(const struct kernel_call *call, int bn, int split, struct CUstream_st *stream);
int gemm_small_f16(const struct kernel_call *call, int bn, int split, struct CUstream_st *stream);
// A product with a norm behind it, in one kernel (gemm_norm_sm90.cuh): groups of n / width blocks,
// at most 8, whose tiles have `width` columns: gemm_norm_chunk's number or twice that. The call is
// one that kernel_gemm_norm_sm90 supports, with its workspace.
int gemm_norm_sm90_bf16(const struct kernel_call *call, int width, void *workspace,
                        struct CUstream_st *stream);
int gemm_norm_sm90_f16(const struct kernel_call *call, int width, void *workspace,
                       struct CUstream_st *stream);
// The norm alone, of rows that a product left at `x`, into out[0], which may be x: the same bits.
int gemm_norm_rows_bf16(const struct kernel_call *call, const struct view *x,
                        struct CUstream_st *stream);
int gemm_norm_rows_f16(const struct kernel_call *call, const struct view *x,
                       struct CUstream_st *stream);
// Groups of so many blocks that the current device runs at a time.
int gemm_norm_groups_bf16(int width, int blocks, int *out);
int gemm_norm_groups_f16(int width, int blocks, int *out);
// Columns of the parts in which a row of n is added up; 0: rows of n have no such kernel.
int gemm_norm_chunk(int32_t n);
// The same by mma.sync, on every card from sm_80 on; tiles of 128 x 128 (large) or 64 x 64.
int gemm_mma_bf16(const struct kernel_call *call, bool large, struct CUstream_st *stream);
int gemm_mma_f16(const struct kernel_call *call, bool large, struct CUstream_st *stream);
// fp32 on the tensor cores from sm_80 on, three products of tf32 for one. All tiles give the same
// bits; x3_pick chooses.
int gemm_tf32x3(const struct kernel_call *call, enum x3_tile_size tile, struct CUstream_st *stream);
// Any shape, any alignment, any mix of fp32, fp16 and bf16; fp32 arithmetic on the CUDA cores. All
// tiles give the same bits.
enum simt_tile_size { SIMT_32x32, SIMT_64x64, SIMT_128x128, SIMT_TILES };
enum simt_tile_size gemm_pick_simt(int64_t m, int32_t n, int sms);
int gemm_simt_tile(const struct kernel_call *call, enum simt_tile_size tile,
                   struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
