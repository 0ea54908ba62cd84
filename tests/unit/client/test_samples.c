#include "client/samples.h"
#include "harness/cmocka_all.h"
#include <math.h>

static void percentiles_are_nearest_rank(void **state) {
  (void)state;
  struct samples s = {0};
  for (int i = 100; i >= 1; i--)
    samples_add(&s, i); // 1..100 in the wrong order
  assert_near(samples_percentile(&s, 0.5), 50, 0);
  assert_near(samples_percentile(&s, 0.9), 90, 0);
  assert_near(samples_percentile(&s, 0.99), 99, 0);
  assert_near(samples_percentile(&s, 0.999), 100, 0);
  assert_near(samples_percentile(&s, 0), 1, 0);
  assert_near(samples_percentile(&s, 1), 100, 0);
  samples_add(&s, 1000); // sorts again after an addition
  assert_near(samples_percentile(&s, 1), 1000, 0);
  samples_free(&s);
}

static void one_sample_is_every_percentile(void **state) {
  (void)state;
  struct samples s = {0};
  assert_true(isnan(samples_percentile(&s, 0.5)));
  assert_true(isnan(samples_mean(&s)));
  samples_add(&s, 7);
  assert_near(samples_percentile(&s, 0.001), 7, 0);
  assert_near(samples_percentile(&s, 0.999), 7, 0);
  assert_near(samples_deviation(&s), 0, 0);
  samples_free(&s);
}

static void moments_match_known_values(void **state) {
  (void)state;
  static const double values[] = {2, 4, 4, 4, 5, 5, 7, 9}; // mean 5, sum of squared deviations 32
  struct samples s = {0};
  for (size_t i = 0; i < 8; i++)
    samples_add(&s, values[i]);
  assert_near(samples_mean(&s), 5, 1e-12);
  assert_near(samples_deviation(&s), sqrt(32.0 / 7), 1e-12);
  assert_near(s.min, 2, 0);
  assert_near(s.max, 9, 0);
  samples_free(&s);
}

static void beyond_the_limit_a_uniform_sample_is_kept(void **state) {
  (void)state;
  struct samples s = {.rng = {11}, .limit = 50000};
  const int64_t n = 400000;
  for (int64_t i = 0; i < n; i++)
    samples_add(&s, (double)i);
  assert_int_equal(s.n, 50000);
  assert_int_equal(s.n_seen, n);
  assert_near(samples_percentile(&s, 0.5) / (double)n, 0.5,
              0.01); // deviation of it: 0.5 / sqrt(50000) = 0.0022
  assert_near(samples_percentile(&s, 0.99) / (double)n, 0.99, 0.01);
  assert_near(samples_mean(&s), ((double)n - 1) / 2, 1);
  assert_near(s.max, (double)n - 1, 0);
  samples_free(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(percentiles_are_nearest_rank),
      cmocka_unit_test(one_sample_is_every_percentile),
      cmocka_unit_test(moments_match_known_values),
      cmocka_unit_test(beyond_the_limit_a_uniform_sample_is_kept),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
