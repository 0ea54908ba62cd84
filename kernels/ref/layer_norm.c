// y = (x - mean) / sqrt(var + eps) * gamma + beta; the variance is that of centred values, as
// E[x^2] - mean^2 cancels.
#include "kernels/ref/ref.h"

#include <math.h>

static void row(double *y, const double *x, const double *gamma, const double *beta, int64_t cols,
                double eps) {
  double mean = 0, variance = 0;
  for (int64_t c = 0; c < cols; c++)
    mean += x[c];
  mean /= (double)cols;
  for (int64_t c = 0; c < cols; c++)
    variance += (x[c] - mean) * (x[c] - mean);
  double scale = 1 / sqrt(variance / (double)cols + eps);
  for (int64_t c = 0; c < cols; c++)
    y[c] = (x[c] - mean) * scale * (gamma ? gamma[c] : 1) + (beta ? beta[c] : 0);
}

void ref_layer_norm(double *y, const double *x, const double *gamma, const double *beta,
                    int64_t rows, int64_t cols, double eps) {
  for (int64_t r = 0; r < rows; r++)
    row(y + r * cols, x + r * cols, gamma, beta, cols, eps);
}
