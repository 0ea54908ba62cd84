#include "watch.h"
#include "base/log.h"

#define LOOKS 8 // in the time that is allowed

int64_t watch_every_ns(const struct watch *watch) {
  return watch->limit_ns / LOOKS;
}

bool watch_look(struct watch *watch, struct executor *const *executors, int n_executors,
                int64_t now_ns) {
  if (watch->limit_ns == 0) return true;
  int stuck = -1;
  int64_t stuck_ns = 0;
  for (int i = 0; i < n_executors;
       i++) { // all of them: each look is also what the next counts from
    int64_t ns = executor_stuck_ns(executors[i], now_ns);
    if (ns < watch->limit_ns || ns < stuck_ns) continue;
    stuck = i;
    stuck_ns = ns;
  }
  if ((stuck >= 0) == watch->stuck) return !watch->stuck;
  watch->stuck = stuck >= 0;
  if (watch->stuck)
    log_error("executor_stuck",
              "device %d has finished nothing for %lld ms (device.stuck_after): health is "
              "NOT_SERVING",
              stuck, (long long)(stuck_ns / NS_PER_MS));
  else
    log_warn("executor_moves", "every device goes on: health is SERVING again");
  api_stuck(watch->api, watch->stuck);
  return !watch->stuck;
}
