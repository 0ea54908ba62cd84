// y = x / sqrt(mean(x^2) + eps) * gamma
#include "kernels/ref/ref.h"

#include <math.h>

void ref_rms_norm(double *y, const double *x, const double *gamma, int64_t rows, int64_t cols,
                  double eps) {
  for (int64_t r = 0; r < rows; r++, x += cols, y += cols) {
    double squares = 0;
    for (int64_t c = 0; c < cols; c++)
      squares += x[c] * x[c];
    double scale = 1 / sqrt(squares / (double)cols + eps);
    for (int64_t c = 0; c < cols; c++)
      y[c] = x[c] * scale * (gamma ? gamma[c] : 1);
  }
}
