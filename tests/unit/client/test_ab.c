#include "client/ab.h"
#include "client/schedule.h"
#include "harness/cmocka_all.h"
#include <math.h>

// Normal deviate, for made-up measurements.
static double normal(struct rng *rng) {
  const double radius = sqrt(2 * rng_exponential(rng, 1));
  return radius * cos(2 * 3.14159265358979323846 * rng_unit(rng));
}

static void a_constant_ratio_has_an_interval_of_no_width(void **state) {
  (void)state;
  const double a[] = {1, 2, 3, 4}, b[] = {2, 4, 6, 8};
  struct ab_estimate e;
  assert_int_equal(ab_ratio(a, b, 4, 1, &e), 0);
  assert_near(e.ratio, 2, 1e-12);
  assert_near(e.low, 2, 1e-12);
  assert_near(e.high, 2, 1e-12);
  assert_int_equal(e.n_pairs, 4);
}

static void the_ratio_is_the_geometric_mean(void **state) {
  (void)state;
  const double a[] = {1, 1}, b[] = {2, 8};
  struct ab_estimate e, turned;
  assert_int_equal(ab_ratio(a, b, 2, 1, &e), 0);
  assert_near(e.ratio, 4, 1e-12);
  assert_near(e.low, 2, 1e-12);
  assert_near(e.high, 8, 1e-12);
  assert_int_equal(ab_ratio(b, a, 2, 1, &turned), 0);
  assert_near(turned.ratio, 0.25, 1e-12);
}

static void the_interval_is_as_wide_as_theory_says(void **state) {
  (void)state;
  enum { N = 400 };
  double a[N], b[N];
  struct rng rng = {42};
  struct ab_estimate e;
  double sum = 0, squares = 0;
  for (int i = 0; i < N; i++) {
    const double noise = 0.1 * normal(&rng);
    a[i] = 5;
    b[i] = 5 * exp(log(1.2) + noise);
    sum += noise;
    squares += noise * noise;
  }
  assert_int_equal(ab_ratio(a, b, N, 9, &e), 0);
  const double mean = sum / N, deviation = sqrt(squares / N - mean * mean);
  const double half = 1.96 * deviation / sqrt(N);
  print_message("ratio %g [%g, %g], by the normal formula +- %g\n", e.ratio, e.low, e.high, half);
  assert_near(log(e.ratio), log(1.2) + mean, 1e-9);
  assert_near(log(e.high) - log(e.ratio), half,
              0.12 * half); // 2000 resamples: a few per cent of noise
  assert_near(log(e.ratio) - log(e.low), half, 0.12 * half);
}

static void the_interval_covers_the_truth_about_as_often_as_it_says(void **state) {
  (void)state;
  enum { RUNS = 200, N = 60 };
  struct rng rng = {77};
  int covered = 0;
  for (int run = 0; run < RUNS; run++) {
    double a[N], b[N];
    struct ab_estimate e;
    for (int i = 0; i < N; i++) {
      const double drift = exp(0.5 * normal(&rng)); // shared by a pair: must cancel
      a[i] = drift * exp(0.05 * normal(&rng));
      b[i] = drift * exp(0.05 * normal(&rng)) * 1.1;
    }
    assert_int_equal(ab_ratio(a, b, N, (uint64_t)run, &e), 0);
    covered += e.low <= 1.1 && 1.1 <= e.high;
  }
  print_message("covered %d of %d\n", covered, RUNS);
  assert_in_range(covered, 178, 199); // 95 % is 190 +- 3; the bootstrap of 60 is slightly narrow
}

static void pairs_without_a_value_are_left_out(void **state) {
  (void)state;
  const double a[] = {1, 0, 2, NAN}, b[] = {3, 5, 0, 1};
  struct ab_estimate e;
  assert_int_equal(ab_ratio(a, b, 4, 1, &e), 0);
  assert_int_equal(e.n_pairs, 1);
  assert_near(e.ratio, 3, 1e-12);
  assert_true(isnan(e.low)); // one pair says nothing of its own noise
  assert_int_equal(ab_ratio(a, b, 0, 1, &e), 0);
  assert_true(isnan(e.ratio));
}

static void the_same_seed_gives_the_same_interval(void **state) {
  (void)state;
  const double a[] = {1, 2, 3, 4, 5}, b[] = {1.1, 2.5, 3.1, 4.9, 5.2};
  struct ab_estimate e, f;
  assert_int_equal(ab_ratio(a, b, 5, 4, &e), 0);
  assert_int_equal(ab_ratio(a, b, 5, 4, &f), 0);
  assert_memory_equal(&e, &f, sizeof e);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_constant_ratio_has_an_interval_of_no_width),
      cmocka_unit_test(the_ratio_is_the_geometric_mean),
      cmocka_unit_test(the_interval_is_as_wide_as_theory_says),
      cmocka_unit_test(the_interval_covers_the_truth_about_as_often_as_it_says),
      cmocka_unit_test(pairs_without_a_value_are_left_out),
      cmocka_unit_test(the_same_seed_gives_the_same_interval),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
