// sched/pace: when the next batch starts, when a result is asked for.
#include "harness/cmocka_all.h"

#include "sched/pace.h"

#define US NS_PER_US

static void a_small_batch_starts_beside_a_small_one(void **state) {
  (void)state;
  struct pace_run run = {.began_ns = 1000 * US, .expect_ns = 2000 * US, .tokens = 100};
  assert_true(pace_start_ns(&run, 100, 200) <= run.began_ns);
  assert_int_equal(pace_start_ns(&run, 101, 200), run.expect_ns - PACE_LEAD_NS);
}

static void of_an_unknown_batch_nothing_is_waited_for(void **state) {
  (void)state;
  struct pace_run run = {.began_ns = 1000 * US, .expect_ns = 1000 * US, .tokens = 100};
  assert_true(pace_start_ns(&run, 1000, 0) < run.began_ns);
}

static void a_long_batch_is_slept_for_then_watched_then_left_alone(void **state) {
  (void)state;
  struct pace_run run = {.began_ns = 0, .expect_ns = 5000 * US, .tokens = 1};
  assert_int_equal(pace_look_ns(&run, 0), 5000 * US - PACE_WAKE_NS);
  assert_int_equal(pace_look_ns(&run, 5000 * US - PACE_WAKE_NS), 5000 * US - PACE_WAKE_NS + 1);
  assert_int_equal(pace_look_ns(&run, 5000 * US), 5000 * US + 1);
  int64_t late = 5000 * US + PACE_SPIN_NS;
  assert_true(pace_look_ns(&run, late) >= late + PACE_SPIN_NS / 4);
  assert_int_equal(pace_look_ns(&run, 100000 * US), 100000 * US + PACE_SLEEP_MAX_NS);
}

static void the_time_awake_is_bounded(void **state) {
  (void)state;
  for (int64_t expect = 0; expect < 20000 * US; expect += 777 * US) {
    struct pace_run run = {.began_ns = 0, .expect_ns = expect, .tokens = 1};
    int64_t awake = 0;
    for (int64_t now = 0, next; now < 40000 * US; now = next) { // each look costs a microsecond
      next = pace_look_ns(&run, now);
      assert_true(next > now);
      if (next - now <= PACE_AWAKE_NS) next = now + US, awake += US;
    }
    assert_true(awake <= PACE_WAKE_NS + PACE_SPIN_NS + 2 * US);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_small_batch_starts_beside_a_small_one),
      cmocka_unit_test(of_an_unknown_batch_nothing_is_waited_for),
      cmocka_unit_test(a_long_batch_is_slept_for_then_watched_then_left_alone),
      cmocka_unit_test(the_time_awake_is_bounded),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
