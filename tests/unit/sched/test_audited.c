// The scheduler under a live audit, on a clock of its own: requests that want their bytes get them,
// or the reason why not, in time, exactly once.
#include "harness/cmocka_all.h"

#include "graph/cost.h"
#include "sched/core_parts.h"
#include "sim/fake.h"
#include "sim/fake_counters.h"

#define N 16
#define READ 4e6
#define WRITE 1e6
#define WAIT_NS (300 * NS_PER_MS)

static struct backend_ops backend;
static struct model *model;
static struct core *core;
static struct audit *audit;
static struct request requests[N];
static int64_t ids[8], tokens[N][8];
static int finished[N];
static bool decodes; // the decoder is called

static int64_t fake_now(void *arg) {
  (void)arg;
  return fake_device.now_ns;
}

static void on_finish(void *arg, struct request *request) {
  (void)arg;
  finished[request - requests]++;
}

static enum status run_and_move(struct lane *lane, const struct bound_plan *bound,
                                const struct batch_geometry *g, uint8_t outputs) {
  enum status status = fake_run(lane, bound, g, outputs);
  if (status == STATUS_OK)
    fake_traffic_add(fake_device_ns() + 100, fake_device_ns() + fake_device.run_ns - 200, READ,
                     WRITE);
  return status;
}

static void open_rig(enum status counters) {
  fake_device_reset(true);
  fake_counters_reset(&fake_device.now_ns);
  fake_device.clock_ns = fake_counters.offset_ns;
  fake_counters.open_status = counters;
  backend = fake_backend;
  backend.run = run_and_move;
  backend.counters = &fake_counter_ops;
  model = fake_model("audited", 64, 1, 0);
  decodes = true;
  struct audit_options audits = {.mode = AUDIT_CONTINUOUS,
                                 .backend = &backend,
                                 .device = &fake_device,
                                 .name = "fake:0",
                                 .interval_ns = 200 * NS_PER_US,
                                 .wait_ns = WAIT_NS,
                                 .band = 0.1,
                                 .cpu = 1};
  assert_int_equal(audit_open(&audits, &audit, NULL), STATUS_OK);
  assert_int_equal(audit_targets_fill(model, 0, "fake:0", NULL), STATUS_OK);
  struct core_options options = {.backend = &backend,
                                 .device = &fake_device,
                                 .lanes = 2,
                                 .max_tokens = 64,
                                 .max_seqs = 64,
                                 .audit = audit,
                                 .now = fake_now,
                                 .finish = on_finish};
  assert_int_equal(core_open(&options, &core, NULL), STATUS_OK);
  memset(requests, 0, sizeof requests);
  memset(finished, 0, sizeof finished);
}

static int close_rig(void **state) {
  (void)state;
  decoder_end(&audit->decoder);
  core_close(core);
  audit_close(audit);
  assert_int_equal(fake_counters.n_open, 0);
  assert_int_equal(atomic_load(&model->refs), 1); // nobody holds it any more
  for (int mode = 0; mode < FUSION_MODES; mode++)
    free(model->audit[0][mode]);
  fake_model_free(model);
  return 0;
}

static struct request *add(int i, bool wants) {
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
  request->t_ns[STAGE_ADMITTED] = fake_device.now_ns;
  core_add(core, request);
  return request;
}

// Time passes, in steps of 50 us; both threads' work is done by this one.
static void pass(int64_t ns) {
  for (int64_t end_ns = fake_device.now_ns + ns; fake_device.now_ns < end_ns;
       fake_device.now_ns += 50 * NS_PER_US) {
    if (decodes) (void)decoder_step(&audit->decoder, fake_device.now_ns);
    (void)core_step(core, fake_device.now_ns);
  }
}

static void calibrate(void) {
  pass(300 * NS_PER_MS);
  assert_int_equal(audit_state(audit), AUDIT_CALIBRATED);
}

static void a_request_gets_what_its_batch_moved(void **state) {
  (void)state;
  open_rig(STATUS_OK);
  calibrate();
  struct request *wants = add(0, true), *other = add(1, false);
  pass(4 * NS_PER_MS);
  assert_int_equal(finished[1], 1); // nobody else waits
  assert_int_equal(finished[0], 0);
  assert_false(core_idle(core));
  int64_t done_ns = wants->t_ns[STAGE_DONE];
  pass(100 * NS_PER_MS);
  assert_int_equal(finished[0], 1);
  assert_int_equal(wants->status, STATUS_OK);
  assert_int_equal(wants->cost.audit, AUDIT_MEASURED);
  assert_int_equal(other->cost.audit, AUDIT_NONE);
  double read = wants->cost.read_measured + wants->cost.write_measured;
  assert_true(read > 0);
  struct batch_size size = {4, 1, 16};
  const struct plan *plan = model->plans[FUSION_ON];
  struct cost cost;
  assert_int_equal(plan_cost(plan, &plan->rates, &size, wants->outputs, NULL, &cost), STATUS_OK);
  assert_near(wants->cost.read_expected, cost.read.expected, 1e-9);
  assert_near(wants->cost.write_expected, cost.write.expected, 1e-9);
  assert_int_equal(wants->t_ns[STAGE_DONE], done_ns); // the wait is no time of the service
  assert_int_equal(tokens[0][0], 2 * ids[0]);
  assert_true(core_idle(core));
}

static void alone_it_gets_exactly_its_own(void **state) {
  (void)state;
  open_rig(STATUS_OK);
  calibrate();
  for (int i = 0; i < 8; i++) {
    struct request *request = add(i, true);
    pass(60 * NS_PER_MS + i * 130 * NS_PER_US);
    assert_int_equal(finished[i], 1);
    assert_int_equal(request->cost.audit, AUDIT_MEASURED);
    assert_near(request->cost.read_measured, READ, READ * 1e-6);
    assert_near(request->cost.write_measured, WRITE, WRITE * 1e-6);
  }
}

static void a_copy_has_the_device_for_itself(void **state) {
  (void)state;
  open_rig(STATUS_OK);
  for (int i = 0; i < 4; i++)
    add(i, false);
  (void)core_step(core, fake_device.now_ns); // two run before anybody asked for a copy
  (void)core_step(core, fake_device.now_ns);
  (void)decoder_step(&audit->decoder, fake_device.now_ns);
  assert_int_equal(atomic_load(&audit->exchange.copy_state), COPY_WANTED);
  const int64_t quiet_ns =
      exchange_quiet_ns(&audit->exchange); // of the first copy: a later one is shorter
  int64_t copied_ns = 0;
  int runs = fake_device.n_runs;
  assert_int_equal(runs, 2);
  while (fake_counters.n_copies == 0) {
    pass(50 * NS_PER_US);
    assert_int_equal(fake_device.n_runs, runs);
  }
  assert_int_equal(finished[0] + finished[1], 2);
  copied_ns = fake_device.now_ns;
  while (fake_device.n_runs == runs)
    pass(50 * NS_PER_US);
  // Twice what two clocks may be apart and a sample: of the copy, and of what comes behind it.
  assert_true(fake_device.now_ns - copied_ns >= FAKE_COPY_NS + quiet_ns);
  assert_true(fake_device.now_ns - copied_ns < FAKE_COPY_NS + quiet_ns + NS_PER_MS);
  pass(300 * NS_PER_MS);
  assert_int_equal(audit_state(audit), AUDIT_CALIBRATED);
  assert_int_equal(finished[2] + finished[3], 2);
}

static void the_wait_has_an_end(void **state) {
  (void)state;
  open_rig(STATUS_OK);
  calibrate();
  decodes = false;
  struct request *request = add(0, true);
  pass(2 * NS_PER_MS);
  int64_t done_ns = request->t_ns[STAGE_DONE];
  pass(WAIT_NS - 4 * NS_PER_MS);
  assert_int_equal(finished[0], 0);
  pass(4 * NS_PER_MS);
  assert_int_equal(finished[0], 1);
  assert_int_equal(request->status, STATUS_OK);
  assert_int_equal(request->cost.audit, AUDIT_LATE);
  assert_true(request->t_ns[STAGE_DONE] == done_ns);
  decodes = true; // a verdict that nobody waits for any more
  pass(300 * NS_PER_MS);
  assert_int_equal(finished[0], 1);
}

static void the_deadline_is_kept(void **state) {
  (void)state;
  open_rig(STATUS_OK);
  calibrate();
  decodes = false;
  struct request *request = add(0, true), *late = add(1, true);
  request->deadline_ns = fake_device.now_ns + 50 * NS_PER_MS;
  late->deadline_ns = fake_device.now_ns + 2 * NS_PER_MS; // no time for any wait
  pass(2 * NS_PER_MS);
  assert_int_equal(finished[1], 1);
  assert_int_equal(late->cost.audit, AUDIT_LATE);
  pass(45 * NS_PER_MS);
  assert_int_equal(finished[0], 0);
  pass(2 * NS_PER_MS);
  assert_int_equal(finished[0], 1);
  assert_true(fake_device.now_ns < request->deadline_ns);
  assert_int_equal(request->status, STATUS_OK);
  assert_int_equal(request->cost.audit, AUDIT_LATE);
}

static void who_cancels_does_not_wait(void **state) {
  (void)state;
  open_rig(STATUS_OK);
  calibrate();
  decodes = false;
  struct request *gone = add(0, true), *stays = add(1, true);
  pass(4 * NS_PER_MS);
  assert_int_equal(finished[0] + finished[1], 0);
  atomic_store(&gone->cancelled, true);
  core_sweep(core, fake_device.now_ns);
  assert_int_equal(finished[0], 1);
  assert_int_equal(gone->status, STATUS_CANCELLED);
  assert_int_equal(finished[1], 0);
  decodes = true;
  pass(200 * NS_PER_MS);
  assert_int_equal(finished[0], 1);
  assert_int_equal(finished[1], 1);
  assert_int_equal(stays->cost.audit, AUDIT_MEASURED);
}

static void a_drain_does_not_wait(void **state) {
  (void)state;
  open_rig(STATUS_OK);
  calibrate();
  decodes = false;
  struct request *request = add(0, true);
  pass(2 * NS_PER_MS);
  assert_int_equal(finished[0], 0);
  assert_false(core_idle(core));
  exchange_want_copy(&audit->exchange); // nor for a copy
  core_hurry(core);
  pass(50 * NS_PER_US);
  assert_int_equal(finished[0], 1);
  assert_int_equal(request->status, STATUS_OK);
  assert_int_equal(request->cost.audit, AUDIT_LATE);
  assert_true(core_idle(core));
  add(1, false);
  pass(2 * NS_PER_MS);
  assert_int_equal(finished[1], 1);
}

static void a_copy_that_runs_is_waited_for(void **state) {
  (void)state;
  open_rig(STATUS_OK);
  while (fake_counters.n_copies == 0)
    pass(50 * NS_PER_US);
  core_hurry(core);
  assert_false(core_idle(core));
  pass(2 * NS_PER_MS);
  assert_true(core_idle(core));
}

static void a_lost_device_answers_who_waits(void **state) {
  (void)state;
  open_rig(STATUS_OK);
  calibrate();
  decodes = false;
  struct request *waits = add(0, true);
  pass(2 * NS_PER_MS);
  fake_device.lost = true;
  struct request *fails = add(1, true);
  pass(2 * NS_PER_MS);
  assert_int_equal(finished[0] + finished[1], 2);
  assert_int_equal(waits->status, STATUS_OK); // its outputs were complete before
  assert_int_equal(fails->status, STATUS_UNAVAILABLE);
}

static void a_batch_that_fails_is_given_back(void **state) {
  (void)state;
  open_rig(STATUS_OK);
  calibrate();
  fake_device.run_status = STATUS_INTERNAL;
  struct request *fails = add(0, true);
  pass(2 * NS_PER_MS);
  assert_int_equal(fails->status, STATUS_INTERNAL);
  fake_device.run_status = STATUS_OK;
  struct request *runs = add(1, true);
  pass(100 * NS_PER_MS);
  assert_int_equal(runs->cost.audit, AUDIT_MEASURED);
}

static void why_there_is_none_is_said_at_once(void **state) {
  (void)state;
  open_rig(STATUS_OK);
  decodes = false; // never calibrated
  struct request *early = add(0, true);
  pass(2 * NS_PER_MS);
  assert_int_equal(finished[0], 1);
  assert_int_equal(early->cost.audit, AUDIT_UNCALIBRATED);
  struct request *nothing = add(1, true);
  nothing->outputs = 1u << FAKE_SAME; // needs no step
  nothing->output_order[0] = FAKE_SAME;
  nothing->outputs_data[0] = (uint8_t *)ids;
  pass(2 * NS_PER_MS);
  assert_int_equal(finished[1], 1);
  assert_int_equal(nothing->cost.audit, AUDIT_NONE);
}

static void refused_counters(void **state) {
  (void)state;
  open_rig(STATUS_PERMISSION_DENIED);
  struct request *request = add(0, true);
  pass(2 * NS_PER_MS);
  assert_int_equal(finished[0], 1);
  assert_int_equal(request->cost.audit, AUDIT_REFUSED);
  assert_int_equal(audit->exchange.n_free, AUDIT_BATCHES); // nothing was announced
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(a_request_gets_what_its_batch_moved, close_rig),
      cmocka_unit_test_teardown(alone_it_gets_exactly_its_own, close_rig),
      cmocka_unit_test_teardown(a_copy_has_the_device_for_itself, close_rig),
      cmocka_unit_test_teardown(the_wait_has_an_end, close_rig),
      cmocka_unit_test_teardown(the_deadline_is_kept, close_rig),
      cmocka_unit_test_teardown(who_cancels_does_not_wait, close_rig),
      cmocka_unit_test_teardown(a_drain_does_not_wait, close_rig),
      cmocka_unit_test_teardown(a_copy_that_runs_is_waited_for, close_rig),
      cmocka_unit_test_teardown(a_lost_device_answers_who_waits, close_rig),
      cmocka_unit_test_teardown(a_batch_that_fails_is_given_back, close_rig),
      cmocka_unit_test_teardown(why_there_is_none_is_said_at_once, close_rig),
      cmocka_unit_test_teardown(refused_counters, close_rig),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
