// Executors with their threads: a device that is lost tells once, fails what it has, and leaves the
// other device's executor alone.
#include "harness/cmocka_all.h"

#include "sched/executor.h"
#include "sim/fake.h"

#include <pthread.h>
#include <sched.h>

#define N 8

static struct model *model;
static struct device devices[2];
static struct executor *executors[2];
static struct wake loop_wake;
static struct request requests[N];
static int64_t ids[4], tokens[N][4];
static _Atomic int n_lost;

static void on_lost(void *arg) {
  atomic_fetch_add((_Atomic int *)arg, 1);
}

static void device_make(struct device *device) {
  *device = (struct device){.now_ns = NS_PER_S, .max_rows = FAKE_MAX_ROWS};
  device->caps.name = "fake";
}

static int set_up(void **state) {
  (void)state;
  model = fake_model("m", 64, 8, 0);
  wake_init(&loop_wake, NULL, NULL);
  atomic_store(&n_lost, 0);
  memset(requests, 0, sizeof requests);
  for (int d = 0; d < 2; d++) {
    device_make(&devices[d]);
    struct executor_options options = {.backend = &fake_backend,
                                       .device = &devices[d],
                                       .device_index = d,
                                       .n_loops = 1,
                                       .loop_wakes = {&loop_wake},
                                       .queue_requests = N,
                                       .lanes = 2,
                                       .max_tokens = 64,
                                       .max_seqs = 64,
                                       .models = &model,
                                       .n_models = 1,
                                       .on_lost = on_lost,
                                       .lost_arg = &n_lost};
    assert_int_equal(executor_open(&options, &executors[d], NULL), STATUS_OK);
  }
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  for (int d = 0; d < 2; d++)
    executor_close(executors[d]);
  fake_model_free(model);
  return 0;
}

static bool submit(int d, int i) {
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
                              .deadline_ns = CLOCK_NEVER};
  request->inputs[FAKE_IDS] = (struct slice){(uint8_t *)ids, sizeof ids};
  request->outputs_data[0] = (uint8_t *)tokens[i];
  request->outputs_bytes[0] = sizeof tokens[i];
  request->t_ns[STAGE_ADMITTED] = clock_now_ns();
  return executor_submit(executors[d], 0, request);
}

static enum status answer(int d) {
  struct request *request;
  while (!(request = executor_reap(executors[d], 0)))
    sched_yield();
  return request->status;
}

static void every_model_and_mode_is_warmed(void **state) {
  (void)state;
  for (int d = 0; d < 2; d++) // one lane, as the device is not asynchronous; 1, 2, .. 64 tokens
    assert_int_equal(devices[d].n_runs, FUSION_MODES * 7);
}

static void requests_come_back(void **state) {
  (void)state;
  for (int i = 0; i < N; i++)
    assert_true(submit(i % 2, i));
  for (int i = 0; i < N; i++)
    assert_int_equal(answer(i % 2), STATUS_OK);
  for (int d = 0; d < 2; d++)
    assert_int_equal(executor_queued(executors[d]), 0);
}

static void a_full_queue_refuses(void **state) {
  (void)state;
  for (int i = 0; i < N; i++)
    assert_true(submit(0, i));
  struct request more = {.model = model};
  assert_false(executor_submit(executors[0], 0, &more)); // none was reaped yet
  for (int i = 0; i < N; i++)
    assert_int_equal(answer(0), STATUS_OK);
}

// Time is the test's: only what the executor does is real.
static int64_t stuck_at(int d, int64_t now_ns) {
  return executor_stuck_ns(executors[d], now_ns);
}

static void a_device_that_hangs_is_seen(void **state) {
  (void)state;
  int64_t now_ns = clock_now_ns();
  assert_int_equal(stuck_at(0, now_ns), 0);
  assert_int_equal(stuck_at(0, now_ns += NS_PER_S), 0); // nothing to do
  atomic_store(&devices[0].hangs, true);
  assert_true(submit(0, 0));
  assert_true(submit(0, 1));
  assert_int_equal(stuck_at(0, now_ns), 0);
  assert_int_equal(stuck_at(0, now_ns += NS_PER_S), NS_PER_S);
  assert_int_equal(stuck_at(0, now_ns += NS_PER_S), 2 * NS_PER_S);
  assert_int_equal(stuck_at(1, now_ns), 0); // the other one does not
  assert_false(executor_try_stop(executors[0], 0));
  atomic_store(&devices[0].hangs, false);
  for (int i = 0; i < 2; i++)
    assert_int_equal(answer(0), STATUS_OK);
  assert_int_equal(stuck_at(0, now_ns += NS_PER_S), 0);
  assert_true(executor_try_stop(executors[0], 60));
}

static void a_batch_that_never_ends_is_seen_beside_others_that_do(void **state) {
  (void)state;
  struct device device;
  struct executor *executor;
  device_make(&device);
  device.caps.async = true;
  struct executor_options options = {.backend = &fake_backend,
                                     .device = &device,
                                     .n_loops = 1,
                                     .loop_wakes = {&loop_wake},
                                     .queue_requests = N,
                                     .lanes = 2,
                                     .max_tokens = 64,
                                     .max_seqs = 64,
                                     .models = &model,
                                     .n_models = 1};
  assert_int_equal(executor_open(&options, &executor, NULL), STATUS_OK);
  struct executor *first = executors[0];
  executors[0] = executor;
  int64_t began_ns = clock_now_ns();
  device.hanging_run = device.n_runs + 1;
  atomic_store(&device.hangs, true);
  assert_true(submit(0, 0));
  while (!atomic_load(&device.hung))
    sched_yield();
  assert_true(submit(0, 1));
  assert_int_equal(answer(0), STATUS_OK); // one of them, on the other lane
  int64_t ended_ns = clock_now_ns();
  assert_in_range(executor_stuck_ns(executor, ended_ns), 1, ended_ns - began_ns);
  assert_in_range(executor_stuck_ns(executor, ended_ns + NS_PER_S), NS_PER_S + 1,
                  NS_PER_S + ended_ns - began_ns);
  atomic_store(&device.hangs, false);
  assert_int_equal(answer(0), STATUS_OK);
  executors[0] = first;
  executor_close(executor);
}

static void a_lost_device_leaves_the_other_one_serving(void **state) {
  (void)state;
  devices[0].lost = true;
  for (int i = 0; i < 4; i++)
    assert_true(submit(0, i));
  for (int i = 0; i < 4; i++)
    assert_int_equal(answer(0), STATUS_UNAVAILABLE);
  while (!executor_lost(executors[0]) || atomic_load(&n_lost) == 0)
    sched_yield();
  assert_true(submit(0, 4)); // as a request that was on its way
  assert_int_equal(answer(0), STATUS_UNAVAILABLE);
  assert_int_equal(atomic_load(&n_lost), 1);
  assert_false(executor_lost(executors[1]));
  assert_true(submit(1, 5));
  assert_int_equal(answer(1), STATUS_OK);
}

static void *come_and_go(void *arg) {
  _Atomic bool *done = arg;
  for (int round = 0; round < 8; round++) {
    struct model *other = fake_model("other", 32 << round % 4, 8, 0); // some need larger lanes
    struct error err;
    if (executor_admit(executors[0], other, (const struct model *const *)&model, 1, &err) !=
        STATUS_OK)
      abort();
    executor_forget(executors[0], other);
    fake_model_free(other);
  }
  atomic_store(done, true);
  return NULL;
}

static void models_come_and_go_while_others_are_served(void **state) {
  (void)state;
  _Atomic bool done = false;
  pthread_t loader;
  assert_int_equal(pthread_create(&loader, NULL, come_and_go, &done), 0);
  int n = 0;
  for (; n < 50 || !atomic_load(&done); n++) {
    for (int i = 0; i < N; i++)
      assert_true(submit(0, i));
    for (int i = 0; i < N; i++)
      assert_int_equal(answer(0), STATUS_OK);
  }
  assert_int_equal(pthread_join(loader, NULL), 0);
  assert_int_equal(devices[0].n_lanes, 1);
}

static void a_model_that_fails_its_first_batch_is_an_error_to_open(void **state) {
  (void)state;
  struct device device;
  struct executor *executor = NULL;
  struct error err;
  for (int nth = 1; nth <= 2; nth++) { // prepare, then run
    device_make(&device);
    device.fail_call = nth;
    struct executor_options options = {.backend = &fake_backend,
                                       .device = &device,
                                       .n_loops = 1,
                                       .loop_wakes = {&loop_wake},
                                       .queue_requests = 1,
                                       .lanes = 1,
                                       .max_tokens = 64,
                                       .max_seqs = 64,
                                       .models = &model,
                                       .n_models = 1};
    assert_true(executor_open(&options, &executor, &err) != STATUS_OK);
    assert_null(executor);
    assert_int_equal(device.n_lanes, 0);
    assert_true(err.message[0] != 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(every_model_and_mode_is_warmed, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_device_that_hangs_is_seen, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_batch_that_never_ends_is_seen_beside_others_that_do, set_up,
                                      tear_down),
      cmocka_unit_test_setup_teardown(requests_come_back, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_full_queue_refuses, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_lost_device_leaves_the_other_one_serving, set_up,
                                      tear_down),
      cmocka_unit_test_setup_teardown(models_come_and_go_while_others_are_served, set_up,
                                      tear_down),
      cmocka_unit_test_setup_teardown(a_model_that_fails_its_first_batch_is_an_error_to_open,
                                      set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
