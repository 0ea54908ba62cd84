#include "base/share.h"

#include <math.h>

#define WHOLE (UINT64_C(1) << 32)

// Spreads a small number over all bits (the finaliser of SplitMix64).
static uint64_t spread(uint64_t x) {
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return x ^ x >> 31;
}

void share_init(struct share *share, double part, uint64_t seed) {
  // Rounded up, so that of 0.2 the fifth is taken: one too many in four billion.
  share->step = (uint64_t)ceil(part * (double)WHOLE);
  atomic_init(&share->sum, seed == 0 ? 0 : spread(seed) % WHOLE);
}

double share_part(const struct share *share) {
  return (double)share->step / (double)WHOLE;
}

bool share_takes(struct share *share) {
  if (share->step == 0) return false;
  // Relaxed: it counts, and orders nothing.
  uint64_t before = atomic_fetch_add_explicit(&share->sum, share->step, memory_order_relaxed);
  return before % WHOLE + share->step >= WHOLE;
}
