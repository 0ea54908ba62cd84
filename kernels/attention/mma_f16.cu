// Attention by mma.sync, fp16. See flash_mma.cuh.
#include "kernels/attention/flash_mma_launch.cuh"

int flash_mma_f16(const struct attention_problem *p, const struct view *in, const struct view *out,
                  const struct batch_geometry *g, struct CUstream_st *stream) {
  return p->dtype == DTYPE_F16 ? mma_run<__half>(p, in, out, g, stream) : CUDA_UNSUPPORTED;
}
