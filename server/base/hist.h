// Log-linear histogram of non-negative integers (ns, bytes, counts): fixed memory, one relaxed
// atomic add to record. 8 linear sub-buckets per power of two: relative error of a percentile
// <= 12.5 %. One writer or many; readers take a snapshot at any time. Used by /metrics and by the
// client's reports alike.
#ifndef BASE_HIST_H
#define BASE_HIST_H

#include <stdatomic.h>
#include <stdint.h>

#define HIST_SUB_BITS 3
#define HIST_BUCKETS ((64 - HIST_SUB_BITS + 1) << HIST_SUB_BITS)

struct hist {
  _Atomic uint64_t count, sum;
  _Atomic uint64_t buckets[HIST_BUCKETS];
};

void hist_record(struct hist *hist, uint64_t value);
uint64_t hist_percentile(const struct hist *hist,
                         double fraction); // upper edge of the bucket; 0 when empty
// Number of recorded values <= `edge` (edges between buckets are rounded down): for Prometheus `le`
// buckets.
uint64_t hist_count_le(const struct hist *hist, uint64_t edge);

#endif
