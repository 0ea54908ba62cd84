#include "client/ab.h"
#include "client/samples.h"
#include <math.h>
#include <stdlib.h>

enum status ab_ratio(const double *a, const double *b, int64_t n, uint64_t seed,
                     struct ab_estimate *out) {
  double *logs = malloc((size_t)(n > 0 ? n : 1) * sizeof *logs);
  struct samples means = {0};
  struct rng rng = {seed};
  double sum = 0;
  int64_t used = 0;
  *out = (struct ab_estimate){.ratio = NAN, .low = NAN, .high = NAN};
  if (!logs) return STATUS_RESOURCE_EXHAUSTED;
  for (int64_t i = 0; i < n; i++) {
    if (!(a[i] > 0) || !(b[i] > 0)) continue;
    logs[used] = log(b[i] / a[i]);
    sum += logs[used++];
  }
  out->n_pairs = used;
  if (used > 0) out->ratio = exp(sum / (double)used);
  if (used > 1) {
    for (int r = 0; r < AB_RESAMPLES; r++) {
      double resampled = 0;
      for (int64_t i = 0; i < used; i++)
        resampled += logs[rng_between(&rng, 0, used - 1)];
      samples_add(&means, resampled / (double)used);
    }
    out->low = exp(samples_percentile(&means, (1 - AB_CONFIDENCE) / 2));
    out->high = exp(samples_percentile(&means, (1 + AB_CONFIDENCE) / 2));
  }
  samples_free(&means);
  free(logs);
  return STATUS_OK;
}
