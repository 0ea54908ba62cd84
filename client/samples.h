// Raw samples of one run and their exact percentiles. Memory grows in doublings up to SAMPLES_MAX;
// beyond that a uniform random sample of that size is kept (reservoir), which the reports say. Pure
// but for memory.
#ifndef CLIENT_SAMPLES_H
#define CLIENT_SAMPLES_H

#include "client/schedule.h"

#define SAMPLES_MAX (4 << 20)

struct samples {
  double *values;
  int64_t n, capacity;               // kept
  int64_t limit;                     // most values kept; 0: SAMPLES_MAX
  int64_t n_seen;                    // offered: n_seen > n means a reservoir
  double sum, sum_squares, min, max; // of all seen: exact
  struct rng rng;
  bool sorted;
};

void samples_add(struct samples *samples, double value);
// Nearest rank: the smallest kept value that at least `fraction` of the kept ones do not exceed.
// NAN when empty.
double samples_percentile(struct samples *samples, double fraction);
double samples_mean(const struct samples *samples); // NAN when empty
double
samples_deviation(const struct samples *samples); // sample standard deviation; 0 for fewer than 2
void samples_free(struct samples *samples);

#endif
