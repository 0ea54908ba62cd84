#include "base/hist.h"

#define SUB (1u << HIST_SUB_BITS)

// Values below SUB have a bucket each; above, the top HIST_SUB_BITS + 1 bits select the bucket.
static uint32_t bucket_of(uint64_t value) {
  if (value < SUB) return (uint32_t)value;
  uint32_t shift = 63u - (uint32_t)__builtin_clzll(value) - HIST_SUB_BITS;
  return (shift << HIST_SUB_BITS) + (uint32_t)(value >> shift);
}

// Largest value of a bucket.
static uint64_t bucket_edge(uint32_t bucket) {
  if (bucket < SUB) return bucket;
  uint32_t shift = (bucket >> HIST_SUB_BITS) - 1;
  uint64_t top = (bucket & (SUB - 1)) | SUB;
  return (top << shift) + (((uint64_t)1 << shift) - 1);
}

void hist_record(struct hist *hist, uint64_t value) {
  // Relaxed: counters are read as a snapshot, nothing is ordered by them.
  atomic_fetch_add_explicit(&hist->buckets[bucket_of(value)], 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&hist->sum, value, memory_order_relaxed);
  atomic_fetch_add_explicit(&hist->count, 1, memory_order_relaxed);
}

uint64_t hist_percentile(const struct hist *hist, double fraction) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < HIST_BUCKETS; i++)
    total += atomic_load_explicit(&hist->buckets[i], memory_order_relaxed);
  if (total == 0) return 0;
  double rank = fraction * (double)total;
  uint64_t seen = 0;
  for (uint32_t i = 0; i < HIST_BUCKETS; i++) {
    seen += atomic_load_explicit(&hist->buckets[i], memory_order_relaxed);
    if (seen > 0 && (double)seen >= rank) return bucket_edge(i);
  }
  return bucket_edge(HIST_BUCKETS - 1);
}

uint64_t hist_count_le(const struct hist *hist, uint64_t edge) {
  uint64_t seen = 0;
  for (uint32_t i = 0; i < HIST_BUCKETS && bucket_edge(i) <= edge; i++)
    seen += atomic_load_explicit(&hist->buckets[i], memory_order_relaxed);
  return seen;
}
