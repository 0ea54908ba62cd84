// model/service: what batches take, by size, and for how long that is believed.
#include "harness/cmocka_all.h"

#include "model/service.h"

#define US NS_PER_US
#define MS NS_PER_MS

static struct service service;

static int fresh(void **state) {
  (void)state;
  service = (struct service){0};
  return 0;
}

static int64_t least(int64_t tokens, int64_t now_ns) {
  return service_least_ns(&service, tokens, now_ns);
}

static void nothing_known_is_zero(void **state) {
  (void)state;
  assert_int_equal(service_estimate_ns(&service, 1, 0), 0);
  assert_int_equal(service_estimate_ns(&service, 1000000, 0), 0);
  assert_int_equal(service_least_ns(&service, 1, 0), 0);
  assert_int_equal(service_share_ns(&service, 1, 0), 0);
  assert_int_equal(service_full_ns(&service, 0), 0);
}

static void sizes_between_two_known_ones_lie_on_a_line(void **state) {
  (void)state;
  service_learn(&service, 100, 500 * US, false, 0);
  service_learn(&service, 900, 900 * US, false, 0);
  assert_int_equal(service_estimate_ns(&service, 100, 0), 500 * US);
  assert_int_equal(service_estimate_ns(&service, 500, 0), 700 * US);
  assert_int_equal(service_estimate_ns(&service, 900, 0), 900 * US);
  assert_in_range(least(500, 0), 699 * US, 701 * US);
  assert_int_equal(service_with_margin_ns(1600), 1700);
}

static void new_values_move_the_mean(void **state) {
  (void)state;
  service_learn(&service, 100, 500 * US, false, 0);
  service_learn(&service, 100, 1000 * US, false, 0);
  assert_int_equal(service_estimate_ns(&service, 100, 0), 600 * US);
  service_learn(&service, 100, NS_PER_S, false, 0); // a hiccup counts for twice the mean
  assert_int_equal(service_estimate_ns(&service, 100, 0), 720 * US);
  for (int i = 0; i < 100; i++)
    service_learn(&service, 100, NS_PER_S, false, 0); // what stays is learnt
  assert_in_range(service_estimate_ns(&service, 100, 0), 990 * MS, 1000 * MS);
}

static void beyond_what_is_known(void **state) {
  (void)state;
  service_learn(&service, 64, 100 * US, false, 0);
  assert_int_equal(service_estimate_ns(&service, 256, 0), 400 * US); // the worst, to start early
  assert_in_range(least(256, 0), 99 * US, 101 * US); // the best, to refuse nobody without need
  assert_int_equal(service_estimate_ns(&service, 1, 0), 100 * US);
  assert_int_equal(service_least_ns(&service, 1, 0), 0); // of a small one nothing was seen yet
}

static void a_larger_batch_corrects_smaller_ones(void **state) {
  (void)state;
  service_learn(&service, 10, 50 * MS, false, 0); // disturbed by something
  service_learn(&service, 1000, 5 * MS, false, 0);
  assert_int_equal(service_estimate_ns(&service, 10, 0), 5 * MS);
}

static void a_measure_is_believed_for_a_while(void **state) {
  (void)state;
  service_learn(&service, 16, 10 * MS, true, 0);
  service_learn(&service, 1024, 100 * MS, true, 0);
  assert_true(least(16, NS_PER_S) > 0 && least(1024, NS_PER_S) > 50 * MS);
  int64_t later_ns = NS_PER_S + MS; // of the small one nothing is believed any more
  assert_int_equal(service_least_ns(&service, 16, later_ns), 0);
  assert_true(least(1024, later_ns) > 50 * MS); // twenty times 100 ms
  later_ns = 2 * NS_PER_S + MS;
  assert_int_equal(service_least_ns(&service, 1024, later_ns), 0);
  assert_int_equal(service_full_ns(&service, later_ns), 0);
  assert_int_equal(service_share_ns(&service, 16, later_ns), 0);
  assert_int_equal(service_estimate_ns(&service, 16, later_ns), 10 * MS); // better than nothing
  service_learn(&service, 16, 1 * MS, false, later_ns);                   // made anew, not averaged
  assert_int_equal(service_estimate_ns(&service, 16, later_ns), 1 * MS);
}

static void full_batches_say_what_a_token_adds(void **state) {
  (void)state;
  service_learn(&service, 10, 1 * MS, false, 0);
  assert_int_equal(service_share_ns(&service, 10, 0), 0);
  service_learn(&service, 100, 2 * MS, true, 0);
  assert_int_equal(service_share_ns(&service, 10, 0), 200 * US);
  assert_int_equal(service_share_ns(&service, 1000, 0), 2 * MS); // of such a size nothing was seen
  assert_int_equal(service_full_ns(&service, 0), 2 * MS);
  service_learn(&service, 50, 3 * MS, false, 0); // worse by token, as parts are: says nothing
  assert_int_equal(service_full_ns(&service, 0), 2 * MS);
  service_learn(&service, 50, 500 * US, false, 0); // better: the measure was out of date
  assert_true(service_share_ns(&service, 10, 0) < 200 * US);
}

static void any_count_has_a_class(void **state) {
  (void)state;
  service_learn(&service, 0, 0, true, 0);
  service_learn(&service, INT64_MAX, 7 * US, true, 0);
  service_learn(&service, 5, INT64_MAX / 4, true, 0);
  assert_true(service_estimate_ns(&service, 0, 0) > 0);
  assert_true(service_estimate_ns(&service, INT64_MAX, 0) > 0);
  assert_true(service_least_ns(&service, 1000, 0) > 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(nothing_known_is_zero, fresh),
      cmocka_unit_test_setup(sizes_between_two_known_ones_lie_on_a_line, fresh),
      cmocka_unit_test_setup(new_values_move_the_mean, fresh),
      cmocka_unit_test_setup(beyond_what_is_known, fresh),
      cmocka_unit_test_setup(a_larger_batch_corrects_smaller_ones, fresh),
      cmocka_unit_test_setup(a_measure_is_believed_for_a_while, fresh),
      cmocka_unit_test_setup(full_batches_say_what_a_token_adds, fresh),
      cmocka_unit_test_setup(any_count_has_a_class, fresh),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
