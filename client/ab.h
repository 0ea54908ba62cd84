// Is B slower than A, by how much, and how sure is that: paired statistics. Pure.
#ifndef CLIENT_AB_H
#define CLIENT_AB_H

#include "base/status.h"
#include <stdint.h>

#define AB_RESAMPLES 2000
#define AB_CONFIDENCE 0.95
#define AB_PAIRS_LEAST 2 // for an interval

struct ab_estimate {
  double ratio;     // geometric mean over pairs of b / a
  double low, high; // AB_CONFIDENCE interval; NAN with fewer than AB_PAIRS_LEAST
  int64_t n_pairs;  // used: pairs with a value that is not above 0 are left out
};

// Paired bootstrap: the pairs' log ratios are resampled with replacement AB_RESAMPLES times; the
// interval is between percentiles of the resampled means. Deterministic for a seed. Pairs must be
// measured apart from one another (slices with a drained server between them); then they are as
// good as independent. STATUS_RESOURCE_EXHAUSTED: no memory.
MUST_USE enum status ab_ratio(const double *a, const double *b, int64_t n, uint64_t seed,
                              struct ab_estimate *out);

struct ab_mean {
  double mean, low, high; // AB_CONFIDENCE interval; NAN with fewer than 2 values
  int64_t n;
};
// The same for the arithmetic mean of values.
MUST_USE enum status ab_mean_of(const double *values, int64_t n, uint64_t seed,
                                struct ab_mean *out);

#endif
