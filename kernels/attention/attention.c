// Choice of the attention kernel: the first that takes the problem. Nothing here looks at the
// batch, so that a row's bits depend on its own sequence only.
#include "kernels/attention/attention.h"
#include "kernels/attention/products.h"

static bool nothing(const struct batch_geometry *g) {
  return g->n_tokens == 0 || g->n_seqs == 0;
}

static bool heads_valid(const struct attention_problem *p) {
  return p->heads >= 1 && p->kv_heads >= 1 && p->heads % p->kv_heads == 0;
}

int attention_run(const struct attention_problem *p, const struct view *in, const struct view *out,
                  const struct batch_geometry *g, struct CUstream_st *stream) {
  if (nothing(g)) return 0;
  if (!heads_valid(p)) return CUDA_UNSUPPORTED;
  int rc = flash_sm90_bf16(p, in, out, g, stream);
  if (rc == CUDA_UNSUPPORTED) rc = flash_sm90_f16(p, in, out, g, stream);
  if (rc == CUDA_UNSUPPORTED) rc = attention_simple(p, in, out, g, stream);
  return rc;
}

int attention_scores(const struct attention_problem *p, const struct view *q, const struct view *k,
                     float *scores, const struct batch_geometry *g, struct CUstream_st *stream) {
  if (nothing(g)) return 0;
  if (!heads_valid(p)) return CUDA_UNSUPPORTED;
  int rc = scores_mma_bf16(p, q, k, scores, g, stream);
  if (rc == CUDA_UNSUPPORTED) rc = scores_mma_f16(p, q, k, scores, g, stream);
  if (rc == CUDA_UNSUPPORTED) rc = scores_simple(p, q, k, scores, g, stream);
  return rc;
}

int attention_context(const struct attention_problem *p, const float *scores, const struct view *v,
                      const struct view *out, const struct batch_geometry *g,
                      struct CUstream_st *stream) {
  if (nothing(g)) return 0;
  if (!heads_valid(p)) return CUDA_UNSUPPORTED;
  int rc = context_mma_bf16(p, scores, v, out, g, stream);
  if (rc == CUDA_UNSUPPORTED) rc = context_mma_f16(p, scores, v, out, g, stream);
  if (rc == CUDA_UNSUPPORTED) rc = context_simple(p, scores, v, out, g, stream);
  return rc;
}
