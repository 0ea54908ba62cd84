// Calls through a whole connection: answers, errors, deadlines, cancels, flow control, draining.
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

// ---- answers ----

static void message_comes_back_in_head_and_slices(void **state) {
  struct loopback *loop = *state;
  static const size_t sizes[] = {0, 1, 9, 10, 11, 12, 511, 1033, 4096, 16384, 100000};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    uint8_t *message = message_make(sizes[i]);
    int32_t id = request_send(
        loop, &(struct request){.path = "/t.T/Echo", .body = message, .bytes = sizes[i] + 5});
    pump(loop);
    expect_echo(loop, id, message, sizes[i] + 5);
    assert_int_equal(loop->n_done, i + 1); // exactly once each
    free(message);
  }
}

static void input_may_come_byte_by_byte(void **state) {
  struct loopback *loop = *state;
  loop->chunk = 1;
  uint8_t *message = message_make(3000);
  int32_t id =
      request_send(loop, &(struct request){.path = "/t.T/Echo", .body = message, .bytes = 3005});
  pump(loop);
  expect_echo(loop, id, message, 3005);
  free(message);
}

static void message_larger_than_every_window_passes(void **state) {
  struct loopback *loop = *state;
  size_t bytes = 4 << 20;
  uint8_t *message = message_make(bytes);
  int32_t ids[3];
  for (int i = 0; i < 3; i++)
    ids[i] = request_send(
        loop, &(struct request){.path = "/t.T/Echo", .body = message, .bytes = bytes + 5});
  pump(loop);
  for (int i = 0; i < 3; i++)
    expect_echo(loop, ids[i], message, bytes + 5);
  free(message);
}

static void many_calls_at_once_are_each_answered(void **state) {
  struct loopback *loop = *state;
  int32_t ids[500];
  for (int i = 0; i < 500; i++)
    ids[i] = call_path(loop, i % 3 ? "/t.T/Echo" : "/t.T/Fail");
  pump(loop);
  for (int i = 0; i < 500; i++)
    if (i % 3)
      expect_echo(loop, ids[i], (const uint8_t *)"\0\0\0\0\5hello", 10);
    else
      expect_fail(loop, ids[i], STATUS_INVALID_ARGUMENT);
}

static void later_answers_find_their_calls(void **state) {
  struct loopback *loop = *state;
  int32_t ids[50];
  for (int i = 0; i < 50; i++)
    ids[i] = call_path(loop, "/t.T/Keep");
  pump(loop);
  assert_int_equal(loop->n_kept, 50);
  for (int i = 49; i >= 0; i--)
    answer_kept(loop, i);
  for (int i = 0; i < 50; i++)
    assert_null(call_find(loop->rpc, loop->kept[i])); // answered: gone
  pump(loop);
  for (int i = 0; i < 50; i++)
    expect_echo(loop, ids[i], (const uint8_t *)"\0\0\0\0\5hello", 10);
  assert_int_equal(loop->n_cancelled, 0);
}

static void answer_dribbles_through_a_window_of_single_bytes(void **state) {
  struct loopback *loop = *state;
  loop->no_credit = true;
  nghttp2_settings_entry window = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0};
  assert_int_equal(nghttp2_submit_settings(loop->client, 0, &window, 1), 0);
  pump(loop);
  int32_t id = call_path(loop, "/t.T/Echo");
  pump(loop);
  struct seen *seen = seen_of(loop, id);
  assert_int_equal(seen->header_blocks, 1);
  for (size_t i = 0; i < 10; i++) {
    assert_int_equal(seen->bytes, i);
    assert_int_equal(seen->header_blocks, 1); // trailers must not overtake
    assert_int_equal(nghttp2_submit_window_update(loop->client, 0, id, 1), 0);
    pump(loop);
  }
  expect_echo(loop, id, (const uint8_t *)"\0\0\0\0\5hello", 10);
}

// ---- errors ----

static void error_text_is_percent_encoded_and_trailers_only(void **state) {
  struct loopback *loop = *state;
  int32_t id = call_path(loop, "/t.T/Fail");
  pump(loop);
  expect_fail(loop, id, STATUS_INVALID_ARGUMENT);
  assert_string_equal(seen_of(loop, id)->message, "field 'x': 100%25%0Ana%C3%AFve");
  expect_alive(loop);
}

static void requests_that_are_not_grpc_never_reach_a_handler(void **state) {
  struct loopback *loop = *state;
  static const struct {
    struct request request;
    int http, grpc;
  } cases[] = {
      {{.path = "/t.T/Echo", .type = "application/json"}, 415, -1},
      {{.path = "/t.T/Echo", .type = "application/grpc-web"}, 415, -1},
      {{.path = "/t.T/Echo", .type = "application/grpcfoo"}, 415, -1},
      {{.path = "/t.T/Echo", .method = "GET"}, 405, -1},
      {{.path = "/t.T/Nope"}, 200, STATUS_UNIMPLEMENTED},
      {{.path = "/"}, 200, STATUS_UNIMPLEMENTED},
      {{.path = "/t.T/Echo", .extra_name = "grpc-timeout", .extra_value = "abc"},
       200,
       STATUS_INTERNAL},
      {{.path = "/t.T/Echo", .extra_name = "grpc-timeout", .extra_value = "123456789S"},
       200,
       STATUS_INTERNAL},
      {{.path = "/t.T/Echo", .extra_name = "grpc-timeout", .extra_value = "0n"},
       200,
       STATUS_DEADLINE_EXCEEDED},
      {{.path = "/t.T/Echo", .headers_only = true}, 200, STATUS_UNIMPLEMENTED},
      {{.path = "/t.T/Echo", .bytes = 0}, 200, STATUS_UNIMPLEMENTED},
      {{.path = "/t.T/Echo", .body = (const uint8_t *)"\0\0\0", .bytes = 3}, 200, STATUS_INTERNAL},
      {{.path = "/t.T/Echo", .body = (const uint8_t *)"\0\0\0\0\4abc", .bytes = 8},
       200,
       STATUS_INTERNAL},
      {{.path = "/t.T/Echo", .body = (const uint8_t *)"\0\0\0\0\1a\0\0\0\0\1b", .bytes = 12},
       200,
       STATUS_UNIMPLEMENTED},
      {{.path = "/t.T/Echo", .body = (const uint8_t *)"\1\0\0\0\1a", .bytes = 6},
       200,
       STATUS_INTERNAL},
      {{.path = "/t.T/Echo", .body = (const uint8_t *)"\2\0\0\0\1a", .bytes = 6},
       200,
       STATUS_INTERNAL},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    int32_t id = request_send(loop, &cases[i].request);
    pump(loop);
    struct seen *seen = seen_of(loop, id);
    if (seen->status != cases[i].http || seen->grpc_status != cases[i].grpc || !seen->closed)
      fail_msg("case %zu: http %d, grpc %d, closed %d", i, seen->status, seen->grpc_status,
               seen->closed);
  }
  assert_int_equal(loop->n_handled, 0);
  expect_alive(loop);
}

static void unknown_encoding_matters_only_with_the_flag(void **state) {
  struct loopback *loop = *state;
  struct request request = {.path = "/t.T/Echo",
                            .extra_name = "grpc-encoding",
                            .extra_value = "snappy",
                            .body = (const uint8_t *)"\0\0\0\0\1a",
                            .bytes = 6};
  int32_t id = request_send(loop, &request);
  pump(loop);
  expect_echo(loop, id, request.body, 6);
  request.body = (const uint8_t *)"\1\0\0\0\1a";
  id = request_send(loop, &request);
  pump(loop);
  expect_fail(loop, id, STATUS_UNIMPLEMENTED);
  assert_string_equal(seen_of(loop, id)->accept_encoding, "identity");
}

static void early_answer_ends_in_reset_no_error_and_later_data_is_ignored(void **state) {
  struct loopback *loop = *state;
  uint8_t *message = message_make(600000);
  struct request request = {
      .path = "/t.T/Nope", .body = message, .bytes = 600005, .stay_open = true};
  int32_t id = request_send(loop, &request);
  pump(loop);
  expect_fail(loop, id, STATUS_UNIMPLEMENTED);
  assert_int_equal(seen_of(loop, id)->close_code, NGHTTP2_NO_ERROR);
  assert_non_null(strstr(seen_of(loop, id)->message, "/t.T/Nope"));
  free(message);
  expect_alive(loop);
}

static void too_large_message_is_refused_at_its_prefix(void **state) {
  struct loopback *loop = *state;
  struct request request = {.path = "/t.T/Echo",
                            .body = (const uint8_t *)"\0\xFF\xFF\xFF\xFF",
                            .bytes = 5,
                            .stay_open = true};
  int32_t id = request_send(loop, &request);
  pump(loop);
  expect_fail(loop, id, STATUS_RESOURCE_EXHAUSTED);
  assert_int_equal(seen_of(loop, id)->close_code, NGHTTP2_NO_ERROR);
  assert_non_null(strstr(seen_of(loop, id)->message, "limits.message_bytes"));
  assert_int_equal(rpc_used_bytes(loop->rpc), 0);
  expect_alive(loop);
}

static void long_header_list_is_answered_and_names_its_limit(void **state) {
  struct loopback *loop = *state;
  char *value = malloc(10001);
  memset(value, 'v', 10000);
  value[10000] = 0;
  int32_t id = request_send(loop, &(struct request){.path = "/t.T/Echo",
                                                    .extra_name = "x-long",
                                                    .extra_value = value,
                                                    .body = (const uint8_t *)"\0\0\0\0",
                                                    .bytes = 5});
  free(value);
  pump(loop);
  expect_fail(loop, id, STATUS_RESOURCE_EXHAUSTED);
  assert_non_null(strstr(seen_of(loop, id)->message, "limits.header_bytes (8192)"));
  assert_int_equal(loop->n_handled, 0);
  expect_alive(loop);
}

// ---- deadlines and cancels ----

static int32_t keep_with_timeout(struct loopback *loop, const char *timeout) {
  static const uint8_t hello[] = {0, 0, 0, 0, 5, 'h', 'e', 'l', 'l', 'o'};
  int32_t id = request_send(loop, &(struct request){.path = "/t.T/Keep",
                                                    .body = hello,
                                                    .bytes = sizeof hello,
                                                    .extra_name = "grpc-timeout",
                                                    .extra_value = timeout});
  pump(loop);
  return id;
}

static void deadline_is_answered_at_its_time_and_only_once(void **state) {
  struct loopback *loop = *state;
  int32_t late = keep_with_timeout(loop, "20m"), early = keep_with_timeout(loop, "10m");
  int32_t never = keep_with_timeout(loop, "99999999H");
  assert_int_equal(rpc_next_deadline_ns(loop->rpc), T0 + 10 * NS_PER_MS);
  rpc_expire(loop->rpc, T0 + 10 * NS_PER_MS - 1);
  pump(loop);
  assert_false(seen_of(loop, early)->closed);
  rpc_expire(loop->rpc, T0 + 10 * NS_PER_MS);
  pump(loop);
  expect_fail(loop, early, STATUS_DEADLINE_EXCEEDED);
  assert_int_equal(loop->n_cancelled, 1);
  assert_null(call_find(loop->rpc, loop->kept[1]));
  assert_non_null(call_find(loop->rpc, loop->kept[0]));
  answer_kept(loop, 0);
  answer_kept(loop, 2);
  assert_int_equal(rpc_next_deadline_ns(loop->rpc), CLOCK_NEVER);
  pump(loop);
  expect_echo(loop, late, (const uint8_t *)"\0\0\0\0\5hello", 10);
  expect_echo(loop, never, (const uint8_t *)"\0\0\0\0\5hello", 10);
  rpc_expire(loop->rpc, CLOCK_NEVER);
  assert_int_equal(loop->n_cancelled, 1);
}

static void deadline_ends_an_upload_that_never_finishes(void **state) {
  struct loopback *loop = *state;
  struct request request = {.path = "/t.T/Echo",
                            .body = (const uint8_t *)"\0\0\0\1\0half",
                            .bytes = 9,
                            .stay_open = true,
                            .extra_name = "grpc-timeout",
                            .extra_value = "5m"};
  int32_t id = request_send(loop, &request);
  pump(loop);
  assert_int_not_equal(rpc_used_bytes(loop->rpc), 0);
  rpc_expire(loop->rpc, T0 + 5 * NS_PER_MS);
  assert_int_equal(rpc_used_bytes(loop->rpc), 0); // its slab goes at once
  pump(loop);
  expect_fail(loop, id, STATUS_DEADLINE_EXCEEDED);
  assert_int_equal(loop->n_handled, 0);
  expect_alive(loop);
}

static void reset_runs_the_cancel_hook_once_and_the_late_answer_finds_nothing(void **state) {
  struct loopback *loop = *state;
  int32_t id = call_path(loop, "/t.T/Keep");
  pump(loop);
  assert_int_equal(nghttp2_submit_rst_stream(loop->client, 0, id, NGHTTP2_CANCEL), 0);
  pump(loop);
  assert_int_equal(loop->n_cancelled, 1);
  assert_null(call_find(loop->rpc, loop->kept[0]));
  answer_kept(loop, 0);
  assert_int_equal(seen_of(loop, id)->header_blocks, 0);
  expect_alive(loop);
}

static void lost_connection_ends_everything_it_had(void **state) {
  struct loopback *loop = *state;
  for (int i = 0; i < 10; i++)
    call_path(loop, "/t.T/Keep");
  struct request half = {.path = "/t.T/Echo",
                         .body = (const uint8_t *)"\0\0\0\1\0half",
                         .bytes = 9,
                         .stay_open = true};
  request_send(loop, &half);
  pump(loop);
  for (int i = 0; i < 5; i++)
    answer_kept(loop, i); // answers on their way out
  struct iovec iov[4];
  assert_true(h2_pull(loop->h2, iov, 4) > 0);
  h2_lost(loop->h2);
  assert_int_equal(loop->n_cancelled, 5);
  for (int i = 0; i < 10; i++)
    assert_null(call_find(loop->rpc, loop->kept[i]));
  assert_false(h2_want_read(loop->h2));
  h2_feed(loop->h2, (const uint8_t *)"x", 1, T0); // ignored
}

static void reset_while_the_answer_is_queued_gives_the_payload_back(void **state) {
  struct loopback *loop = *state;
  loop->no_credit = true;
  uint8_t *message = message_make(1 << 20);
  int32_t id = request_send(
      loop, &(struct request){.path = "/t.T/Echo", .body = message, .bytes = (1 << 20) + 5});
  pump(loop); // the client's 64 KiB window holds the rest back
  assert_int_equal(loop->n_done, 0);
  assert_int_equal(loop->n_handled, 1);
  assert_int_equal(nghttp2_submit_rst_stream(loop->client, 0, id, NGHTTP2_CANCEL), 0);
  loop->no_credit = false;
  assert_int_equal(nghttp2_session_consume_connection(loop->client, 65535), 0);
  pump(loop);
  assert_int_equal(loop->n_done, 1);
  assert_int_equal(rpc_used_bytes(loop->rpc), 0);
  free(message);
  expect_alive(loop);
}

// ---- back-pressure ----

static void stuck_output_stops_reading_and_is_bounded(void **state) {
  struct loopback *loop = *state;
  nghttp2_settings_entry window = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 1 << 30};
  assert_int_equal(nghttp2_submit_settings(loop->client, 0, &window, 1), 0);
  assert_int_equal(nghttp2_session_set_local_window_size(loop->client, 0, 0, 1 << 30), 0);
  uint8_t *message = message_make(1 << 20);
  for (int i = 0; i < 6; i++)
    request_send(loop,
                 &(struct request){.path = "/t.T/Echo", .body = message, .bytes = (1 << 20) + 5});
  for (int i = 0; i < 100 && h2_want_read(loop->h2);
       i++) { // the client sends on, the socket takes only little
    pump_in(loop);
    struct iovec iov[2];
    int n = h2_pull(loop->h2, iov, 1);
    if (n > 0)
      assert_int_equal(nghttp2_session_mem_recv(loop->client, iov[0].iov_base, iov[0].iov_len),
                       iov[0].iov_len);
    h2_sent(loop->h2, n > 0 ? iov[0].iov_len : 0);
  }
  assert_false(h2_want_read(loop->h2));
  assert_true(loop->n_done < 6);
  loop->stuck = false;
  pump(loop);
  for (int32_t id = 1; id < 12; id += 2)
    expect_echo(loop, id, message, (1 << 20) + 5);
  free(message);
}

static void window_is_not_given_back_while_half_the_budget_is_busy(void **state) {
  (void)state;
  struct rpc_limits limits = loopback_limits();
  limits.connection_bytes = 2 << 20;
  limits.stream_window_bytes = 1 << 20;
  struct loopback *loop = loopback_open(&limits);
  uint8_t *message = message_make(600000);
  for (int i = 0; i < 3;
       i++) { // the third comes while two, more than half of the budget, are with their handler
    request_send(loop, &(struct request){.path = "/t.T/Keep", .body = message, .bytes = 600005});
    pump(loop);
  }
  assert_int_equal(loop->n_kept, 2);
  assert_int_equal(nghttp2_session_get_remote_window_size(loop->client),
                   0); // what the client may still send
  answer_kept(loop, 0);
  answer_kept(loop, 1);
  pump(loop);
  assert_int_equal(loop->n_kept, 3); // the rest came as soon as there was room
  assert_true(nghttp2_session_get_remote_window_size(loop->client) > 0);
  free(message);
  loopback_close(loop);
}

static void answers_that_nobody_reads_end_the_connection(void **state) {
  struct loopback *loop = *state;
  loop->no_credit = true;
  uint8_t *message = message_make(200000);
  request_send(loop, &(struct request){.path = "/t.T/Echo", .body = message, .bytes = 200005});
  pump(loop); // 64 KiB of the answer, and the client opens no window
  h2_tick(loop->h2, T0 + 50 * NS_PER_S);
  pump_out(loop);
  assert_int_equal(loop->n_goaways, 0);
  h2_tick(loop->h2, T0 + 70 * NS_PER_S);
  pump_out(loop);
  assert_int_equal(loop->n_goaways, 1);
  assert_string_equal(loop->goaway_text, "answers are not read");
  assert_true(h2_finished(loop->h2));
  free(message);
}

static void call_that_takes_minutes_is_left_alone(void **state) {
  struct loopback *loop = *state;
  int32_t id = call_path(loop, "/t.T/Keep");
  pump(loop);
  for (int minute = 1; minute < 10; minute++)
    h2_tick(loop->h2, loop->now_ns = T0 + minute * 60 * NS_PER_S);
  answer_kept(loop, 0);
  h2_tick(loop->h2, loop->now_ns);
  pump(loop);
  expect_echo(loop, id, (const uint8_t *)"\0\0\0\0\5hello", 10);
  assert_int_equal(loop->n_goaways, 0);
}

// ---- drain ----

static void drain_says_goaway_twice_and_finishes_what_runs(void **state) {
  struct loopback *loop = *state;
  int32_t running = call_path(loop, "/t.T/Keep");
  pump(loop);
  h2_drain(loop->h2, loop->now_ns);
  pump(loop);
  assert_int_equal(loop->n_goaways, 2);
  assert_int_equal(loop->n_pings, 1);
  assert_int_equal(loop->goaway_last[0], INT32_MAX);
  assert_int_equal(loop->goaway_last[1], running);
  assert_int_equal(loop->goaway_codes[0] | loop->goaway_codes[1], NGHTTP2_NO_ERROR);
  assert_false(h2_finished(loop->h2));
  answer_kept(loop, 0);
  pump(loop);
  expect_echo(loop, running, (const uint8_t *)"\0\0\0\0\5hello", 10);
  assert_true(h2_finished(loop->h2));
}

static void drain_does_not_wait_for_ever_for_its_ping(void **state) {
  struct loopback *loop = *state;
  expect_alive(loop);
  h2_drain(loop->h2, loop->now_ns);
  pump_out(loop); // first GOAWAY and PING; the client answers nothing
  assert_int_equal(loop->n_goaways, 1);
  assert_false(h2_finished(loop->h2));
  h2_tick(loop->h2, loop->now_ns + 6 * NS_PER_S);
  pump_out(loop);
  assert_int_equal(loop->n_goaways, 2);
  assert_true(h2_finished(loop->h2));
}

// nghttp2's client without calls takes the first GOAWAY for the end and leaves the PING unanswered;
// one that answers it is drained at once (tests/e2e/test_http2.py).
static void idle_connection_drains_in_time(void **state) {
  struct loopback *loop = *state;
  pump(loop);
  h2_drain(loop->h2, loop->now_ns);
  pump(loop);
  assert_int_equal(loop->n_goaways, 1);
  assert_int_equal(loop->n_pings, 1);
  h2_tick(loop->h2, loop->now_ns + 6 * NS_PER_S);
  pump(loop);
  assert_int_equal(loop->n_goaways, 2);
  assert_true(h2_finished(loop->h2));
}

static void silent_connection_is_finished_by_drain_without_a_word(void **state) {
  struct loopback *loop = *state;
  struct iovec iov[4];
  assert_int_equal(h2_pull(loop->h2, iov, 4), 0);
  h2_drain(loop->h2, loop->now_ns);
  assert_int_equal(h2_pull(loop->h2, iov, 4), 0);
  assert_true(h2_finished(loop->h2));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, up, down)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(message_comes_back_in_head_and_slices),
      TEST(input_may_come_byte_by_byte),
      TEST(message_larger_than_every_window_passes),
      TEST(many_calls_at_once_are_each_answered),
      TEST(later_answers_find_their_calls),
      TEST(answer_dribbles_through_a_window_of_single_bytes),
      TEST(error_text_is_percent_encoded_and_trailers_only),
      TEST(requests_that_are_not_grpc_never_reach_a_handler),
      TEST(unknown_encoding_matters_only_with_the_flag),
      TEST(early_answer_ends_in_reset_no_error_and_later_data_is_ignored),
      TEST(too_large_message_is_refused_at_its_prefix),
      TEST(long_header_list_is_answered_and_names_its_limit),
      TEST(deadline_is_answered_at_its_time_and_only_once),
      TEST(deadline_ends_an_upload_that_never_finishes),
      TEST(reset_runs_the_cancel_hook_once_and_the_late_answer_finds_nothing),
      TEST(lost_connection_ends_everything_it_had),
      TEST(reset_while_the_answer_is_queued_gives_the_payload_back),
      TEST(stuck_output_stops_reading_and_is_bounded),
      cmocka_unit_test(window_is_not_given_back_while_half_the_budget_is_busy),
      TEST(answers_that_nobody_reads_end_the_connection),
      TEST(call_that_takes_minutes_is_left_alone),
      TEST(drain_says_goaway_twice_and_finishes_what_runs),
      TEST(drain_does_not_wait_for_ever_for_its_ping),
      TEST(idle_connection_drains_in_time),
      TEST(silent_connection_is_finished_by_drain_without_a_word),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
