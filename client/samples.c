#include "client/samples.h"
#include <math.h>
#include <stdlib.h>

static bool reserve(struct samples *samples) {
  if (samples->n < samples->capacity) return true;
  const int64_t limit = samples->limit ? samples->limit : SAMPLES_MAX;
  if (samples->capacity >= limit) return false;
  int64_t capacity = samples->capacity ? samples->capacity * 2 : 4096;
  if (capacity > limit) capacity = limit;
  double *values = realloc(samples->values, (size_t)capacity * sizeof *values);
  if (!values) return false;
  samples->values = values;
  samples->capacity = capacity;
  return true;
}

void samples_add(struct samples *samples, double value) {
  if (samples->n_seen == 0) samples->min = samples->max = value;
  if (value < samples->min) samples->min = value;
  if (value > samples->max) samples->max = value;
  samples->n_seen++;
  samples->sum += value;
  samples->sum_squares += value * value;
  samples->sorted = false;
  if (reserve(samples)) {
    samples->values[samples->n++] = value;
    return;
  }
  const int64_t slot = rng_between(&samples->rng, 0, samples->n_seen - 1);
  if (slot < samples->n) samples->values[slot] = value;
}

static int compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double samples_percentile(struct samples *samples, double fraction) {
  if (samples->n == 0) return NAN;
  if (!samples->sorted) qsort(samples->values, (size_t)samples->n, sizeof(double), compare);
  samples->sorted = true;
  // The small term keeps 0.9 * 10 (9.000000000000002) from becoming rank 10.
  int64_t rank = (int64_t)ceil(fraction * (double)samples->n - 1e-9);
  if (rank < 1) rank = 1;
  if (rank > samples->n) rank = samples->n;
  return samples->values[rank - 1];
}

double samples_mean(const struct samples *samples) {
  return samples->n_seen ? samples->sum / (double)samples->n_seen : NAN;
}

double samples_deviation(const struct samples *samples) {
  const double n = (double)samples->n_seen;
  if (n < 2) return 0;
  const double variance = (samples->sum_squares - samples->sum * samples->sum / n) / (n - 1);
  return variance > 0 ? sqrt(variance) : 0;
}

void samples_free(struct samples *samples) {
  free(samples->values);
  *samples = (struct samples){0};
}
