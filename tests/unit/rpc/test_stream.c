// Calls of many messages through a whole connection: order, ends, back-pressure both ways, limits.
#include "loopback.h"

static int up(void **state) {
  struct rpc_limits limits = loopback_limits();
  *state = loopback_open(&limits);
  return 0;
}

static int down(void **state) {
  loopback_close(*state);
  return 0;
}

static const uint8_t *bytes_of(const char *text) {
  return (const uint8_t *)text;
}

static int32_t count(struct loopback *loop, const char *message) { // prefix and two bytes
  return request_send(
      loop, &(struct request){.path = "/t.T/Count", .body = bytes_of(message), .bytes = 7});
}

// A Chat whose upload goes on until `chat_end`.
static int32_t chat(struct loopback *loop, const void *body, size_t bytes) {
  return request_send(
      loop,
      &(struct request){.path = "/t.T/Chat", .body = body, .bytes = bytes, .stay_open = true});
}

static void chat_more(struct loopback *loop, int32_t id, const void *body, size_t bytes, bool end) {
  loop->uploads[id / 2] = (struct upload){body, bytes, 0, !end};
  assert_int_equal(nghttp2_session_resume_data(loop->client, id), 0);
}

static void expect_end(struct loopback *loop, int32_t id, int grpc_status, size_t bytes) {
  struct seen *seen = seen_of(loop, id);
  assert_int_equal(seen->status, 200);
  assert_int_equal(seen->grpc_status, grpc_status);
  assert_int_equal(seen->header_blocks, 2);
  assert_true(seen->end_on_headers);
  assert_false(seen->end_on_data);
  assert_int_equal(seen->bytes, bytes);
  assert_true(seen->closed);
}

// n messages of `bytes` bytes behind one another, each full of its number.
static uint8_t *messages_make(size_t n, size_t bytes) {
  uint8_t *all = malloc(n * (bytes + 5)), *at = all;
  for (size_t i = 0; i < n; i++) {
    *at++ = 0;
    for (int k = 0; k < 4; k++)
      *at++ = (uint8_t)(bytes >> (24 - 8 * k));
    memset(at, (int)i, bytes);
    at += bytes;
  }
  return all;
}

// ---- one in, many out ----

static void one_question_gets_every_answer_in_order_and_then_the_status(void **state) {
  struct loopback *loop = *state;
  for (int n = 0; n < 40; n++) {
    char message[8] = {0, 0, 0, 0, 2, (char)n, 0};
    int32_t id = count(loop, message);
    pump(loop);
    expect_end(loop, id, 0, (size_t)n * 6);
    for (int i = 0; i < n; i++)
      assert_memory_equal(seen_of(loop, id)->data + (size_t)i * 6,
                          ((const uint8_t[]){0, 0, 0, 0, 1, (uint8_t)i}), 6);
  }
  assert_int_equal(loop->n_cancelled, 0);
  expect_alive(loop);
}

static void messages_may_come_much_later(void **state) {
  struct loopback *loop = *state;
  int32_t id = count(loop, "\0\0\0\0\2\1\1");
  pump(loop);
  assert_int_equal(seen_of(loop, id)->bytes, 6);
  for (int i = 0; i < 5; i++) {
    loop->now_ns += 3600 * NS_PER_S; // no limit of ours ends a call that waits for its server
    h2_tick(loop->h2, loop->now_ns);
    struct call *call = call_find(loop->rpc, loop->kept[0]);
    assert_non_null(call);
    assert_true(call_send(call, "x", 1, NULL, 0, NULL, NULL));
    pump(loop);
    assert_int_equal(seen_of(loop, id)->bytes, 6 * (i + 2));
  }
  call_finish(call_find(loop->rpc, loop->kept[0]), STATUS_ABORTED, "enough: 100%");
  assert_null(call_find(loop->rpc, loop->kept[0]));
  pump(loop);
  expect_end(loop, id, STATUS_ABORTED, 36);
  assert_string_equal(seen_of(loop, id)->message, "enough: 100%25");
}

static void a_stream_without_messages_may_end_either_way(void **state) {
  struct loopback *loop = *state;
  int32_t ok = count(loop, "\0\0\0\0\2\0\0"), fails = count(loop, "\0\0\0\0\2\0\1");
  pump(loop);
  expect_end(loop, ok, 0, 0);
  call_finish(call_find(loop->rpc, loop->kept[0]), STATUS_NOT_FOUND, "nothing");
  pump(loop);
  expect_fail(loop, fails, STATUS_NOT_FOUND); // Trailers-Only
}

static void a_deadline_ends_a_stream_behind_what_it_has_sent(void **state) {
  struct loopback *loop = *state;
  int32_t id = request_send(loop, &(struct request){.path = "/t.T/Count",
                                                    .body = bytes_of("\0\0\0\0\2\3\1"),
                                                    .bytes = 7,
                                                    .extra_name = "grpc-timeout",
                                                    .extra_value = "10S"});
  pump(loop);
  assert_int_equal(seen_of(loop, id)->bytes, 18);
  rpc_expire(loop->rpc, loop->now_ns + 11 * NS_PER_S);
  assert_null(call_find(loop->rpc, loop->kept[0]));
  assert_int_equal(loop->n_cancelled, 1);
  pump(loop);
  expect_end(loop, id, STATUS_DEADLINE_EXCEEDED, 18);
}

static void what_a_deadline_finds_behind_a_closed_window_is_dropped(void **state) {
  struct loopback *loop = *state;
  loop->no_credit = true;
  nghttp2_settings_entry window = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 8};
  assert_int_equal(nghttp2_submit_settings(loop->client, 0, &window, 1), 0);
  int32_t id = count(loop, "\0\0\0\0\2\x32\1");
  pump(loop);
  assert_int_equal(seen_of(loop, id)->bytes, 8); // the second message is begun, 48 wait
  struct call *call = call_find(loop->rpc, loop->kept[0]);
  assert_int_equal(call_queued(call), 49);
  call_fail(call, STATUS_UNAVAILABLE, "over");
  assert_int_equal(nghttp2_submit_window_update(loop->client, 0, id, 1000), 0);
  pump(loop);
  expect_end(loop, id, STATUS_UNAVAILABLE, 12); // whole messages only
}

static void a_reset_reaches_the_handler_once(void **state) {
  struct loopback *loop = *state;
  int32_t id = count(loop, "\0\0\0\0\2\3\1");
  pump(loop);
  assert_int_equal(nghttp2_submit_rst_stream(loop->client, 0, id, NGHTTP2_CANCEL), 0);
  pump(loop);
  assert_null(call_find(loop->rpc, loop->kept[0]));
  assert_int_equal(loop->n_cancelled, 1);
  expect_alive(loop);
}

static void a_lost_connection_gives_everything_back(void **state) {
  struct loopback *loop = *state;
  uint8_t *body = messages_make(20, 3000);
  loop->no_credit = true;
  nghttp2_settings_entry window = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 100};
  assert_int_equal(nghttp2_submit_settings(loop->client, 0, &window, 1), 0);
  count(loop, "\0\0\0\0\2\x32\1");
  chat(loop, body, 20 * 3005 - 7);
  pump(loop);
  h2_lost(loop->h2);
  assert_int_equal(loop->n_cancelled, 2);
  free(body);
}

// ---- many in ----

static void every_message_is_answered_as_it_comes(void **state) {
  struct loopback *loop = *state;
  uint8_t *body = messages_make(30, 700);
  size_t cut = 4 * 705 + 3; // in the prefix of the fifth
  int32_t id = chat(loop, body, cut);
  pump(loop);
  assert_int_equal(seen_of(loop, id)->bytes, 4 * 705);
  chat_more(loop, id, body + cut, 705, false);
  pump(loop);
  assert_int_equal(seen_of(loop, id)->bytes, 5 * 705);
  chat_more(loop, id, body + cut + 705, 30 * 705 - cut - 705, true);
  pump(loop);
  expect_end(loop, id, 0, 30 * 705);
  assert_memory_equal(seen_of(loop, id)->data, body, 30 * 705);
  assert_int_equal(loop->n_closed, 1);
  assert_int_equal(loop->n_done, 30);
  free(body);
}

static void messages_may_come_byte_by_byte(void **state) {
  struct loopback *loop = *state;
  loop->chunk = 1;
  uint8_t *body = messages_make(9, 11);
  int32_t id =
      request_send(loop, &(struct request){.path = "/t.T/Chat", .body = body, .bytes = 9 * 16});
  pump(loop);
  expect_end(loop, id, 0, 9 * 16);
  assert_memory_equal(seen_of(loop, id)->data, body, 9 * 16);
  free(body);
}

static void empty_messages_are_messages(void **state) {
  struct loopback *loop = *state;
  uint8_t *body = messages_make(1000, 0);
  int32_t id =
      request_send(loop, &(struct request){.path = "/t.T/Chat", .body = body, .bytes = 5000});
  pump(loop);
  expect_end(loop, id, 0, 5000);
  assert_int_equal(loop->n_handled, 1000);
  free(body);
}

static void no_message_at_all_is_an_end_too(void **state) {
  struct loopback *loop = *state;
  int32_t with_data = request_send(loop, &(struct request){.path = "/t.T/Chat"});
  int32_t without =
      request_send(loop, &(struct request){.path = "/t.T/Chat", .headers_only = true});
  pump(loop);
  expect_end(loop, with_data, 0, 0);
  expect_end(loop, without, 0, 0);
  assert_int_equal(loop->n_closed, 2);
}

static void a_client_that_does_not_read_is_not_read_from(void **state) {
  struct loopback *loop = *state;
  size_t n = 400, bytes = 2000; // 800 KB through windows of 256 KiB and of nothing
  uint8_t *body = messages_make(n, bytes);
  loop->no_credit = true;
  nghttp2_settings_entry window = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0};
  assert_int_equal(nghttp2_submit_settings(loop->client, 0, &window, 1), 0);
  int32_t id = request_send(
      loop, &(struct request){.path = "/t.T/Chat", .body = body, .bytes = n * (bytes + 5)});
  pump(loop);
  assert_int_equal(loop->n_handled, CHAT_QUEUED);
  assert_int_equal(seen_of(loop, id)->bytes, 0);
  // What had come lies aside, and no more than the window allows.
  assert_in_range(loop->uploads[id / 2].at, 1, loop->limits.stream_window_bytes);
  assert_in_range(rpc_used_bytes(loop->rpc), 1, 2 * loop->limits.stream_window_bytes);
  int32_t other = call_path(loop, "/t.T/Fail"); // others are not held up
  pump(loop);
  expect_fail(loop, other, STATUS_INVALID_ARGUMENT);
  loop->no_credit = false;
  assert_int_equal(nghttp2_submit_window_update(loop->client, 0, id, 1 << 20), 0);
  pump(loop);
  expect_end(loop, id, 0, n * (bytes + 5));
  assert_memory_equal(seen_of(loop, id)->data, body, n * (bytes + 5));
  assert_int_equal(loop->most_queued, CHAT_QUEUED);
  assert_int_equal(loop->n_closed, 1);
  free(body);
}

static void bad_messages_end_the_stream_behind_the_good_ones(void **state) {
  struct loopback *loop = *state;
  static const struct {
    const char *bytes;
    size_t n;
    int status;
  } bad[] = {{"\2\0\0\0\1x", 6, STATUS_INTERNAL},                  // flag
             {"\1\0\0\0\1x", 6, STATUS_INTERNAL},                  // compressed
             {"\0\xff\xff\xff\xff", 5, STATUS_RESOURCE_EXHAUSTED}, // too long
             {"\0\0\0\0\5abc", 8, STATUS_INTERNAL},                // cut short
             {"\0\0", 2, STATUS_INTERNAL}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    uint8_t body[32] = {0, 0, 0, 0, 2, 'h', 'i'};
    memcpy(body + 7, bad[i].bytes, bad[i].n);
    int32_t id = request_send(
        loop, &(struct request){.path = "/t.T/Chat", .body = body, .bytes = 7 + bad[i].n});
    pump(loop);
    struct seen *seen = seen_of(loop, id);
    assert_int_equal(seen->grpc_status, bad[i].status);
    assert_int_equal(loop->n_cancelled, i + 1);
    assert_true(seen->closed);
  }
  assert_int_equal(loop->n_closed, 0);
  expect_alive(loop);
}

static void an_early_end_stops_the_upload_in_peace(void **state) {
  struct loopback *loop = *state;
  uint8_t body[15] = {0, 0, 0, 0, 2, 'h', 'i', 0, 0, 0, 0, 3, 'b', 'y', 'e'};
  int32_t id = chat(loop, body, sizeof body);
  pump(loop);
  expect_end(loop, id, STATUS_INVALID_ARGUMENT, 7);
  assert_int_equal(loop->reset_code, NGHTTP2_NO_ERROR);
  assert_int_equal(loop->n_resets, 1);
  expect_alive(loop);
}

static void a_message_that_never_ends_is_not_waited_for(void **state) {
  struct loopback *loop = *state;
  static const uint8_t body[] = {0, 0, 0, 0, 2, 'h', 'i', 0, 0, 0, 0, 9, 'x'};
  int32_t whole = chat(loop, body, 7), half = chat(loop, body, sizeof body);
  pump(loop);
  loop->now_ns += 3600 * NS_PER_S;
  h2_tick(loop->h2, loop->now_ns);
  pump(loop);
  expect_end(loop, half, STATUS_DEADLINE_EXCEEDED, 7);
  assert_false(seen_of(loop, whole)->closed); // silence between messages is no fault
}

static void draining_ends_streams_that_have_no_end_of_their_own(void **state) {
  struct loopback *loop = *state;
  int32_t counting = count(loop, "\0\0\0\0\2\3\1"), chatting = chat(loop, "\0\0\0\0\2hi", 7);
  pump(loop);
  h2_drain(loop->h2, loop->now_ns);
  pump(loop);
  expect_end(loop, counting, STATUS_UNAVAILABLE, 18);
  expect_end(loop, chatting, STATUS_UNAVAILABLE, 7);
  assert_int_equal(loop->n_cancelled, 2);
  assert_true(h2_finished(loop->h2));
}

static void many_streams_at_once_keep_apart(void **state) {
  struct loopback *loop = *state;
  enum { N = 200 };
  uint8_t *body = messages_make(10, 300);
  int32_t ids[N];
  for (int i = 0; i < N; i++)
    ids[i] = request_send(loop, &(struct request){.path = i % 2 ? "/t.T/Chat" : "/t.T/Echo",
                                                  .body = body,
                                                  .bytes = i % 2 ? 3050 : 305});
  pump(loop);
  for (int i = 0; i < N; i++)
    if (i % 2)
      expect_end(loop, ids[i], 0, 3050);
    else
      expect_echo(loop, ids[i], body, 305);
  free(body);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, up, down)
int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(one_question_gets_every_answer_in_order_and_then_the_status),
      TEST(messages_may_come_much_later),
      TEST(a_stream_without_messages_may_end_either_way),
      TEST(a_deadline_ends_a_stream_behind_what_it_has_sent),
      TEST(what_a_deadline_finds_behind_a_closed_window_is_dropped),
      TEST(a_reset_reaches_the_handler_once),
      TEST(a_lost_connection_gives_everything_back),
      TEST(every_message_is_answered_as_it_comes),
      TEST(messages_may_come_byte_by_byte),
      TEST(empty_messages_are_messages),
      TEST(no_message_at_all_is_an_end_too),
      TEST(a_client_that_does_not_read_is_not_read_from),
      TEST(bad_messages_end_the_stream_behind_the_good_ones),
      TEST(an_early_end_stops_the_upload_in_peace),
      TEST(a_message_that_never_ends_is_not_waited_for),
      TEST(draining_ends_streams_that_have_no_end_of_their_own),
      TEST(many_streams_at_once_keep_apart),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
