#include "audit/decoder.h"
#include "audit/target.h"
#include "base/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define DECODE_SAMPLES 1000              // that should have come together when they are taken
#define DECODE_LEAST_NS (20 * NS_PER_MS) // between two takes: each has a fixed cost of milliseconds
#define DECODE_MOST_NS (250 * NS_PER_MS)
#define WANTED_NS (25 * NS_PER_MS)   // between two takes while somebody waits for one
#define NEVER_CAME_NS (3 * NS_PER_S) // a batch whose samples have not come by then is given up
#define SILENT_NS (2 * NS_PER_S)     // without a sample: the source has stopped
#define BACKOFF_NS NS_PER_S          // after a loss or a failed calibration, doubling
#define BACKOFF_MOST_NS (64 * NS_PER_S)
#define CALM_NS (60 * NS_PER_S)  // without a loss: the next one is the first again
#define IDLE_EVERY 16            // of samples without a batch, those that are looked at
#define LOOK_EVERY 16            // evaluated samples between two looks at the CPU clock
#define TRACK_NS (10 * NS_PER_S) // to the second copy; ten times as long to each further one
#define TRACK_MOST_NS (1000 * NS_PER_S)
#define READ_RIGHT 0.02 // a copy counted within this of its size is counted right
#define WRITE_RIGHT 0.03

static void add(_Atomic uint64_t *counter, uint64_t n) {
  atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

void decoder_init(struct decoder *decoder, const struct decoder_options *options,
                  struct counter_source *source, struct audit_exchange *exchange) {
  decoder->options = *options;
  decoder->ops = options->counters;
  decoder->source = source;
  decoder->exchange = exchange;
  decoder->valid_ns = decoder->copy_at_ns = CLOCK_NEVER;
  decoder->backoff_ns = BACKOFF_NS;
  decoder->start_at_ns = 0;
  decoder->budget_ns = options->cpu * (double)NS_PER_S;
  if (!source) atomic_store(&exchange->state, AUDIT_GONE);
}

static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

// ---- CPU time ----
static bool in_budget(const struct decoder *decoder, double reserve) {
  return !decoder->options.cpu_ns ||
         decoder->budget_ns > reserve * decoder->options.cpu * (double)NS_PER_S;
}

static void charge(struct decoder *decoder) {
  if (!decoder->options.cpu_ns) return;
  int64_t ns = decoder->options.cpu_ns(decoder->options.arg);
  decoder->budget_ns -= (double)(ns - decoder->spent_ns);
  decoder->spent_ns = ns;
  atomic_store_explicit(&decoder->stats.cpu_ns, (uint64_t)ns, memory_order_relaxed);
}

// Grows with time, up to what one second allows.
static void refill(struct decoder *decoder, int64_t now_ns) {
  double most = decoder->options.cpu * (double)NS_PER_S;
  decoder->budget_ns += decoder->options.cpu * (double)(now_ns - decoder->budget_at_ns);
  if (decoder->budget_ns > most || decoder->budget_at_ns == 0) decoder->budget_ns = most;
  decoder->budget_at_ns = now_ns;
}

// ---- verdicts ----
static void give_back(struct decoder *decoder, struct audit_batch *batch) {
  if (batch->kind == AUDIT_COPY) return; // the exchange's own
  if (batch->kind == AUDIT_BATCH && batch->audited && batch->target &&
      batch->outcome != AUDIT_MEASURED)
    audit_row_unmeasured(batch->target->row, batch->outcome);
  exchange_return(decoder->exchange, batch);
}

static void set_state(struct decoder *decoder, enum audit_state state) {
  atomic_store(&decoder->exchange->state, (int)state);
}

void decoder_refuse(struct decoder *decoder, const char *why) {
  if (atomic_load(&decoder->exchange->state) == AUDIT_GONE && decoder->why[0]) return;
  snprintf(decoder->why, sizeof decoder->why, "%s", why);
  decoder->valid_ns = CLOCK_NEVER;
  set_state(decoder, AUDIT_GONE);
  log_warn("audit_refused", "device %s: its memory traffic is not audited: %s",
           decoder->options.device, why);
}

// ---- calibration ----
// What was counted before is not to be relied on any more, nor what follows, until a copy of known
// size has been counted right. The source begins anew, ever later if this goes on.
static void begin_anew(struct decoder *decoder, int64_t now_ns) {
  struct audit_batch *batch;
  if (now_ns - decoder->calm_ns > CALM_NS) decoder->backoff_ns = BACKOFF_NS;
  decoder->calm_ns = now_ns;
  decoder->valid_ns = CLOCK_NEVER;
  decoder->start_at_ns = now_ns + decoder->backoff_ns;
  decoder->copy_at_ns = CLOCK_NEVER;
  decoder->backoff_ns *= 2;
  if (decoder->backoff_ns > BACKOFF_MOST_NS) decoder->backoff_ns = BACKOFF_MOST_NS;
  decoder->started = false;
  decoder->queue_n = 0;
  while ((batch = split_drop(&decoder->split, CLOCK_NEVER))) {
    batch->outcome = AUDIT_LOST;
    give_back(decoder, batch);
  }
  set_state(decoder, AUDIT_STARTS);
}

static void tell_uncalibrated(struct decoder *decoder, const char *why) {
  if (decoder->told_uncalibrated) return;
  decoder->told_uncalibrated = true;
  log_warn("audit_uncalibrated",
           "device %s: %s; no measured bytes are reported until a copy of known size is counted "
           "right",
           decoder->options.device, why);
}

static bool near_one(double value, double by) {
  return value >= 1 - by && value <= 1 + by;
}

static void judge_copy(struct decoder *decoder, const struct audit_batch *copy, int64_t now_ns) {
  char why[160];
  if (copy->failed || copy->outcome != AUDIT_MEASURED) { // not the counters' fault
    decoder->copy_at_ns = now_ns + decoder->backoff_ns;
    snprintf(why, sizeof why, "a copy of known size could not be counted (%s)",
             copy->failed ? "it failed" : audit_outcome_name(copy->outcome));
    if (copy->failed || decoder->by_host) tell_uncalibrated(decoder, why);
    decoder->by_host = !decoder->by_host;
    return;
  }
  double read = copy->read_bytes / copy->bytes.expected.read,
         write = copy->write_bytes / copy->bytes.expected.write, by_ns = offset_seen(copy),
         most_ns =
             (double)atomic_load_explicit(&decoder->exchange->offset_most_ns, memory_order_relaxed);
  atomic_store_explicit(&decoder->stats.read_factor, read, memory_order_relaxed);
  atomic_store_explicit(&decoder->stats.write_factor, write, memory_order_relaxed);
  if (near_one(read, READ_RIGHT) && near_one(write, WRITE_RIGHT) && fabs(by_ns) <= most_ns) {
    bool again = decoder->valid_ns != CLOCK_NEVER;
    add(&decoder->stats.calibrations, 1);
    offset_learn(&decoder->offset, copy);
    decoder->copy_at_ns = now_ns + decoder->track_ns; // to see how far the clocks have come
    decoder->track_ns = least(10 * decoder->track_ns, TRACK_MOST_NS);
    atomic_store(&decoder->exchange->offset_most_ns, OFFSET_KNOWN_NS);
    if (again) return;
    decoder->valid_ns = copy->span.ended_ns;
    decoder->told_uncalibrated = false;
    set_state(decoder, AUDIT_CALIBRATED);
    log_info("audit_calibrated",
             "device %s: a copy of %.0f MB was counted %.4f times read, %.4f written; the samples' "
             "clock is off by %.0f us",
             decoder->options.device, copy->bytes.expected.read / 1e6, read, write,
             decoder->offset.ns / 1e3);
    return;
  }
  add(&decoder->stats.calibrations_failed, 1);
  snprintf(why, sizeof why,
           "a copy of %.0f MB was counted %.4f times read, %.4f written, %.0f us from its time",
           copy->bytes.expected.read / 1e6, read, write, by_ns / 1e3);
  if (decoder->by_host) tell_uncalibrated(decoder, why);
  decoder->by_host = !decoder->by_host; // the one way, then the other
  begin_anew(decoder, now_ns);
}

static void lose(struct decoder *decoder, const char *what, int64_t now_ns) {
  add(&decoder->stats.losses, 1);
  tell_uncalibrated(decoder, what);
  begin_anew(decoder, now_ns);
}

// ---- what the executor says ----
static bool in_window(const struct decoder *decoder, const struct device_span *span) {
  const struct decoder_options *o = &decoder->options;
  if (!o->sampled) return true;
  return span->began_ns / o->period_ns == span->ended_ns / o->period_ns &&
         span->ended_ns % o->period_ns < o->window_ns;
}

static bool makes_sense(const struct device_span *span) {
  return span->began_ns > 0 && span->began_ns <= span->computes_ns &&
         span->computes_ns < span->computed_ns && span->computed_ns <= span->ended_ns;
}

// The clocks are not as they were taken to be: times of what was heard of before are wrong.
static void find_offset(struct decoder *decoder, const struct audit_batch *copy) {
  if (decoder->valid_ns != CLOCK_NEVER || !decoder->by_host) return;
  int64_t by_ns = offset_find(&decoder->offset, copy);
  if (by_ns == 0) return;
  for (int i = 0; i < AUDIT_LANES; i++)
    decoder->lane_ended_ns[i] += by_ns;
  for (int i = 0; i < decoder->split.n; i++)
    decoder->split.room[decoder->split.first + i]->outcome = AUDIT_UNCALIBRATED;
}

static void pop_one(struct decoder *decoder, struct audit_batch *batch, int64_t now_ns) {
  decoder->popped[batch->lane]++;
  decoder->wanted_popped += batch->wanted;
  batch->taken_ns = now_ns;
  if (batch->failed || !makes_sense(&batch->span)) {
    batch->outcome = AUDIT_NONE;
    if (batch->kind == AUDIT_COPY && decoder->started) judge_copy(decoder, batch, now_ns);
    give_back(decoder, batch);
    return;
  }
  if (batch->kind == AUDIT_COPY) find_offset(decoder, batch);
  offset_shift(&decoder->offset, batch);
  decoder->lane_ended_ns[batch->lane] = batch->span.ended_ns;
  batch->audited =
      batch->kind == AUDIT_BATCH && (batch->wanted || in_window(decoder, &batch->span));
  if (!decoder->started) { // no samples of it will come
    batch->outcome = AUDIT_UNCALIBRATED;
    give_back(decoder, batch);
    return;
  }
  if (batch->model) audit_estimate(batch);
  if (split_add(&decoder->split, batch)) return;
  batch->outcome = AUDIT_SKIPPED;
  give_back(decoder, batch);
}

// How badly a sample's bytes are wanted.
enum need { NEED_NONE, NEED_SOME, NEED_WANTED, NEED_COPY };

// All that may have run while the samples that were taken before this call came about is known
// afterwards, or ends later than the time that is returned. `of_unknown`: what is not known yet may
// want so much.
static int64_t hear(struct decoder *decoder, int64_t now_ns, enum need *of_unknown) {
  struct audit_exchange *exchange = decoder->exchange;
  uint32_t begun[AUDIT_LANES], wanted_begun = atomic_load(&exchange->wanted_begun);
  int64_t known_ns = CLOCK_NEVER;
  for (int i = 0; i < AUDIT_LANES; i++)
    begun[i] = atomic_load(&exchange->begun[i]);
  struct audit_batch *batch;
  while ((batch = exchange_pop(exchange)))
    pop_one(decoder, batch, now_ns);
  for (int i = 0; i < AUDIT_LANES; i++)
    if ((int32_t)(begun[i] - decoder->popped[i]) > 0 && decoder->lane_ended_ns[i] < known_ns)
      known_ns = decoder->lane_ended_ns[i];
  *of_unknown = NEED_NONE;
  if ((int32_t)(wanted_begun - decoder->wanted_popped) > 0) *of_unknown = NEED_WANTED;
  if (begun[AUDIT_COPY_LANE] != decoder->popped[AUDIT_COPY_LANE]) *of_unknown = NEED_COPY;
  uint32_t blind = atomic_load(&exchange->blind);
  add(&decoder->stats.batches_skipped, blind - decoder->blind);
  if (blind != decoder->blind) { // whatever ran beside those cannot be told from them
    struct split *split = &decoder->split;
    for (int i = 0; i < split->n; i++)
      split->room[split->first + i]->outcome = AUDIT_SKIPPED;
  }
  decoder->blind = blind;
  return known_ns;
}

// ---- samples ----
static void finish(struct decoder *decoder, struct audit_batch *batch, int64_t now_ns) {
  if (batch->kind == AUDIT_COPY) {
    judge_copy(decoder, batch, now_ns);
    return;
  }
  if (!batch->audited && batch->outcome == AUDIT_MEASURED) batch->outcome = AUDIT_SKIPPED;
  if (batch->outcome == AUDIT_MEASURED && batch->span.computes_ns < decoder->valid_ns)
    batch->outcome = AUDIT_UNCALIBRATED;
  if (batch->outcome == AUDIT_MEASURED && batch->target)
    audit_row_measured(batch->target->row, batch, decoder->options.band, now_ns);
  give_back(decoder, batch);
}

static void split_one(struct decoder *decoder, const struct split_sample *sample, int64_t now_ns) {
  struct audit_batch *batch;
  split_sample(&decoder->split, sample);
  while ((batch = split_take(&decoder->split)))
    finish(decoder, batch, now_ns);
}

// Those of which all batches are known; the oldest ones too where there is no more room.
static void split_known(struct decoder *decoder, int64_t known_ns, int64_t now_ns) {
  while (decoder->queue_n > 0) {
    const struct split_sample *sample = &decoder->queue[decoder->queue_first];
    if (sample->at.ended_ns > known_ns && decoder->queue_n < DECODER_QUEUE) return;
    decoder->queue_first = (decoder->queue_first + 1) % DECODER_QUEUE;
    decoder->queue_n--;
    split_one(decoder, sample, now_ns);
  }
}

static void enqueue(struct decoder *decoder, const struct split_sample *sample, int64_t known_ns,
                    int64_t now_ns) {
  decoder->queue[(decoder->queue_first + decoder->queue_n) % DECODER_QUEUE] = *sample;
  decoder->queue_n++;
  split_known(decoder, known_ns, now_ns);
}

static enum need need_of(struct decoder *decoder, const struct counter_sample *at, bool known,
                         enum need of_unknown, double *weight) {
  struct split_look look = split_look(&decoder->split, at->began_ns, at->ended_ns);
  struct device_span span = {at->began_ns, at->began_ns, at->ended_ns, at->ended_ns};
  struct device_span begin = {at->began_ns, at->began_ns, at->began_ns, at->began_ns};
  bool open = in_window(decoder, &span) || in_window(decoder, &begin);
  *weight = 1;
  if (look.copy) return NEED_COPY;
  if (look.wanted) return NEED_WANTED;
  if (!known && of_unknown != NEED_NONE) return of_unknown; // it may be theirs
  if (look.audited || (!known && open)) return NEED_SOME;
  if (look.any || !open || decoder->idle++ % IDLE_EVERY != 0) return NEED_NONE;
  *weight = IDLE_EVERY;
  return NEED_SOME;
}

static bool evaluate(struct decoder *decoder, int index, enum need need,
                     struct split_sample *sample) {
  sample->kind = SPLIT_PASSED;
  bool afford = need == NEED_COPY || in_budget(decoder, need == NEED_WANTED ? 0 : 0.2);
  if (need == NEED_NONE || !afford) {
    add(&decoder->stats.samples_passed, 1);
    return true;
  }
  if (!decoder->ops->evaluate(decoder->source, index, &sample->at)) return false;
  sample->kind = SPLIT_COUNTED;
  add(&decoder->stats.samples_evaluated, 1);
  if (atomic_load_explicit(&decoder->stats.samples_evaluated, memory_order_relaxed) % LOOK_EVERY ==
      0)
    charge(decoder);
  return true;
}

// Time without samples between two: theirs were lost.
static void hole(struct decoder *decoder, int64_t until_ns, int64_t known_ns, int64_t now_ns) {
  struct split_sample sample = {.kind = SPLIT_HOLE, .at = {decoder->last_ended_ns, until_ns, 0, 0}};
  if (until_ns > decoder->last_ended_ns) enqueue(decoder, &sample, known_ns, now_ns);
}

// Whether a sample's time follows that of the one before.
enum order { ORDER_GOOD, ORDER_STALE, ORDER_BROKEN };
static enum order order_of(struct decoder *decoder, const struct counter_sample *at,
                           int64_t known_ns, int64_t now_ns) {
  int64_t gap_ns = at->began_ns - decoder->last_ended_ns,
          half_ns = decoder->options.interval_ns / 2;
  if (decoder->fresh && gap_ns < 0) return ORDER_STALE; // of before the start
  if (at->ended_ns <= at->began_ns || gap_ns < -half_ns) {
    lose(decoder, "samples came out of their order", now_ns);
    return ORDER_BROKEN;
  }
  if (!decoder->fresh && gap_ns <= half_ns) return ORDER_GOOD;
  hole(decoder, at->began_ns, known_ns, now_ns);
  if (!decoder->fresh && decoder->started) lose(decoder, "samples were lost", now_ns);
  return decoder->started ? ORDER_GOOD : ORDER_BROKEN;
}

// The source is still usable afterwards.
static bool take_one(struct decoder *decoder, int index, int64_t known_ns, enum need of_unknown,
                     int64_t now_ns) {
  struct split_sample sample = {.at = decoder->taken[index]};
  enum order order = order_of(decoder, &sample.at, known_ns, now_ns);
  if (order != ORDER_GOOD) return order == ORDER_STALE;
  bool known = sample.at.ended_ns <= known_ns;
  enum need need = need_of(decoder, &sample.at, known, of_unknown, &sample.weight);
  if (!evaluate(decoder, index, need, &sample)) {
    decoder_refuse(decoder, "the counters went away");
    return false;
  }
  decoder->fresh = false;
  decoder->last_ended_ns = sample.at.ended_ns;
  decoder->last_came_ns = now_ns;
  enqueue(decoder, &sample, known_ns, now_ns);
  return decoder->started; // a copy may have been counted wrong
}

// One take's worth. False: no more of them now.
static bool take(struct decoder *decoder, int64_t now_ns) {
  struct error err;
  struct counter_news news = {0};
  enum need of_unknown;
  int n = decoder->ops->take(decoder->source, decoder->taken, DECODER_SAMPLES, &news, &err);
  if (n > 0) offset_sample(&decoder->offset, decoder->taken[n - 1].ended_ns, now_ns);
  int64_t known_ns = hear(decoder, now_ns, &of_unknown);
  charge(decoder);
  if (n < 0) {
    decoder_refuse(decoder, err.message);
    return false;
  }
  for (int i = 0; i < n; i++)
    if (!take_one(decoder, i, known_ns, of_unknown, now_ns)) return false;
  split_known(decoder, known_ns, now_ns);
  if (news.lost && decoder->started) lose(decoder, "the counters' buffer ran over", now_ns);
  return news.more && decoder->started;
}

// ---- steps ----
static void start(struct decoder *decoder, int64_t now_ns) {
  struct error err;
  decoder->start_at_ns = CLOCK_NEVER;
  if (decoder->ops->start(decoder->source, &err) != STATUS_OK) {
    decoder_refuse(decoder, err.message);
    return;
  }
  // It takes 0.1 s and more, now and then: no reason to see nothing after it.
  double budget_ns = decoder->budget_ns;
  charge(decoder);
  decoder->budget_ns = budget_ns;
  decoder->started = decoder->fresh = true;
  offset_begin(&decoder->offset);
  decoder->track_ns = TRACK_NS;
  atomic_store_explicit(&decoder->exchange->offset_most_ns, OFFSET_FOUND_NS, memory_order_relaxed);
  decoder->last_came_ns = now_ns;
  decoder->copy_at_ns = now_ns;
}

static void give_up_late(struct decoder *decoder, int64_t now_ns) {
  struct audit_batch *batch;
  while ((batch = split_drop(&decoder->split, now_ns - NEVER_CAME_NS))) {
    batch->outcome = AUDIT_LOST;
    finish(decoder, batch, now_ns);
  }
}

#define SHARE_NS (10 * NS_PER_S) // over which the unexplained share is worked out

static void publish_totals(_Atomic uint64_t out[3], const struct split_totals *totals) {
  atomic_store_explicit(&out[PART_BATCHES], (uint64_t)totals->batches, memory_order_relaxed);
  atomic_store_explicit(&out[PART_COPIES], (uint64_t)totals->copies, memory_order_relaxed);
  atomic_store_explicit(&out[PART_OTHER], (uint64_t)totals->other, memory_order_relaxed);
}

static double sum_of(const struct split_totals *totals) {
  return totals->batches + totals->copies + totals->other;
}

static void publish(struct decoder *decoder, int64_t now_ns) {
  struct decoder_stats *stats = &decoder->stats;
  const struct split *split = &decoder->split;
  struct split_totals *told = decoder->told;
  publish_totals(stats->read, &split->read);
  publish_totals(stats->write, &split->write);
  double all = sum_of(&split->read) + sum_of(&split->write) - sum_of(&told[0]) - sum_of(&told[1]),
         other = split->read.other + split->write.other - told[0].other - told[1].other;
  atomic_store_explicit(&stats->unexplained, all > 0 ? other / all : 0, memory_order_relaxed);
  if (now_ns - decoder->told_at_ns < SHARE_NS) return;
  told[0] = split->read, told[1] = split->write;
  decoder->told_at_ns = now_ns;
}

static int64_t between(const struct decoder *decoder) {
  int64_t ns = decoder->options.interval_ns * DECODE_SAMPLES;
  if (ns > DECODE_MOST_NS) ns = DECODE_MOST_NS;
  return ns > DECODE_LEAST_NS ? ns : DECODE_LEAST_NS;
}

// When samples are to be taken next: soon while somebody waits, if that can be afforded.
static int64_t decode_at(const struct decoder *decoder) {
  const struct audit_exchange *exchange = decoder->exchange;
  int64_t ns = between(decoder);
  bool wanted = split_look(&decoder->split, 0, CLOCK_NEVER).wanted ||
                (ring_size(&exchange->pushed) > 0 &&
                 atomic_load(&exchange->wanted_begun) != decoder->wanted_popped);
  if (wanted && in_budget(decoder, 0) && ns > WANTED_NS) ns = WANTED_NS;
  return decoder->decode_ns + ns;
}

int64_t decoder_step(struct decoder *decoder, int64_t now_ns) {
  enum need of_unknown;
  refill(decoder, now_ns);
  if (atomic_load(&decoder->exchange->state) == AUDIT_GONE) {
    decoder_end(decoder);
    return CLOCK_NEVER;
  }
  if (decoder->start_at_ns <= now_ns) start(decoder, now_ns);
  if (!decoder->started) { // nothing is known of what runs meanwhile
    hear(decoder, now_ns, &of_unknown);
  } else if (now_ns >= decode_at(decoder)) {
    decoder->decode_ns = now_ns;
    while (take(decoder, now_ns) && decoder->started) {
    }
    if (decoder->started && now_ns - decoder->last_came_ns > SILENT_NS)
      lose(decoder, "samples have stopped coming", now_ns);
    publish(decoder, now_ns);
  }
  if (decoder->copy_at_ns <= now_ns && decoder->started) {
    decoder->copy_at_ns = CLOCK_NEVER;
    exchange_want_copy(decoder->exchange);
  }
  give_up_late(decoder, now_ns);
  charge(decoder);
  int64_t next_ns = decoder->started ? decode_at(decoder) : now_ns + DECODE_MOST_NS;
  next_ns = least(next_ns, decoder->start_at_ns);
  return least(next_ns, decoder->started ? decoder->copy_at_ns : CLOCK_NEVER);
}

void decoder_end(struct decoder *decoder) {
  struct audit_batch *batch;
  enum need of_unknown;
  bool gone = atomic_load(&decoder->exchange->state) == AUDIT_GONE;
  hear(decoder, 0, &of_unknown);
  while ((batch = split_drop(&decoder->split, CLOCK_NEVER))) {
    batch->outcome = gone ? AUDIT_REFUSED : AUDIT_LATE;
    if (batch->kind != AUDIT_COPY) exchange_return(decoder->exchange, batch);
  }
}
