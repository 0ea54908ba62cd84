#include "base/clock.h"
#include "client/schedule.h"
#include "harness/cmocka_all.h"
#include <math.h>

#define START (1000 * NS_PER_S)

static void constant_rate_is_evenly_spaced_and_never_drifts(void **state) {
  (void)state;
  struct open_loop loop;
  int64_t at = 0;
  open_loop_init(&loop, 3, false, 1, START); // a period that is no whole number of ns
  for (int i = 0; i < 3000000; i++) {
    assert_true(open_loop_take(&loop, INT64_MAX, &at));
    if (i % 300000 == 0)
      assert_in_range(at, START + i / 3 * NS_PER_S, START + i / 3 * NS_PER_S + 1);
  }
}

static void nothing_is_due_before_its_time(void **state) {
  (void)state;
  struct open_loop loop;
  int64_t at = 0;
  open_loop_init(&loop, 1000, false, 1, START);
  assert_true(open_loop_take(&loop, START, &at)); // the first at once
  assert_int_equal(at, START);
  assert_false(open_loop_take(&loop, START + NS_PER_MS - 1, &at));
  assert_int_equal(open_loop_next_ns(&loop), START + NS_PER_MS);
  assert_true(open_loop_take(&loop, START + NS_PER_MS, &at));
}

static void late_sends_keep_their_scheduled_time(void **state) {
  (void)state;
  struct open_loop loop;
  int64_t at = 0;
  open_loop_init(&loop, 1000, false, 1, START);
  const int64_t stalled_until = START + 50 * NS_PER_MS;
  for (int i = 0; i <= 50; i++) { // all that a 50 ms stall held back, each with its own time
    assert_true(open_loop_take(&loop, stalled_until, &at));
    assert_int_equal(at, START + i * NS_PER_MS);
  }
  assert_false(open_loop_take(&loop, stalled_until, &at));
}

static void poisson_gaps_have_the_mean_and_spread_of_an_exponential(void **state) {
  (void)state;
  const int n = 200000;
  const uint64_t seed = 7;
  struct open_loop loop;
  int64_t at = 0, last = START;
  double sum = 0, squares = 0;
  int short_gaps = 0;
  print_message("seed %llu\n", (unsigned long long)seed);
  open_loop_init(&loop, 1000, true, seed, START);
  for (int i = 0; i < n; i++) {
    assert_true(open_loop_take(&loop, INT64_MAX, &at));
    const double gap = (double)(at - last) / NS_PER_MS;
    assert_true(gap >= 0);
    sum += gap;
    squares += gap * gap;
    short_gaps += gap < log(2.0);
    last = at;
  }
  const double mean = sum / n;
  print_message("mean gap %g ms, E[gap^2] %g, below the median %g\n", mean, squares / n,
                (double)short_gaps / n);
  assert_near(mean, 1.0, 4 / sqrt(n));                     // deviation of the mean: 1 / sqrt(n)
  assert_near(squares / n, 2.0, 4 * sqrt(20.0) / sqrt(n)); // variance of gap^2: 24 - 4
  assert_near((double)short_gaps / n, 0.5, 2 / sqrt(n));
}

static void same_seed_same_arrivals(void **state) {
  (void)state;
  struct open_loop a, b, c;
  open_loop_init(&a, 10, true, 5, START);
  open_loop_init(&b, 10, true, 5, START);
  open_loop_init(&c, 10, true, 6, START);
  assert_int_equal(open_loop_next_ns(&a), open_loop_next_ns(&b));
  assert_int_not_equal(open_loop_next_ns(&a), open_loop_next_ns(&c));
}

static void sends_count_by_the_phase_they_fall_in(void **state) {
  (void)state;
  struct phases p;
  phases_init(&p, START, NS_PER_S, 2 * NS_PER_S, 0);
  assert_int_equal(phases_send(&p, START), PHASE_WARMUP);
  assert_int_equal(phases_send(&p, START + NS_PER_S - 1), PHASE_WARMUP);
  assert_int_equal(p.n_measured, 0);
  assert_int_equal(phases_send(&p, START + NS_PER_S), PHASE_MEASURE);
  assert_int_equal(phases_send(&p, START + 3 * NS_PER_S - 1), PHASE_MEASURE);
  assert_int_equal(phases_send(&p, START + 3 * NS_PER_S), PHASE_OVER);
  assert_int_equal(p.n_measured, 2);
}

static void a_count_of_requests_replaces_the_time(void **state) {
  (void)state;
  struct phases p;
  phases_init(&p, START, 0, NS_PER_S, 3);
  for (int i = 0; i < 3; i++)
    assert_int_equal(phases_send(&p, START + i * 100 * NS_PER_S), PHASE_MEASURE);
  assert_int_equal(phases_send(&p, START + 300 * NS_PER_S), PHASE_OVER);
  assert_true(phases_over(&p, START));
}

static void slices_go_a_b_b_a(void **state) {
  (void)state;
  static const int expected[8] = {0, 1, 1, 0, 0, 1, 1, 0};
  struct ab_schedule ab = {.slice_calls = 2};
  for (int i = 0; i < 8; i++) {
    assert_int_equal(ab_variant(&ab), expected[i]);
    assert_int_equal(ab_pair(&ab), i / 2);
    assert_true(ab_take(&ab));
    assert_true(ab_take(&ab));
    assert_false(ab_take(&ab));
    ab_next_slice(&ab);
  }
}

static void between_stays_in_its_bounds_and_reaches_both(void **state) {
  (void)state;
  struct rng rng = {3};
  int64_t low = 99, high = -1;
  for (int i = 0; i < 10000; i++) {
    const int64_t value = rng_between(&rng, 8, 12);
    if (value < low) low = value;
    if (value > high) high = value;
  }
  assert_int_equal(low, 8);
  assert_int_equal(high, 12);
  assert_int_equal(rng_between(&rng, -5, -5), -5);
  (void)rng_between(&rng, INT64_MIN, INT64_MAX);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(constant_rate_is_evenly_spaced_and_never_drifts),
      cmocka_unit_test(nothing_is_due_before_its_time),
      cmocka_unit_test(late_sends_keep_their_scheduled_time),
      cmocka_unit_test(poisson_gaps_have_the_mean_and_spread_of_an_exponential),
      cmocka_unit_test(same_seed_same_arrivals),
      cmocka_unit_test(sends_count_by_the_phase_they_fall_in),
      cmocka_unit_test(a_count_of_requests_replaces_the_time),
      cmocka_unit_test(slices_go_a_b_b_a),
      cmocka_unit_test(between_stays_in_its_bounds_and_reaches_both),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
