// Reports of a made-up result: every number once, well-formed text, nothing lost.
#include "client/file.h"
#include "client/report.h"
#include "client/svg.h"
#include "harness/cmocka_all.h"
#include <jansson.h>
#include <math.h>
#include <unistd.h>

static struct report report;
static char path[64];

static int setup(void **state) {
  (void)state;
  report = (struct report){.url = "h:1",
                           .model = "a<b>&\"c\",d",
                           .input = "made up",
                           .server = "s 1",
                           .connections = 1,
                           .fusion = {"on", "off"},
                           .ab = true,
                           .n_levels = 2};
  for (int i = 0; i < 2; i++) {
    struct level *level = &report.levels[i];
    level->callers = 1 + 3 * i;
    result_init(&level->result, 2, 1);
    for (int n = 1; n <= 100; n++) {
      for (int v = 0; v < 2; v++) {
        uint8_t no_cost[1] = {0};
        struct reply_cost cost;
        const struct outcome outcome = {.variant = v,
                                        .measured = true,
                                        .in_window = true,
                                        .latency_us = 1000.0 * n,
                                        .tokens = 7,
                                        .message = "",
                                        .reply = {no_cost, 0}};
        result_add(&level->result, &outcome, &cost);
      }
    }
    const struct outcome failed = {
        .measured = true, .status = STATUS_UNAVAILABLE, .message = "gone <away>"};
    struct reply_cost cost;
    result_add(&level->result, &failed, &cost);
    for (int v = 0; v < 2; v++)
      level->result.variant[v].seconds = 2;
    const double pair[AB_METRICS][RESULT_VARIANTS] = {{1, 2}, {1, 2}, {1, 2}, {2, 1}};
    for (int n = 0; n < 3; n++)
      assert_int_equal(result_add_pair(&level->result, pair), 0);
    assert_int_equal(result_estimate(&level->result, 1), 0);
  }
  snprintf(path, sizeof path, "/tmp/fusewire_report_XXXXXX");
  const int fd = mkstemp(path);
  if (fd >= 0) close(fd);
  return fd >= 0 ? 0 : -1;
}

static int teardown(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++)
    result_free(&report.levels[i].result);
  return unlink(path);
}

static char *contents(void) {
  struct slice file;
  struct error err;
  assert_int_equal(file_read(path, &file, &err), 0);
  return (char *)(uintptr_t)file.data;
}

static void json_holds_the_figures(void **state) {
  (void)state;
  struct error err;
  assert_int_equal(report_json(&report, path, &err), 0);
  json_t *root = json_load_file(path, 0, NULL);
  assert_non_null(root);
  assert_string_equal(json_string_value(json_object_get(root, "model")), report.model);
  json_t *levels = json_object_get(root, "levels");
  assert_int_equal(json_array_size(levels), 2);
  json_t *level = json_array_get(levels, 1);
  assert_int_equal(json_integer_value(json_object_get(level, "concurrency")), 4);
  assert_int_equal(json_integer_value(json_object_get(level, "failed")), 1);
  json_t *error = json_object_get(json_object_get(level, "errors"), "UNAVAILABLE");
  assert_int_equal(json_integer_value(json_object_get(error, "count")), 1);
  assert_string_equal(json_string_value(json_object_get(error, "first")), "gone <away>");
  json_t *variant = json_array_get(json_object_get(level, "variants"), 1);
  assert_string_equal(json_string_value(json_object_get(variant, "fusion")), "off");
  assert_near(json_number_value(json_object_get(variant, "calls_per_s")), 50, 1e-9);
  assert_near(json_number_value(json_object_get(variant, "tokens_per_s")), 350, 1e-9);
  assert_near(json_number_value(json_object_get(json_object_get(variant, "latency_us"), "p99")),
              99000, 1e-6);
  assert_true(json_is_null(json_object_get(variant, "bytes_moved"))); // no reply said
  json_t *ab = json_object_get(json_object_get(level, "ab"), "compute_us");
  assert_near(json_number_value(json_object_get(ab, "ratio")), 2, 1e-9);
  json_decref(root);
}

// A server that runs a share of the calls by its other plan (ab.unfused_share).
static void replies_of_two_plans_are_called_mixed(void **state) {
  (void)state;
  uint8_t on[] = "\x22\x0e\x0a\x06"
                 "fusion"
                 "\x12\x04\x1a\x02"
                 "on",
          off[] = "\x22\x0f\x0a\x06"
                  "fusion"
                  "\x12\x05\x1a\x03"
                  "off";
  struct outcome outcome = {.measured = true, .message = "", .reply = {on, sizeof on - 1}};
  struct reply_cost cost;
  struct result result;
  result_init(&result, 1, 1);
  result_add(&result, &outcome, &cost);
  result_add(&result, &outcome, &cost);
  assert_string_equal(result.variant[0].fusion, "on");
  outcome.reply = (struct slice){off, sizeof off - 1};
  result_add(&result, &outcome, &cost);
  outcome.reply = (struct slice){on, sizeof on - 1};
  result_add(&result, &outcome, &cost);
  assert_string_equal(result.variant[0].fusion, "mixed");
  result_free(&result);
}

static int columns(const char *line) {
  int n = 1;
  bool quoted = false;
  for (; *line && *line != '\n'; line++) {
    if (*line == '"') quoted = !quoted;
    n += *line == ',' && !quoted;
  }
  return n;
}

static void csv_lines_have_the_header_s_columns(void **state) {
  (void)state;
  struct error err;
  assert_int_equal(report_csv(&report, path, &err), 0);
  char *text = contents();
  const int expected = columns(text);
  int lines = 0;
  for (const char *line = strchr(text, '\n') + 1; *line; line = strchr(line, '\n') + 1) {
    assert_int_equal(columns(line), expected);
    assert_memory_equal(line, "\"a<b>&\"\"c\"\",d\",closed,", 22);
    lines++;
  }
  assert_int_equal(lines, 4);
  free(text);
}

static void html_escapes_what_came_from_outside(void **state) {
  (void)state;
  struct error err;
  assert_int_equal(report_html(&report, path, &err), 0);
  char *text = contents();
  assert_null(strstr(text, "<b>"));
  assert_null(strstr(text, "<away>"));
  assert_non_null(strstr(text, "a&lt;b&gt;&amp;&quot;c&quot;,d"));
  assert_non_null(strstr(text, "</html>"));
  assert_null(strstr(text, "nan"));
  assert_null(strstr(text, "http")); // self-contained
  free(text);
}

static void failures_are_printed_with_their_first_message(void **state) {
  (void)state;
  char *text = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  report_table(&report, out);
  report_errors(&report, out);
  fclose(out);
  assert_non_null(strstr(text, "1 x UNAVAILABLE, the first: gone <away>"));
  assert_non_null(strstr(text, "2.000 [ 2.000,  2.000]"));
  assert_non_null(strstr(text, "99.000")); // p99 in ms
  free(text);
}

// The lines about what is missing, without their beginning.
static const char *gaps(int expected) {
  static char text[1024];
  text[0] = 0;
  FILE *out = fmemopen(text, sizeof text, "w");
  assert_int_equal(report_gaps(&report, out), expected);
  assert_int_equal(report_gaps(&report, NULL), expected);
  fclose(out);
  return text;
}

static void what_is_missing_is_told(void **state) {
  (void)state;
  struct result *first = &report.levels[0].result, *second = &report.levels[1].result;
  report.n_asked = 2;
  assert_string_equal(gaps(0), ""); // a call failed, which report_errors tells
  first->status_count[STATUS_UNAVAILABLE] = second->status_count[STATUS_UNAVAILABLE] = 0;
  assert_string_equal(gaps(0), "");

  first->pairs.n = 1;
  assert_string_equal(gaps(1), "not complete: 1 caller: 1 pair of slices, and an interval needs 2; "
                               "more --duration or --requests, or a smaller --ab-slice\n");
  first->pairs.n = 2;
  second->interrupted = true;
  report.n_asked = 5;
  assert_string_equal(
      gaps(2), "not complete: 4 callers: interrupted\nnot complete: 2 of 5 runs were made\n");
  second->interrupted = false;
  report.n_asked = 2;
  second->variant[0].n_ok = second->variant[1].n_ok = 0;
  assert_string_equal(gaps(1),
                      "not complete: 4 callers: no call was measured; --duration is too short\n");
  second->variant[0].n_ok = 1;
  report.compare = 3;
  report.difference.n_requests = 1;
  assert_string_equal(gaps(1), "not complete: answers of 1 of 3 requests were compared\n");
  snprintf(report.difference.note, sizeof report.difference.note, "UNAVAILABLE: gone");
  assert_string_equal(
      gaps(1), "not complete: answers of 1 of 3 requests were compared: UNAVAILABLE: gone\n");
  report.ab = false; // the rest is of A/B only
  first->pairs.n = 0;
  assert_string_equal(gaps(0), "");
  report.cut_short = true; // the caller says why
  assert_string_equal(gaps(1), "");
  report.cut_short = false;
}

static void axes_end_at_round_numbers(void **state) {
  (void)state;
  assert_near(svg_nice_top(97), 100, 1e-9);
  assert_near(svg_nice_top(100), 100, 1e-9);
  assert_near(svg_nice_top(101), 120, 1e-9);
  assert_near(svg_nice_top(0.0031), 0.0032, 1e-12);
  assert_near(svg_nice_top(0), 1, 0);
  assert_near(svg_nice_top(NAN), 1, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(json_holds_the_figures),
      TEST(csv_lines_have_the_header_s_columns),
      TEST(html_escapes_what_came_from_outside),
      TEST(failures_are_printed_with_their_first_message),
      TEST(what_is_missing_is_told),
      cmocka_unit_test(replies_of_two_plans_are_called_mixed),
      cmocka_unit_test(axes_end_at_round_numbers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
