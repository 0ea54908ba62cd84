#include "client/difference.h"
#include "harness/cmocka_all.h"
#include <math.h>

static struct difference difference;

static int teardown(void **state) {
  (void)state;
  difference_free(&difference);
  memset(&difference, 0, sizeof difference);
  return 0;
}

static struct reply answer(enum datatype type, const void *data, size_t n) {
  struct reply reply = {.n_outputs = 1};
  reply.outputs[0] =
      (struct reply_output){.name = {(const uint8_t *)"y", 1},
                            .type = type,
                            .rank = 1,
                            .dims = {(int64_t)n},
                            .raw = {(const uint8_t *)data, n * datatype_bytes(type)}};
  return reply;
}

static bool add(enum datatype type, const void *a, const void *b, size_t n) {
  const struct reply replies[2] = {answer(type, a, n), answer(type, b, n)};
  return difference_add(&difference, &replies[0], &replies[1]);
}

static void both_measures_of_known_vectors(void **state) {
  (void)state;
  const float a[] = {3, 4, 0}, b[] = {3, 0, 3}, same[] = {1, 2, 3};
  assert_true(add(TYPE_FP32, a, b, 3));
  assert_true(add(TYPE_FP32, same, same, 3));
  assert_int_equal(difference_finish(&difference, 1), STATUS_OK);
  const struct difference_output *y = &difference.outputs[0];
  const double first = 5 / sqrt(18); // |(0, 4, -3)| / |(3, 0, 3)|
  assert_string_equal(y->name, "y");
  assert_int_equal(y->elements, 6);
  assert_near(y->max_abs, 4, 0);
  assert_near(y->relative_l2.mean, first / 2, 1e-12);
  assert_near(y->relative_l2.low, 0, 0); // both draws may be of the second request
  assert_near(y->relative_l2.high, first, 1e-12);
  assert_near(y->relative.max, first, 1e-12);
  assert_int_equal(difference.n_requests, 2);
}

static void a_name_is_kept_for_a_terminal(void **state) {
  (void)state;
  const float value = 1;
  char name[300];
  memset(name, 'n', sizeof name);
  memcpy(name, "\x1b[2J\xff", 5);
  struct reply replies[2] = {answer(TYPE_FP32, &value, 1), answer(TYPE_FP32, &value, 1)};
  replies[0].outputs[0].name = replies[1].outputs[0].name =
      (struct slice){(const uint8_t *)name, sizeof name};
  assert_true(difference_add(&difference, &replies[0], &replies[1]));
  const char *kept = difference.outputs[0].name;
  assert_int_equal(strlen(kept), sizeof difference.outputs[0].name - 1);
  assert_int_equal(strncmp(kept, " [2J?nnn", 8), 0);
}

static void every_type_of_number_is_read(void **state) {
  (void)state;
  static const struct {
    enum datatype type;
    uint64_t a, b; // bits
    double distance;
  } cases[] = {{TYPE_FP16, 0x3c00, 0x3e00, 0.5},     // 1, 1.5
               {TYPE_FP16, 0x0001, 0x0000, 0x1p-24}, // the smallest
               {TYPE_FP16, 0xc000, 0x4000, 4},       // -2, 2
               {TYPE_BF16, 0x3f80, 0x4000, 1},       // 1, 2
               {TYPE_FP64, 0x3ff0000000000000, 0x4008000000000000, 2},
               {TYPE_INT8, 0xff, 0x01, 2},
               {TYPE_UINT8, 0xff, 0x01, 254},
               {TYPE_INT16, 0xfffe, 0, 2},
               {TYPE_INT32, 0xffffffff, 1, 2},
               {TYPE_INT64, UINT64_MAX, 4, 5},
               {TYPE_BOOL, 1, 0, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    assert_true(add(cases[i].type, &cases[i].a, &cases[i].b, 1));
    assert_near(difference.outputs[0].max_abs, cases[i].distance, 0);
    teardown(NULL);
  }
}

static void what_is_not_finite_is_counted_apart(void **state) {
  (void)state;
  const float a[] = {NAN, INFINITY, 1, INFINITY}, b[] = {NAN, INFINITY, 2, -INFINITY};
  assert_true(add(TYPE_FP32, a, b, 4));
  const struct difference_output *y = &difference.outputs[0];
  assert_int_equal(y->not_finite, 1); // the same NaN and the same infinity are no difference
  assert_near(y->max_abs, 1, 0);
  assert_near(y->relative.max, 0.5, 1e-12);
}

static void a_difference_from_nothing_is_infinite(void **state) {
  (void)state;
  const float a[] = {1}, zero[] = {0};
  assert_true(add(TYPE_FP32, zero, zero, 1));
  assert_near(difference.outputs[0].relative.max, 0, 0);
  assert_true(add(TYPE_FP32, a, zero, 1));
  assert_true(isinf(difference.outputs[0].relative.max));
}

static void answers_of_other_forms_are_not_compared(void **state) {
  (void)state;
  const float a[] = {1, 2}, b[] = {1, 3};
  const struct reply two = answer(TYPE_FP32, a, 2), one = answer(TYPE_FP32, b, 1),
                     other_type = answer(TYPE_INT32, b, 2), text = answer(TYPE_BYTES, b, 2);
  struct reply none = {0}, named = two;
  named.outputs[0].name = (struct slice){(const uint8_t *)"z", 1};
  const struct reply *wrong[] = {&one, &other_type, &none, &named};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    difference.note[0] = 0;
    assert_false(difference_add(&difference, &two, wrong[i]));
    assert_true(difference.note[0] != 0);
  }
  assert_false(difference_add(&difference, &text, &text));
  assert_int_equal(difference.n_requests, 0);
  assert_true(difference_add(&difference, &two, &two));
  assert_int_equal(difference_finish(&difference, 1), STATUS_OK);
  assert_true(isnan(difference.outputs[0].relative_l2.low)); // one request: no interval
}

#define TEST(name) cmocka_unit_test_teardown(name, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(both_measures_of_known_vectors),        TEST(a_name_is_kept_for_a_terminal),
      TEST(every_type_of_number_is_read),          TEST(what_is_not_finite_is_counted_apart),
      TEST(a_difference_from_nothing_is_infinite), TEST(answers_of_other_forms_are_not_compared),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
