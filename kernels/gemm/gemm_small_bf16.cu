// The product for few rows, bf16. See gemm_small.cuh.
#include "kernels/gemm/gemm_small_launch.cuh"

int gemm_small_bf16(const struct kernel_call *call, int bn, int split, struct CUstream_st *stream) {
  if (call->linear->x_dtype != DTYPE_BF16) return CUDA_UNSUPPORTED;
  return small_run_tile<__nv_bfloat16>(call, bn, split, stream);
}
