// Attention in the textbook order: scores, softmax, context; one query at a time.
#include "kernels/ref/ref.h"

#include <math.h>

struct head {
  const double *q, *k, *v; // first row of the sequence, this head's columns
  double *o;
  int64_t q_stride, kv_stride;
};

static void query(const struct head *head, const struct attention_problem *p, int64_t i,
                  int64_t n_keys, double *work) {
  const double *q = head->q + i * head->q_stride;
  double *o = head->o + i * head->q_stride;
  for (int64_t j = 0; j < n_keys; j++) {
    work[j] = 0;
    for (int d = 0; d < p->head_dim; d++)
      work[j] += q[d] * head->k[j * head->kv_stride + d];
    work[j] *= (double)p->scale;
  }
  ref_softmax(work, work, 1, n_keys);
  for (int d = 0; d < p->head_dim; d++) {
    double sum = 0;
    for (int64_t j = 0; j < n_keys; j++)
      sum += work[j] * head->v[j * head->kv_stride + d];
    o[d] = sum;
  }
}

void ref_attention(double *o, const double *q, const double *k, const double *v,
                   const struct attention_problem *p, const struct batch_geometry *g,
                   double *work) {
  int64_t q_stride = (int64_t)p->heads * p->head_dim,
          kv_stride = (int64_t)p->kv_heads * p->head_dim;
  for (int32_t b = 0; b < g->n_seqs; b++) {
    int64_t first = g->cu_seqlens[b], length = g->cu_seqlens[b + 1] - first;
    for (int32_t h = 0; h < p->heads; h++) {
      int64_t q_col = (int64_t)h * p->head_dim,
              kv_col = (int64_t)(h / (p->heads / p->kv_heads)) * p->head_dim;
      struct head head = {.q = q + first * q_stride + q_col,
                          .k = k + first * kv_stride + kv_col,
                          .v = v + first * kv_stride + kv_col,
                          .o = o + first * q_stride + q_col,
                          .q_stride = q_stride,
                          .kv_stride = kv_stride};
      for (int64_t i = 0; i < length; i++)
        query(&head, p, i, p->causal ? i + 1 : length, work);
    }
  }
}
