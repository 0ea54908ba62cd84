// y = x / max(||x||_2, eps)
#include "kernels/ref/ref.h"

#include <math.h>

void ref_normalize(double *y, const double *x, int64_t rows, int64_t cols, double eps) {
  for (int64_t r = 0; r < rows; r++, x += cols, y += cols) {
    double squares = 0;
    for (int64_t c = 0; c < cols; c++)
      squares += x[c] * x[c];
    double norm = sqrt(squares);
    if (norm < eps) norm = eps;
    for (int64_t c = 0; c < cols; c++)
      y[c] = norm == 0 ? 0 : x[c] / norm;
  }
}
