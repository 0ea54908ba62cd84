// The product for few rows, fp16. See gemm_small.cuh.
#include "kernels/gemm/gemm_small_launch.cuh"

int gemm_small_f16(const struct linear_problem *p, const struct view *in, const struct view *y,
                   int64_t m, int bn, int split, struct CUstream_st *stream) {
  if (p->x_dtype != DTYPE_F16 || p->w_dtype != DTYPE_F16) return CUDA_UNSUPPORTED;
  return small_run_tile<__half>(p, in, y, m, bn, split, stream);
}
