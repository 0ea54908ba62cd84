#include "rpc/guard.h"
#include "base/clock.h"

#define PING_MAX_STRIKES 2
#define MAX_IDLE_WEIGHT                                                                            \
  10000 // 1000 idle frames: other servers stop at about as many empty DATA frames
#define MAX_RESETS 200
#define RESET_WINDOW_NS (60 * NS_PER_S)
#define CANCEL_NS (NS_PER_S / 10000) // 10,000 a second for ever,
#define CANCEL_BURST 10000           // and as many at once
#define MAX_HEADER_FLOODS 16

bool guard_ping(struct guard *guard, int64_t now_ns, int64_t min_ns) {
  if (guard->last_ping_ns == 0 || now_ns - guard->last_ping_ns >= min_ns) {
    guard->last_ping_ns = now_ns;
    return false;
  }
  return ++guard->ping_strikes > PING_MAX_STRIKES;
}

bool guard_idle_frame(struct guard *guard, uint32_t weight) {
  guard->idle_frames += weight;
  return guard->idle_frames > MAX_IDLE_WEIGHT;
}

bool guard_reset_sent(struct guard *guard, int64_t now_ns) {
  if (now_ns - guard->resets_since_ns > RESET_WINDOW_NS) {
    guard->resets_since_ns = now_ns;
    guard->resets = 0;
  }
  return ++guard->resets > MAX_RESETS;
}

bool guard_cancelled(struct guard *guard, int64_t now_ns) {
  if (guard->cancel_empty_ns < now_ns) guard->cancel_empty_ns = now_ns;
  guard->cancel_empty_ns += CANCEL_NS;
  return guard->cancel_empty_ns - now_ns > CANCEL_BURST * CANCEL_NS;
}

bool guard_header_flood(struct guard *guard) {
  return ++guard->header_floods > MAX_HEADER_FLOODS;
}

void guard_sent(struct guard *guard) {
  guard->ping_strikes = 0;
  guard->last_ping_ns = 0;
}

void guard_useful(struct guard *guard) {
  guard->idle_frames = 0;
}
