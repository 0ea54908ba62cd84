// sched/load: what a newcomer has to wait for, and who is refused by it.
#include "harness/cmocka_all.h"

#include "sched/batch.h"
#include "sched/load.h"

#define MS NS_PER_MS
#define NOW (100 * NS_PER_S)

static struct load load;
static struct service service;
static struct request requests[16];

// Full batches of 100 tokens take 100 ms; alone, 10 tokens take 20.
static int fresh(void **state) {
  (void)state;
  load = (struct load){0};
  service = (struct service){0};
  service_learn(&service, 10, 20 * MS, false, NOW);
  service_learn(&service, 100, 100 * MS, true, NOW);
  return 0;
}

static struct request made(int64_t tokens, int64_t within_ns) {
  struct request request = {.n_tokens = (int32_t)tokens,
                            .deadline_ns =
                                within_ns == CLOCK_NEVER ? CLOCK_NEVER : NOW + within_ns};
  request.t_ns[STAGE_ADMITTED] = NOW;
  return request;
}

static void enter(int i, int64_t tokens, int64_t within_ns) {
  requests[i] = made(tokens, within_ns);
  load_enter(&load, &requests[i], &service);
}

static bool can(int64_t tokens, int64_t within_ns, struct forecast *forecast) {
  struct request request = made(tokens, within_ns);
  return load_forecast(&load, &service, &request, NOW, forecast);
}

static void its_own_time_counts(void **state) {
  (void)state;
  struct forecast forecast;
  assert_true(can(10, 25 * MS, &forecast));
  assert_false(can(10, 15 * MS, &forecast));
  assert_in_range(forecast.own_ns, 20 * MS, 22 * MS);
  assert_int_equal(forecast.ahead_ns, 0);
  assert_true(can(10, CLOCK_NEVER, &forecast));
}

static void a_cold_model_is_not_refused(void **state) {
  (void)state;
  struct forecast forecast;
  atomic_store(&load.busy_until_ns, NOW + NS_PER_S);
  service = (struct service){0};
  assert_true(can(10, 1, &forecast));
}

static void what_runs_counts(void **state) {
  (void)state;
  struct forecast forecast;
  atomic_store(&load.busy_until_ns, NOW + 50 * MS);
  assert_true(can(10, 75 * MS, &forecast));
  assert_false(can(10, 65 * MS, &forecast));
  assert_int_equal(forecast.ahead_ns, 50 * MS);
  atomic_store(&load.busy_until_ns, NOW - 50 * MS); // late: any moment now
  assert_true(can(10, 25 * MS, &forecast));
}

static void only_what_is_more_urgent_is_ahead(void **state) {
  (void)state;
  struct forecast forecast;
  for (int i = 0; i < 10; i++)
    enter(i, 100, CLOCK_NEVER); // a second of patient work
  assert_int_equal(load_wait_ns(&load, NOW), NS_PER_S);
  assert_true(can(10, 25 * MS, &forecast));
  enter(10, 40, 30 * MS);
  assert_false(can(10, 40 * MS, &forecast)); // 40 ms of it are ahead
  assert_int_equal(forecast.ahead_ns, 40 * MS);
  assert_true(can(10, 60 * MS, &forecast));
  assert_true(can(10, 22 * MS, &forecast)); // this one overtakes
}

static void whoever_waited_too_long_is_ahead(void **state) {
  (void)state;
  struct forecast forecast;
  enter(0, 90, CLOCK_NEVER);
  requests[1] = made(90, CLOCK_NEVER);
  requests[1].t_ns[STAGE_ADMITTED] = NOW - 2 * BATCH_PATIENCE_NS + 100 * MS;
  load_enter(&load, &requests[1], &service);
  assert_false(can(10, 80 * MS, &forecast));
  assert_int_equal(forecast.ahead_ns, 90 * MS);
}

static void more_than_a_batch_is_done_in_whole_batches(void **state) {
  (void)state;
  struct forecast forecast;
  for (int i = 0; i < 15; i++)
    enter(i, 10, 500 * MS);
  assert_true(can(10, 500 * MS, &forecast));
  assert_in_range(forecast.done_ns, NOW + 200 * MS, NOW + 210 * MS); // not 160
}

static void what_leaves_is_ahead_of_nobody(void **state) {
  (void)state;
  enter(0, 100, 50 * MS);
  enter(1, 100, CLOCK_NEVER);
  load_leave(&load, &requests[0]);
  load_leave(&load, &requests[0]); // once is enough
  load_leave(&load, &requests[1]);
  assert_int_equal(load_wait_ns(&load, NOW), 0);
  for (int i = 0; i < LOAD_SLOTS; i++)
    assert_int_equal(atomic_load(&load.slots[i]), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(its_own_time_counts, fresh),
      cmocka_unit_test_setup(a_cold_model_is_not_refused, fresh),
      cmocka_unit_test_setup(what_runs_counts, fresh),
      cmocka_unit_test_setup(only_what_is_more_urgent_is_ahead, fresh),
      cmocka_unit_test_setup(whoever_waited_too_long_is_ahead, fresh),
      cmocka_unit_test_setup(more_than_a_batch_is_done_in_whole_batches, fresh),
      cmocka_unit_test_setup(what_leaves_is_ahead_of_nobody, fresh),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
