// Unfused attention's products, fp16. See products_mma.cuh.
#include "kernels/attention/products_launch.cuh"

int scores_mma_f16(const struct attention_problem *p, const struct view *q, const struct view *k,
                   float *scores, const struct batch_geometry *g, struct CUstream_st *stream) {
  return p->dtype == DTYPE_F16 ? scores_mma<__half>(p, q, k, scores, g, stream) : CUDA_UNSUPPORTED;
}

int context_mma_f16(const struct attention_problem *p, const float *scores, const struct view *v,
                    const struct view *out, const struct batch_geometry *g,
                    struct CUstream_st *stream) {
  return p->dtype == DTYPE_F16 ? context_mma<__half>(p, scores, v, out, g, stream)
                               : CUDA_UNSUPPORTED;
}
