// y[i] = table[ids[i]]; an id outside the table gives zeros.
#include "kernels/ref/ref.h"

void ref_embedding(double *y, const double *table, const int64_t *ids, int64_t n_ids,
                   int64_t n_table, int64_t cols) {
  for (int64_t i = 0; i < n_ids; i++)
    for (int64_t c = 0; c < cols; c++)
      y[i * cols + c] = ids[i] >= 0 && ids[i] < n_table ? table[ids[i] * cols + c] : 0;
}
