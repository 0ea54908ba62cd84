#include "base/clock.h"
#include "harness/cmocka_all.h"
#include "rpc/grpc.h"

// ---- headers ----

static bool type_ok(const char *text) {
  return grpc_content_type_ok((const uint8_t *)text, strlen(text));
}

static void content_type_is_grpc_and_its_suffixes_only(void **state) {
  (void)state;
  assert_true(type_ok("application/grpc"));
  assert_true(type_ok("application/grpc+proto"));
  assert_true(type_ok("application/grpc;charset=utf-8"));
  assert_false(type_ok("application/grpc-web"));
  assert_false(type_ok("application/grpcfoo"));
  assert_false(type_ok("application/json"));
  assert_false(type_ok("application/grp"));
  assert_false(type_ok(""));
}

static bool timeout_of(const char *text, int64_t *ns) {
  return grpc_timeout_parse((const uint8_t *)text, strlen(text), ns);
}

static void timeout_knows_every_unit(void **state) {
  (void)state;
  static const struct {
    const char *text;
    int64_t ns;
  } cases[] = {{"1H", 3600 * NS_PER_S},
               {"2M", 120 * NS_PER_S},
               {"1S", NS_PER_S},
               {"250m", 250 * NS_PER_MS},
               {"7u", 7000},
               {"99999999n", 99999999},
               {"0n", 0},
               {"00000001S", NS_PER_S}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    int64_t ns = -1;
    assert_true(timeout_of(cases[i].text, &ns));
    assert_int_equal(ns, cases[i].ns);
  }
}

static void timeout_of_99999999_hours_saturates(void **state) {
  (void)state;
  int64_t ns = 0;
  assert_true(timeout_of("99999999H", &ns));
  assert_int_equal(ns, CLOCK_NEVER);
}

static void timeout_refuses_what_the_protocol_does_not_allow(void **state) {
  (void)state;
  static const char *const cases[] = {"",           "S",  "1",   "abc", "-1S", "1.5S",
                                      "123456789S", "1s", "1S ", " 1S", "1SS", "+1S"};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    int64_t ns;
    if (timeout_of(cases[i], &ns)) fail_msg("'%s' was accepted", cases[i]);
  }
}

static void encoding_is_identity_or_unsupported(void **state) {
  (void)state;
  assert_int_equal(grpc_encoding_parse((const uint8_t *)"identity", 8), GRPC_IDENTITY);
  assert_int_equal(grpc_encoding_parse((const uint8_t *)"", 0), GRPC_IDENTITY);
  assert_int_equal(grpc_encoding_parse((const uint8_t *)"gzip", 4), GRPC_UNSUPPORTED);
  assert_int_equal(grpc_encoding_parse((const uint8_t *)"identitx", 8), GRPC_UNSUPPORTED);
}

// ---- grpc-message ----

static void check_message(const char *text, const char *want) {
  uint8_t out[GRPC_MESSAGE_ENCODED_BYTES];
  size_t n = grpc_message_encode(text, out);
  if (n != strlen(want) || memcmp(out, want, n) != 0)
    fail_msg("'%s' became '%.*s', expected '%s'", text, (int)n, out, want);
}

static void message_is_percent_encoded(void **state) {
  (void)state;
  check_message("", "");
  check_message("plain text ~!\"#$&'", "plain text ~!\"#$&'");
  check_message("100%", "100%25");
  check_message("a\nb\r\tc", "a%0Ab%0D%09c");
  check_message("na\xC3\xAFve", "na%C3%AFve");
  check_message("\x7F", "%7F");
  check_message("\xF0\x9F\x98\x80", "%F0%9F%98%80");
}

static void message_replaces_bytes_that_are_not_utf8(void **state) {
  (void)state;
  check_message("\xFF", "%EF%BF%BD");
  check_message("a\x80z", "a%EF%BF%BDz");
  check_message("\xC0\xAF", "%EF%BF%BD%EF%BF%BD");                           // overlong
  check_message("\xED\xA0\x80", "%EF%BF%BD%EF%BF%BD%EF%BF%BD");              // surrogate
  check_message("\xF4\x90\x80\x80", "%EF%BF%BD%EF%BF%BD%EF%BF%BD%EF%BF%BD"); // > U+10FFFF
  check_message("\xE2\x82", "%EF%BF%BD%EF%BF%BD");                           // cut at the end
}

static void message_is_cut_between_characters(void **state) {
  (void)state;
  char text[4000];
  uint8_t out[GRPC_MESSAGE_ENCODED_BYTES];
  memset(text, 'x', sizeof text);
  text[sizeof text - 1] = 0;
  assert_int_equal(grpc_message_encode(text, out), GRPC_MESSAGE_MAX_BYTES);
  for (size_t i = 0; i + 2 < sizeof text; i += 2)
    memcpy(text + i, "\xC3\xA4", 2);
  assert_int_equal(grpc_message_encode(text, out), 3 * GRPC_MESSAGE_MAX_BYTES);
  text[0] = 'a', text[1] = 'b'; // an odd beginning: the last character would be cut in two
  memmove(text, text + 1, sizeof text - 1);
  assert_int_equal(grpc_message_encode(text, out), 1 + 3 * (GRPC_MESSAGE_MAX_BYTES - 2));
}

// ---- framer ----

struct rig {
  struct slab_pool *pool;
  struct budget budget;
  struct grpc_room room;
  struct grpc_framer framer;
  struct error err;
};

static int rig_up(void **state) {
  struct rig *rig = calloc(1, sizeof *rig);
  rig->budget.limit_bytes = 64 << 20;
  struct slab_pool_options options = {
      .max_slab_bytes = 32 << 20, .keep_bytes = 1 << 20, .budget = &rig->budget};
  assert_int_equal(slab_pool_open(&options, &rig->pool), STATUS_OK);
  rig->room = (struct grpc_room){.pool = rig->pool,
                                 .max_message_bytes = 4 << 20,
                                 .connection_bytes = 8 << 20,
                                 .ahead_limit = 1 << 20};
  *state = rig;
  return 0;
}

static int rig_down(void **state) {
  struct rig *rig = *state;
  grpc_framer_drop(&rig->framer, &rig->room);
  assert_int_equal(rig->room.held_bytes, 0);
  assert_int_equal(rig->room.ahead_bytes, 0);
  assert_int_equal(slab_pool_used_bytes(rig->pool), 0);
  slab_pool_close(rig->pool);
  free(rig);
  return 0;
}

static enum status feed(struct rig *rig, const void *data, size_t bytes) {
  return grpc_framer_feed(&rig->framer, &rig->room, GRPC_IDENTITY, data, bytes, &rig->err);
}

static void again(struct rig *rig) {
  grpc_framer_drop(&rig->framer, &rig->room);
  rig->framer = (struct grpc_framer){0};
}

// 5 bytes of prefix and 6 of message make 2^10 ways to cut them.
static void message_survives_every_split(void **state) {
  struct rig *rig = *state;
  static const uint8_t bytes[11] = {0, 0, 0, 0, 6, 'a', 'b', 'c', 'd', 'e', 'f'};
  for (unsigned cuts = 0; cuts < 1024; cuts++) {
    size_t from = 0;
    for (size_t at = 1; at <= sizeof bytes; at++) {
      if (at < sizeof bytes && !(cuts >> (at - 1) & 1)) continue;
      assert_int_equal(feed(rig, bytes + from, at - from), STATUS_OK);
      if (at < sizeof bytes) assert_int_not_equal(grpc_framer_end(&rig->framer, NULL), STATUS_OK);
      from = at;
    }
    assert_int_equal(grpc_framer_end(&rig->framer, NULL), STATUS_OK);
    assert_int_equal(rig->framer.filled, 6);
    assert_memory_equal(rig->framer.slab->data, "abcdef", 6);
    assert_int_equal(rig->room.held_bytes, 6);
    again(rig);
  }
}

static void empty_message_is_a_message(void **state) {
  struct rig *rig = *state;
  assert_int_equal(feed(rig, "\0\0\0\0\0", 5), STATUS_OK);
  assert_int_equal(grpc_framer_end(&rig->framer, NULL), STATUS_OK);
  assert_non_null(rig->framer.slab);
  assert_int_equal(rig->framer.filled, 0);
}

static void no_message_is_unimplemented_and_a_cut_one_internal(void **state) {
  struct rig *rig = *state;
  assert_int_equal(grpc_framer_end(&rig->framer, &rig->err), STATUS_UNIMPLEMENTED);
  assert_int_equal(feed(rig, "\0\0\0\0", 4), STATUS_OK);
  assert_int_equal(grpc_framer_end(&rig->framer, &rig->err), STATUS_INTERNAL);
  assert_int_equal(feed(rig, "\3ab", 3), STATUS_OK);
  assert_int_equal(grpc_framer_end(&rig->framer, &rig->err), STATUS_INTERNAL);
  assert_non_null(strstr(rig->err.message, "2 of the message's 3"));
}

static void second_message_is_unimplemented(void **state) {
  struct rig *rig = *state;
  assert_int_equal(feed(rig, "\0\0\0\0\1x\0", 7), STATUS_UNIMPLEMENTED);
  again(rig);
  assert_int_equal(feed(rig, "\0\0\0\0\1x", 6), STATUS_OK);
  assert_int_equal(feed(rig, "\0", 1), STATUS_UNIMPLEMENTED);
  again(rig);
  assert_int_equal(feed(rig, "\0\0\0\0\0", 5), STATUS_OK);
  assert_int_equal(feed(rig, "\0", 1), STATUS_UNIMPLEMENTED);
}

static void flags_are_checked_before_anything_else(void **state) {
  struct rig *rig = *state;
  assert_int_equal(feed(rig, "\1\0\0\0\1x", 6), STATUS_INTERNAL);
  again(rig);
  assert_int_equal(feed(rig, "\2\0\0\0\1x", 6), STATUS_INTERNAL);
  again(rig);
  assert_int_equal(grpc_framer_feed(&rig->framer, &rig->room, GRPC_UNSUPPORTED,
                                    (const uint8_t *)"\1\0\0\0\1x", 6, &rig->err),
                   STATUS_UNIMPLEMENTED);
  again(rig);
  assert_int_equal(grpc_framer_feed(&rig->framer, &rig->room, GRPC_UNSUPPORTED,
                                    (const uint8_t *)"\0\0\0\0\1x", 6, &rig->err),
                   STATUS_OK);
}

static void too_large_is_refused_at_once_and_nothing_is_allocated(void **state) {
  struct rig *rig = *state;
  assert_int_equal(feed(rig, "\0\xFF\xFF\xFF\xFF", 5), STATUS_RESOURCE_EXHAUSTED);
  assert_non_null(strstr(rig->err.message, "limits.message_bytes"));
  assert_non_null(strstr(rig->err.message, "4294967295"));
  assert_null(rig->framer.slab);
  assert_int_equal(rig->room.held_bytes, 0);
  assert_int_equal(slab_pool_used_bytes(rig->pool), 0);
  again(rig);
  assert_int_equal(feed(rig, "\0\0\x40\0\1", 5), STATUS_RESOURCE_EXHAUSTED); // one byte over 4 MiB
  again(rig);
  assert_int_equal(feed(rig, "\0\0\x40\0\0", 5), STATUS_OK); // exactly 4 MiB
}

static void declared_length_far_ahead_costs_one_small_slab(void **state) {
  struct rig *rig = *state;
  assert_int_equal(feed(rig, "\0\0\x3F\xFF\xFFz", 6),
                   STATUS_OK); // nearly 4 MiB: further ahead than 1 MiB
  assert_int_equal(slab_pool_used_bytes(rig->pool), GRPC_SMALL_SLAB_BYTES);
  assert_int_equal(rig->room.held_bytes, 0x3FFFFF);
  assert_int_equal(rig->room.ahead_bytes, GRPC_SMALL_SLAB_BYTES - 1);
}

static void message_not_far_ahead_has_its_slab_at_once(void **state) {
  struct rig *rig = *state;
  assert_int_equal(feed(rig, "\0\0\x10\0\0z", 6), STATUS_OK); // exactly 1 MiB
  assert_int_equal(rig->framer.slab->capacity_bytes, 1 << 20);
  assert_int_equal(rig->room.ahead_bytes, (1 << 20) - 1);
  struct grpc_framer second = {0}; // and the next one must wait for bytes
  assert_int_equal(grpc_framer_feed(&second, &rig->room, GRPC_IDENTITY,
                                    (const uint8_t *)"\0\0\0\x80\0", 5, NULL),
                   STATUS_OK);
  assert_int_equal(second.slab->capacity_bytes, GRPC_SMALL_SLAB_BYTES);
  grpc_framer_drop(&second, &rig->room);
}

static void declared_lengths_count_against_the_connection(void **state) {
  struct rig *rig = *state;
  struct grpc_framer others[3] = {0};
  for (int i = 0; i < 2; i++)
    assert_int_equal(grpc_framer_feed(&others[i], &rig->room, GRPC_IDENTITY,
                                      (const uint8_t *)"\0\0\x40\0\0", 5, NULL),
                     STATUS_OK);
  assert_int_equal(feed(rig, "\0\0\0\0\1", 5), STATUS_RESOURCE_EXHAUSTED);
  assert_non_null(strstr(rig->err.message, "limits.connection_bytes"));
  grpc_framer_drop(&others[0], &rig->room);
  again(rig);
  assert_int_equal(feed(rig, "\0\0\0\0\1", 5), STATUS_OK);
  grpc_framer_drop(&others[1], &rig->room);
}

static void used_up_total_is_refused_by_name_also_when_growing(void **state) {
  struct rig *rig = *state;
  rig->budget.limit_bytes = 512 << 10;
  assert_int_equal(feed(rig, "\0\0\x10\0\0", 5), STATUS_RESOURCE_EXHAUSTED);
  assert_non_null(strstr(rig->err.message, "limits.total_bytes"));
  again(rig);
  rig->room.ahead_limit = 0;
  static uint8_t chunk[200 << 10];
  assert_int_equal(feed(rig, "\0\0\x10\0\0", 5), STATUS_OK); // 1 MiB in steps: 4, then 256 KiB
  assert_int_equal(feed(rig, chunk, sizeof chunk), STATUS_OK);
  assert_int_equal(feed(rig, chunk, sizeof chunk), STATUS_RESOURCE_EXHAUSTED);
  again(rig);
  assert_int_equal(atomic_load(&rig->budget.used_bytes), 0);
}

static void large_message_in_random_pieces_is_whole(void **state) {
  struct rig *rig = *state;
  test_random_seed(20261129);
  rig->room.ahead_limit = (int64_t)(test_random() % (4 << 20)); // whole at once, or in steps
  uint32_t bytes = 3 << 20;
  uint8_t *message = malloc(bytes + 5);
  grpc_prefix_write(message, bytes);
  for (uint32_t i = 0; i < bytes; i++)
    message[5 + i] = (uint8_t)test_random();
  for (size_t at = 0; at < bytes + 5;) {
    size_t take = test_random() % 70000;
    take = take < bytes + 5 - at ? take : bytes + 5 - at;
    assert_int_equal(feed(rig, message + at, take), STATUS_OK);
    at += take;
  }
  assert_int_equal(grpc_framer_end(&rig->framer, NULL), STATUS_OK);
  assert_memory_equal(rig->framer.slab->data, message + 5, bytes);
  free(message);
}

#define FRAMER_TEST(name) cmocka_unit_test_setup_teardown(name, rig_up, rig_down)

static bool takes_parent(const char *text, char out[GRPC_TRACEPARENT_BYTES + 1]) {
  return grpc_traceparent_take((const uint8_t *)text, strlen(text), out);
}

static void trace_parents_are_taken_as_the_standard_has_them(void **state) {
  (void)state;
  static const char good[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  char out[GRPC_TRACEPARENT_BYTES + 1] = "as it was";
  assert_true(takes_parent(good, out));
  assert_string_equal(out, good);
  for (size_t i = 0; i < sizeof good - 1; i++) { // any one byte that is none of its alphabet
    uint8_t bad[sizeof good];
    memcpy(bad, good, sizeof good);
    bad[i] = 'G';
    assert_false(grpc_traceparent_take(bad, sizeof good - 1, out));
    assert_false(grpc_traceparent_take((const uint8_t *)good, i, out));
  }
  static const char *const bad[] = {"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                                    "0-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-010",
                                    "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01x",
                                    "01-0af7651916cd43dd8448eb211c80319c-0000000000000000-01-x",
                                    "00-00000000000000000000000000000000-b7ad6b7169203331-01",
                                    "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
                                    "00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01",
                                    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    assert_false(takes_parent(bad[i], out));
  assert_string_equal(out, good); // untouched by all these
  // later versions: the ids, and whether it is sampled
  static const char *const later[][2] = {
      {"01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
       "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
      {"cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-fe-what-else",
       "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"},
      {"fe-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-2b-",
       "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}};
  for (size_t i = 0; i < sizeof later / sizeof *later; i++) {
    assert_true(takes_parent(later[i][0], out));
    assert_string_equal(out, later[i][1]);
  }
}

static bool state_ok(const char *text) {
  return grpc_tracestate_ok((const uint8_t *)text, strlen(text));
}

static void trace_states_are_taken_as_the_standard_has_them(void **state) {
  (void)state;
  static const char *const good[] = {"a=1",
                                     "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7",
                                     "a=1 , b=2\t,\tc=3",
                                     ",a=1,,b=2,",
                                     "0tenant@system=x!\"#$%&'()*+-./:;<>?@[]^_`{|}~",
                                     "a_-*/9=in the middle blanks are values"};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++)
    if (!state_ok(good[i])) fail_msg("refused: %s", good[i]);
  static const char *const bad[] = {
      "",       ",",          " ",     "a",    "=1",  "a=",         "A=1",  "a=1=2", "a b=1",
      "a=\x7f", "a=\xc3\xa9", "a=1,b", "_a=1", "@=1", "a=1\tb,c=2", "a =1", "a= ",   "a=1;b=2,="};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    if (state_ok(bad[i])) fail_msg("taken: %s", bad[i]);
  char text[GRPC_TRACESTATE_BYTES + 2] = "";
  for (int i = 0; i < 32; i++) // as many vendors as there may be, and one more
    snprintf(text + strlen(text), sizeof text - strlen(text), "%sk%d=v", i ? "," : "", i);
  assert_true(state_ok(text));
  snprintf(text + strlen(text), sizeof text - strlen(text), ",k=v");
  assert_false(state_ok(text));
  for (int key = 256; key <= 257; key++) { // the longest key, the longest value, and one byte more
    snprintf(text, sizeof text, "%0*d=v", key, 1);
    assert_int_equal(state_ok(text), key == 256);
    snprintf(text, sizeof text, "k=%0*d", key, 1);
    assert_int_equal(state_ok(text), key == 256);
  }
  for (int last = 251; last <= 252; last++) { // and the longest list
    int bytes = snprintf(text, sizeof text, "k=%0256d,l=%0*d", 1, last, 1);
    assert_int_equal(state_ok(text), bytes == GRPC_TRACESTATE_BYTES);
  }
  static const uint8_t zero[] = {'a', 0, 'b', '=', '1'};
  assert_false(grpc_tracestate_ok(zero, sizeof zero));
}

// However many connections take what they can get, one that wants little gets it.
static void greedy_connections_leave_room(void **state) {
  struct rig *rig = *state;
  enum { GREEDY = 7, MESSAGES = 64 };
  static struct grpc_framer framers[GREEDY][MESSAGES];
  struct grpc_room rooms[GREEDY];
  static uint8_t message[GRPC_PREFIX_BYTES + (1 << 20)];
  rig->budget.limit_bytes = 64 << 20;
  memset(framers, 0, sizeof framers);
  grpc_prefix_write(message, 1 << 20);
  for (int g = 0; g < GREEDY; g++) {
    rooms[g] = rig->room;
    rooms[g].connection_bytes = 64 << 20;
  }
  int n_ok[GREEDY] = {0};
  for (int m = 0; m < MESSAGES; m++)
    for (int g = 0; g < GREEDY; g++)
      n_ok[g] += grpc_framer_feed(&framers[g][m], &rooms[g], GRPC_IDENTITY, message, sizeof message,
                                  &rig->err) == STATUS_OK;
  assert_non_null(strstr(rig->err.message, "limits.total_bytes"));
  for (int g = 0; g < GREEDY; g++)
    assert_in_range(n_ok[g], 4, 9);
  assert_true(atomic_load(&rig->budget.used_bytes) > 32 << 20);
  assert_true(atomic_load(&rig->budget.used_bytes) < 62 << 20);
  grpc_prefix_write(message, 100000);
  assert_int_equal(feed(rig, message, GRPC_PREFIX_BYTES + 100000), STATUS_OK);
  for (int m = 0; m < MESSAGES; m++)
    for (int g = 0; g < GREEDY; g++)
      grpc_framer_drop(&framers[g][m], &rooms[g]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(trace_parents_are_taken_as_the_standard_has_them),
      cmocka_unit_test(trace_states_are_taken_as_the_standard_has_them),
      cmocka_unit_test(content_type_is_grpc_and_its_suffixes_only),
      cmocka_unit_test(timeout_knows_every_unit),
      cmocka_unit_test(timeout_of_99999999_hours_saturates),
      cmocka_unit_test(timeout_refuses_what_the_protocol_does_not_allow),
      cmocka_unit_test(encoding_is_identity_or_unsupported),
      cmocka_unit_test(message_is_percent_encoded),
      cmocka_unit_test(message_replaces_bytes_that_are_not_utf8),
      cmocka_unit_test(message_is_cut_between_characters),
      FRAMER_TEST(message_survives_every_split),
      FRAMER_TEST(empty_message_is_a_message),
      FRAMER_TEST(no_message_is_unimplemented_and_a_cut_one_internal),
      FRAMER_TEST(second_message_is_unimplemented),
      FRAMER_TEST(flags_are_checked_before_anything_else),
      FRAMER_TEST(too_large_is_refused_at_once_and_nothing_is_allocated),
      FRAMER_TEST(declared_length_far_ahead_costs_one_small_slab),
      FRAMER_TEST(message_not_far_ahead_has_its_slab_at_once),
      FRAMER_TEST(declared_lengths_count_against_the_connection),
      FRAMER_TEST(used_up_total_is_refused_by_name_also_when_growing),
      FRAMER_TEST(large_message_in_random_pieces_is_whole),
      FRAMER_TEST(greedy_connections_leave_room),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
