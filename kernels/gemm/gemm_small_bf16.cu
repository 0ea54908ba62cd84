// The product for few rows, bf16. See gemm_small.cuh.
#include "kernels/gemm/gemm_small_launch.cuh"

int gemm_small_bf16(const struct linear_problem *p, const struct view *in, const struct view *y,
                    int64_t m, int bn, int split, struct CUstream_st *stream) {
  if (p->x_dtype != DTYPE_BF16 || p->w_dtype != DTYPE_BF16) return CUDA_UNSUPPORTED;
  return small_run_tile<__nv_bfloat16>(p, in, y, m, bn, split, stream);
}
