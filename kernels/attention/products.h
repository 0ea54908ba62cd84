// The kernels behind attention_scores and attention_context, as plain C. Same arguments, same rules
// (kernels/cuda.h); CUDA_UNSUPPORTED passes the problem on.
#ifndef ATTENTION_PRODUCTS_H
#define ATTENTION_PRODUCTS_H

#include "kernels/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

// Tensor cores, one file a dtype: head sizes that are multiples of 8 up to 256, 16-byte rows.
int scores_mma_bf16(const struct attention_problem *p, const struct view *q, const struct view *k,
                    float *scores, const struct batch_geometry *g, struct CUstream_st *stream);
int scores_mma_f16(const struct attention_problem *p, const struct view *q, const struct view *k,
                   float *scores, const struct batch_geometry *g, struct CUstream_st *stream);
int context_mma_bf16(const struct attention_problem *p, const float *scores, const struct view *v,
                     const struct view *out, const struct batch_geometry *g,
                     struct CUstream_st *stream);
int context_mma_f16(const struct attention_problem *p, const float *scores, const struct view *v,
                    const struct view *out, const struct batch_geometry *g,
                    struct CUstream_st *stream);
// Any dtype, head size and alignment, fp32 arithmetic on the CUDA cores.
int scores_simple(const struct attention_problem *p, const struct view *q, const struct view *k,
                  float *scores, const struct batch_geometry *g, struct CUstream_st *stream);
int context_simple(const struct attention_problem *p, const float *scores, const struct view *v,
                   const struct view *out, const struct batch_geometry *g,
                   struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
