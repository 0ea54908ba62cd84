// How much work waits for a device, and when a newcomer would be done: what a loop must know to
// refuse at once what cannot be done in time. Loops add, the executor takes away; all of it atomic.
//
// What a newcomer waits for is not all that waits but what is more urgent (sched/batch), so the sum
// is kept by urgency, in slots of a few milliseconds on a wheel: from what has waited long past its
// turn to the latest urgency that a newcomer can have.
#ifndef SCHED_LOAD_H
#define SCHED_LOAD_H

#include "sched/request.h"

#define LOAD_SLOT_BITS 22 // 4.2 ms
#define LOAD_SLOTS 512    // 2.1 s: twice BATCH_PATIENCE_NS
struct load {
  _Atomic int64_t waiting_ns;    // sum of the slots
  _Atomic int64_t busy_until_ns; // when what fills the device now is expected to end
  _Atomic int64_t slots[LOAD_SLOTS];
};

// Before the executor can see it; sets its share. Loop thread.
void load_enter(struct load *load, struct request *request, const struct service *service);
// It does not wait any more. Executor thread; a second time does nothing.
void load_leave(struct load *load, struct request *request);
int64_t load_wait_ns(const struct load *load,
                     int64_t now_ns); // of a newcomer that nothing makes urgent

// What is expected of a request that has not been added.
struct forecast {
  int64_t ahead_ns; // until the device has done what runs and what is more urgent
  int64_t own_ns;   // its own batch, if it ran alone
  int64_t done_ns;  // when it would be done, at the earliest
};
// False: it cannot be done by its deadline. True, and nothing in `out`, when it has none, or
// nothing is known (or nothing recent) of what batches of its size take.
bool load_forecast(const struct load *load, const struct service *service,
                   const struct request *request, int64_t now_ns, struct forecast *out);

#endif
