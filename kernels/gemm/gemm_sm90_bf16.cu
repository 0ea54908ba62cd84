// The Hopper product, bf16. See gemm_sm90.cuh.
#include "kernels/gemm/gemm_sm90_launch.cuh"

int gemm_sm90_bf16(const struct kernel_call *call, enum gemm_tile tile,
                   struct CUstream_st *stream) {
  if (call->linear->x_dtype != DTYPE_BF16) return CUDA_UNSUPPORTED;
  return gemm_run_tile<__nv_bfloat16>(call, tile, stream);
}
