#include "base/clock.h"
#include "harness/cmocka_all.h"
#include "rpc/guard.h"

#define NOW (100000 * NS_PER_S)

static void pings_on_an_idle_connection_are_struck_after_three(void **state) {
  (void)state;
  struct guard guard = {0};
  assert_false(guard_ping(&guard, NOW, NS_PER_S)); // the first is valid
  assert_false(guard_ping(&guard, NOW + 1, NS_PER_S));
  assert_false(guard_ping(&guard, NOW + 2, NS_PER_S));
  assert_true(guard_ping(&guard, NOW + 3, NS_PER_S));
}

static void ping_after_each_answer_is_never_a_strike(void **state) {
  (void)state;
  struct guard guard = {0};
  for (int i = 0; i < 1000; i++) {
    guard_sent(&guard);
    assert_false(guard_ping(&guard, NOW + i, NS_PER_S));
  }
}

static void keepalive_at_the_interval_is_never_a_strike(void **state) {
  (void)state;
  struct guard guard = {0};
  for (int i = 0; i < 1000; i++)
    assert_false(guard_ping(&guard, NOW + i * 10 * NS_PER_S, 10 * NS_PER_S));
  for (int i = 0; i < 1000; i++)
    assert_false(guard_ping(&guard, NOW + 20000 * NS_PER_S, 0)); // none asked for
  bool struck = false;
  for (int i = 0; i < 5; i++)
    struck |= guard_ping(&guard, NOW + (30000 + i) * NS_PER_S, 10 * NS_PER_S);
  assert_true(struck);
}

static void idle_frames_are_forgiven_by_useful_traffic(void **state) {
  (void)state;
  struct guard guard = {0};
  for (int round = 0; round < 10; round++) {
    for (int i = 0; i < 1000; i++)
      assert_false(guard_idle_frame(&guard, GUARD_IDLE_FRAME));
    guard_useful(&guard);
  }
  int n = 0;
  while (!guard_idle_frame(&guard, GUARD_IDLE_FRAME))
    n++;
  assert_int_equal(n, 1000);
}

static void provoked_resets_are_counted_by_the_minute(void **state) {
  (void)state;
  struct guard guard = {0};
  for (int minute = 0; minute < 5; minute++)
    for (int i = 0; i < 200; i++)
      assert_false(guard_reset_sent(&guard, NOW + minute * 61 * NS_PER_S + i));
  bool over = false;
  for (int i = 0; i < 201; i++)
    over |= guard_reset_sent(&guard, NOW + 1000 * NS_PER_S + i);
  assert_true(over);
}

static void five_thousand_cancels_a_second_are_honest(void **state) {
  (void)state;
  struct guard guard = {0};
  for (int i = 0; i < 300000; i++) // a minute
    assert_false(guard_cancelled(&guard, NOW + i * (NS_PER_S / 5000)));
  int n = 0;
  while (!guard_cancelled(&guard, NOW + 100 * NS_PER_S))
    n++;
  assert_int_equal(n, 10000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(pings_on_an_idle_connection_are_struck_after_three),
      cmocka_unit_test(ping_after_each_answer_is_never_a_strike),
      cmocka_unit_test(keepalive_at_the_interval_is_never_a_strike),
      cmocka_unit_test(idle_frames_are_forgiven_by_useful_traffic),
      cmocka_unit_test(five_thousand_cancels_a_second_are_honest),
      cmocka_unit_test(provoked_resets_are_counted_by_the_minute),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
