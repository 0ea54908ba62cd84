// Finding what repeats: the layers of an encoder are the same twelve times, and one of them tells
// it all.
#include "explain/facts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PERIOD_MAX 128 // kernels or nodes of one layer

static int32_t times_of(const uint64_t *keys, int32_t n, int32_t period) {
  int32_t length = period;
  while (length < n && keys[length] == keys[length - period])
    length++;
  return length / period;
}

// The stretch from keys[0] that covers most; the shortest period of those that cover as much.
static struct fold best_fold(const uint64_t *keys, int32_t n) {
  struct fold best = {.period = 1, .times = 1};
  for (int32_t period = 1; period <= PERIOD_MAX && 2 * period <= n; period++) {
    int32_t times = times_of(keys, n, period);
    if (times > 1 && period * times > best.period * best.times)
      best = (struct fold){.period = period, .times = times};
  }
  return best;
}

struct fold *fold_make(const uint64_t *keys, int32_t n, int32_t *n_folds) {
  struct fold *folds = calloc((size_t)n + 1, sizeof *folds);
  *n_folds = 0;
  if (!folds) return NULL;
  for (int32_t i = 0; i < n;) {
    struct fold fold = best_fold(keys + i, n - i);
    fold.first = i;
    // Entries that do not repeat are one stretch.
    if (fold.times == 1 && *n_folds > 0 && folds[*n_folds - 1].times == 1)
      folds[*n_folds - 1].period++;
    else
      folds[(*n_folds)++] = fold;
    i += fold.period * fold.times;
  }
  return folds;
}

// ---- keys: FNV-1a ----
uint64_t hash_begin(void) {
  return 0xCBF29CE484222325u;
}

uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes) {
  const uint8_t *at = data;
  for (size_t i = 0; i < bytes; i++)
    hash = (hash ^ at[i]) * 0x100000001B3u;
  return hash;
}

uint64_t hash_name(uint64_t hash, const char *name) {
  for (; *name; name++) {
    char c = *name >= '0' && *name <= '9' ? '#' : *name;
    if (c == '#' && name[1] >= '0' && name[1] <= '9') continue;
    hash = hash_bytes(hash, &c, 1);
  }
  return hash;
}

uint64_t hash_real(uint64_t hash, double value) {
  int exponent;
  double part = floor(frexp(value, &exponent) * 1024 + 0.5);
  hash = hash_bytes(hash, &part, sizeof part);
  return hash_bytes(hash, &exponent, sizeof exponent);
}
