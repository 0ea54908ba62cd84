#include "client/schedule.h"
#include "base/clock.h"
#include "base/log.h"
#include <math.h>

uint64_t rng_next(struct rng *rng) {
  uint64_t z = rng->state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

double rng_unit(struct rng *rng) {
  return (double)(rng_next(rng) >> 11) * 0x1p-53;
}

int64_t rng_between(struct rng *rng, int64_t low, int64_t high) {
  FW_ASSERT(low <= high);
  const uint64_t span = (uint64_t)high - (uint64_t)low;
  if (span == UINT64_MAX) return (int64_t)rng_next(rng);
  return (int64_t)((uint64_t)low + (uint64_t)((unsigned __int128)rng_next(rng) * (span + 1) >> 64));
}

double rng_exponential(struct rng *rng, double mean) {
  return -mean * log1p(-rng_unit(rng));
}

static double gap_ns(struct open_loop *loop) {
  return loop->poisson ? rng_exponential(&loop->rng, loop->interval_ns) : loop->interval_ns;
}

void open_loop_init(struct open_loop *loop, double rate_per_s, bool poisson, uint64_t seed,
                    int64_t start_ns) {
  FW_ASSERT(rate_per_s > 0);
  *loop = (struct open_loop){
      .interval_ns = 1e9 / rate_per_s, .poisson = poisson, .rng = {seed}, .start_ns = start_ns};
  if (poisson) loop->offset_ns = gap_ns(loop);
}

int64_t open_loop_next_ns(const struct open_loop *loop) {
  return loop->start_ns + (int64_t)loop->offset_ns;
}

bool open_loop_take(struct open_loop *loop, int64_t now_ns, int64_t *scheduled_ns) {
  const int64_t next = open_loop_next_ns(loop);
  if (next > now_ns) return false;
  *scheduled_ns = next;
  loop->n++;
  // Constant spacing is computed from the count: no rounding adds up.
  loop->offset_ns =
      loop->poisson ? loop->offset_ns + gap_ns(loop) : (double)loop->n * loop->interval_ns;
  return true;
}

void phases_init(struct phases *phases, int64_t start_ns, int64_t warmup_ns, int64_t duration_ns,
                 int64_t requests) {
  *phases = (struct phases){.warmup_end_ns = start_ns + warmup_ns, .requests = requests};
  phases->end_ns = requests > 0 ? CLOCK_NEVER : phases->warmup_end_ns + duration_ns;
}

bool phases_over(const struct phases *phases, int64_t now_ns) {
  if (phases->requests > 0) return phases->n_measured >= phases->requests;
  return now_ns >= phases->end_ns;
}

enum phase phases_send(struct phases *phases, int64_t send_ns) {
  if (phases_over(phases, send_ns)) return PHASE_OVER;
  if (send_ns < phases->warmup_end_ns) return PHASE_WARMUP;
  phases->n_measured++;
  return PHASE_MEASURE;
}

int ab_variant(const struct ab_schedule *ab) {
  const int64_t in_pair = ab->slice & 1;
  return (int)(ab_pair(ab) & 1 ? 1 - in_pair : in_pair);
}

int64_t ab_pair(const struct ab_schedule *ab) {
  return ab->slice >> 1;
}

bool ab_take(struct ab_schedule *ab) {
  if (ab->sent_in_slice >= ab->slice_calls) return false;
  ab->sent_in_slice++;
  return true;
}

void ab_next_slice(struct ab_schedule *ab) {
  ab->slice++;
  ab->sent_in_slice = 0;
}
