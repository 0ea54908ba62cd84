#include "base/clock.h"
#include "client/bench.h"
#include "client/options.h"
#include "harness/cmocka_all.h"

struct fields {
  bool flag;
  const char *text;
  int64_t count, duration;
  double real;
  struct text_list list;
};

static const struct option_row rows[] = {
    {NULL, OPTION_FLAG, 0, NULL, "Heading", 0, 0},
    {"flag", OPTION_FLAG, offsetof(struct fields, flag), NULL, "a flag", 0, 0},
    {"text", OPTION_TEXT, offsetof(struct fields, text), "T", "a text", 0, 0},
    {"count", OPTION_COUNT, offsetof(struct fields, count), "N", "a count", 1, 100},
    {"duration", OPTION_DURATION, offsetof(struct fields, duration), "TIME", "a time", 0, 0},
    {"real", OPTION_REAL, offsetof(struct fields, real), "X", "a number", 0, 0},
    {"list", OPTION_LIST, offsetof(struct fields, list), "L", "a list", 0, 0},
};
#define N_ROWS ((int)(sizeof rows / sizeof rows[0]))

static enum status parse(struct fields *target, struct error *err, int argc, ...) {
  char *argv[16];
  va_list args;
  va_start(args, argc);
  for (int i = 0; i < argc; i++)
    argv[i] = va_arg(args, char *);
  va_end(args);
  *err = (struct error){0};
  return options_parse(rows, N_ROWS, argc, argv, target, err);
}

static void every_kind_is_read(void **state) {
  (void)state;
  struct fields t = {0};
  struct error err;
  assert_int_equal(parse(&t, &err, 11, "--flag", "--text", "x", "--count=7", "--duration", "250ms",
                         "--real", "2.5", "--list=a", "--list", "--b"),
                   0);
  assert_true(t.flag);
  assert_string_equal(t.text, "x");
  assert_int_equal(t.count, 7);
  assert_int_equal(t.duration, 250 * NS_PER_MS);
  assert_near(t.real, 2.5, 0);
  assert_int_equal(t.list.n, 2);
  assert_string_equal(t.list.items[1], "--b"); // a value may look like an option
}

static void defaults_stay_where_nothing_is_given(void **state) {
  (void)state;
  struct fields t = {.count = 42, .text = "d"};
  struct error err;
  assert_int_equal(parse(&t, &err, 0), 0);
  assert_int_equal(t.count, 42);
  assert_string_equal(t.text, "d");
}

static void unknown_option_names_the_nearest(void **state) {
  (void)state;
  struct fields t = {0};
  struct error err;
  assert_int_equal(parse(&t, &err, 2, "--durration", "1s"), STATUS_INVALID_ARGUMENT);
  assert_non_null(strstr(err.message, "--durration"));
  assert_non_null(strstr(err.message, "--duration"));
  assert_int_equal(parse(&t, &err, 1, "--zzzzzzzz"), STATUS_INVALID_ARGUMENT);
  assert_null(strstr(err.message, "nearest"));
}

static void bad_values_name_option_and_expectation(void **state) {
  (void)state;
  struct fields t = {0};
  struct error err;
  assert_int_equal(parse(&t, &err, 2, "--count", "0"), STATUS_INVALID_ARGUMENT);
  assert_non_null(strstr(err.message, "from 1 to 100"));
  assert_int_equal(parse(&t, &err, 2, "--count", "7x"), STATUS_INVALID_ARGUMENT);
  assert_int_equal(parse(&t, &err, 2, "--count", "99999999999999999999"), STATUS_INVALID_ARGUMENT);
  assert_int_equal(parse(&t, &err, 2, "--duration", "5 parsecs"), STATUS_INVALID_ARGUMENT);
  assert_int_equal(parse(&t, &err, 2, "--real", "-1"), STATUS_INVALID_ARGUMENT);
  assert_int_equal(parse(&t, &err, 1, "--count"), STATUS_INVALID_ARGUMENT);
  assert_non_null(strstr(err.message, "needs a value"));
  assert_int_equal(parse(&t, &err, 1, "--flag=yes"), STATUS_INVALID_ARGUMENT);
  assert_int_equal(parse(&t, &err, 1, "stray"), STATUS_INVALID_ARGUMENT);
  assert_int_equal(parse(&t, &err, 1, "--"), STATUS_INVALID_ARGUMENT);
}

static void edit_distance_matches_known_values(void **state) {
  (void)state;
  assert_int_equal(edit_distance("kitten", "sitting"), 3);
  assert_int_equal(edit_distance("", "abc"), 3);
  assert_int_equal(edit_distance("same", "same"), 0);
}

static enum status bench(struct bench_options *o, struct error *err, int argc, ...) {
  char *argv[16];
  va_list args;
  va_start(args, argc);
  for (int i = 0; i < argc; i++)
    argv[i] = va_arg(args, char *);
  va_end(args);
  *err = (struct error){0};
  return bench_parse(argc, argv, o, err);
}

static void bench_works_out_its_sweep(void **state) {
  (void)state;
  struct bench_options o;
  struct error err;
  assert_int_equal(
      bench(&o, &err, 6, "--model", "m", "--concurrency", "1,4:16:6", "--tokens", "8..128"), 0);
  assert_int_equal(o.n_levels, 4); // 1 4 10 16
  assert_int_equal(o.callers[3], 16);
  assert_int_equal(o.tokens_low, 8);
  assert_int_equal(o.tokens_high, 128);
  assert_int_equal(o.warmup_ns, NS_PER_S);
  assert_int_equal(bench(&o, &err, 4, "--model", "m", "--requests", "10"), 0);
  assert_int_equal(o.warmup_ns, 0);
  assert_int_equal(bench(&o, &err, 5, "--model", "m", "--rate", "10,20.5", "--poisson"), 0);
  assert_int_equal(o.n_levels, 2);
  assert_near(o.rates[1], 20.5, 0);
}

static void bench_refuses_what_does_not_go_together(void **state) {
  (void)state;
  struct bench_options o;
  struct error err;
  assert_int_equal(bench(&o, &err, 0), STATUS_INVALID_ARGUMENT);
  assert_non_null(strstr(err.message, "--model"));
  assert_int_equal(bench(&o, &err, 6, "--model", "m", "--rate", "5", "--concurrency", "2"),
                   STATUS_INVALID_ARGUMENT);
  assert_int_equal(bench(&o, &err, 3, "--model", "m", "--poisson"), STATUS_INVALID_ARGUMENT);
  assert_int_equal(bench(&o, &err, 5, "--model", "m", "--rate", "5", "--ab"),
                   STATUS_INVALID_ARGUMENT);
  assert_int_equal(bench(&o, &err, 5, "--model", "m", "--ab", "--fusion", "on"),
                   STATUS_INVALID_ARGUMENT);
  assert_int_equal(bench(&o, &err, 6, "--model", "m", "--tokens", "5", "--input-file", "x"),
                   STATUS_INVALID_ARGUMENT);
  assert_int_equal(bench(&o, &err, 3, "m", "--model", "m"), STATUS_INVALID_ARGUMENT);
  assert_int_equal(bench(&o, &err, 2, "m", "n"), STATUS_INVALID_ARGUMENT);
  assert_int_equal(bench(&o, &err, 3, "m", "--ab-compare", "4"), STATUS_INVALID_ARGUMENT);
  assert_int_equal(bench(&o, &err, 4, "--model", "m", "--concurrency", "0"),
                   STATUS_INVALID_ARGUMENT);
  assert_int_equal(bench(&o, &err, 4, "--model", "m", "--tokens", "9..8"), STATUS_INVALID_ARGUMENT);
  assert_int_equal(bench(&o, &err, 4, "--model", "m", "--duration", "0"), STATUS_INVALID_ARGUMENT);
  assert_int_equal(bench(&o, &err, 5, "m", "--csv", "x", "--json", "x"), STATUS_INVALID_ARGUMENT);
  assert_string_equal(err.message, "--json, --csv and --html: two of them go to \"x\"");
  assert_int_equal(bench(&o, &err, 5, "m", "--html", "x", "--csv", "x"), STATUS_INVALID_ARGUMENT);
  assert_int_equal(bench(&o, &err, 5, "m", "--html", "-", "--json", "-"), STATUS_INVALID_ARGUMENT);
  assert_int_equal(bench(&o, &err, 7, "m", "--html", "x", "--csv", "y", "--json", "-"), STATUS_OK);
}

static void a_model_may_stand_anywhere(void **state) {
  (void)state;
  struct bench_options o;
  struct error err;
  assert_int_equal(bench(&o, &err, 3, "--requests", "5", "m"), STATUS_OK);
  assert_string_equal(o.model, "m");
  assert_int_equal(o.compare, 0);
  assert_int_equal(bench(&o, &err, 4, "m", "--ab", "--requests", "5"), STATUS_OK);
  assert_string_equal(o.model, "m");
  assert_int_equal(o.compare, 16);
  assert_int_equal(bench(&o, &err, 4, "--ab", "--ab-compare", "0", "m"), STATUS_OK);
  assert_int_equal(o.compare, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_kind_is_read),
      cmocka_unit_test(defaults_stay_where_nothing_is_given),
      cmocka_unit_test(unknown_option_names_the_nearest),
      cmocka_unit_test(bad_values_name_option_and_expectation),
      cmocka_unit_test(edit_distance_matches_known_values),
      cmocka_unit_test(bench_works_out_its_sweep),
      cmocka_unit_test(bench_refuses_what_does_not_go_together),
      cmocka_unit_test(a_model_may_stand_anywhere),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
