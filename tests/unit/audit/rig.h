// A decoder over scripted counters (sim/fake_counters.h), and an executor that runs batches on a
// clock of its own: what test_decoder and test_faults share.
#ifndef UNIT_AUDIT_RIG_H
#define UNIT_AUDIT_RIG_H

#include "harness/cmocka_all.h"

#include "audit/audit.h"
#include "sim/fake.h"
#include "sim/fake_counters.h"

#include <unistd.h>

#define INTERVAL_NS (200 * NS_PER_US)
#define READ_A_TOKEN 1e7 // that a batch is expected to read
#define WRITE_A_TOKEN 2e6

static struct decoder decoder;
static struct audit_exchange exchange;
static struct backend_ops rig_backend;
static struct model *rig_model;
static int64_t rig_now_ns, rig_next_ns;
static bool rig_resident; // set before rig_open

// Everything that came back.
static int rig_outcomes[AUDIT_OUTCOMES];
static struct audit_batch rig_last; // by value: the slot is free again

// ---- what is logged ----
static int rig_stderr, rig_log;

static inline void rig_log_begin(void) {
  char name[] = "/tmp/fusewire-audit-XXXXXX";
  rig_log = mkstemp(name);
  assert_true(rig_log >= 0);
  unlink(name);
  fflush(stderr);
  rig_stderr = dup(2);
  assert_true(dup2(rig_log, 2) == 2);
}
static inline void rig_log_end(void) {
  dup2(rig_stderr, 2);
  close(rig_stderr);
  close(rig_log);
}
// Lines that have `text` in them.
static inline int rig_logged(const char *text) {
  static char all[1 << 16];
  ssize_t n = pread(rig_log, all, sizeof all - 1, 0);
  int lines = 0;
  all[n > 0 ? n : 0] = 0;
  for (const char *at = all; (at = strstr(at, text)); at++)
    lines++;
  return lines;
}

// ---- the device ----
// What batches of so many tokens in one sequence are expected to move, laid down beforehand.
static inline void rig_estimates(void) {
  static const int32_t tokens[] = {1, 3, 4, 8, 10, 12};
  for (int mode = 0; mode < FUSION_MODES; mode++)
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
      struct audit_target *target = rig_model->audit[0][mode];
      int32_t t = tokens[i];
      struct traffic_total once = plan_traffic(rig_model->plans[mode], 1, t, 1, (int64_t)t * t);
      double read = READ_A_TOKEN * t / once.read_bytes,
             write = WRITE_A_TOKEN * t / once.write_bytes;
      target->estimates[target->n_estimates++] = (struct audit_estimate){.tokens = t,
                                                                         .length = t,
                                                                         .outputs = 1,
                                                                         .resident = rig_resident,
                                                                         .expected_read = read,
                                                                         .expected_write = write,
                                                                         .high_read = 2 * read,
                                                                         .high_write = 2 * write};
    }
}

static inline int64_t rig_cpu(void *arg) {
  (void)arg;
  return fake_counters.cpu_ns;
}

static inline struct decoder_options rig_options(void) {
  return (struct decoder_options){.counters = &fake_counter_ops,
                                  .device = "fake:0",
                                  .interval_ns = INTERVAL_NS,
                                  .window_ns = 100 * NS_PER_MS,
                                  .period_ns = NS_PER_S,
                                  .band = 0.1,
                                  .cpu = 0.08,
                                  .cpu_ns = rig_cpu};
}

static inline void rig_open(const struct decoder_options *options) {
  static int n_models;
  char name[32];
  struct counter_options counters = {.interval_ns = options->interval_ns};
  struct counter_source *source = NULL;
  memset(&decoder, 0, sizeof decoder);
  memset(&exchange, 0, sizeof exchange);
  memset(rig_outcomes, 0, sizeof rig_outcomes);
  rig_now_ns = 100 * NS_PER_S;
  rig_next_ns = 0;
  fake_device_reset(true);
  fake_counters_reset(&rig_now_ns);
  rig_backend = fake_backend;
  rig_backend.counters = &fake_counter_ops;
  assert_int_equal(exchange_open(&exchange), STATUS_OK);
  exchange.interval_ns = options->interval_ns;
  snprintf(name, sizeof name, "m%d", n_models++); // rows outlive models: each test its own
  rig_model = fake_model(name, 64, 8, 0);
  assert_int_equal(audit_targets_fill(rig_model, 0, "fake:0", NULL), STATUS_OK);
  rig_estimates();
  assert_int_equal(fake_counters_open(NULL, &counters, &source, NULL), STATUS_OK);
  decoder_init(&decoder, options, source, &exchange);
  rig_log_begin();
}

static inline void rig_reap(void) {
  struct audit_batch *batch;
  while ((batch = exchange_reap(&exchange))) {
    rig_outcomes[batch->outcome] += batch->kind == AUDIT_BATCH;
    rig_last = *batch;
    exchange_free(&exchange, batch);
  }
}

static inline int rig_close(void **state) {
  (void)state;
  rig_log_end();
  decoder_end(&decoder);
  rig_reap();
  assert_int_equal(exchange.n_free, AUDIT_BATCHES); // every batch came back
  exchange_close(&exchange);
  for (int mode = 0; mode < FUSION_MODES; mode++)
    free(rig_model->audit[0][mode]);
  fake_model_free(rig_model);
  return 0;
}

static inline struct audit_row *rig_row(enum fusion_mode fusion) {
  return rig_model->audit[0][fusion]->row;
}

// ---- time passes ----
static inline void rig_copy(void) {
  static int64_t idle_ns; // the device has been idle for long enough then
  struct counter_copy copy;
  int state = atomic_load(&exchange.copy_state);
  if (state == COPY_WANTED && idle_ns == 0) idle_ns = rig_now_ns + exchange_quiet_ns(&exchange);
  if (state == COPY_WANTED && rig_now_ns >= idle_ns) {
    idle_ns = 0;
    exchange_copy_begin(&exchange);
    if (fake_copy_begin(&fake_counters, exchange_quiet_ns(&exchange)) != STATUS_OK)
      exchange_copy_end(&exchange, NULL, rig_now_ns);
  } else if (state == COPY_RUNS && fake_copy_poll(&fake_counters, &copy)) {
    exchange_copy_end(&exchange, &copy, rig_now_ns);
  }
}

static inline void rig_step(void) {
  if (rig_now_ns >= rig_next_ns || ring_size(&exchange.pushed) > 0)
    rig_next_ns = decoder_step(&decoder, rig_now_ns);
  rig_reap();
}

// With nothing on the device but copies of known size.
static inline void rig_idle(int64_t ns) {
  for (int64_t end_ns = rig_now_ns + ns; rig_now_ns < end_ns; rig_now_ns += NS_PER_MS / 10) {
    rig_copy();
    rig_step();
  }
}

struct rig_batch {
  int lane, tokens;
  enum fusion_mode fusion;
  int64_t ns;
  double factor; // moved of what is expected; 0: 1
  bool wanted;
};

// Begins now; its bytes are laid down, its end is told by rig_end.
static inline struct audit_batch *rig_begin(const struct rig_batch *b) {
  struct audit_batch *batch = exchange_begin(&exchange, b->lane, b->wanted);
  double factor = b->factor > 0 ? b->factor : 1;
  int64_t at_ns = fake_device_ns();
  fake_traffic_add(at_ns, at_ns + b->ns, factor * READ_A_TOKEN * b->tokens,
                   factor * WRITE_A_TOKEN * b->tokens);
  if (!batch) return NULL;
  batch->model = rig_model;
  batch->fusion = b->fusion;
  batch->target = rig_model->audit[0][b->fusion];
  batch->outputs = 1;
  batch->ran_tokens = b->tokens;
  batch->n_tokens = b->tokens;
  batch->n_seqs = 1;
  batch->sum_sq = (int64_t)b->tokens * b->tokens;
  batch->span = (struct device_span){at_ns - 1, at_ns, at_ns + b->ns, at_ns + b->ns + 1};
  return batch;
}

static inline void rig_run(const struct rig_batch *b) {
  struct audit_batch *batch = rig_begin(b);
  int64_t end_ns = rig_now_ns + b->ns;
  for (; rig_now_ns + NS_PER_MS < end_ns; rig_now_ns += NS_PER_MS)
    rig_step();
  rig_now_ns = end_ns;
  if (batch) exchange_end(&exchange, batch);
  rig_step();
}

// Batches one after the other, with gaps of random length, for so long.
static inline void rig_load(const struct rig_batch *b, int64_t ns, int64_t gap_ns) {
  for (int64_t end_ns = rig_now_ns + ns; rig_now_ns < end_ns;) {
    rig_run(b);
    if (gap_ns > 0) rig_now_ns += (int64_t)(test_random() % (uint64_t)gap_ns);
  }
}

struct rig_sums {
  double read, write, read_expected, write_expected;
  uint64_t batches, shared;
};
static inline struct rig_sums rig_sums(const struct audit_row *row) {
  struct rig_sums sums = {0};
  for (int s = 0; s < AUDIT_SIZES; s++) {
    const struct audit_sums *of = &row->sizes[s];
    sums.batches += of->batches, sums.shared += of->shared;
    sums.read += (double)of->read_measured, sums.write += (double)of->write_measured;
    sums.read_expected += (double)of->read_expected;
    sums.write_expected += (double)of->write_expected;
  }
  return sums;
}

static inline void assert_calibrated(bool yes) {
  assert_int_equal(atomic_load(&exchange.state), yes ? AUDIT_CALIBRATED : AUDIT_STARTS);
}

#endif
