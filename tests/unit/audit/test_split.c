// Samples shared out among batches, by hand-made numbers.
#include "harness/cmocka_all.h"

#include "audit/split.h"

static struct split split;
static struct audit_batch batches[4];
static struct audit_target *const target_a = (void *)1, *const target_b = (void *)2;

static int set_up(void **state) {
  (void)state;
  memset(&split, 0, sizeof split);
  memset(batches, 0, sizeof batches);
  return 0;
}

// Computes in [from, to), and copies for ten before and behind.
static struct audit_batch *add(int i, int64_t from, int64_t to, double read, double write) {
  struct audit_batch *batch = &batches[i];
  batch->span = (struct device_span){from - 10, from, to, to + 10};
  batch->bytes.expected = (struct audit_bytes){read, write};
  batch->target = target_a;
  batch->audited = true;
  assert_true(split_add(&split, batch));
  return batch;
}

static void sample(int64_t from, int64_t to, double read, double write) {
  struct split_sample s = {.kind = SPLIT_COUNTED, .weight = 1, .at = {from, to, read, write}};
  split_sample(&split, &s);
}

static void of_kind(int64_t from, int64_t to, enum split_kind kind) {
  struct split_sample s = {.kind = kind, .at = {from, to, 0, 0}};
  split_sample(&split, &s);
}

static void a_lonely_batch_gets_all(void **state) {
  (void)state;
  struct audit_batch *a = add(0, 1050, 1250, 1, 1);
  sample(900, 1000, 0, 0);
  sample(1000, 1100, 50, 5); // half of it was idle: the bytes are the batch's all the same
  sample(1100, 1200, 100, 10);
  assert_null(split_take(&split));
  sample(1200, 1300, 50, 5);
  assert_ptr_equal(split_take(&split), a);
  assert_int_equal(a->outcome, AUDIT_MEASURED);
  assert_near(a->read_bytes, 200, 1e-9);
  assert_near(a->write_bytes, 20, 1e-9);
  assert_int_equal(a->shared_ns, 0);
  assert_near(split.read.batches, 200, 1e-9);
  assert_near(split.read.other, 0, 1e-9);
  assert_null(split_take(&split));
}

static void idle_time_is_charged_at_the_idle_rate(void **state) {
  (void)state;
  struct audit_batch *a = add(0, 1050, 1250, 1, 1);
  sample(900, 1000, 10, 2); // a tenth of a byte each nanosecond, and nobody's
  sample(1000, 1100, 55, 6);
  sample(1100, 1200, 100, 10);
  sample(1200, 1300, 55, 6);
  assert_ptr_equal(split_take(&split), a);
  assert_near(a->read_bytes, 200, 1e-9);
  assert_near(a->write_bytes, 20, 1e-9);
  assert_near(split.read.other, 20, 1e-9);
  // more than there is cannot be charged
  struct audit_batch *b = add(1, 2050, 2100, 1, 1);
  sample(2000, 2100, 1, 0.5);
  sample(2100, 2200, 0, 0);
  assert_ptr_equal(split_take(&split), b);
  assert_near(b->read_bytes, 0, 1e-9);
}

static void neighbours_share_by_what_is_expected_of_them(void **state) {
  (void)state;
  // the first is expected to read 3 a nanosecond, the second 1; both write nothing
  struct audit_batch *a = add(0, 1000, 1150, 450, 0), *b = add(1, 1150, 1300, 150, 0);
  sample(1000, 1100, 300, 7);
  sample(1100, 1200, 200, 8);
  sample(1200, 1300, 100, 9);
  sample(1300, 1400, 0, 0);
  assert_ptr_equal(split_take(&split), a);
  assert_ptr_equal(split_take(&split), b);
  assert_near(a->read_bytes, 450, 1e-3);
  assert_near(b->read_bytes, 150, 1e-3);
  assert_near(a->write_bytes, 11, 1e-6); // by time alone
  assert_near(b->write_bytes, 13, 1e-6);
  assert_int_equal(a->shared_ns + b->shared_ns, 0); // neighbours in a sample ran alone
}

static void lanes_side_by_side(void **state) {
  (void)state;
  struct audit_batch *a = add(0, 1000, 1400, 400, 40), *b = add(1, 1200, 1400, 600, 60);
  b->target = target_b;
  sample(1000, 1200, 200, 20);
  sample(1200, 1400, 880, 88); // 200 expected of one and 600 of the other, and 1.1 times both
  sample(1400, 1600, 0, 0);
  assert_ptr_equal(split_take(&split), a);
  assert_ptr_equal(split_take(&split), b);
  assert_near(a->read_bytes, 200 + 220, 1e-3);
  assert_near(b->read_bytes, 660, 1e-3);
  assert_near(a->write_bytes + b->write_bytes, 108, 1e-9);
  assert_int_equal(a->shared_ns, 200);
  assert_int_equal(b->shared_ns, 200);
}

static void beside_its_own_kind_nothing_is_shared(void **state) {
  (void)state;
  struct audit_batch *a = add(0, 1000, 1400, 400, 40), *b = add(1, 1000, 1400, 400, 40);
  sample(1000, 1400, 800, 80);
  sample(1400, 1500, 0, 0);
  assert_non_null(split_take(&split));
  assert_non_null(split_take(&split));
  assert_near(a->read_bytes, 400, 1e-9);
  assert_near(b->read_bytes, 400, 1e-9);
  assert_int_equal(a->shared_ns + b->shared_ns, 0);
}

static void copies_are_counted_apart(void **state) {
  (void)state;
  struct audit_batch *a = add(0, 1100, 1200, 1, 1);
  a->span.began_ns = 1000;
  a->span.ended_ns = 1300;
  sample(1000, 1100, 30, 31);
  sample(1100, 1200, 100, 101);
  sample(1200, 1300, 40, 41);
  assert_ptr_equal(split_take(&split), a);
  assert_near(a->read_bytes, 100, 1e-9);
  assert_near(split.read.copies, 70, 1e-9);
  assert_near(split.write.copies, 72, 1e-9);
  assert_near(split.idle_read, 0, 0); // copies teach nothing of idle time
}

static void what_was_not_seen_spoils(void **state) {
  (void)state;
  struct audit_batch *a = add(0, 1000, 1100, 1, 1), *b = add(1, 1200, 1300, 1, 1),
                     *c = add(2, 1400, 1500, 1, 1);
  sample(1000, 1120, 5, 5);
  assert_ptr_equal(split_take(&split), a);
  of_kind(1120, 1250, SPLIT_HOLE);
  sample(1250, 1350, 5, 5);
  assert_ptr_equal(split_take(&split), b);
  of_kind(1350, 1450, SPLIT_PASSED);
  sample(1450, 1550, 5, 5);
  assert_ptr_equal(split_take(&split), c);
  assert_int_equal(a->outcome, AUDIT_MEASURED);
  assert_int_equal(b->outcome, AUDIT_LOST);
  assert_int_equal(c->outcome, AUDIT_SKIPPED);
  assert_near(split.read.batches, 15, 1e-9);
}

static void who_comes_too_late_is_skipped(void **state) {
  (void)state;
  sample(1000, 1100, 5, 5);
  struct audit_batch *a = add(0, 1090, 1150, 1, 1);
  sample(1100, 1200, 5, 5);
  assert_ptr_equal(split_take(&split), a);
  assert_int_equal(a->outcome, AUDIT_SKIPPED);
}

static void a_copy_gets_all_around_it(void **state) {
  (void)state;
  struct audit_batch *copy = add(0, 1200, 1300, 100, 100);
  copy->kind = AUDIT_COPY;
  copy->span.began_ns = 1000;
  copy->span.ended_ns = 1500;
  sample(900, 1000, 77, 77);
  for (int64_t at = 1000; at < 1500; at += 100)
    sample(at, at + 100, at == 1200 ? 90 : 2.5, 20);
  sample(1500, 1600, 77, 77);
  assert_ptr_equal(split_take(&split), copy);
  assert_int_equal(copy->outcome, AUDIT_MEASURED);
  assert_near(copy->read_bytes, 100, 1e-9);
  assert_near(copy->read_at, 90 * 50 - 2.5 * (150 + 50 - 150 - 250), 1e-9);
  assert_near(copy->write_bytes, 100, 1e-9);
}

static void a_copy_that_was_not_alone_says_nothing(void **state) {
  (void)state;
  struct audit_batch *copy = add(0, 1200, 1300, 100, 100);
  copy->kind = AUDIT_COPY;
  add(1, 1250, 1280, 1, 1);
  for (int64_t at = 1100; at < 1500; at += 100)
    sample(at, at + 100, 5, 5);
  while (split_take(&split)) {
  }
  assert_int_equal(copy->outcome, AUDIT_SKIPPED);
}

// Many lanes' worth of batches of random times, and samples that know them exactly: whatever is
// handed out adds up, and no batch alone in its time gets what is not its own.
static void it_adds_up(void **state) {
  (void)state;
  enum { N = 400 };
  static struct audit_batch many[N];
  double expected = 0, given = 0;
  int64_t at = 1000;
  memset(many, 0, sizeof many);
  test_random_seed(20261130);
  for (int i = 0; i < N; i++) {
    int64_t from = at + (int64_t)(test_random() % 50), ns = 1 + (int64_t)(test_random() % 700);
    many[i].span = (struct device_span){from - 5, from, from + ns, from + ns + 5};
    many[i].bytes.expected = (struct audit_bytes){(double)(test_random() % 1000), 1};
    many[i].target = i % 3 ? target_a : target_b;
    assert_true(split_add(&split, &many[i]));
    at = from + (int64_t)(test_random() % 400);
  }
  int taken = 0;
  for (int64_t t = 900; t < at + 2000; t += 100) {
    double read = (double)(test_random() % 500);
    expected += read;
    sample(t, t + 100, read, 1);
    for (struct audit_batch *batch; (batch = split_take(&split)); taken++) {
      assert_int_equal(batch->outcome, AUDIT_MEASURED);
      assert_true(batch->read_bytes >= 0);
      assert_true(batch->shared_ns >= 0);
      given += batch->read_bytes;
    }
  }
  assert_int_equal(taken, N);
  assert_near(given, split.read.batches, 1e-6);
  assert_near(split.read.batches + split.read.copies + split.read.other, expected, 1e-6);
}

static void its_memory_is_bounded(void **state) {
  (void)state;
  static struct audit_batch many[AUDIT_BATCHES + 1];
  memset(many, 0, sizeof many);
  for (int round = 0; round < 3; round++) { // the room is used again and again
    int64_t base = 1000000 * (round + 1);
    for (int i = 0; i <= AUDIT_BATCHES; i++) {
      many[i].span = (struct device_span){base + i, base + i, base + i + 1, base + i + 1};
      assert_int_equal(split_add(&split, &many[i]), i < AUDIT_BATCHES);
    }
    for (int i = 0; i < AUDIT_BATCHES; i++) {
      sample(base + i, base + i + 1, 3, 3);
      assert_ptr_equal(split_take(&split), &many[i]);
      assert_near(many[i].read_bytes, 3, 1e-9);
    }
    assert_null(split_take(&split));
  }
  assert_null(split_drop(&split, INT64_MAX));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(a_lonely_batch_gets_all, set_up),
      cmocka_unit_test_setup(idle_time_is_charged_at_the_idle_rate, set_up),
      cmocka_unit_test_setup(neighbours_share_by_what_is_expected_of_them, set_up),
      cmocka_unit_test_setup(lanes_side_by_side, set_up),
      cmocka_unit_test_setup(beside_its_own_kind_nothing_is_shared, set_up),
      cmocka_unit_test_setup(copies_are_counted_apart, set_up),
      cmocka_unit_test_setup(what_was_not_seen_spoils, set_up),
      cmocka_unit_test_setup(who_comes_too_late_is_skipped, set_up),
      cmocka_unit_test_setup(a_copy_gets_all_around_it, set_up),
      cmocka_unit_test_setup(a_copy_that_was_not_alone_says_nothing, set_up),
      cmocka_unit_test_setup(it_adds_up, set_up),
      cmocka_unit_test_setup(its_memory_is_bounded, set_up),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
