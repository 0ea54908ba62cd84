// The YAML tree: positions, limits, hostile files, getters and the words of their errors.
#include "unit/conf/collect.h"

#include "bounds.h"
#include "conf/yaml.h"

#include <fcntl.h>
#include <sys/stat.h>

static struct collect collected;

static struct conf_doc *parse(struct conf_report *report, const char *text) {
  collected = (struct collect){0};
  *report = (struct conf_report){.file = "x.yaml", .fn = collect_error, .arg = &collected};
  return conf_parse(text, strlen(text), report);
}

// `text` is no YAML of ours: exactly `errors` is said.
static void refuses(const char *text, const char *errors) {
  struct conf_report report;
  struct conf_doc *doc = parse(&report, text);
  if (doc != NULL && report.n_errors == 0) print_error("accepted: %s\n", text);
  assert_true(doc == NULL || report.n_errors > 0);
  assert_string_equal(collected.text, errors);
  conf_free(doc);
}

static void every_value_knows_its_place_and_path(void **state) {
  (void)state;
  struct conf_report report;
  struct conf_doc *doc = parse(&report, "a: 1\nb:\n  - x\n  - c: {d: [7, 'e f']}\n");
  assert_non_null(doc);
  const struct conf_node *b = conf_find(conf_root(doc), "b");
  const struct conf_node *d = conf_find(conf_find(b->items[1], "c"), "d");
  char path[64];
  assert_string_equal(conf_path(d->items[1], path, sizeof path), "b[1].c.d[1]");
  assert_string_equal(d->items[1]->text, "e f");
  assert_true(d->items[1]->quoted);
  assert_int_equal(d->items[0]->line, 4);
  assert_int_equal(d->items[0]->column, 13);
  assert_int_equal(d->key_column, 9);
  assert_string_equal(conf_path(conf_root(doc), path, sizeof path), "");
  conf_free(doc);
}

static void an_empty_file_is_an_empty_map(void **state) {
  (void)state;
  const char *const texts[] = {"", "# nothing\n", "---\n", "\n\n"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    struct conf_report report;
    struct conf_doc *doc = parse(&report, texts[i]);
    assert_non_null(doc);
    assert_int_equal(conf_root(doc)->n_items, 0);
    conf_free(doc);
  }
}

static void a_byte_order_mark_and_carriage_returns_are_read_over(void **state) {
  (void)state;
  struct conf_report report;
  struct conf_doc *doc = parse(&report, "\xEF\xBB\xBF"
                                        "a: 1\r\nb: x\r\n");
  assert_non_null(doc);
  assert_string_equal(conf_find(conf_root(doc), "b")->text, "x");
  assert_int_equal(conf_find(conf_root(doc), "a")->line, 1);
  conf_free(doc);
}

static void broken_syntax_is_reported_where_it_is(void **state) {
  (void)state;
  refuses("a: 1\n\tb: 2\n", "2:1: a tab where YAML wants spaces\n");
  refuses("a: [1, 2\nb: 3\n",
          "2:2: did not find expected ',' or ']', while parsing a flow sequence\n");
  refuses("a: 'x\n", "2:1: found unexpected end of stream, while scanning a quoted scalar\n");
  refuses("- a\n- b\n", "1:1: expected a map (key: value), found a list\n");
  refuses("just text", "1:1: expected a map (key: value), found just text\n");
  refuses("a: 1\n---\nb: 2\n", "2:1: a second document in one file\n");
  refuses("a: !!int 5\n", "1:4: tags (!...) are not used here\n");
  refuses("? [a]\n: 1\n", "1:3: a key must be text, not a list or a map\n");
  refuses("a: \"b\\0c\"\n", "1:4: NUL byte in text\n");
  refuses("a: \xff\xfe\n", "1:1: not text in UTF-8: invalid leading UTF-8 octet\n");
}

static void duplicate_keys_are_all_reported(void **state) {
  (void)state;
  refuses("a: 1\nb: {c: 1, c: 2}\na: 3\n",
          "2:11: b.c: duplicate key \"c\"; the first one is at line 2\n"
          "3:1: a: duplicate key \"a\"; the first one is at line 1\n");
}

static void aliases_stand_for_their_values(void **state) {
  (void)state;
  struct conf_report report;
  struct conf_doc *doc = parse(&report, "a: &x {n: 5}\nb: *x\n");
  assert_non_null(doc);
  int64_t n = 0;
  assert_true(conf_int(&report, conf_find(conf_find(conf_root(doc), "b"), "n"), 0, 9, &n));
  assert_int_equal(n, 5);
  conf_free(doc);
  refuses("a: *x\n", "1:4: no anchor \"&x\" above\n");
  refuses("a: &x [*x]\n", "1:8: an alias inside the value that it stands for\n");
  refuses("a: &x 1\n*x : 2\n", "2:1: an alias cannot be a key\n");
}

static void an_alias_bomb_is_refused(void **state) {
  (void)state;
  char text[2048] = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 9; i++) {
    char line[160];
    snprintf(line, sizeof line,
             "a%d: &a%d [*a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d]\n", i, i, i - 1,
             i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1);
    strcat(text, line);
  }
  refuses(text, "5:45: more than 65536 values once aliases are expanded\n");
}

static void nesting_has_a_limit(void **state) {
  (void)state;
  enum { DEEP = 10000 };
  char *text = malloc(DEEP + 8), *errors = malloc(128);
  memset(text, '[', DEEP);
  memcpy(text, "a: ", 3);
  text[DEEP] = '\0';
  snprintf(errors, 128, "1:%d: lists and maps nested more than %d deep\n", 3 + LIMIT_CONF_DEPTH,
           LIMIT_CONF_DEPTH);
  refuses(text, errors);
  free(text);
  free(errors);
  // Through aliases: every level holds the one before.
  char chain[4096] = "a0: &a0 [1]\n";
  for (int i = 1; i < 40; i++)
    sprintf(chain + strlen(chain), "a%d: &a%d [*a%d]\n", i, i, i - 1);
  refuses(chain, "32:12: lists and maps nested too deep through an alias\n");
}

static void many_keys_and_values_are_refused(void **state) {
  (void)state;
  size_t size = 1 << 20;
  char *text = malloc(size);
  size_t used = (size_t)snprintf(text, size, "a: [");
  for (int i = 0; i < LIMIT_CONF_NODES; i++)
    used += (size_t)snprintf(text + used, size - used, "1,\n");
  snprintf(text + used, size - used, "]\n");
  // A root, a key, a list: 65533 values more, the first of them on line 1.
  refuses(text, "65534:1: more than 65536 values once aliases are expanded\n");
  used = 0;
  for (int i = 0; i <= LIMIT_CONF_KEYS; i++)
    used += (size_t)snprintf(text + used, size - used, "k%d: 1\n", i);
  refuses(text, "1025:1: too many keys in one map\n");
  free(text);
}

// ---- files ----------------------------------------------------------------------------------

static void load_refuses(const char *path, enum status expected, const char *errors) {
  struct conf_report report = {.fn = collect_error, .arg = &collected};
  enum status code = STATUS_OK;
  collected = (struct collect){0};
  assert_null(conf_load(path, &report, &code));
  assert_int_equal(code, expected);
  assert_string_equal(collected.text, errors);
  assert_string_equal(collected.file, path);
}

static void only_regular_files_of_sane_size_are_read(void **state) {
  (void)state;
  char path[300];
  const char *folder = temp_folder();
  load_refuses(folder, STATUS_INVALID_ARGUMENT, "0:0: not a regular file (a directory)\n");
  load_refuses("/dev/zero", STATUS_INVALID_ARGUMENT,
               "0:0: not a regular file (a device or socket)\n");
  snprintf(path, sizeof path, "%s/missing.yaml", folder);
  load_refuses(path, STATUS_NOT_FOUND, "0:0: cannot be read: No such file or directory\n");
  snprintf(path, sizeof path, "%s/fifo", folder);
  assert_int_equal(mkfifo(path, 0600), 0);
  load_refuses(path, STATUS_INVALID_ARGUMENT, "0:0: not a regular file (a FIFO)\n");
  unlink(path);
  snprintf(path, sizeof path, "%s/big.yaml", folder);
  write_file(path, "a: 1\n", 5);
  assert_int_equal(truncate(path, 100 << 20), 0); // 100 MB, sparse
  load_refuses(path, STATUS_RESOURCE_EXHAUSTED, "0:0: 104857600 bytes; at most 1048576 are read\n");
  unlink(path);
  rmdir(folder);
}

// ---- getters --------------------------------------------------------------------------------

#define GET_FAILS(yaml, call, errors)                                                              \
  do {                                                                                             \
    struct conf_report report;                                                                     \
    struct conf_doc *doc = parse(&report, yaml);                                                   \
    assert_non_null(doc);                                                                          \
    const struct conf_node *v = conf_find(conf_root(doc), "v");                                    \
    assert_non_null(v);                                                                            \
    assert_false(call);                                                                            \
    assert_string_equal(collected.text, errors);                                                   \
    conf_free(doc);                                                                                \
  } while (0)

static void integers_are_decimal_and_in_range(void **state) {
  (void)state;
  int64_t n = 77;
  GET_FAILS("v: 1e9\n", conf_int(&report, v, 1, 9, &n),
            "1:4: v: expected an integer from 1 to 9, found 1e9\n");
  GET_FAILS("v: 0\n", conf_int(&report, v, 1, 9, &n),
            "1:4: v: expected an integer from 1 to 9, found 0\n");
  GET_FAILS("v: 0x5\n", conf_int(&report, v, 1, 9, &n),
            "1:4: v: expected an integer from 1 to 9, found 0x5\n");
  GET_FAILS("v: '5'\n", conf_int(&report, v, 1, 9, &n),
            "1:4: v: expected an integer from 1 to 9, found the text \"5\"\n");
  GET_FAILS("v: [5]\n", conf_int(&report, v, 1, 9, &n),
            "1:4: v: expected an integer from 1 to 9, found a list\n");
  GET_FAILS("v:\n", conf_int(&report, v, 1, 9, &n),
            "1:3: v: expected an integer from 1 to 9, found nothing\n");
  GET_FAILS("v: 5 6\n", conf_int(&report, v, 1, 9, &n),
            "1:4: v: expected an integer from 1 to 9, found 5 6\n");
  GET_FAILS(
      "v: 99999999999999999999\n", conf_int(&report, v, 1, INT64_MAX, &n),
      "1:4: v: expected an integer from 1 to 9223372036854775807, found 99999999999999999999\n");
  assert_int_equal(n, 77); // untouched on failure
}

static void numbers_are_finite_and_in_range(void **state) {
  (void)state;
  double x = 7;
  const char *const words[] = {"nan",    ".nan", "inf", "-1",  "2",
                               "0x1p-3", "1e",   "one", "--1", "1e999"};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    char text[64], errors[128];
    snprintf(text, sizeof text, "v: %s\n", words[i]);
    snprintf(errors, sizeof errors, "1:4: v: expected a number from 0 to 1, found %s\n", words[i]);
    GET_FAILS(text, conf_float(&report, v, 0, 1, &x), errors);
  }
  struct conf_report report;
  struct conf_doc *doc = parse(&report, "v: 1.0e-12\n");
  assert_true(conf_float(&report, conf_find(conf_root(doc), "v"), 0, 1, &x));
  assert_true(x == 1e-12);
  conf_free(doc);
}

static void words_flags_and_texts_say_what_they_want(void **state) {
  (void)state;
  int index = 0;
  bool flag = false;
  const char *text = NULL;
  GET_FAILS("v: onn\n", conf_enum(&report, v, "on|off|ab", &index),
            "1:4: v: expected one of on, off, ab, found onn; did you mean \"on\"?\n");
  GET_FAILS("v: never\n", conf_enum(&report, v, "on|off|ab", &index),
            "1:4: v: expected one of on, off, ab, found never\n");
  GET_FAILS("v: yes\n", conf_bool(&report, v, &flag),
            "1:4: v: expected true or false, found yes\n");
  GET_FAILS("v: {}\n", conf_text(&report, v, 8, false, &text),
            "1:4: v: expected text, found a map\n");
  GET_FAILS("v: null\n", conf_text(&report, v, 8, true, &text),
            "1:4: v: expected text, found nothing\n");
  GET_FAILS("v: ''\n", conf_text(&report, v, 8, false, &text),
            "1:4: v: expected text, found the text \"\"\n");
  GET_FAILS("v: abcdefgh\n", conf_text(&report, v, 8, false, &text),
            "1:4: v: text of 8 bytes; at most 7\n");
}

static void unknown_keys_name_the_nearest_one(void **state) {
  (void)state;
  struct conf_report report;
  struct conf_doc *doc = parse(&report, "featurs: 1\nwieght: 2\nzzz: 3\n");
  assert_false(conf_check_keys(&report, conf_root(doc), "features|weight|in"));
  assert_string_equal(collected.text,
                      "1:1: featurs: unknown key \"featurs\"; did you mean \"features\"?\n"
                      "2:1: wieght: unknown key \"wieght\"; did you mean \"weight\"?\n"
                      "3:1: zzz: unknown key \"zzz\"; expected one of features, weight, in\n");
  conf_free(doc);
}

static void distance_counts_edits(void **state) {
  (void)state;
  assert_int_equal(conf_distance("abc", "abc"), 0);
  assert_int_equal(conf_distance("abc", "acb"), 1);
  assert_int_equal(conf_distance("abc", "ab"), 1);
  assert_int_equal(conf_distance("abc", "xabcd"), 2);
  assert_int_equal(conf_distance("", "abc"), 3);
  char longest[CONF_FAR + 1];
  memset(longest, 'a', sizeof longest);
  longest[CONF_FAR] = '\0';
  assert_int_equal(conf_distance(longest, "a"), CONF_FAR);
}

static void distance_within_is_the_distance_where_it_is_small(void **state) {
  (void)state;
  uint32_t random = 1;
  for (int i = 0; i < 20000; i++) {
    char a[12] = {0}, b[12] = {0};
    int n = i % 11, m = i / 11 % 11;
    for (int j = 0; j < n; j++)
      a[j] = (char)('a' + ((random = random * 1664525u + 1013904223u) >> 30));
    for (int j = 0; j < m; j++)
      b[j] = (char)('a' + ((random = random * 1664525u + 1013904223u) >> 30));
    int whole = conf_distance(a, b);
    for (int most = 0; most < 12; most++) {
      int near = conf_distance_within(a, (size_t)n, b, (size_t)m, most);
      assert_true(whole <= most ? near == whole : near > most);
    }
  }
}

static void errors_beyond_the_limit_are_counted_only(void **state) {
  (void)state;
  struct conf_report report;
  struct conf_doc *doc = parse(&report, "v: 1\n");
  for (int i = 0; i < LIMIT_CONF_ERRORS + 50; i++)
    conf_fail(&report, conf_root(doc), "number %d", i);
  assert_int_equal(collected.n, LIMIT_CONF_ERRORS);
  assert_int_equal(report.n_errors, LIMIT_CONF_ERRORS + 50);
  conf_free(doc);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_value_knows_its_place_and_path),
      cmocka_unit_test(an_empty_file_is_an_empty_map),
      cmocka_unit_test(a_byte_order_mark_and_carriage_returns_are_read_over),
      cmocka_unit_test(broken_syntax_is_reported_where_it_is),
      cmocka_unit_test(duplicate_keys_are_all_reported),
      cmocka_unit_test(aliases_stand_for_their_values),
      cmocka_unit_test(an_alias_bomb_is_refused),
      cmocka_unit_test(nesting_has_a_limit),
      cmocka_unit_test(many_keys_and_values_are_refused),
      cmocka_unit_test(only_regular_files_of_sane_size_are_read),
      cmocka_unit_test(integers_are_decimal_and_in_range),
      cmocka_unit_test(numbers_are_finite_and_in_range),
      cmocka_unit_test(words_flags_and_texts_say_what_they_want),
      cmocka_unit_test(unknown_keys_name_the_nearest_one),
      cmocka_unit_test(distance_counts_edits),
      cmocka_unit_test(distance_within_is_the_distance_where_it_is_small),
      cmocka_unit_test(errors_beyond_the_limit_are_counted_only),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
