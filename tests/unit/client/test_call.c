#include "base/clock.h"
#include "client/call.h"
#include "client/net.h"
#include "harness/cmocka_all.h"

static struct slice text(const char *s) {
  return (struct slice){(const uint8_t *)s, strlen(s)};
}

static void header(struct call *call, const char *name, const char *value) {
  call_header(call, text(name), text(value));
}

static void grpc_status_decides(void **state) {
  (void)state;
  struct call call = {0};
  call_reset(&call);
  header(&call, ":status", "200");
  header(&call, "grpc-status", "8");
  header(&call, "grpc-message", "queue full%3A 100%25 na%C3%AFve%0Aline");
  call_conclude(&call, 0);
  assert_int_equal(call.status, STATUS_RESOURCE_EXHAUSTED);
  assert_string_equal(call.message, "queue full: 100% na\xc3\xafve line"); // no control characters
}

static void without_grpc_status_http_decides(void **state) {
  (void)state;
  static const struct {
    const char *http;
    enum status status;
  } cases[] = {{"404", STATUS_UNIMPLEMENTED},   {"503", STATUS_UNAVAILABLE},
               {"401", STATUS_UNAUTHENTICATED}, {"415", STATUS_UNKNOWN},
               {"200", STATUS_UNKNOWN},         {"abc", STATUS_UNKNOWN}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct call call = {0};
    call_reset(&call);
    header(&call, ":status", cases[i].http);
    call_conclude(&call, 0);
    assert_int_equal(call.status, cases[i].status);
    assert_true(call.message[0] != 0);
  }
}

static void resets_have_their_statuses(void **state) {
  (void)state;
  static const struct {
    uint32_t error;
    enum status status;
  } cases[] = {{7, STATUS_UNAVAILABLE},
               {8, STATUS_CANCELLED},
               {11, STATUS_RESOURCE_EXHAUSTED},
               {2, STATUS_INTERNAL}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct call call = {0};
    call_reset(&call);
    call_conclude(&call, cases[i].error);
    assert_int_equal(call.status, cases[i].status);
  }
}

static void a_strange_grpc_status_is_unknown(void **state) {
  (void)state;
  static const char *const values[] = {"17", "-1", "", "x", "99999", "00000"};
  for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
    struct call call = {0};
    call_reset(&call);
    header(&call, "grpc-status", values[i]);
    call_conclude(&call, 0);
    assert_int_equal(call.status, STATUS_UNKNOWN);
  }
}

static void reply_is_gathered_over_any_split(void **state) {
  (void)state;
  static const uint8_t wire[] = {0, 0, 0, 0, 6, 'a', 'b', 'c', 'd', 'e', 'f'};
  for (size_t cut = 0; cut <= sizeof wire; cut++) {
    uint8_t buffer[4];
    struct call call = {.reply = buffer, .reply_capacity = sizeof buffer};
    call_reset(&call);
    header(&call, "grpc-status", "0");
    assert_true(call_receive(&call, wire, cut));
    assert_true(call_receive(&call, wire + cut, sizeof wire - cut));
    call_conclude(&call, 0);
    assert_int_equal(call.status, STATUS_OK);
    assert_int_equal(call.reply_length, 6);
    assert_int_equal(call.reply_bytes, 4); // the captured head
    assert_memory_equal(buffer, "abcd", 4);
  }
}

static void ok_with_a_wrong_message_is_not_ok(void **state) {
  (void)state;
  static const struct {
    const char *bytes;
    size_t n;
  } wires[] = {{"", 0}, {"\0\0\0", 3}, {"\0\0\0\0\2a", 6}, {"\0\0\0\0\1ab", 7}, {"\1\0\0\0\1a", 6}};
  for (size_t i = 0; i < sizeof wires / sizeof wires[0]; i++) {
    uint8_t buffer[16];
    struct call call = {.reply = buffer, .reply_capacity = sizeof buffer};
    call_reset(&call);
    header(&call, "grpc-status", "0");
    assert_true(call_receive(&call, (const uint8_t *)wires[i].bytes, wires[i].n));
    call_conclude(&call, 0);
    if (call.status != STATUS_INTERNAL) fail_msg("case %zu: status %d", i, call.status);
  }
}

static void nothing_of_a_server_drives_a_terminal(void **state) {
  (void)state;
  char out[64] = "\033[31mred\a\r\n\177 caf\303\251";
  call_tame(out);
  assert_string_equal(out, " [31mred     caf\303\251");
  call_percent_decode(text("a%1B%00%7f%0Ab"), out, sizeof out);
  assert_string_equal(out, "a    b");
}

static void long_messages_are_cut_at_a_character(void **state) {
  (void)state;
  char out[6];
  call_percent_decode(text("abcd%C3%A9z"), out, sizeof out); // 4 + 2 bytes do not fit 5
  assert_string_equal(out, "abcd");
  call_percent_decode(text("abc%C3%A9"), out, sizeof out);
  assert_string_equal(out, "abc\xc3\xa9");
  call_percent_decode(text("%"), out, sizeof out);
  assert_string_equal(out, "%");
  call_percent_decode(text("%zz%4"), out, sizeof out);
  assert_string_equal(out, "%zz%4");
}

static void timeouts_have_at_most_8_digits(void **state) {
  (void)state;
  char out[24];
  call_timeout_text(50 * NS_PER_MS, out);
  assert_string_equal(out, "50000u");
  call_timeout_text(1000 * NS_PER_S, out);
  assert_string_equal(out, "1000000m");
  call_timeout_text(1, out);
  assert_string_equal(out, "1u"); // never 0: that would have expired already
  call_timeout_text(INT64_MAX / 2, out);
  assert_true(strlen(out) <= 11);
  call_timeout_text(0, out);
  assert_string_equal(out, "");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(grpc_status_decides),
      cmocka_unit_test(without_grpc_status_http_decides),
      cmocka_unit_test(resets_have_their_statuses),
      cmocka_unit_test(a_strange_grpc_status_is_unknown),
      cmocka_unit_test(reply_is_gathered_over_any_split),
      cmocka_unit_test(ok_with_a_wrong_message_is_not_ok),
      cmocka_unit_test(nothing_of_a_server_drives_a_terminal),
      cmocka_unit_test(long_messages_are_cut_at_a_character),
      cmocka_unit_test(timeouts_have_at_most_8_digits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
