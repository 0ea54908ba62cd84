// How far the answers to the same requests differ between A (fused) and B (unfused, the reference):
// per output the largest absolute difference of two elements, and the relative L2 difference
// |a - b| / |b| of whole tensors, a value for each request, with an interval for their mean. Pure
// but for memory.
#ifndef CLIENT_DIFFERENCE_H
#define CLIENT_DIFFERENCE_H

#include "client/ab.h"
#include "client/reply.h"
#include "client/samples.h"

struct difference_output {
  char name[TENSOR_NAME_BYTES];
  int64_t elements;           // of all requests
  double max_abs;             // 0 where all bits agree
  struct samples relative;    // one of each request
  struct ab_mean relative_l2; // of difference_finish
  // Elements that are not finite in one answer, and other bits in the other; left out of the rest.
  int64_t not_finite;
};

struct difference {
  int n_requests, n_outputs;
  struct difference_output outputs[REPLY_OUTPUTS];
  char note[256]; // why there are no more requests; "" when nothing went wrong
};

// One request more. False: the two have other outputs, shapes or types, which `note` says; nothing
// was added.
bool difference_add(struct difference *difference, const struct reply *a, const struct reply *b);
MUST_USE enum status difference_finish(struct difference *difference, uint64_t seed);
void difference_free(struct difference *difference);

#endif
