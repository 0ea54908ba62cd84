// What a connection may do for nothing: pings, frames without use, resets that it provokes. Pure
// counters; h2.c turns a `true` into a GOAWAY. Honest clients never get near the limits, and useful
// traffic clears them.
#ifndef RPC_GUARD_H
#define RPC_GUARD_H

#include <stdbool.h>
#include <stdint.h>

struct guard {
  uint32_t idle_frames; // since the last useful traffic
  int32_t ping_strikes;
  int64_t last_ping_ns; // of the last valid ping; 0: none since we last sent something
  uint32_t resets;      // RST_STREAM we had to send in this window
  int64_t resets_since_ns;
  int64_t cancel_empty_ns; // the bucket of the client's own resets is full this long after
  uint32_t header_floods;  // calls whose header list was far over the limit
};

// Weights. A thousand open calls may each raise their window in one read; an empty DATA frame has
// no excuse.
#define GUARD_IDLE_FRAME 10
#define GUARD_WINDOW_UPDATE 1

// Too many pings (gRFC A8): thrice within `min_ns` of one that was in order, while nothing left.
bool guard_ping(struct guard *guard, int64_t now_ns, int64_t min_ns);
bool guard_idle_frame(struct guard *guard,
                      uint32_t weight); // empty DATA, SETTINGS, PRIORITY, WINDOW_UPDATE
bool guard_reset_sent(struct guard *guard, int64_t now_ns); // "made you reset"
// The client reset a call. Clients with short deadlines do that thousands of times a second and
// cost little, since a reset call leaves every queue at once (grpc-node#2872, envoy#30882).
bool guard_cancelled(struct guard *guard, int64_t now_ns);
bool guard_header_flood(struct guard *guard);
void guard_sent(struct guard *guard);   // HEADERS or DATA left: pings are legitimate again
void guard_useful(struct guard *guard); // a whole message came, or DATA left

#endif
