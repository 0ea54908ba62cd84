// Reads a device's counters, and says which batch moved what. Without a thread of its own, and with
// its clocks handed in: audit.c has the thread, tests have none.
//
// Samples are looked at (counter_ops.evaluate, which is what costs) only where they overlap batches
// whose bytes are wanted: all of them (continuous), those of a window in each period (sampled), and
// those that a request waits for. Of idle time every sixteenth is, for the share of traffic that no
// batch explains. When the decoder has used up its share of a core it passes samples over, and the
// batches that they belong to are skipped.
//
// Nothing is reported before a copy of known size was counted right, nor after samples were lost
// (their own times tell) until another was.
#ifndef AUDIT_DECODER_H
#define AUDIT_DECODER_H

#include "audit/exchange.h"
#include "audit/offset.h"
#include "base/clock.h"

#define DECODER_SAMPLES 2000 // taken at once
#define DECODER_QUEUE 16384  // samples that wait for a batch whose beginning is not known

struct decoder_options {
  const struct counter_ops *counters; // NULL: there are none
  const char *device;                 // "cuda:0"; outlives the decoder
  int64_t interval_ns;                // between samples, as the source was opened with
  bool sampled;                       // else continuous
  int64_t window_ns, period_ns;       // sampled: windows of that length, so far apart
  double band;                        // a tenth: 0.1
  double cpu;                         // share of one core
  int64_t (*cpu_ns)(void *arg);       // that the decoder has used so far; NULL: it does not matter
  void *arg;
};

// Counts for metrics; one writer.
struct decoder_stats {
  _Atomic uint64_t samples_evaluated, samples_passed, losses, calibrations, calibrations_failed;
  _Atomic uint64_t batches_skipped;   // no room for them
  _Atomic uint64_t read[3], write[3]; // enum decoder_part: bytes
  _Atomic uint64_t cpu_ns;
  _Atomic double read_factor, write_factor; // counted of the last copy of known size
  _Atomic double unexplained;               // share of what was counted that no batch explains
};
enum decoder_part { PART_BATCHES, PART_COPIES, PART_OTHER };

struct decoder {
  struct decoder_options options;
  const struct counter_ops *ops;
  struct counter_source *source;
  struct audit_exchange *exchange;
  struct decoder_stats stats;
  struct split split;
  // samples
  struct counter_sample taken[DECODER_SAMPLES];
  struct split_sample queue[DECODER_QUEUE];
  uint32_t queue_first, queue_n;
  int64_t last_ended_ns; // of the newest sample
  int64_t last_came_ns;  // when it came
  uint32_t idle;
  // what the executor has announced and not yet handed over
  uint32_t popped[AUDIT_LANES], wanted_popped, blind;
  int64_t lane_ended_ns[AUDIT_LANES]; // of the last one handed over
  // calibration
  bool started, fresh;             // fresh: no sample has come since the source was started
  int64_t valid_ns;                // batches from here on are measured; CLOCK_NEVER: none is
  int64_t start_at_ns, copy_at_ns; // CLOCK_NEVER: not asked for
  int64_t backoff_ns, calm_ns;     // calm_ns: since when nothing was lost
  struct clock_offset offset;      // of the samples' clock from the batches'
  bool by_host;                    // looked for by the host's clock: after a copy was not found
  int64_t track_ns;                // until the next copy
  bool told_uncalibrated;
  struct split_totals told[2]; // when stats.unexplained was worked out last
  int64_t told_at_ns;
  // time
  int64_t decode_ns; // last time
  double budget_ns;  // of CPU time that may be used
  int64_t budget_at_ns, spent_ns;
  char why[256]; // state AUDIT_GONE: the reason
};

void decoder_init(struct decoder *decoder, const struct decoder_options *options,
                  struct counter_source *source, struct audit_exchange *exchange);
// Returns when it wants to be called again; earlier when the exchange's wake is signalled.
int64_t decoder_step(struct decoder *decoder, int64_t now_ns);
// Gives every batch back, LATE. Nothing runs any more.
void decoder_end(struct decoder *decoder);
// There is nothing to be read, or not any more.
void decoder_refuse(struct decoder *decoder, const char *why);

#endif
