#include "client/predict.h"
#include "harness/cmocka_all.h"
#include <math.h>

#define TOTAL(us, read, write)                                                                     \
  "{\"total\": {\"us\": " us ", \"read_bytes\": " read ", \"write_bytes\": " write "}}"
#define DOCUMENT(fused, unfused)                                                                   \
  "{\"batch\": {\"tokens\": 128, \"sequences\": 4}, \"device\": {\"measured\": true},"             \
  " \"plans\": {\"fused\": " fused ", \"unfused\": " unfused "}}"

static bool read_text(const char *text, struct prediction *out) {
  return prediction_read((struct slice){(const uint8_t *)text, strlen(text)}, out);
}

static void times_and_bytes_are_those_of_the_totals(void **state) {
  (void)state;
  struct prediction p;
  assert_true(read_text(DOCUMENT(TOTAL("10.5", "100", "20"), TOTAL("21", "200", "100")), &p));
  assert_int_equal(p.tokens, 128);
  assert_int_equal(p.sequences, 4);
  assert_true(p.measured_rates);
  assert_near(prediction_time_ratio(&p), 2, 1e-12);
  assert_near(prediction_bytes_ratio(&p), 2.5, 1e-12);
}

// What a batch has beside its kernels is there fused and unfused.
static void a_batch_has_a_beginning_and_an_end(void **state) {
  (void)state;
  struct prediction p;
  assert_true(
      read_text("{\"batch\": {\"tokens\": 128, \"sequences\": 4}, \"device\": {\"batch_us\": "
                "3.5}, \"plans\": {\"fused\": " TOTAL("16.5", "100", "20") ", \"unfused\": " TOTAL(
                    "96.5", "200", "100") "}}",
                &p));
  assert_near(p.us[0], 20, 1e-12);
  assert_near(prediction_time_ratio(&p), 5, 1e-12);
}

static void a_document_that_lacks_something_predicts_nothing(void **state) {
  (void)state;
  static const char *const bad[] = {
      "",
      "[]",
      "{}",
      "{\"batch\": 5}",
      "not json",
      DOCUMENT("{}", TOTAL("21", "200", "100")),
      DOCUMENT(TOTAL("0", "100", "20"), TOTAL("21", "200", "100")),
      DOCUMENT(TOTAL("\"x\"", "100", "20"), TOTAL("21", "200", "100")),
      DOCUMENT(TOTAL("1", "100", "20"), TOTAL("21", "null", "100"))};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    struct prediction p;
    if (read_text(bad[i], &p)) fail_msg("took '%s'", bad[i]);
    assert_true(p.note[0] != 0);
    assert_true(isnan(prediction_time_ratio(&p)) && isnan(prediction_bytes_ratio(&p)));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(times_and_bytes_are_those_of_the_totals),
      cmocka_unit_test(a_batch_has_a_beginning_and_an_end),
      cmocka_unit_test(a_document_that_lacks_something_predicts_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
