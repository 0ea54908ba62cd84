#include "base/clock.h"
#include "client/spec.h"
#include "harness/cmocka_all.h"

static void durations_have_units(void **state) {
  (void)state;
  int64_t ns = 0;
  assert_true(spec_duration("10s", &ns));
  assert_int_equal(ns, 10 * NS_PER_S);
  assert_true(spec_duration("1.5", &ns));
  assert_int_equal(ns, 1500 * NS_PER_MS);
  assert_true(spec_duration("250us", &ns));
  assert_int_equal(ns, 250 * NS_PER_US);
  assert_true(spec_duration("2m", &ns));
  assert_int_equal(ns, 120 * NS_PER_S);
  assert_true(spec_duration("0", &ns));
  static const char *const bad[] = {"",    "s",   "-1s",  "1 s",  "1d",
                                    "inf", "nan", "1e99", "0x10", " 1"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    if (spec_duration(bad[i], &ns)) fail_msg("accepted '%s'", bad[i]);
  }
}

static void lists_take_spans_and_end_them_without_overflow(void **state) {
  (void)state;
  int64_t out[SPEC_LIST_MAX];
  int n = 0;
  assert_true(spec_int_list("1,4,16", out, &n));
  assert_int_equal(n, 3);
  assert_true(spec_int_list("1:16:5", out, &n));
  assert_int_equal(n, 4); // 1 6 11 16
  assert_int_equal(out[3], 16);
  assert_true(spec_int_list("2:4", out, &n));
  assert_int_equal(n, 3);
  assert_true(
      spec_int_list("9223372036854775806:9223372036854775807:9223372036854775807", out, &n));
  assert_int_equal(n, 1);
  static const char *const bad[] = {"",    ",",     "1,",     ",1", "0",   "-1",     "1:0",
                                    "4:1", "1:5:0", "1:1000", "a",  "1;2", "1:2:3:4"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    if (spec_int_list(bad[i], out, &n)) fail_msg("accepted '%s'", bad[i]);
  }
}

static void ranges_are_ordered_and_positive(void **state) {
  (void)state;
  int64_t low = 0, high = 0;
  assert_true(spec_range("8..128", &low, &high));
  assert_int_equal(low, 8);
  assert_int_equal(high, 128);
  assert_true(spec_range("32", &low, &high));
  assert_int_equal(high, 32);
  assert_false(spec_range("8...9", &low, &high));
  assert_false(spec_range("0..9", &low, &high));
  assert_false(spec_range("9..8", &low, &high));
  assert_false(spec_range("8..", &low, &high));
}

static void inputs_name_their_tensor(void **state) {
  (void)state;
  struct infer_tensor t;
  const char *path = NULL;
  struct error err;
  assert_int_equal(spec_input("x=dir/a.npy", &t, &path, &err), 0);
  assert_string_equal(t.name, "x");
  assert_string_equal(path, "dir/a.npy");
  assert_int_equal(t.type, TYPE_NONE);
  assert_int_equal(spec_input("ids:INT64:1x16=a=b.raw", &t, &path, &err), 0);
  assert_string_equal(path, "a=b.raw");
  assert_int_equal(t.type, TYPE_INT64);
  assert_int_equal(t.rank, 2);
  assert_int_equal(t.dims[1], 16);
  assert_int_equal(spec_input("x:BF16=a.npy", &t, &path, &err), 0);
  assert_int_equal(t.rank, -1);
  static const char *const bad[] = {"",
                                    "x",
                                    "=a",
                                    "x=",
                                    ":FP32:1=a",
                                    "x:FP99:1=a",
                                    "x:FP32:1x=a",
                                    "x:FP32:-1=a",
                                    "x:FP32:1x1x1x1x1x1x1x1x1=a",
                                    "x:FP32:1 =a",
                                    "x:BYTES:1=a"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    if (spec_input(bad[i], &t, &path, &err) == STATUS_OK) fail_msg("accepted '%s'", bad[i]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(durations_have_units),
      cmocka_unit_test(lists_take_spans_and_end_them_without_overflow),
      cmocka_unit_test(ranges_are_ordered_and_positive),
      cmocka_unit_test(inputs_name_their_tensor),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
