// When a loop waits awake. No loop here: the clock is handed in.
#include "base/clock.h"
#include "harness/cmocka_all.h"
#include "net/spin.h"

#define MAX_NS (200 * NS_PER_US)
static int64_t now_ns;

static void start(struct spin *spin, int64_t max_ns) {
  now_ns = 1000 * NS_PER_S;
  spin_init(spin, max_ns);
}

// A message of `bytes` after `wait_ns`, worked on for 10 us. True: the wait for the next is awake.
static bool turn(struct spin *spin, int64_t wait_ns, size_t bytes) {
  now_ns += wait_ns;
  spin_came(spin, bytes, now_ns);
  now_ns += 10 * NS_PER_US;
  return spin_stay_awake(spin, false, now_ns);
}

static void quick_clients_are_waited_for_awake(void **state) {
  (void)state;
  struct spin spin;
  start(&spin, MAX_NS);
  assert_false(turn(&spin, 0, 100)); // nothing is known yet
  assert_true(turn(&spin, 50 * NS_PER_US, 100));
  assert_true(spin_stay_awake(&spin, false, now_ns + MAX_NS - 1));
  assert_false(spin_stay_awake(&spin, false, now_ns + MAX_NS)); // long enough
}

static void slow_clients_cost_a_few_waits_and_then_nothing(void **state) {
  (void)state;
  struct spin spin;
  start(&spin, MAX_NS);
  turn(&spin, 0, 100);
  assert_true(turn(&spin, 50 * NS_PER_US, 100));
  int n_awake = 0;
  for (int i = 0; i < 100; i++)
    n_awake += turn(&spin, NS_PER_MS, 100);
  assert_in_range(n_awake, 1, 8);
  assert_true(turn(&spin, MAX_NS, 100)); // quick again: worth it at once
}

static void much_at_a_time_is_better_slept_for(void **state) {
  (void)state;
  struct spin spin;
  start(&spin, MAX_NS);
  turn(&spin, 0, 100);
  assert_true(turn(&spin, 50 * NS_PER_US, 100));
  now_ns += 20 * NS_PER_US;
  spin_came(&spin, SPIN_MUCH_BYTES / 2, now_ns); // two connections in one turn
  assert_false(turn(&spin, 0, SPIN_MUCH_BYTES / 2));
  for (int i = 0; i < 10; i++)
    assert_false(turn(&spin, 50 * NS_PER_US, 100));
  now_ns += SPIN_REST_NS;
  turn(&spin, 0, 100);
  assert_true(turn(&spin, 50 * NS_PER_US, 100));
}

static void who_computes_on_the_cores_goes_first(void **state) {
  (void)state;
  struct spin spin;
  start(&spin, MAX_NS);
  turn(&spin, 0, 100);
  assert_true(turn(&spin, 50 * NS_PER_US, 100));
  assert_false(spin_stay_awake(&spin, true, now_ns)); // a request is with another thread
  spin_rest(&spin, now_ns);                           // it came back
  assert_false(spin_stay_awake(&spin, false, now_ns + NS_PER_US));
  now_ns += SPIN_REST_NS;
  turn(&spin, 0, 100);
  assert_true(turn(&spin, 50 * NS_PER_US, 100));
}

// How long a computation took says nothing about how soon clients come.
static void waits_for_others_are_not_judged(void **state) {
  (void)state;
  struct spin spin;
  start(&spin, MAX_NS);
  turn(&spin, 0, 100);
  assert_true(turn(&spin, 50 * NS_PER_US, 100));
  for (int i = 0; i < 20; i++) {
    assert_false(spin_stay_awake(&spin, true, now_ns));
    now_ns += NS_PER_MS;
    spin_came(&spin, 0, now_ns);
  }
  assert_true(spin_stay_awake(&spin, false, now_ns));
}

static void zero_is_off(void **state) {
  (void)state;
  struct spin spin;
  start(&spin, 0);
  for (int i = 0; i < 10; i++)
    assert_false(turn(&spin, 1, 100));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(quick_clients_are_waited_for_awake),
      cmocka_unit_test(slow_clients_cost_a_few_waits_and_then_nothing),
      cmocka_unit_test(much_at_a_time_is_better_slept_for),
      cmocka_unit_test(who_computes_on_the_cores_goes_first),
      cmocka_unit_test(waits_for_others_are_not_judged),
      cmocka_unit_test(zero_is_off),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
