// A live audit with all its threads: a loop that submits, an executor, a decoder, by the real
// clock. What ThreadSanitizer is to look at; the figures have to be right all the same.
#include "harness/cmocka_all.h"

#include "audit/audit.h"
#include "sched/executor.h"
#include "sim/fake.h"
#include "sim/fake_counters.h"

#include <pthread.h>
#include <unistd.h>

#define N 8
#define ROUNDS 60
#define READ 4e6
#define RUN_NS (300 * NS_PER_US)

// The scripted device is a thing of one thread: each of its calls has it for itself.
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int64_t real_ns;

static void enter(void) {
  pthread_mutex_lock(&mutex);
  real_ns = fake_device.now_ns = clock_now_ns();
}
static void leave(void) {
  pthread_mutex_unlock(&mutex);
}
static enum status start(struct counter_source *s, struct error *err) {
  enter();
  enum status status = fake_counters_start(s, err);
  leave();
  return status;
}
static int take(struct counter_source *s, struct counter_sample *out, int most,
                struct counter_news *news, struct error *err) {
  enter();
  int n = fake_counters_take(s, out, most, news, err);
  leave();
  return n;
}
static bool evaluate(struct counter_source *s, int index, struct counter_sample *out) {
  enter();
  bool ok = fake_counters_evaluate(s, index, out);
  leave();
  return ok;
}
static enum status copy_begin(struct counter_source *s, int64_t quiet_ns) {
  enter();
  enum status status = fake_copy_begin(s, quiet_ns);
  leave();
  return status;
}
static int copy_poll(struct counter_source *s, struct counter_copy *out) {
  enter();
  int done = fake_copy_poll(s, out);
  leave();
  return done;
}
static const struct counter_ops counters = {.open = fake_counters_open,
                                            .close = fake_counters_close,
                                            .start = start,
                                            .take = take,
                                            .evaluate = evaluate,
                                            .copy_begin = copy_begin,
                                            .copy_poll = copy_poll};

static enum status run(struct lane *lane, const struct bound_plan *bound,
                       const struct batch_geometry *g, uint8_t outputs) {
  enter();
  enum status status = fake_run(lane, bound, g, outputs);
  fake_traffic_add(fake_device_ns() + 100, fake_device_ns() + RUN_NS - 200, READ, READ / 4);
  leave();
  return status;
}
static int poll(struct lane *lane, struct lane_times *times) {
  enter();
  int done = fake_poll(lane, times);
  leave();
  return done;
}

static struct model *model;
static struct request requests[N];
static int64_t ids[4], tokens[N][4];

static void submit(struct executor *executor, int i, bool wants) {
  struct request *request = &requests[i];
  *request = (struct request){.model = model,
                              .fusion = FUSION_ON,
                              .outputs = 1u << FAKE_TOKENS,
                              .n_outputs = 1,
                              .n_seqs = 1,
                              .n_tokens = 4,
                              .padded_seqlen = 4,
                              .sum_sq = 16,
                              .dense = true,
                              .audit = wants,
                              .deadline_ns = CLOCK_NEVER};
  request->outputs_data[0] = (uint8_t *)tokens[i];
  request->outputs_bytes[0] = 4 * 8;
  request->inputs[FAKE_IDS] = (struct slice){(uint8_t *)ids, 32};
  request->t_ns[STAGE_ADMITTED] = clock_now_ns();
  assert_true(executor_submit(executor, 0, request));
}

static void threads_of_an_audit(void **state) {
  (void)state;
  struct wake loop_wake;
  struct audit *audit;
  struct executor *executor;
  struct backend_ops backend = fake_backend;
  backend.counters = &counters;
  backend.run = run;
  backend.poll = poll;
  wake_init(&loop_wake, NULL, NULL);
  fake_device_reset(true);
  fake_device.run_ns = RUN_NS;
  fake_counters_reset(&real_ns);
  fake_device.clock_ns = fake_counters.offset_ns;
  model = fake_model("threads", 64, 1, 0);
  struct audit_options audits = {.mode = AUDIT_CONTINUOUS,
                                 .backend = &backend,
                                 .device = &fake_device,
                                 .name = "fake:0",
                                 .interval_ns = 200 * NS_PER_US,
                                 .wait_ns = 5 * NS_PER_S,
                                 .band = 0.1,
                                 .cpu = 1};
  assert_int_equal(audit_open(&audits, &audit, NULL), STATUS_OK);
  assert_int_equal(audit_targets_fill(model, 0, "fake:0", NULL), STATUS_OK);
  struct executor_options options = {.backend = &backend,
                                     .device = &fake_device,
                                     .n_loops = 1,
                                     .loop_wakes = {&loop_wake},
                                     .queue_requests = N,
                                     .lanes = 2,
                                     .max_tokens = 64,
                                     .max_seqs = 64,
                                     .audit = audit};
  assert_int_equal(executor_open(&options, &executor, NULL), STATUS_OK);
  assert_int_equal(audit_start(audit, NULL), STATUS_OK);
  for (int i = 0; i < 2000 && audit_state(audit) != AUDIT_CALIBRATED; i++)
    usleep(5000);
  assert_int_equal(audit_state(audit), AUDIT_CALIBRATED);
  int outcomes[AUDIT_OUTCOMES] = {0}, n = 0;
  double read = 0;
  for (int round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < N; i++)
      submit(executor, i, i == 0 && round % 6 == 0);
    for (int reaped = 0; reaped < N;) {
      struct request *request = executor_reap(executor, 0);
      if (!request) {
        wake_wait(&loop_wake, clock_now_ns() + NS_PER_MS);
        continue;
      }
      reaped++;
      assert_int_equal(request->status, STATUS_OK);
      if (!request->audit) continue;
      outcomes[request->cost.audit]++;
      if (request->cost.audit == AUDIT_MEASURED) read += request->cost.read_measured, n++;
    }
  }
  executor_stop(executor);
  audit_stop(audit);
  executor_close(executor);
  audit_close(audit);
  assert_int_equal(atomic_load(&model->refs), 1);
  assert_true(outcomes[AUDIT_REFUSED] + outcomes[AUDIT_NONE] == 0);
  assert_true(n > 0); // a slow machine may lose some, by its clock
  assert_near(read / n, READ, 0.3 * READ);
  for (int mode = 0; mode < FUSION_MODES; mode++)
    free(model->audit[0][mode]);
  fake_model_free(model);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(threads_of_an_audit)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
