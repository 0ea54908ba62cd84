// What the kernels of unfused attention's products are called with, on the tensor cores or not.
#ifndef ATTENTION_PRODUCTS_ARGS_CUH
#define ATTENTION_PRODUCTS_ARGS_CUH

#include "kernels/attention/seq_walk.cuh"
#include "kernels/types.h"

struct products_args {
  const void *in[2]; // scores: q, k; context: v
  int64_t stride[2];
  float *scores;
  void *out; // context
  int64_t out_stride;
  const int32_t *cu_seqlens;
  const int64_t *scores_offset;
  int32_t n_seqs, heads, group, dim;
};

// Operands are the caller's to fill in.
static inline products_args products_args_of(const struct attention_problem *p,
                                             const struct batch_geometry *g) {
  products_args a = {};
  a.cu_seqlens = g->cu_seqlens, a.scores_offset = g->scores_offset, a.n_seqs = g->n_seqs;
  a.heads = p->heads, a.group = p->heads / p->kv_heads, a.dim = p->head_dim;
  return a;
}

static __device__ __forceinline__ float *head_scores(const products_args &a, const seq_tile &tile,
                                                     int head) {
  return a.scores + a.heads * a.scores_offset[tile.seq] + (int64_t)head * tile.length * tile.length;
}

#endif
