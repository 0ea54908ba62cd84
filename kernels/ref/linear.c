// y[m, n] = x[m, k] * w[n, k]^T + bias[n]
#include "kernels/ref/ref.h"

void ref_linear(double *y, const double *x, const double *w, const double *bias, int64_t m,
                int64_t n, int64_t k) {
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) {
      double sum = 0;
      for (int64_t c = 0; c < k; c++)
        sum += x[i * k + c] * w[j * k + c];
      y[i * n + j] = bias ? sum + bias[j] : sum;
    }
}
