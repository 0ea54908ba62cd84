// cuBLASLt, opened late by name, for the products whose epilogue it has exactly: none, bias,
// residual, bias then residual. One binary serves machines with and without it.
//
// 16-bit operands, fp32 sums, the result of the operands' dtype or fp32; bias and residual of the
// result's (the library takes no other). (In fp32, with k whole, the library has nothing for few
// rows but kernels several times slower than ours.) A row's bits must not depend on how many rows
// there are, and an algorithm is chosen for a row count. So only algorithms are taken
// that give the same bits as each other, and as kernels/gemm's own kernels for Hopper: those of the
// family that leaves k whole and adds in its order. The library does not promise that; what is
// taken was compared bit by bit (tests/kernels/cuda/test_lt.c, cuBLASLt 13.1).
#ifndef GEMM_LT_H
#define GEMM_LT_H

#include "kernels/types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;
struct lt; // the library and its handle; one a device
#define LT_MESSAGE_BYTES 512
// For the current device. 0, or -1 with a sentence in `message` (the library was not found, ...).
// Slow (the library is large): load time only.
int lt_open(struct lt **out, char message[LT_MESSAGE_BYTES]);
void lt_close(struct lt *lt);

// One product, ready to run: plain data, valid while its lt is open.
#define LT_PLAN_WORDS 56
struct lt_plan {
  uint64_t words[LT_PLAN_WORDS];
  size_t workspace_bytes; // what lt_run needs
};
// The library's choice for `m` rows and up to `workspace_bytes` of workspace. Addresses in the
// views count by their alignment alone: a plan serves other views with these strides and dtypes
// whose addresses are multiples of 16. CUDA_UNSUPPORTED: another epilogue or dtype, rows or
// addresses that are not multiples of 16 bytes, or nothing found. Calls no kernel. Load time only.
int lt_prepare(const struct lt *lt, const struct linear_problem *problem, const struct view *in,
               const struct view *y, int64_t m, size_t workspace_bytes, struct lt_plan *out);
// Any m up to the one prepared for (CUDA_UNSUPPORTED where the algorithm does not take it: nothing
// was launched). y may be the residual, nothing else. workspace: device memory of this stream's
// own, a multiple of 256; may be NULL where workspace_bytes is 0. Allocates nothing; may be
// captured.
int lt_run(const struct lt *lt, const struct lt_plan *plan, const struct view *in,
           const struct view *y, int64_t m, void *workspace, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
