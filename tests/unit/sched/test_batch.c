// sched/batch: what runs together and when.
#include "harness/cmocka_all.h"

#include "sched/batch.h"

#define MS NS_PER_MS

static const struct batch_rule rule = {
    .max_tokens = 100, .max_requests = 4, .max_seqs = 10, .max_delay_ns = 5 * MS};
static const struct batch_rule eager = {
    .max_tokens = 100, .max_requests = 4, .max_seqs = 10, .max_delay_ns = 0};

static struct batch_item item(int32_t tokens, int64_t admitted_ns, int64_t deadline_ns) {
  return (struct batch_item){tokens, 1, admitted_ns, deadline_ns};
}

static void an_eager_batch_takes_all_that_wait(void **state) {
  (void)state;
  struct batch_item items[] = {item(7, 0, CLOCK_NEVER), item(90, 0, CLOCK_NEVER),
                               item(1, 0, CLOCK_NEVER)};
  struct batch_choice choice = batch_choose(items, 3, &eager, NULL, false, 0);
  assert_int_equal(choice.n, 3);
  assert_int_equal(choice.close, CLOSE_IDLE);
}

static void tokens_fill_a_batch(void **state) {
  (void)state;
  struct batch_item items[] = {item(60, 0, CLOCK_NEVER), item(41, 0, CLOCK_NEVER),
                               item(1, 0, CLOCK_NEVER)};
  struct batch_choice choice = batch_choose(items, 3, &rule, NULL, false, 0);
  assert_int_equal(choice.n, 1); // the third would fit, but nothing overtakes
  assert_int_equal(choice.close, CLOSE_FULL);
  items[1].n_tokens = 40; // exactly full
  choice = batch_choose(items, 2, &rule, NULL, false, 0);
  assert_int_equal(choice.n, 2);
  assert_int_equal(choice.close, CLOSE_FULL);
}

static void requests_fill_a_batch(void **state) {
  (void)state;
  struct batch_item items[6];
  for (int i = 0; i < 6; i++)
    items[i] = item(1, 0, CLOCK_NEVER);
  assert_int_equal(batch_choose(items, 6, &rule, NULL, false, 0).n, 4);
  assert_int_equal(batch_choose(items, 6, &rule, NULL, false, 0).close, CLOSE_FULL);
  assert_int_equal(batch_choose(items, 4, &rule, NULL, false, 0).close, CLOSE_FULL);
}

static void sequences_fill_a_batch(void **state) {
  (void)state;
  struct batch_item items[] = {item(1, 0, CLOCK_NEVER), item(1, 0, CLOCK_NEVER)};
  items[0].n_seqs = 6;
  items[1].n_seqs = 5;
  struct batch_choice choice = batch_choose(items, 2, &rule, NULL, false, 0);
  assert_int_equal(choice.n, 1);
  assert_int_equal(choice.close, CLOSE_FULL);
}

static void an_item_over_the_limits_runs_alone(void **state) {
  (void)state;
  struct batch_item items[] = {item(1000, 0, CLOCK_NEVER), item(1, 0, CLOCK_NEVER)};
  assert_int_equal(batch_choose(items, 2, &rule, NULL, false, 0).n, 1);
  assert_int_equal(batch_choose(items, 1, &rule, NULL, false, 0).n, 1);
}

static void a_small_batch_waits_for_company_until_the_oldest_has_waited_enough(void **state) {
  (void)state;
  struct batch_item items[] = {item(1, 3 * MS, CLOCK_NEVER), item(1, 2 * MS, CLOCK_NEVER)};
  struct batch_choice choice = batch_choose(items, 2, &rule, NULL, false, 4 * MS);
  assert_int_equal(choice.n, 0);
  assert_int_equal(choice.wait_until_ns, 7 * MS); // the second item is the older one
  choice = batch_choose(items, 2, &rule, NULL, false, 7 * MS);
  assert_int_equal(choice.n, 2);
  assert_int_equal(choice.close, CLOSE_DELAY);
}

static void a_deadline_ends_the_wait_early_enough_to_run(void **state) {
  (void)state;
  struct batch_item items[] = {item(10, 0, 4 * MS)};
  struct service service = {0};
  service_learn(&service, 10, 1 * MS, false, 1 * MS);
  struct batch_choice choice = batch_choose(items, 1, &rule, &service, false, 1 * MS);
  assert_int_equal(choice.n, 0);
  assert_int_equal(choice.wait_until_ns, 3 * MS);
  choice = batch_choose(items, 1, &rule, &service, false, 3 * MS);
  assert_int_equal(choice.n, 1);
  assert_int_equal(choice.close, CLOSE_DEADLINE);
}

static void draining_does_not_wait(void **state) {
  (void)state;
  struct batch_item items[] = {item(1, 0, CLOCK_NEVER)};
  struct batch_choice choice = batch_choose(items, 1, &rule, NULL, true, 0);
  assert_int_equal(choice.n, 1);
  assert_int_equal(choice.close, CLOSE_IDLE);
}

static void requests_without_deadline_do_not_starve(void **state) {
  (void)state;
  int64_t patient = batch_urgency(0, CLOCK_NEVER);
  assert_true(patient > batch_urgency(0, 10 * MS));
  // A deadline that lies within a second of an arrival 1 s later comes after it.
  assert_true(patient < batch_urgency(NS_PER_S, NS_PER_S + 10 * MS));
}

static void any_choice_keeps_the_rule(void **state) {
  (void)state;
  test_random_seed(20261129);
  for (int round = 0; round < 20000; round++) {
    struct batch_item items[8];
    int32_t n = 1 + (int32_t)(test_random() % 8);
    int64_t now_ns = (int64_t)(test_random() % 100) * MS;
    for (int32_t i = 0; i < n; i++) {
      items[i] =
          item(1 + (int32_t)(test_random() % 60), now_ns - (int64_t)(test_random() % 10) * MS,
               test_random() % 2 ? CLOCK_NEVER : now_ns + 1 + (int64_t)(test_random() % 20) * MS);
      items[i].n_seqs = 1 + (int32_t)(test_random() % 5);
    }
    struct service service = {0};
    service_learn(&service, 1, 1 + (int64_t)(test_random() % MS), false, now_ns);
    struct batch_choice choice = batch_choose(items, n, &rule, &service, false, now_ns);
    assert_in_range(choice.n, 0, n);
    if (choice.n == 0) {
      assert_true(choice.wait_until_ns > now_ns); // a wait that is over would spin
      continue;
    }
    int32_t tokens = 0, seqs = 0;
    for (int32_t i = 0; i < choice.n; i++)
      tokens += items[i].n_tokens, seqs += items[i].n_seqs;
    assert_true(choice.n <= rule.max_requests && tokens <= rule.max_tokens &&
                seqs <= rule.max_seqs);
  }
}

// Batches of n tokens take a millisecond and `per_token`.
static void learn_line(struct service *service, int64_t per_token_ns, int64_t now_ns) {
  for (int64_t tokens = 1; tokens <= 1024; tokens *= 2)
    service_learn(service, tokens, MS + tokens * per_token_ns, false, now_ns);
}

static void nobody_is_late_where_nothing_is_known(void **state) {
  (void)state;
  struct batch_item items[] = {item(10, 0, 1)};
  struct service service = {0};
  struct batch_choice choice = {.n = 1, .n_tokens = 10};
  assert_int_equal(batch_on_time(items, &choice, &service, 0, 0), 0);
  assert_int_equal(choice.n, 1);
}

static void a_batch_is_cut_for_one_in_a_hurry(void **state) {
  (void)state;
  struct service service = {0};
  learn_line(&service, MS / 4, 0); // 10 tokens 3.5 ms, 90 tokens 23.5 ms
  struct batch_item items[] = {item(10, 0, 9 * MS), item(10, 0, 40 * MS), item(70, 0, CLOCK_NEVER)};
  struct batch_choice choice = {.n = 3, .close = CLOSE_FULL, .n_tokens = 90};
  assert_int_equal(batch_on_time(items, &choice, &service, 0, 0), 0);
  assert_int_equal(choice.n, 2);
  assert_int_equal(choice.n_tokens, 20);
  assert_int_equal(choice.close, CLOSE_DEADLINE);
  // Behind a batch that ends in 4 ms it is the first one alone.
  choice = (struct batch_choice){.n = 3, .close = CLOSE_FULL, .n_tokens = 90};
  assert_int_equal(batch_on_time(items, &choice, &service, 4 * MS, 0), 0);
  assert_int_equal(choice.n, 1);
  // With time enough for all nothing is cut.
  items[0].deadline_ns = 30 * MS;
  choice = (struct batch_choice){.n = 3, .close = CLOSE_FULL, .n_tokens = 90};
  assert_int_equal(batch_on_time(items, &choice, &service, 0, 0), 0);
  assert_int_equal(choice.n, 3);
  assert_int_equal(choice.close, CLOSE_FULL);
}

static void a_batch_is_not_cut_where_that_wastes_the_device(void **state) {
  (void)state;
  struct service service = {0};
  learn_line(&service, MS / 1000, 0); // 10 tokens take nearly as long as 900
  struct batch_item items[] = {item(10, 0, MS + MS / 2), item(890, 0, CLOCK_NEVER)};
  struct batch_choice choice = {.n = 2, .close = CLOSE_FULL, .n_tokens = 900};
  int64_t done_ns = batch_on_time(items, &choice, &service, 0, 0);
  assert_true(done_ns > items[0].deadline_ns);
  assert_true(done_ns >= service_estimate_ns(&service, 900, 0));
  assert_int_equal(choice.n, 2);
}

static void close_reasons_have_names(void **state) {
  (void)state;
  assert_string_equal(batch_close_name(CLOSE_FULL), "full");
  assert_string_equal(batch_close_name(CLOSE_DELAY), "delay");
  assert_string_equal(batch_close_name(CLOSE_IDLE), "idle");
  assert_string_equal(batch_close_name(CLOSE_DEADLINE), "deadline");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_eager_batch_takes_all_that_wait),
      cmocka_unit_test(tokens_fill_a_batch),
      cmocka_unit_test(requests_fill_a_batch),
      cmocka_unit_test(sequences_fill_a_batch),
      cmocka_unit_test(an_item_over_the_limits_runs_alone),
      cmocka_unit_test(a_small_batch_waits_for_company_until_the_oldest_has_waited_enough),
      cmocka_unit_test(a_deadline_ends_the_wait_early_enough_to_run),
      cmocka_unit_test(draining_does_not_wait),
      cmocka_unit_test(requests_without_deadline_do_not_starve),
      cmocka_unit_test(any_choice_keeps_the_rule),
      cmocka_unit_test(nobody_is_late_where_nothing_is_known),
      cmocka_unit_test(a_batch_is_cut_for_one_in_a_hurry),
      cmocka_unit_test(a_batch_is_not_cut_where_that_wastes_the_device),
      cmocka_unit_test(close_reasons_have_names),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
