// One value a row: sum, mean or maximum over the columns. A NaN in the row is the result.
#include "kernels/ref/ref.h"

#include <math.h>

static double maximum(const double *x, int64_t cols) {
  double max = -INFINITY;
  for (int64_t c = 0; c < cols; c++) {
    if (isnan(x[c])) return x[c];
    if (x[c] > max) max = x[c];
  }
  return max;
}

void ref_reduce(double *y, const double *x, int64_t rows, int64_t cols, char kind) {
  for (int64_t r = 0; r < rows; r++, x += cols) {
    double sum = 0;
    for (int64_t c = 0; c < cols; c++)
      sum += x[c];
    y[r] = kind == 'x' ? maximum(x, cols) : kind == 'm' ? sum / (double)cols : sum;
  }
}
