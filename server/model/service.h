// What batches of one model took on one device, by size, as measured while serving. The device's
// executor writes, loops read; pure but for the atomics.
//
// A measure is believed for a while (`believed_ns`), no longer: what is refused by it is not
// measured any more, so that a wrong one would stay for ever. When it is over, somebody is let
// through and it is made anew.
#ifndef MODEL_SERVICE_H
#define MODEL_SERVICE_H

#include "base/clock.h"

#include <stdatomic.h>
#include <stdbool.h>

// This long at least, and for this many times what was measured: so much of the device's time at
// most goes into trying again what is refused.
#define SERVICE_BELIEF_NS NS_PER_S
#define SERVICE_BELIEF_FACTOR 20

struct service_measure { // moving averages; ns 0: none yet
  _Atomic int64_t ns, tokens, believed_ns;
};

// Classes of tokens, powers of two, up to batch.max_tokens' range.
#define SERVICE_CLASSES 21
struct service {
  struct service_measure sizes[SERVICE_CLASSES];
  struct service_measure full; // batches that were closed because they were full
};

// A batch of `tokens` took `ns`. `full`: it was closed because nothing more fitted.
void service_learn(struct service *service, int64_t tokens, int64_t ns, bool full, int64_t now_ns);

// A batch's time, from the nearest sizes whose measures are believed (or that were ever measured,
// where none is): between two of them by a straight line; above all of them scaled up with the
// tokens, below all of them not scaled down, since a batch of few tokens has the weights to read
// too. 0: nothing known.
int64_t service_estimate_ns(const struct service *service, int64_t tokens, int64_t now_ns);

// The same for refusing by it: from believed measures only, and nothing that was not seen: above
// all sizes not scaled up, below all of them 0.
int64_t service_least_ns(const struct service *service, int64_t tokens, int64_t now_ns);

// A mean is too little for half of the batches: nobody is let in who would have just so much time.
#define SERVICE_MARGIN 16 // a sixteenth
static inline int64_t service_with_margin_ns(int64_t ns) {
  return ns + ns / SERVICE_MARGIN;
}

// What `tokens` add to a queue that is worked off in full batches, at most such a batch; 0 while
// none is believed.
int64_t service_share_ns(const struct service *service, int64_t tokens, int64_t now_ns);
int64_t service_full_ns(const struct service *service, int64_t now_ns); // one such batch; or 0

#endif
