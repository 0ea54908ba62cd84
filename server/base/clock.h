// Monotonic time. Code that decides by time takes `now_ns` as an argument; only the edges read the
// clock.
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

#define CLOCK_NEVER INT64_MAX
#define NS_PER_US 1000LL
#define NS_PER_MS 1000000LL
#define NS_PER_S 1000000000LL

int64_t clock_now_ns(void);  // CLOCK_MONOTONIC; any thread
int64_t clock_wall_ns(void); // CLOCK_REALTIME, for logs only

#endif
