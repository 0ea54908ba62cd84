// Choice of the attention kernel: the first that takes the problem.
#include "kernels/attention/attention.h"

int attention_run(const struct attention_problem *p, const struct view *in, const struct view *out,
                  const struct batch_geometry *g, struct CUstream_st *stream) {
  if (g->n_tokens == 0 || g->n_seqs == 0) return 0;
  if (p->heads < 1 || p->kv_heads < 1 || p->heads % p->kv_heads != 0) return CUDA_UNSUPPORTED;
  int rc = flash_sm90_bf16(p, in, out, g, stream);
  if (rc == CUDA_UNSUPPORTED) rc = flash_sm90_f16(p, in, out, g, stream);
  if (rc == CUDA_UNSUPPORTED) rc = attention_simple(p, in, out, g, stream);
  return rc;
}
