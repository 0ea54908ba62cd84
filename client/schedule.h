// When calls are sent and which of them count: pure, with the clock handed in.
//
// Open loop: send times follow from the rate alone, whatever the server does; latency counts from
// the scheduled time, so that a stalled server (or client) shows in the figures instead of hiding
// in calls not sent. Closed loop: a fixed number of callers, each sends when its last call has
// ended.
#ifndef CLIENT_SCHEDULE_H
#define CLIENT_SCHEDULE_H

#include "base/status.h"
#include <stdint.h>

struct rng { // splitmix64: one word of state, good enough for load and resampling
  uint64_t state;
};
uint64_t rng_next(struct rng *rng);
double rng_unit(struct rng *rng);                                // [0, 1)
int64_t rng_between(struct rng *rng, int64_t low, int64_t high); // both included
double rng_exponential(struct rng *rng, double mean);

// ---- open loop ----------------------------------------------------------------------------------
struct open_loop {
  double interval_ns; // 1 / rate
  bool poisson;       // gaps are exponential with that mean; else constant
  struct rng rng;
  int64_t start_ns;
  double offset_ns; // of the next send from start; a double keeps constant spacing exact over hours
  uint64_t n;       // sends taken
};
void open_loop_init(struct open_loop *loop, double rate_per_s, bool poisson, uint64_t seed,
                    int64_t start_ns);
int64_t open_loop_next_ns(const struct open_loop *loop);
// True when a send is due: its scheduled time (<= now) is in *scheduled_ns and the next one is set
// up.
bool open_loop_take(struct open_loop *loop, int64_t now_ns, int64_t *scheduled_ns);

// ---- phases -------------------------------------------------------------------------------------
// Warm-up (by time), then measuring until a time or a number of sends, then draining what is still
// running. A call belongs to the phase that its scheduled (open) or actual (closed) send falls in.
struct phases {
  int64_t warmup_end_ns;
  int64_t end_ns;     // CLOCK_NEVER when `requests` decides
  int64_t requests;   // measured sends; 0 when the time decides
  int64_t n_measured; // sends so far that count
};
enum phase { PHASE_WARMUP, PHASE_MEASURE, PHASE_OVER };
void phases_init(struct phases *phases, int64_t start_ns, int64_t warmup_ns, int64_t duration_ns,
                 int64_t requests);
// The phase of a send at this time; counts it when it is measured.
enum phase phases_send(struct phases *phases, int64_t send_ns);
bool phases_over(const struct phases *phases, int64_t now_ns); // no more sends from now on

// ---- A/B ----------------------------------------------------------------------------------------
// Calls go in slices of one variant; slices come in pairs, and every second pair is turned round (A
// B, B A), so that slow drift of the machine cancels. Between slices all running calls end first:
// the variants never share the server.
struct ab_schedule {
  int64_t slice_calls;
  int64_t sent_in_slice;
  int64_t slice; // index of the current one
};
int ab_variant(const struct ab_schedule *ab);  // 0 or 1, of the current slice
int64_t ab_pair(const struct ab_schedule *ab); // index of the pair the current slice belongs to
bool ab_take(struct ab_schedule *ab);          // one more call of this slice; false when it is full
void ab_next_slice(struct ab_schedule *ab);    // once everything of the last one has ended

#endif
