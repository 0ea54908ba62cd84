// The oracle: every op in plain C with double accumulation, one .c per op. Slow on purpose, simple
// on purpose. All tensors here are double [rows, cols], contiguous; the caller converts (so that
// input rounding is the caller's). Free-standing; any thread; nothing allocates.
#ifndef KERNELS_REF_H
#define KERNELS_REF_H

#include "kernels/types.h"

double ref_activate(enum activation act, double x);
// y[m,n] = sum_k x[m,k] w[n,k] (+ bias[n] when not NULL)
void ref_linear(double *y, const double *x, const double *w, const double *bias, int64_t m,
                int64_t n, int64_t k);
void ref_layer_norm(double *y, const double *x, const double *gamma, const double *beta,
                    int64_t rows, int64_t cols, double eps);
void ref_rms_norm(double *y, const double *x, const double *gamma, int64_t rows, int64_t cols,
                  double eps);
void ref_softmax(double *y, const double *x, int64_t rows, int64_t cols);
void ref_normalize(double *y, const double *x, int64_t rows, int64_t cols, double eps);
// reduce over the columns: kind 's' sum, 'm' mean, 'x' max; y [rows]
void ref_reduce(double *y, const double *x, int64_t rows, int64_t cols, char kind);
// q [T, heads*d], k v [T, kv_heads*d], o [T, heads*d]; `work` has max_seqlen doubles
void ref_attention(double *o, const double *q, const double *k, const double *v,
                   const struct attention_problem *p, const struct batch_geometry *g, double *work);
void ref_embedding(double *y, const double *table, const int64_t *ids, int64_t n_ids,
                   int64_t n_table, int64_t cols);
// x [T, cols] -> y [B, cols]; kind 'm' mean, 'c' cls, 'x' max. An empty sequence gives zeros.
void ref_pool(double *y, const double *x, int64_t cols, const struct batch_geometry *g, char kind);
// Run a whole row program in double. inputs[i] are typed views as the kernel would get them;
// outputs are double. RI_CAST rounds to the dtype. `regs` has n_regs*cols doubles.
void ref_row_program(const struct row_program *prog, const struct view *inputs,
                     double *const *outputs, int64_t rows, const struct batch_geometry *g,
                     double *regs);

#endif
