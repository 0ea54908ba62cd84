// sched/core on a clock of its own: what a request gets back, and that it never runs when it should
// not.
#include "harness/cmocka_all.h"

#include "sched/core.h"
#include "sim/fake.h"

#define N 16
static struct model *model;
static struct core *core;
static struct request requests[N];
static int64_t ids[8], tokens[N][8];
static int finished[N];
static int order[N], n_order;

static int64_t fake_now(void *arg) {
  (void)arg;
  return fake_device.now_ns;
}

static void on_finish(void *arg, struct request *request) {
  (void)arg;
  int i = (int)(request - requests);
  finished[i]++;
  order[n_order++] = i;
}

static void open_core(bool async, int32_t max_requests, int64_t delay_ns) {
  fake_device_reset(async);
  model = fake_model("m", 64, max_requests, delay_ns);
  struct core_options options = {.backend = &fake_backend,
                                 .device = &fake_device,
                                 .lanes = 2,
                                 .max_tokens = 64,
                                 .max_seqs = 64,
                                 .now = fake_now,
                                 .finish = on_finish};
  assert_int_equal(core_open(&options, &core, NULL), STATUS_OK);
  memset(requests, 0, sizeof requests);
  memset(finished, 0, sizeof finished);
  n_order = 0;
}

static int close_core(void **state) {
  (void)state;
  core_close(core);
  fake_model_free(model);
  assert_int_equal(fake_device.n_lanes, 0);
  return 0;
}

static struct request *add_fusion(int i, int64_t deadline_ns, enum fusion_mode fusion) {
  struct request *request = &requests[i];
  request->model = model;
  request->fusion = fusion;
  request->outputs = 1u << FAKE_TOKENS;
  request->n_outputs = 1;
  request->outputs_data[0] = (uint8_t *)tokens[i];
  request->outputs_bytes[0] = 4 * 8;
  request->n_seqs = 1;
  request->n_tokens = request->padded_seqlen = 4;
  request->sum_sq = 16;
  request->dense = true;
  request->inputs[FAKE_IDS] = (struct slice){(uint8_t *)ids, 32};
  request->deadline_ns = deadline_ns;
  request->t_ns[STAGE_ADMITTED] = fake_device.now_ns;
  core_add(core, request);
  return request;
}

static struct request *add(int i, int64_t deadline_ns) {
  return add_fusion(i, deadline_ns, FUSION_ON);
}
static int64_t step(void) {
  return core_step(core, fake_device.now_ns);
}

static void a_batch_costs_what_it_costs(void **state) {
  (void)state;
  open_core(false, 8, 0);
  add(0, CLOCK_NEVER);
  add(1, CLOCK_NEVER);
  fake_device.now_ns += 5000;
  assert_int_equal(step(), CLOCK_NEVER);
  assert_int_equal(finished[0] + finished[1], 2);
  const struct request_cost *cost = &requests[0].cost;
  assert_int_equal(requests[0].status, STATUS_OK);
  assert_int_equal(cost->queue_ns, 5000);
  assert_int_equal(cost->copy_in_ns, 100);
  assert_int_equal(cost->compute_ns, NS_PER_MS);
  assert_int_equal(cost->copy_out_ns, 200);
  assert_int_equal(cost->batch_requests, 2);
  assert_int_equal(cost->batch_tokens, 8);
  assert_int_equal(cost->close, CLOSE_IDLE);
  assert_int_equal(cost->kernels, 1); // the step of `sums` was not asked for
  // Own rows, and half of the fixed 1000 bytes: 500 + 4 * 8 + 16 read, 4 * 8 written; unfused twice
  // that.
  assert_true(cost->read_bytes == 548 && cost->write_bytes == 32 && cost->unfused_bytes == 1160);
  assert_true(cost->batch_read_bytes == 1000 + 64 + 32 && cost->batch_write_bytes == 64);
}

static void no_step_no_device(void **state) {
  (void)state;
  open_core(false, 8, 0);
  struct request *request = add(0, CLOCK_NEVER);
  request->outputs = 1u << FAKE_SAME;
  request->output_order[0] = FAKE_SAME;
  request->outputs_data[0] = (uint8_t *)ids; // borrowed
  step();
  assert_int_equal(finished[0], 1);
  assert_int_equal(request->status, STATUS_OK);
  assert_int_equal(fake_device.n_runs + fake_device.n_copies_in, 0);
  assert_int_equal(request->cost.kernels, 0);
  assert_true(request->cost.read_bytes == 0 && request->cost.unfused_bytes == 0);
}

static void expired_and_cancelled_work_never_runs(void **state) {
  (void)state;
  open_core(false, 8, 0);
  add(0, fake_device.now_ns + 10);
  atomic_store(&add(1, CLOCK_NEVER)->cancelled, true);
  fake_device.now_ns += 10;
  step();
  assert_int_equal(requests[0].status, STATUS_DEADLINE_EXCEEDED);
  assert_int_equal(requests[1].status, STATUS_CANCELLED);
  assert_int_equal(fake_device.n_runs, 0);
  assert_int_equal(finished[0] + finished[1], 2);
}

static void a_cancelled_request_does_not_fill_a_batch(void **state) {
  (void)state;
  open_core(false, 2, 0);
  for (int i = 0; i < 3; i++)
    add(i, CLOCK_NEVER);
  atomic_store(&requests[0].cancelled, true);
  step();
  assert_int_equal(requests[0].status, STATUS_CANCELLED);
  assert_int_equal(requests[1].cost.batch_requests, 2);
  assert_int_equal(requests[1].cost.close, CLOSE_FULL);
}

static void sweeping_finds_the_dead_among_the_waiting(void **state) {
  (void)state;
  open_core(false, 8, NS_PER_S);
  for (int i = 0; i < 3; i++)
    add(i, CLOCK_NEVER);
  assert_true(step() > fake_device.now_ns);
  atomic_store(&requests[1].cancelled, true);
  core_sweep(core, fake_device.now_ns);
  assert_int_equal(finished[1], 1);
  assert_int_equal(requests[1].status, STATUS_CANCELLED);
  fake_device.now_ns += NS_PER_S;
  step();
  assert_int_equal(requests[0].cost.batch_requests, 2);
  assert_int_equal(requests[0].cost.close, CLOSE_DELAY);
}

static void nearer_deadlines_run_first(void **state) {
  (void)state;
  open_core(false, 1, 0);
  add(0, CLOCK_NEVER);
  add(1, fake_device.now_ns + 50 * NS_PER_MS);
  add(2, fake_device.now_ns + 20 * NS_PER_MS);
  while (!core_idle(core))
    step();
  const int expected[] = {2, 1, 0};
  assert_memory_equal(order, expected, sizeof expected);
}

static void fusion_modes_do_not_share_a_batch(void **state) {
  (void)state;
  open_core(false, 8, 0);
  add(0, CLOCK_NEVER);
  add_fusion(1, CLOCK_NEVER, FUSION_ON);
  add_fusion(2, CLOCK_NEVER, FUSION_OFF);
  while (!core_idle(core))
    step();
  assert_int_equal(fake_device.n_runs, 2);
  assert_int_equal(requests[0].cost.batch_requests, 2);
  assert_int_equal(requests[2].cost.batch_requests, 1);
  assert_true(requests[2].cost.unfused_bytes ==
              requests[2].cost.read_bytes + requests[2].cost.write_bytes);
}

static void a_failed_run_fails_its_batch_only(void **state) {
  (void)state;
  open_core(false, 8, 0);
  add(0, CLOCK_NEVER);
  fake_device.run_status = STATUS_INTERNAL;
  step();
  assert_int_equal(requests[0].status, STATUS_INTERNAL);
  assert_false(core_lost(core));
  fake_device.run_status = STATUS_OK;
  add(1, CLOCK_NEVER);
  step();
  assert_int_equal(requests[1].status, STATUS_OK);
}

static void a_lost_device_fails_all_unavailable(void **state) {
  (void)state;
  open_core(false, 1, 0);
  add(0, CLOCK_NEVER);
  add(1, CLOCK_NEVER);
  fake_device.lost = true;
  step();
  assert_true(core_lost(core));
  assert_int_equal(requests[0].status, STATUS_UNAVAILABLE);
  assert_int_equal(requests[1].status, STATUS_UNAVAILABLE); // though it only waited
  add(2, CLOCK_NEVER);
  assert_int_equal(requests[2].status, STATUS_UNAVAILABLE);
  assert_int_equal(fake_device.n_runs, 1);
}

static void an_asynchronous_device_has_two_batches_in_flight(void **state) {
  (void)state;
  open_core(true, 1, 0);
  for (int i = 0; i < 3; i++)
    add(i, CLOCK_NEVER);
  step();
  step();
  step();
  assert_int_equal(fake_device.n_runs, 2);
  assert_int_equal(n_order, 0);
  assert_true(step() > fake_device.now_ns);
  fake_device.now_ns += NS_PER_MS;
  while (!core_idle(core)) {
    step();
    fake_device.now_ns += NS_PER_MS / 4;
  }
  assert_int_equal(n_order, 3);
  assert_int_equal(fake_device.n_runs, 3);
}

static void hurry_ends_waiting(void **state) {
  (void)state;
  open_core(false, 8, NS_PER_S);
  add(0, CLOCK_NEVER);
  step();
  assert_int_equal(finished[0], 0);
  core_hurry(core);
  step();
  assert_int_equal(finished[0], 1);
}

static void warming_runs_every_output_once(void **state) {
  (void)state;
  open_core(false, 8, 0);
  assert_int_equal(core_warm(core, model, FUSION_OFF, NULL), STATUS_OK);
  assert_int_equal(fake_device.n_runs, 1);
  assert_int_equal(fake_device.n_copies_in, 2); // ids and bias; a mask is not copied
  assert_int_equal(n_order, 0);
  fake_device.run_status = STATUS_INTERNAL;
  struct error err;
  assert_int_equal(core_warm(core, model, FUSION_ON, &err), STATUS_INTERNAL);
  assert_non_null(strstr(err.message, "\"m\""));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(a_batch_costs_what_it_costs, close_core),
      cmocka_unit_test_teardown(no_step_no_device, close_core),
      cmocka_unit_test_teardown(expired_and_cancelled_work_never_runs, close_core),
      cmocka_unit_test_teardown(a_cancelled_request_does_not_fill_a_batch, close_core),
      cmocka_unit_test_teardown(sweeping_finds_the_dead_among_the_waiting, close_core),
      cmocka_unit_test_teardown(nearer_deadlines_run_first, close_core),
      cmocka_unit_test_teardown(fusion_modes_do_not_share_a_batch, close_core),
      cmocka_unit_test_teardown(a_failed_run_fails_its_batch_only, close_core),
      cmocka_unit_test_teardown(a_lost_device_fails_all_unavailable, close_core),
      cmocka_unit_test_teardown(an_asynchronous_device_has_two_batches_in_flight, close_core),
      cmocka_unit_test_teardown(hurry_ends_waiting, close_core),
      cmocka_unit_test_teardown(warming_runs_every_output_once, close_core),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
