// Softmax over each row. A row with no finite maximum from below (all -inf, as when everything is
// masked) gives zeros.
#include "kernels/ref/ref.h"

#include <math.h>

void ref_softmax(double *y, const double *x, int64_t rows, int64_t cols) {
  for (int64_t r = 0; r < rows; r++, x += cols, y += cols) {
    double max = -INFINITY, sum = 0;
    bool nan = false;
    for (int64_t c = 0; c < cols; c++) {
      nan = nan || isnan(x[c]);
      if (x[c] > max) max = x[c];
    }
    bool masked = max == -INFINITY && !nan;
    for (int64_t c = 0; c < cols; c++) {
      y[c] = masked ? 0 : exp(x[c] - max);
      sum += y[c];
    }
    for (int64_t c = 0; c < cols && !masked; c++)
      y[c] /= sum;
  }
}
