// sched/compare: what counts as a difference, and how large it is.
#include "harness/cmocka_all.h"

#include "sched/compare.h"

#include <math.h>

static struct difference of_floats(const float *a, const float *b, int64_t n) {
  struct difference out = {0};
  difference_add(&out, DTYPE_F32, a, b, n);
  return out;
}

static void equal_is_zero(void **state) {
  (void)state;
  const float a[] = {1, -2, 0, NAN, INFINITY, -INFINITY, 3e38f};
  struct difference d = of_floats(a, a, 7);
  assert_true(difference_relative(&d) == 0 && d.max_abs == 0 && d.odd == 0);
  const float zero[] = {0.0f, -0.0f}, other[] = {-0.0f, 0.0f};
  d = of_floats(zero, other, 2);
  assert_true(difference_relative(&d) == 0 && d.max_abs == 0);
}

static void it_is_relative_to_the_reference(void **state) {
  (void)state;
  const float a[] = {3, 4.5f, 0}, b[] = {3, 4, 0};
  struct difference d = of_floats(a, b, 3);
  assert_float_equal(difference_relative(&d), 0.1, 1e-12);
  assert_true(d.max_abs == 0.5);
  d = of_floats(b, a, 3);
  assert_float_equal(difference_relative(&d), 0.5 / sqrt(9 + 20.25), 1e-12);
  const float zeros[] = {0, 0, 0}; // nothing to be relative to
  d = of_floats(a, zeros, 3);
  assert_true(isinf(difference_relative(&d)) && d.max_abs == 4.5 && d.odd == 0);
}

// In the same places they are equal and weigh nothing; else there is no difference that is a
// number.
static void numbers_that_are_none_must_be_in_the_same_places(void **state) {
  (void)state;
  const float a[] = {3, NAN, INFINITY, 4.5f}, b[] = {3, NAN, INFINITY, 4};
  struct difference d = of_floats(a, b, 4);
  assert_float_equal(difference_relative(&d), 0.1, 1e-12);
  const float pairs[][2] = {{NAN, 1},        {1, NAN},         {INFINITY, 1},        {1, -INFINITY},
                            {NAN, INFINITY}, {-INFINITY, NAN}, {INFINITY, -INFINITY}};
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
    const float x[] = {1, pairs[i][0]}, y[] = {1, pairs[i][1]};
    d = of_floats(x, y, 2);
    assert_true(isinf(difference_relative(&d)) && isinf(d.max_abs));
    assert_int_equal(d.odd, 1);
  }
}

static void pieces_add_up(void **state) {
  (void)state;
  float a[100], b[100];
  for (int i = 0; i < 100; i++)
    a[i] = (float)i, b[i] = (float)i + (i % 7 == 0 ? 0.25f : 0);
  struct difference all = of_floats(a, b, 100), parts = {0};
  difference_add(&parts, DTYPE_F32, a, b, 33);
  difference_add(&parts, DTYPE_F32, a + 33, b + 33, 67);
  assert_true(difference_relative(&all) == difference_relative(&parts) &&
              difference_relative(&all) > 0);
  assert_true(parts.max_abs == 0.25);
}

static void every_dtype_is_read(void **state) {
  (void)state;
  const uint16_t half[] = {f32_to_f16(3), f32_to_f16(4.5f)},
                 half_b[] = {f32_to_f16(3), f32_to_f16(4)};
  const uint16_t brain[] = {f32_to_bf16(3), f32_to_bf16(4.5f)},
                 brain_b[] = {f32_to_bf16(3), f32_to_bf16(4)};
  const int64_t wide[] = {30, 45}, wide_b[] = {30, 40};
  const int32_t narrow[] = {30, 45}, narrow_b[] = {30, 40};
  const struct {
    enum dtype dtype;
    const void *a, *b;
  } cases[] = {{DTYPE_F16, half, half_b},
               {DTYPE_BF16, brain, brain_b},
               {DTYPE_I64, wide, wide_b},
               {DTYPE_I32, narrow, narrow_b}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct difference d = {0};
    difference_add(&d, cases[i].dtype, cases[i].a, cases[i].b, 2);
    assert_float_equal(difference_relative(&d), 0.1, 1e-12);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(equal_is_zero),
      cmocka_unit_test(it_is_relative_to_the_reference),
      cmocka_unit_test(numbers_that_are_none_must_be_in_the_same_places),
      cmocka_unit_test(pieces_add_up),
      cmocka_unit_test(every_dtype_is_read),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
