// sched/core on a clock of its own: what a request gets back, and that it never runs when it should
// not.
#include "harness/cmocka_all.h"

#include "sched/core.h"
#include "sched/pace.h"
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

static void a_batch_is_counted_once_and_whole(void **state) {
  (void)state;
  open_core(false, 8, 0);
  struct model_metrics *metrics = model->metrics[FUSION_ON] = calloc(1, sizeof *metrics);
  assert_non_null(metrics);
  add(0, CLOCK_NEVER);
  add(1, CLOCK_NEVER);
  step();
  const struct request_cost *cost = &requests[0].cost;
  assert_int_equal(metrics->batches, 1);
  assert_int_equal(metrics->batch_bytes, cost->batch_read_bytes + cost->batch_write_bytes);
  assert_int_equal(metrics->batch_bytes, 2 * (cost->read_bytes + cost->write_bytes));
  assert_int_equal(metrics->batch_flops, 8 * 50);
  assert_int_equal(metrics->batch_compute_ns, NS_PER_MS);
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

#define FAKE_COPIES_NS 300 // that fake_poll reports

// One batch of four tokens is known to take a millisecond.
static void learn_and_run_one(void) {
  add(0, CLOCK_NEVER);
  step();
  fake_device.now_ns += NS_PER_MS;
  step();
  assert_int_equal(finished[0], 1);
  add(1, CLOCK_NEVER);
  step();
  assert_int_equal(fake_device.n_runs, 2);
}

static void a_second_batch_gathers_company_while_one_runs(void **state) {
  (void)state;
  open_core(true, 8, 0);
  learn_and_run_one();
  add(2, CLOCK_NEVER);
  fake_device.now_ns += NS_PER_MS / 4;
  assert_true(step() > fake_device.now_ns);
  add(3, CLOCK_NEVER);
  step();
  assert_int_equal(fake_device.n_runs, 2); // a lane is free, and yet
  fake_device.now_ns += NS_PER_MS * 3 / 4 + FAKE_COPIES_NS - PACE_LEAD_NS;
  step();
  assert_int_equal(fake_device.n_runs, 3); // behind the first, before that has ended
  assert_int_equal(finished[1], 0);
  assert_int_equal(requests[2].cost.batch_requests, 2);
  fake_device.now_ns += 2 * NS_PER_MS;
  while (!core_idle(core))
    step();
  assert_int_equal(requests[3].status, STATUS_OK);
}

static void a_full_batch_does_not_wait_for_the_running_one(void **state) {
  (void)state;
  open_core(true, 2, 0);
  learn_and_run_one();
  add(2, CLOCK_NEVER);
  step();
  assert_int_equal(fake_device.n_runs, 2);
  add(3, CLOCK_NEVER);
  step();
  assert_int_equal(fake_device.n_runs, 3);
  fake_device.now_ns += NS_PER_MS;
  step();
}

static void a_small_batch_starts_beside_a_small_one(void **state) {
  (void)state;
  open_core(true, 8, 0);
  core_close(core);
  fake_device.caps.small_tokens = 8;
  struct core_options options = {.backend = &fake_backend,
                                 .device = &fake_device,
                                 .lanes = 3,
                                 .max_tokens = 64,
                                 .max_seqs = 64,
                                 .now = fake_now,
                                 .finish = on_finish};
  assert_int_equal(core_open(&options, &core, NULL), STATUS_OK);
  learn_and_run_one();
  add(2, CLOCK_NEVER);
  step();
  assert_int_equal(fake_device.n_runs, 3);
  add(3, CLOCK_NEVER); // with it they would be twelve tokens
  step();
  assert_int_equal(fake_device.n_runs, 3);
  fake_device.now_ns += NS_PER_MS;
  while (!core_idle(core)) {
    step();
    fake_device.now_ns += NS_PER_MS / 4;
  }
  assert_int_equal(fake_device.n_runs, 4);
}

static void waiting_for_company_never_costs_a_deadline(void **state) {
  (void)state;
  open_core(true, 8, 0);
  fake_device.run_ns = 10 * NS_PER_MS;
  add(0, CLOCK_NEVER);
  step();
  fake_device.now_ns += 10 * NS_PER_MS;
  step();
  fake_device.now_ns += 2 * SERVICE_BELIEF_NS; // or it would be given up: it is behind the first
  add(1, CLOCK_NEVER);
  step();
  add(2, fake_device.now_ns + 13 * NS_PER_MS +
             FAKE_COPIES_NS); // has to start 3 ms from now, or misses it
  step();
  assert_int_equal(fake_device.n_runs, 2);
  fake_device.now_ns += 3 * NS_PER_MS;
  step();
  assert_int_equal(fake_device.n_runs, 3);
  fake_device.now_ns += 10 * NS_PER_MS;
  while (!core_idle(core))
    step();
}

// Four tokens take a millisecond, and that is known.
static void what_cannot_be_in_time_any_more_leaves_the_queue(void **state) {
  (void)state;
  open_core(true, 1, 0);
  learn_and_run_one();
  add(2, fake_device.now_ns + 5 * NS_PER_MS);
  add(3, fake_device.now_ns + NS_PER_MS + NS_PER_MS / 2); // behind the one that runs: 2 ms
  step();
  assert_int_equal(finished[3], 1);
  assert_int_equal(requests[3].status, STATUS_DEADLINE_EXCEEDED);
  assert_non_null(strstr(requests[3].message_text, "never ran"));
  fake_device.now_ns += 4 * NS_PER_MS;
  while (!core_idle(core))
    step();
  assert_int_equal(requests[2].status, STATUS_OK);
  assert_int_equal(fake_device.n_runs, 3);
}

static void a_size_of_which_nothing_is_known_is_tried(void **state) {
  (void)state;
  open_core(false, 1, 0);
  add(0, fake_device.now_ns + NS_PER_MS / 2);
  step();
  assert_int_equal(requests[0].status, STATUS_OK); // late, as was not known before
  add(1, fake_device.now_ns + NS_PER_MS / 2);
  step();
  assert_int_equal(requests[1].status, STATUS_DEADLINE_EXCEEDED);
  fake_device.now_ns += SERVICE_BELIEF_NS + NS_PER_MS; // and then it is tried again
  add(2, fake_device.now_ns + NS_PER_MS / 2);
  step();
  assert_int_equal(requests[2].status, STATUS_OK);
  assert_int_equal(fake_device.n_runs, 2);
}

static void what_waits_and_what_runs_is_counted_until_it_ends(void **state) {
  (void)state;
  open_core(true, 1, 0);
  learn_and_run_one();
  const struct load *load = core_load(core);
  int64_t until_ns = atomic_load(&load->busy_until_ns);
  assert_true(until_ns >= fake_device.now_ns + NS_PER_MS);
  requests[2].model = model;
  requests[2].fusion = FUSION_ON;
  requests[2].n_tokens = 4;
  requests[2].deadline_ns = CLOCK_NEVER;
  requests[2].t_ns[STAGE_ADMITTED] = fake_device.now_ns;
  load_enter(core_load(core), &requests[2], &model->service[0][FUSION_ON]);
  add(2, CLOCK_NEVER);
  assert_true(load_wait_ns(load, fake_device.now_ns) >= 2 * NS_PER_MS);
  step(); // a full batch: handed to the other lane, behind the first
  assert_int_equal(atomic_load(&load->waiting_ns), 0);
  assert_true(atomic_load(&load->busy_until_ns) >= until_ns + NS_PER_MS);
  fake_device.now_ns += 4 * NS_PER_MS;
  while (!core_idle(core))
    step();
  assert_int_equal(load_wait_ns(load, 0), 0);
}

// The scheduler asks to be called without sleeping only around the time that a result is due.
static void a_long_batch_is_not_watched_from_its_start(void **state) {
  (void)state;
  open_core(true, 8, 0);
  learn_and_run_one();
  int64_t due_ns = fake_device.now_ns + NS_PER_MS + FAKE_COPIES_NS;
  assert_int_equal(step(), due_ns - PACE_WAKE_NS);
  fake_device.now_ns = due_ns - PACE_WAKE_NS;
  assert_true(step() <= fake_device.now_ns + PACE_AWAKE_NS);
  fake_device.now_ns += PACE_WAKE_NS;
  assert_int_equal(step(), CLOCK_NEVER);
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

static int n_modes(const struct model *of) {
  int n = 0;
  for (int mode = 0; mode < FUSION_MODES; mode++)
    n += of->fusion_available[mode];
  return n;
}

static enum status admit(const struct model *one, struct error *err) {
  return core_admit(core, NULL, one, (const struct model *const *)&model, one != model, err);
}

static void admission_runs_every_size_of_every_mode(void **state) {
  (void)state;
  open_core(false, 8, 0);
  assert_int_equal(admit(model, NULL), STATUS_OK);
  int n = n_modes(model);
  assert_int_equal(fake_device.n_prepared, n);
  assert_int_equal(fake_device.n_runs, n * 7);          // 1, 2, .. 64 tokens
  assert_int_equal(fake_device.n_copies_in, n * 7 * 2); // ids and bias; a mask is not copied
  assert_int_equal(n_order, 0);
  fake_device.run_status = STATUS_INTERNAL;
  struct error err;
  assert_int_equal(admit(model, &err), STATUS_INTERNAL);
  assert_non_null(strstr(err.message, "\"m\""));
}

static void every_lane_is_prepared_and_warmed(void **state) {
  (void)state;
  open_core(true, 8, 0);
  fake_device.run_ns = 0;
  assert_int_equal(admit(model, NULL), STATUS_OK);
  assert_int_equal(fake_device.n_prepared, 2 * n_modes(model));
  assert_int_equal(fake_device.n_runs, 2 * 7 * n_modes(model));
}

static void a_larger_model_gets_larger_lanes_and_the_others_move_there(void **state) {
  (void)state;
  open_core(true, 8, 0);
  fake_device.run_ns = 0;
  assert_int_equal(admit(model, NULL), STATUS_OK);
  int prepared = fake_device.n_prepared;
  struct model *large = fake_model("large", 128, 8, 0);
  assert_int_equal(admit(large, NULL), STATUS_OK);
  assert_int_equal(fake_device.n_lanes, 2); // the old ones are closed
  assert_int_equal(fake_device.n_prepared, prepared + 2 * n_modes(model) + 2 * n_modes(large));
  add(0, CLOCK_NEVER);
  while (!core_idle(core))
    step();
  assert_int_equal(requests[0].status, STATUS_OK);
  core_forget(core, NULL, large);
  fake_model_free(large);
}

static void lanes_stay_when_larger_ones_cannot_be_had(void **state) {
  (void)state;
  open_core(true, 8, 0);
  fake_device.run_ns = 0;
  assert_int_equal(admit(model, NULL), STATUS_OK);
  struct model *large = fake_model("large", 128, 8, 0);
  fake_device.fail_call = 1; // the first prepare on the new lanes
  struct error err;
  assert_int_equal(admit(large, &err), STATUS_RESOURCE_EXHAUSTED);
  assert_int_equal(fake_device.n_lanes, 2);
  add(0, CLOCK_NEVER);
  while (!core_idle(core))
    step();
  assert_int_equal(requests[0].status, STATUS_OK);
  core_forget(core, NULL, large);
  fake_model_free(large);
}

static void a_forgotten_model_leaves_no_trace(void **state) {
  (void)state;
  open_core(false, 8, 0);
  add(0, CLOCK_NEVER);
  while (!core_idle(core))
    step();
  core_forget(core, NULL, model);
  fake_model_free(model);
  model = fake_model("m", 64, 8, 0); // perhaps where the old one was
  add(1, CLOCK_NEVER);
  while (!core_idle(core))
    step();
  assert_int_equal(requests[1].status, STATUS_OK);
}

// The nth call to the device fails while a model is warmed and then serves three requests: loading
// says so, or every request has its one answer, and only an error that stays loses the device.
static void any_failing_call_is_answered_for(void **state) {
  (void)state;
  for (int sticky = 0; sticky <= 1; sticky++) {
    bool fired = true;
    for (int nth = 1; fired; nth++) {
      open_core(true, 1, 0);
      fake_device.run_ns = 0;
      fake_device.fail_call = nth;
      fake_device.fail_sticky = sticky != 0;
      struct error err;
      enum status status = admit(model, &err);
      int n_ok = 0;
      for (int i = 0; i < 3 && status == STATUS_OK; i++)
        add(i, CLOCK_NEVER);
      for (int i = 0; i < 20; i++)
        step();
      fired = fake_device.fail_call == 0;
      assert_true(core_idle(core));
      for (int i = 0; i < 3 && status == STATUS_OK; i++) {
        assert_int_equal(finished[i], 1);
        n_ok += requests[i].status == STATUS_OK;
        if (requests[i].status != STATUS_OK)
          assert_int_equal(requests[i].status,
                           core_lost(core) ? STATUS_UNAVAILABLE : STATUS_INTERNAL);
      }
      if (!fired) assert_int_equal(n_ok, 3);
      if (fired && status == STATUS_OK) assert_true(n_ok < 3);
      if (status != STATUS_OK) assert_int_equal(n_order, 0);
      close_core(NULL);
    }
  }
  open_core(true, 1, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(a_batch_costs_what_it_costs, close_core),
      cmocka_unit_test_teardown(a_batch_is_counted_once_and_whole, close_core),
      cmocka_unit_test_teardown(no_step_no_device, close_core),
      cmocka_unit_test_teardown(expired_and_cancelled_work_never_runs, close_core),
      cmocka_unit_test_teardown(a_cancelled_request_does_not_fill_a_batch, close_core),
      cmocka_unit_test_teardown(sweeping_finds_the_dead_among_the_waiting, close_core),
      cmocka_unit_test_teardown(nearer_deadlines_run_first, close_core),
      cmocka_unit_test_teardown(fusion_modes_do_not_share_a_batch, close_core),
      cmocka_unit_test_teardown(a_failed_run_fails_its_batch_only, close_core),
      cmocka_unit_test_teardown(a_lost_device_fails_all_unavailable, close_core),
      cmocka_unit_test_teardown(an_asynchronous_device_has_two_batches_in_flight, close_core),
      cmocka_unit_test_teardown(a_second_batch_gathers_company_while_one_runs, close_core),
      cmocka_unit_test_teardown(a_full_batch_does_not_wait_for_the_running_one, close_core),
      cmocka_unit_test_teardown(a_small_batch_starts_beside_a_small_one, close_core),
      cmocka_unit_test_teardown(waiting_for_company_never_costs_a_deadline, close_core),
      cmocka_unit_test_teardown(what_cannot_be_in_time_any_more_leaves_the_queue, close_core),
      cmocka_unit_test_teardown(a_size_of_which_nothing_is_known_is_tried, close_core),
      cmocka_unit_test_teardown(what_waits_and_what_runs_is_counted_until_it_ends, close_core),
      cmocka_unit_test_teardown(a_long_batch_is_not_watched_from_its_start, close_core),
      cmocka_unit_test_teardown(every_lane_is_prepared_and_warmed, close_core),
      cmocka_unit_test_teardown(any_failing_call_is_answered_for, close_core),
      cmocka_unit_test_teardown(hurry_ends_waiting, close_core),
      cmocka_unit_test_teardown(admission_runs_every_size_of_every_mode, close_core),
      cmocka_unit_test_teardown(a_larger_model_gets_larger_lanes_and_the_others_move_there,
                                close_core),
      cmocka_unit_test_teardown(lanes_stay_when_larger_ones_cannot_be_had, close_core),
      cmocka_unit_test_teardown(a_forgotten_model_leaves_no_trace, close_core),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
