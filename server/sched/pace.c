#include "sched/pace.h"

static int class_of(int64_t tokens) {
  int class_index = tokens > 1 ? 63 - __builtin_clzll((unsigned long long)tokens) : 0;
  return class_index < PACE_CLASSES ? class_index : PACE_CLASSES - 1;
}

void pace_learn(struct pace *pace, int64_t tokens, int64_t ns) {
  double *mean = &pace->ns[class_of(tokens)];
  *mean = *mean > 0 ? 0.8 * *mean + 0.2 * (double)ns : (double)ns;
}

int64_t pace_estimate_ns(const struct pace *pace, int64_t tokens) {
  int class_index = class_of(tokens);
  for (int lower = class_index; lower >= 0; lower--)
    if (pace->ns[lower] > 0)
      return (int64_t)(pace->ns[lower] * (double)(INT64_C(1) << (class_index - lower)));
  for (int higher = class_index + 1; higher < PACE_CLASSES; higher++)
    if (pace->ns[higher] > 0) return (int64_t)pace->ns[higher];
  return 0;
}

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
