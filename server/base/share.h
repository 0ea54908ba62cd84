// A share of what passes, exactly: of any n in a row, n times the share are taken, rounded up or
// down. Any thread; one atomic addition.
//
// Every item adds the share to a sum, and is taken when that passes the next whole number; so the
// items taken are as far apart as they can be, the same ones at every run. Who comes in turns must
// mind that: of ten clients in a fixed order, a share of 0.1 takes one and the same.
#ifndef BASE_SHARE_H
#define BASE_SHARE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct share {
  uint64_t step; // of 2^32
  _Atomic uint64_t sum;
};

// `part`: 0 to 1. `seed` chooses where in its rhythm it begins; 0: with the items that are not
// taken.
void share_init(struct share *share, double part, uint64_t seed);
bool share_takes(struct share *share);
double share_part(const struct share *share); // as it was given, nearly

#endif
