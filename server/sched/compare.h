// How far two answers lie apart. Pure.
//
// Elements are equal when both are NaN, or both the same infinity: they say nothing about the rest
// and are left out. An element that is NaN or infinite in one and something else in the other makes
// the difference infinite.
#ifndef SCHED_COMPARE_H
#define SCHED_COMPARE_H

#include "backend/backend.h"

struct difference {          // begins as zeros
  double squared, reference; // sums of squares: of what differs, of the reference
  double max_abs;
  int64_t odd; // elements that cannot be compared
};

void difference_add(struct difference *difference, enum dtype dtype, const void *found,
                    const void *reference, int64_t n);
// sqrt(sum (a - b)^2 / sum b^2), b: the reference. 0 where all are equal, infinite where the
// reference is all zeros and they are not, or where an element cannot be compared.
double difference_relative(const struct difference *difference);

#endif
