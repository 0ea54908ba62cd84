// sched/pace: estimates of batches, when the next one starts, when a result is asked for.
#include "harness/cmocka_all.h"

#include "sched/pace.h"

#define US NS_PER_US

static void nothing_known_is_zero(void **state) {
  (void)state;
  struct pace pace = {0};
  assert_int_equal(pace_estimate_ns(&pace, 1), 0);
  assert_int_equal(pace_estimate_ns(&pace, 1000000), 0);
}

static void a_size_is_estimated_from_its_own_runs(void **state) {
  (void)state;
  struct pace pace = {0};
  pace_learn(&pace, 100, 500 * US);
  pace_learn(&pace, 1000, 900 * US);
  assert_int_equal(pace_estimate_ns(&pace, 127), 500 * US); // 64..127 are one class
  assert_int_equal(pace_estimate_ns(&pace, 512), 900 * US);
  pace_learn(&pace, 100, 1000 * US);
  assert_int_equal(pace_estimate_ns(&pace, 100), 600 * US);
}

static void an_unknown_size_is_scaled_up_never_down(void **state) {
  (void)state;
  struct pace pace = {0};
  pace_learn(&pace, 64, 100 * US);
  assert_int_equal(pace_estimate_ns(&pace, 256), 400 * US);
  assert_int_equal(pace_estimate_ns(&pace, 1), 100 * US);
}

static void any_count_has_a_class(void **state) {
  (void)state;
  struct pace pace = {0};
  pace_learn(&pace, 0, US);
  pace_learn(&pace, INT64_MAX, 7 * US);
  assert_int_equal(pace_estimate_ns(&pace, 0), US);
  assert_int_equal(pace_estimate_ns(&pace, INT64_MAX), 7 * US);
}

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
      cmocka_unit_test(nothing_known_is_zero),
      cmocka_unit_test(a_size_is_estimated_from_its_own_runs),
      cmocka_unit_test(an_unknown_size_is_scaled_up_never_down),
      cmocka_unit_test(any_count_has_a_class),
      cmocka_unit_test(a_small_batch_starts_beside_a_small_one),
      cmocka_unit_test(of_an_unknown_batch_nothing_is_waited_for),
      cmocka_unit_test(a_long_batch_is_slept_for_then_watched_then_left_alone),
      cmocka_unit_test(the_time_awake_is_bounded),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
