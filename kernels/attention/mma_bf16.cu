// Attention by mma.sync, bf16. See flash_mma.cuh.
#include "kernels/attention/flash_mma_launch.cuh"

int flash_mma_bf16(const struct attention_problem *p, const struct view *in, const struct view *out,
                   const struct batch_geometry *g, struct CUstream_st *stream) {
  return p->dtype == DTYPE_BF16 ? mma_run<__nv_bfloat16>(p, in, out, g, stream) : CUDA_UNSUPPORTED;
}
