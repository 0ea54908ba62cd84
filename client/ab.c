#include "client/ab.h"
#include "client/samples.h"
#include <math.h>
#include <stdlib.h>

enum status ab_mean_of(const double *values, int64_t n, uint64_t seed, struct ab_mean *out) {
  struct samples means = {0};
  struct rng rng = {seed};
  double sum = 0;
  *out = (struct ab_mean){.mean = NAN, .low = NAN, .high = NAN, .n = n};
  for (int64_t i = 0; i < n; i++)
    sum += values[i];
  if (n > 0) out->mean = sum / (double)n;
  if (n < 2) return STATUS_OK;
  for (int r = 0; r < AB_RESAMPLES; r++) {
    double resampled = 0;
    for (int64_t i = 0; i < n; i++)
      resampled += values[rng_between(&rng, 0, n - 1)];
    samples_add(&means, resampled / (double)n);
  }
  const bool whole = means.n == AB_RESAMPLES;
  if (whole) {
    out->low = samples_percentile(&means, (1 - AB_CONFIDENCE) / 2);
    out->high = samples_percentile(&means, (1 + AB_CONFIDENCE) / 2);
  }
  samples_free(&means);
  return whole ? STATUS_OK : STATUS_RESOURCE_EXHAUSTED;
}

enum status ab_ratio(const double *a, const double *b, int64_t n, uint64_t seed,
                     struct ab_estimate *out) {
  double *logs = malloc((size_t)(n > 0 ? n : 1) * sizeof *logs);
  struct ab_mean mean;
  int64_t used = 0;
  *out = (struct ab_estimate){.ratio = NAN, .low = NAN, .high = NAN};
  if (!logs) return STATUS_RESOURCE_EXHAUSTED;
  for (int64_t i = 0; i < n; i++) {
    if (a[i] > 0 && b[i] > 0) logs[used++] = log(b[i] / a[i]);
  }
  const enum status status = ab_mean_of(logs, used, seed, &mean);
  free(logs);
  *out = (struct ab_estimate){exp(mean.mean), exp(mean.low), exp(mean.high), used};
  return status;
}
