// How long a batch will take, when to put the next one behind it, when to ask whether it is done.
// Pure: numbers in, times out.
//
// An asynchronous device works on several batches at once. Starting one for every request that
// comes while a lane is free makes many small batches of what could be few large ones, each of
// which reads all weights; waiting until the device is free leaves it idle while the next batch is
// formed and copied in. So the next one is put behind the running one shortly before that ends,
// with everything that waits by then. Beside a batch so small that the device is mostly idle, and
// for a batch that is full, there is nothing to wait for.
#ifndef SCHED_PACE_H
#define SCHED_PACE_H

#include "base/clock.h"

#include <stdbool.h>

// To form a batch, launch it and copy its inputs in: this long before the running one ends, the
// next is started.
#define PACE_LEAD_NS (60 * NS_PER_US)
// A sleeping thread wakes up to this late, so a result expected sooner is waited for without sleep.
#define PACE_WAKE_NS (100 * NS_PER_US)
// A batch that is late is asked after without sleep for this long, then ever less often.
#define PACE_SPIN_NS (200 * NS_PER_US)
#define PACE_SLEEP_MAX_NS NS_PER_MS

// A running batch.
struct pace_run {
  int64_t began_ns, expect_ns; // expect_ns: estimated end; began_ns where nothing is known
  int64_t tokens;
};
// When a batch of `tokens` may start beside `run`; a time that has passed: now. `small_tokens` is
// the device's.
int64_t pace_start_ns(const struct pace_run *run, int64_t tokens, int64_t small_tokens);
// When to ask whether `run` is done, if it was not at now_ns: now_ns + 1 means at once, without
// sleeping.
int64_t pace_look_ns(const struct pace_run *run, int64_t now_ns);
// Of times that core_step returns: nearer than this the thread does not sleep.
#define PACE_AWAKE_NS NS_PER_US

#endif
