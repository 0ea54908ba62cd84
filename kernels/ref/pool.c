// One row a sequence: mean, first or maximum of its tokens. An empty sequence gives zeros.
#include "kernels/ref/ref.h"

#include <math.h>

static double column(const double *x, int64_t rows, int64_t cols, char kind) {
  if (rows == 0) return 0;
  if (kind == 'c') return x[0];
  double sum = 0, max = -INFINITY;
  for (int64_t r = 0; r < rows; r++) {
    double value = x[r * cols];
    sum += value;
    if (isnan(value) || value > max) max = isnan(max) ? max : value;
  }
  return kind == 'x' ? max : sum / (double)rows;
}

void ref_pool(double *y, const double *x, int64_t cols, const struct batch_geometry *g, char kind) {
  for (int32_t b = 0; b < g->n_seqs; b++) {
    int64_t first = g->cu_seqlens[b], rows = g->cu_seqlens[b + 1] - first;
    for (int64_t c = 0; c < cols; c++)
      y[b * cols + c] = column(x + first * cols + c, rows, cols, kind);
  }
}
