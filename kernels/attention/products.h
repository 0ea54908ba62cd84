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

// Most tiles of `rows` query rows (and, of scores, as many keys) that a batch within the geometry's
// counts can have.
static inline int64_t context_tile_bound(const struct batch_geometry *g, int rows) {
  const int64_t per_seq = ((int64_t)g->max_seqlen + rows - 1) / rows * g->n_seqs,
                by_tokens = g->n_tokens / rows + (int64_t)g->n_seqs;
  return per_seq < by_tokens ? per_seq : by_tokens;
}
static inline int64_t scores_tile_bound(const struct batch_geometry *g, int rows) {
  // ceil(s / rows)^2 <= (s / rows + 1)^2, summed over the sequences
  const int64_t across = ((int64_t)g->max_seqlen + rows - 1) / rows,
                per_seq = across * across * g->n_seqs,
                by_scores = g->sum_sq / ((int64_t)rows * rows) + 1 + 2 * (g->n_tokens / rows + 1) +
                            (int64_t)g->n_seqs;
  return per_seq < by_scores ? per_seq : by_scores;
}

#ifdef __cplusplus
}
#endif
#endif
