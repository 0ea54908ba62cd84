// The attention kernels behind attention_run, as plain C.
#ifndef ATTENTION_ATTENTION_H
#define ATTENTION_ATTENTION_H

#include "kernels/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

// Hopper, one file a dtype. CUDA_UNSUPPORTED: another dtype, head size (32, 64, 80, 96, 128, 256),
// architecture, rows that are not 16-byte aligned, or a scale that is not positive.
int flash_sm90_bf16(const struct attention_problem *p, const struct view *in,
                    const struct view *out, const struct batch_geometry *g,
                    struct CUstream_st *stream);
int flash_sm90_f16(const struct attention_problem *p, const struct view *in, const struct view *out,
                   const struct batch_geometry *g, struct CUstream_st *stream);
// The same without Hopper's own instructions: any card from sm_80 on.
int flash_mma_bf16(const struct attention_problem *p, const struct view *in, const struct view *out,
                   const struct batch_geometry *g, struct CUstream_st *stream);
int flash_mma_f16(const struct attention_problem *p, const struct view *in, const struct view *out,
                  const struct batch_geometry *g, struct CUstream_st *stream);
// fp32, head sizes up to 128, any alignment, a scale that is positive. A block takes `rows`
// queries, 32 or 64; the bits are the same.
int flash_f32(const struct attention_problem *p, const struct view *in, const struct view *out,
              const struct batch_geometry *g, int rows, struct CUstream_st *stream);
// Any dtype and alignment, head sizes up to 256; fp32 arithmetic on the CUDA cores.
int attention_simple(const struct attention_problem *p, const struct view *in,
                     const struct view *out, const struct batch_geometry *g,
                     struct CUstream_st *stream);

// Most tiles of `rows` query rows (and, of scores, as many keys) that a batch within the geometry's
// counts can have.
static inline int64_t row_tile_bound(const struct batch_geometry *g, int rows) {
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
