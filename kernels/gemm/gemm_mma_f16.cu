// The product for tensor cores from sm_80 on, fp16. See gemm_mma.cuh.
#include "kernels/gemm/gemm_mma.cuh"

int gemm_mma_f16(const struct kernel_call *call, bool large, struct CUstream_st *stream) {
  if (call->linear->x_dtype != DTYPE_F16) return CUDA_UNSUPPORTED;
  return mma_run_tile<__half>(call, large, stream);
}
