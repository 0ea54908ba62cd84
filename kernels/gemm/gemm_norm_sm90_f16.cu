// The Hopper product with a norm behind it, fp16. See gemm_norm_sm90.cuh.
#include "kernels/gemm/gemm_norm_sm90_launch.cuh"

int gemm_norm_sm90_f16(const struct kernel_call *call, int width, void *workspace,
                       struct CUstream_st *stream) {
  if (call->linear->x_dtype != DTYPE_F16) return CUDA_UNSUPPORTED;
  return gemm_norm_run<__half>(call, width, workspace, stream);
}

int gemm_norm_rows_f16(const struct kernel_call *call, const struct view *x,
                       struct CUstream_st *stream) {
  if (call->linear->x_dtype != DTYPE_F16) return CUDA_UNSUPPORTED;
  return gemm_norm_rows_run<__half>(call, x, stream);
}

int gemm_norm_groups_f16(int width, int blocks, int *out) {
  gemm_norm_counter count = gemm_norm_counter_of<__half>(width);
  return count && blocks >= 1 && blocks <= 8 ? count(blocks, out) : CUDA_UNSUPPORTED;
}
