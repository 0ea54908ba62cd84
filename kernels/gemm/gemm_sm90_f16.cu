// The Hopper product, fp16. See gemm_sm90.cuh.
#include "kernels/gemm/gemm_sm90_launch.cuh"

int gemm_sm90_f16(const struct linear_problem *p, const struct view *in, const struct view *y,
                  int64_t m, enum gemm_tile tile, struct CUstream_st *stream) {
  if (p->x_dtype != DTYPE_F16 || p->w_dtype != DTYPE_F16) return CUDA_UNSUPPORTED;
  return gemm_run_tile<__half>(p, in, y, m, tile, stream);
}
