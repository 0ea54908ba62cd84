// The ledger of a card's memory: what fits, what is refused, and what the refusal says.
#include "harness/cmocka_all.h"

#include "backend/cuda/ledger.h"

#include <string.h>

#define MIB (INT64_C(1) << 20)

static void what_was_held_before_us_counts_as_context(void **state) {
  (void)state;
  struct ledger ledger;
  ledger_init(&ledger, "cuda:0", 1000 * MIB, 900 * MIB, 100 * MIB);
  assert_int_equal(ledger_free_bytes(&ledger), 800 * MIB);
  assert_int_equal(atomic_load(&ledger.held_bytes[LEDGER_CONTEXT]), 100 * MIB);
}

static void the_last_byte_can_be_had_and_no_more(void **state) {
  (void)state;
  struct ledger ledger;
  struct error err;
  ledger_init(&ledger, "cuda:0", 1000 * MIB, 1000 * MIB, 0);
  assert_int_equal(ledger_reserve(&ledger, LEDGER_WEIGHTS, 1000 * MIB, "weights", &err), STATUS_OK);
  assert_int_equal(ledger_free_bytes(&ledger), 0);
  assert_int_equal(ledger_reserve(&ledger, LEDGER_ARENAS, 1, "arena", &err),
                   STATUS_RESOURCE_EXHAUSTED);
  assert_int_equal(ledger_free_bytes(&ledger), 0); // nothing was booked
  ledger_release(&ledger, LEDGER_WEIGHTS, MIB);
  assert_int_equal(ledger_reserve(&ledger, LEDGER_ARENAS, MIB, "arena", NULL), STATUS_OK);
}

static void a_refusal_names_every_entry(void **state) {
  (void)state;
  struct ledger ledger;
  struct error err;
  ledger_init(&ledger, "cuda:3", 1000 * MIB, 950 * MIB, 10 * MIB);
  assert_int_equal(ledger_reserve(&ledger, LEDGER_WEIGHTS, 700 * MIB, "weights", &err), STATUS_OK);
  ledger_note(&ledger, LEDGER_GRAPHS, 5 * MIB);
  assert_int_equal(ledger_reserve(&ledger, LEDGER_ARENAS, 300 * MIB, "arena of \"bert\"", &err),
                   STATUS_RESOURCE_EXHAUSTED);
  const char *words[] = {"arena of \"bert\"", "cuda:3",        "300.0 MiB",  "1000.0 MiB",
                         "context 50.0",      "700.0",         "arenas 0.0", "workspace 0.0",
                         "graphs 5.0",        "headroom 10.0", "free 235.0"};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (!strstr(err.message, words[i])) fail_msg("no \"%s\" in: %s", words[i], err.message);
}

static void late_entries_may_overdraw(void **state) {
  (void)state;
  struct ledger ledger;
  ledger_init(&ledger, "cuda:0", 100, 100, 90);
  ledger_note(&ledger, LEDGER_GRAPHS, 20);
  assert_int_equal(ledger_free_bytes(&ledger), -10);
  assert_int_equal(ledger_reserve(&ledger, LEDGER_WEIGHTS, 0, "none", NULL),
                   STATUS_RESOURCE_EXHAUSTED);
}

static void headroom_above_the_card_leaves_nothing(void **state) {
  (void)state;
  struct ledger ledger;
  ledger_init(&ledger, "cuda:0", 100, 60, 1000);
  assert_true(ledger_free_bytes(&ledger) < 0);
  assert_int_equal(ledger_reserve(&ledger, LEDGER_WEIGHTS, INT64_MAX, "all", NULL),
                   STATUS_RESOURCE_EXHAUSTED);
}

static void a_short_buffer_cuts_the_text(void **state) {
  (void)state;
  struct ledger ledger;
  char text[24];
  ledger_init(&ledger, "cuda:0", 1000 * MIB, 1000 * MIB, 0);
  for (size_t bytes = 1; bytes <= sizeof text; bytes++)
    assert_true(strlen(ledger_text(&ledger, text, bytes)) < bytes);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_was_held_before_us_counts_as_context),
      cmocka_unit_test(the_last_byte_can_be_had_and_no_more),
      cmocka_unit_test(a_refusal_names_every_entry),
      cmocka_unit_test(late_entries_may_overdraw),
      cmocka_unit_test(headroom_above_the_card_leaves_nothing),
      cmocka_unit_test(a_short_buffer_cuts_the_text),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
