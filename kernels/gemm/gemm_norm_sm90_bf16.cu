// The Hopper product with a norm behind it, bf16. See gemm_norm_sm90.cuh.
#include "kernels/gemm/gemm_norm_sm90_launch.cuh"

int gemm_norm_sm90_bf16(const struct kernel_call *call, int width, void *workspace,
                        struct CUstream_st *stream) {
  if (call->linear->x_dtype != DTYPE_BF16) return CUDA_UNSUPPORTED;
  return gemm_norm_run<__nv_bfloat16>(call, width, workspace, stream);
}

int gemm_norm_rows_bf16(const struct kernel_call *call, const struct view *x,
                        struct CUstream_st *stream) {
  if (call->linear->x_dtype != DTYPE_BF16) return CUDA_UNSUPPORTED;
  return gemm_norm_rows_run<__nv_bfloat16>(call, x, stream);
}

int gemm_norm_groups_bf16(int width, int blocks, int *out) {
  gemm_norm_counter count = gemm_norm_counter_of<__nv_bfloat16>(width);
  return count && blocks >= 1 && blocks <= 8 ? count(blocks, out) : CUDA_UNSUPPORTED;
}
