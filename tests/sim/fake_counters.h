// A scripted device memory and its counters, for tests of the audit: traffic is what a test lays
// down on the device's clock, samples are made of it, and everything that goes wrong with real
// counters goes wrong here on demand. No thread. Included by one .c file a program.
#ifndef SIM_FAKE_COUNTERS_H
#define SIM_FAKE_COUNTERS_H

#include "backend/counters.h"
#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

#define FAKE_TRAFFIC 65536
#define FAKE_COPY_BYTES 1e9
#define FAKE_COPY_NS NS_PER_MS

struct fake_traffic { // moved evenly between two times of the device's clock
  int64_t from_ns, to_ns;
  double read, write;
};

struct counter_source {
  const int64_t *now_ns; // the host's clock, which moves when a test says so
  int64_t offset_ns;     // the device's clock less the host's
  int64_t reset_ns;      // device time of the reset
  int64_t interval_ns;
  struct fake_traffic traffic[FAKE_TRAFFIC];
  int n_traffic, n_old; // n_old: of these, that ended before all samples to come
  // what goes wrong
  enum status open_status;          // of open
  enum status start_status;         // of start
  double factor;                    // what is counted of what moved
  int64_t sample_offset_ns;         // the samples' clock less that of the batches
  double sample_drift;              // and what it gains on it a ns, from fake_counters_reset on
  int64_t late_ns;                  // a sample is there so long after its end
  int64_t drop_from_ns, drop_to_ns; // of the device's clock: samples that begin there do not come
  bool silent;                      // no sample comes any more
  bool gone;                        // take and evaluate fail
  bool copy_fails;
  // what is noticed
  int64_t at_ns; // device time up to which samples were taken
  int64_t taken_at_ns[4096];
  int n_taken, n_evaluated, n_starts, n_copies, n_open;
  int64_t evaluate_ns, start_cpu_ns,
      cpu_ns; // CPU time of one evaluate and start, and of all so far
  int64_t copy_done_ns;
  struct counter_copy copy;
};
static struct counter_source fake_counters;

static inline int64_t fake_device_ns(void) {
  return *fake_counters.now_ns + fake_counters.offset_ns;
}

// Device time.
static inline void fake_traffic_add(int64_t from_ns, int64_t to_ns, double read, double write) {
  struct counter_source *s = &fake_counters;
  if (s->n_traffic == FAKE_TRAFFIC) abort();
  s->traffic[s->n_traffic++] = (struct fake_traffic){from_ns, to_ns, read, write};
}

static enum status fake_counters_open(struct device *device, const struct counter_options *options,
                                      struct counter_source **out, struct error *err) {
  (void)device;
  struct counter_source *s = &fake_counters;
  if (s->open_status != STATUS_OK)
    return error_set(err, s->open_status, "the counters are refused: insufficient privileges");
  s->interval_ns = options->interval_ns;
  s->n_open++;
  *out = s;
  return STATUS_OK;
}
static void fake_counters_close(struct counter_source *s) {
  s->n_open--;
}
static enum status fake_counters_start(struct counter_source *s, struct error *err) {
  if (s->start_status != STATUS_OK)
    return error_set(err, s->start_status, "the counters are somebody else's now");
  s->n_starts++;
  s->cpu_ns += s->start_cpu_ns;
  s->at_ns = fake_device_ns() / s->interval_ns * s->interval_ns;
  return STATUS_OK;
}
static inline int64_t fake_sample_ns(int64_t device_ns) {
  const struct counter_source *s = &fake_counters;
  return device_ns + s->sample_offset_ns +
         (int64_t)(s->sample_drift * (double)(device_ns - s->reset_ns));
}
static int fake_counters_take(struct counter_source *s, struct counter_sample *out, int most,
                              struct counter_news *news, struct error *err) {
  int n = 0;
  if (s->gone) {
    (void)error_set(err, STATUS_UNAVAILABLE, "the counters are gone");
    return -1;
  }
  for (; !s->silent && s->at_ns + s->interval_ns + s->late_ns <= fake_device_ns() && n < most &&
         n < 4096;
       s->at_ns += s->interval_ns) {
    if (s->at_ns >= s->drop_from_ns && s->at_ns < s->drop_to_ns) continue;
    s->taken_at_ns[n] = s->at_ns;
    out[n++] = (struct counter_sample){.began_ns = fake_sample_ns(s->at_ns),
                                       .ended_ns = fake_sample_ns(s->at_ns + s->interval_ns)};
  }
  news->more = !s->silent && s->at_ns + s->interval_ns + s->late_ns <= fake_device_ns();
  s->n_taken += n;
  return n;
}
static bool fake_counters_evaluate(struct counter_source *s, int index,
                                   struct counter_sample *out) {
  int64_t from_ns = s->taken_at_ns[index], to_ns = from_ns + s->interval_ns;
  if (s->gone) return false;
  s->n_evaluated++;
  s->cpu_ns += s->evaluate_ns;
  out->read_bytes = out->write_bytes = 0;
  while (s->n_old < s->n_traffic && s->traffic[s->n_old].to_ns <= from_ns - 100 * NS_PER_MS)
    s->n_old++;
  for (int i = s->n_old; i < s->n_traffic; i++) {
    const struct fake_traffic *t = &s->traffic[i];
    int64_t a = t->from_ns > from_ns ? t->from_ns : from_ns,
            b = t->to_ns < to_ns ? t->to_ns : to_ns;
    if (b <= a) continue;
    double share = s->factor * (double)(b - a) / (double)(t->to_ns - t->from_ns);
    out->read_bytes += t->read * share, out->write_bytes += t->write * share;
  }
  return true;
}
static enum status fake_copy_begin(struct counter_source *s, int64_t quiet_ns) {
  (void)quiet_ns;
  if (s->copy_fails) return STATUS_INTERNAL;
  int64_t at_ns = fake_device_ns();
  s->n_copies++;
  s->copy = (struct counter_copy){at_ns, at_ns + FAKE_COPY_NS, FAKE_COPY_BYTES, FAKE_COPY_BYTES};
  fake_traffic_add(s->copy.began_ns, s->copy.ended_ns, FAKE_COPY_BYTES, FAKE_COPY_BYTES);
  s->copy_done_ns = *s->now_ns + FAKE_COPY_NS;
  return STATUS_OK;
}
static int fake_copy_poll(struct counter_source *s, struct counter_copy *out) {
  if (*s->now_ns < s->copy_done_ns) return 0;
  *out = s->copy;
  return 1;
}

static const struct counter_ops fake_counter_ops = {.open = fake_counters_open,
                                                    .close = fake_counters_close,
                                                    .start = fake_counters_start,
                                                    .take = fake_counters_take,
                                                    .evaluate = fake_counters_evaluate,
                                                    .copy_begin = fake_copy_begin,
                                                    .copy_poll = fake_copy_poll};

static inline void fake_counters_reset(const int64_t *now_ns) {
  memset(&fake_counters, 0, sizeof fake_counters);
  fake_counters.now_ns = now_ns;
  fake_counters.offset_ns = 17 * NS_PER_S + 12345;
  fake_counters.reset_ns = fake_device_ns();
  fake_counters.factor = 1;
  fake_counters.evaluate_ns = 6 * NS_PER_US;
}

#endif
