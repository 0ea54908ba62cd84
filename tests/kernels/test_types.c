// fp16 and bf16 conversions against the compiler's own fp16 type and against arithmetic, over every
// bit pattern.
#include "kernels/types.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

static float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

static void every_half_survives_the_round_trip(void **state) {
  (void)state;
  for (uint32_t half = 0; half < 65536; half++) {
    _Float16 native;
    uint16_t bits = (uint16_t)half;
    memcpy(&native, &bits, 2);
    float expected = (float)native, got = f16_to_f32(bits);
    if (isnan(expected)) {
      assert_true(isnan(got));
      assert_true(isnan(f16_to_f32(f32_to_f16(got))));
      continue;
    }
    if (bits_of(expected) != bits_of(got))
      fail_msg("half %04x: %a, expected %a", half, got, expected);
    if (f32_to_f16(got) != bits) fail_msg("half %04x came back as %04x", half, f32_to_f16(got));
  }
}

// Every rounding case: the 8 neighbours of each point where the fp16 result changes lie within this
// sweep's step.
static void floats_round_to_the_nearest_even_half(void **state) {
  (void)state;
  for (uint64_t bits = 0; bits < 0x7f800000u; bits += 251) {
    float value = float_of((uint32_t)bits);
    _Float16 native = (_Float16)value;
    uint16_t expected;
    memcpy(&expected, &native, 2);
    if (f32_to_f16(value) != expected)
      fail_msg("%a gave %04x, expected %04x", value, f32_to_f16(value), expected);
    if (f32_to_f16(-value) != (expected | 0x8000)) fail_msg("-%a", value);
  }
  for (uint32_t half = 0; half < 0x7c00; half++) { // exact midpoints go to the even neighbour
    float low = f16_to_f32((uint16_t)half),
          high = half == 0x7bff ? 65536.0f : f16_to_f32((uint16_t)(half + 1));
    float middle = low + (high - low) / 2;
    uint16_t expected = (uint16_t)(half % 2 == 0 ? half : half + 1);
    if (f32_to_f16(middle) != expected)
      fail_msg("midpoint %a gave %04x, expected %04x", middle, f32_to_f16(middle), expected);
  }
}

static void bf16_rounds_to_nearest_even(void **state) {
  (void)state;
  for (uint32_t high = 0; high < 65536; high++) {
    float value = bf16_to_f32((uint16_t)high);
    if (isnan(value)) {
      assert_true(isnan(bf16_to_f32(f32_to_bf16(value))));
      continue;
    }
    assert_int_equal(f32_to_bf16(value), high);
    if (isinf(value)) continue;
    uint32_t even = high % 2 == 0 ? high : high + 1;
    assert_int_equal(f32_to_bf16(float_of((high << 16) | 0x8000)), even & 0xffff);
    assert_int_equal(f32_to_bf16(float_of((high << 16) | 0x7fff)), high);
    assert_int_equal(f32_to_bf16(float_of((high << 16) | 0x8001)), (high + 1) & 0xffff);
  }
  assert_true(isnan(bf16_to_f32(
      f32_to_bf16(float_of(0x7f800001u))))); // a NaN whose payload is only in the low half
}

static void names_and_sizes(void **state) {
  (void)state;
  assert_int_equal(dtype_bytes(DTYPE_F32), 4);
  assert_int_equal(dtype_bytes(DTYPE_BF16), 2);
  assert_int_equal(dtype_bytes(DTYPE_I64), 8);
  assert_int_equal(dtype_bytes(DTYPE_COUNT), 0);
  assert_string_equal(dtype_name(DTYPE_BF16), "bf16");
  assert_string_equal(activation_name(ACT_GELU_TANH), "gelu_tanh");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_half_survives_the_round_trip),
                                     cmocka_unit_test(floats_round_to_the_nearest_even_half),
                                     cmocka_unit_test(bf16_rounds_to_nearest_even),
                                     cmocka_unit_test(names_and_sizes)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
