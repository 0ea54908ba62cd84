// The product for few rows, fp16. See gemm_small.cuh.
#include "kernels/gemm/gemm_small_launch.cuh"

int gemm_small_f16(const struct kernel_call *call, int bn, int split, struct CUstream_st *stream) {
  if (call->linear->x_dtype != DTYPE_F16) return CUDA_UNSUPPORTED;
  return small_run_tile<__half>(call, bn, split, stream);
}
