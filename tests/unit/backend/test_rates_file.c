// What was measured of a device, as text: written and read back, and files that must not be
// believed.
#include "backend/rates_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static struct device_facts facts;

static int set_up(void **state) {
  (void)state;
  struct device_rates rates = device_rates_cpu(2);
  return device_facts_init(&facts, &rates) == STATUS_OK ? 0 : -1;
}

static int tear_down(void **state) {
  (void)state;
  device_facts_deinit(&facts);
  return 0;
}

static void fill(void) {
  facts.measured = true;
  facts.rates.copy = 12.5e9;
  facts.rates.product[DTYPE_BF16] = 7e12;
  facts.shapes.shapes[facts.shapes.n++] = (struct measured_shape){.n = 1536,
                                                                  .k = 384,
                                                                  .m = 128,
                                                                  .x_dtype = DTYPE_F32,
                                                                  .y_dtype = DTYPE_BF16,
                                                                  .epilogue = "bias,gelu,add",
                                                                  .fused_us = 101.25,
                                                                  .apart_us = 99.5};
}

static void check_filled(const struct device_facts *found) {
  assert_true(found->measured);
  assert_true(found->rates.copy == 12.5e9 && found->rates.product[DTYPE_BF16] == 7e12);
  assert_int_equal(found->shapes.n, 1);
  const struct measured_shape *shape = &found->shapes.shapes[0];
  assert_int_equal(shape->n, 1536);
  assert_int_equal(shape->y_dtype, DTYPE_BF16);
  assert_string_equal(shape->epilogue, "bias,gelu,add");
  assert_true(shape->fused_us == 101.25 && shape->apart_us == 99.5);
}

static void text_comes_back(void **state) {
  (void)state;
  char text[4096];
  struct device_facts other;
  struct device_rates rates = device_rates_gpu();
  fill();
  size_t bytes = device_facts_print(&facts, text, sizeof text);
  assert_int_equal(bytes, strlen(text));
  assert_int_equal(device_facts_print(&facts, NULL, 0), bytes);
  assert_int_equal(device_facts_init(&other, &rates), STATUS_OK);
  assert_int_equal(device_facts_parse(text, bytes, &other, NULL), STATUS_OK);
  check_filled(&other);
  assert_int_equal(other.rates.cache_bytes, rates.cache_bytes); // not measured: stays
  device_facts_deinit(&other);
}

static void shapes_alone_leave_the_defaults(void **state) {
  (void)state;
  static const char text[] = "fusewire rates 7\nshape 8 8 32 fp32 fp32 gelu 1 2\n";
  struct device_rates rates = facts.rates;
  assert_int_equal(device_facts_parse(text, strlen(text), &facts, NULL), STATUS_OK);
  assert_false(facts.measured);
  assert_true(facts.rates.copy == rates.copy);
  assert_int_equal(facts.shapes.n, 1);
}

static void what_is_not_such_a_file_changes_nothing(void **state) {
  (void)state;
  static const char *const bad[] = {
      "",
      "rates 6\n",
      "fusewire rates 1\n", // before activations had a rate of their own
      "fusewire rates 2\n", // before finishes had
      "fusewire rates 4\n", // before launch, reduced, vector and epilogue were measured anew
      "fusewire rates 5\n", // before GPUs were measured by their graphs
      "fusewire rates 6\n", // before a launch was less for what reduces no rows
      "fusewire rates 8\n",
      "fusewire rates 7\ncopy 1e10\n", // the others are missing
      "fusewire rates 7\ncopy nan\n",
      "fusewire rates 7\ncopy -1\n",
      "fusewire rates 7\ncopy 1e300\n",
      "fusewire rates 7\ncopy 1e10 2\n",
      "fusewire rates 7\nspeed 1e10\n",
      "fusewire rates 7\ncopy\n",
      "fusewire rates 7\nshape 8 8 32 fp32 fp32 gelu 1\n",
      "fusewire rates 7\nshape 8 8 32 fp32 fp64 gelu 1 2\n",
      "fusewire rates 7\nshape 8 8 32 fp32 fp32 gelu 12 22", // cut short, perhaps within a number
      "fusewire rates 7\nshape 0 8 32 fp32 fp32 gelu 1 2\n",
      "fusewire rates 7\nshape 8 8.5 32 fp32 fp32 gelu 1 2\n", // no count
      "fusewire rates 7\nshape 8 8 32 fp32 fp32 gelu inf 2\n",
      "fusewire rates 7\nshape 8 8 32 fp32 fp32 "
      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
      "aaaaaaaaaaaaaaaaaaaa 1 2\n",
  };
  struct device_rates before = facts.rates;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    struct error err = {0};
    if (device_facts_parse(bad[i], strlen(bad[i]), &facts, &err) != STATUS_INVALID_ARGUMENT)
      fail_msg("taken: %s", bad[i]);
    assert_true(strlen(err.message) > 0);
    assert_memory_equal(&before, &facts.rates, sizeof before);
    assert_int_equal(facts.shapes.n, 0);
  }
  static const char zero[] = "fusewire rates 7\nco\0py 1\n";
  assert_int_equal(device_facts_parse(zero, sizeof zero - 1, &facts, NULL),
                   STATUS_INVALID_ARGUMENT);
}

static void what_is_no_file_is_not_opened(void **state) {
  (void)state;
  char folder[] = "/tmp/fusewire-rates-XXXXXX", path[256];
  assert_non_null(mkdtemp(folder));
  assert_true(device_facts_path(folder, "x", path, sizeof path));
  assert_int_equal(mkfifo(path, 0600), 0);
  struct error err;
  assert_int_equal(device_facts_read(path, &facts, &err), STATUS_INVALID_ARGUMENT);
  assert_non_null(strstr(err.message, "x.rates: not a regular file"));
  assert_int_equal(unlink(path), 0);
  assert_int_equal(rmdir(folder), 0);
}

static void file_is_replaced_as_a_whole(void **state) {
  (void)state;
  char folder[] = "/tmp/fusewire-rates-XXXXXX", new[64], cache[64], path[256];
  struct error err;
  assert_non_null(mkdtemp(folder));
  snprintf(new, sizeof new, "%s/new", folder);
  snprintf(cache, sizeof cache, "%s/new/er", folder);
  assert_true(device_facts_path(cache, "cpu-A B/../c", path, sizeof path));
  assert_string_equal(path + strlen(cache), "/cpu-A_B_.._c.rates");
  assert_false(device_facts_path(cache, "x", path, 8));
  assert_true(device_facts_path(cache, "x", path, sizeof path));
  assert_int_equal(device_facts_read(path, &facts, &err), STATUS_NOT_FOUND);
  fill();
  assert_int_equal(device_facts_write(path, &facts, &err), STATUS_OK);
  assert_int_equal(device_facts_write(path, &facts, &err), STATUS_OK);
  facts.shapes.n = 0;
  assert_int_equal(device_facts_read(path, &facts, &err), STATUS_OK);
  check_filled(&facts);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(rmdir(cache), 0); // nothing else is left behind
  assert_int_equal(rmdir(new), 0);
  assert_int_equal(rmdir(folder), 0);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
  const struct CMUnitTest tests[] = {TEST(text_comes_back), TEST(shapes_alone_leave_the_defaults),
                                     TEST(what_is_not_such_a_file_changes_nothing),
                                     TEST(what_is_no_file_is_not_opened),
                                     TEST(file_is_replaced_as_a_whole)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
