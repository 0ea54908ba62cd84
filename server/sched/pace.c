#include "sched/pace.h"

int64_t pace_start_ns(const struct pace_run *run, int64_t tokens, int64_t small_tokens) {
  if (run->tokens + tokens <= small_tokens) return run->began_ns;
  return run->expect_ns - PACE_LEAD_NS;
}

int64_t pace_look_ns(const struct pace_run *run, int64_t now_ns) {
  if (now_ns < run->expect_ns - PACE_WAKE_NS) return run->expect_ns - PACE_WAKE_NS;
  int64_t late_ns = now_ns - run->expect_ns;
  if (late_ns < PACE_SPIN_NS) return now_ns + 1;
  return now_ns + (late_ns / 4 < PACE_SLEEP_MAX_NS ? late_ns / 4 : PACE_SLEEP_MAX_NS);
}
