// What a hostile or broken peer may try, as raw frames: each ends in a reset, a GOAWAY or nothing,
// never in our memory.
#include "loopback.h"

static int up(void **state) {
  struct rpc_limits limits = loopback_limits();
  struct loopback *loop = loopback_open(&limits);
  loop->no_client = true;
  *state = loop;
  return 0;
}

static int down(void **state) {
  loopback_close(*state);
  return 0;
}

static void frame(struct loopback *loop, uint8_t type, uint8_t flags, uint32_t stream,
                  const void *payload, size_t bytes) {
  uint8_t head[9] = {(uint8_t)(bytes >> 16),
                     (uint8_t)(bytes >> 8),
                     (uint8_t)bytes,
                     type,
                     flags,
                     (uint8_t)(stream >> 24),
                     (uint8_t)(stream >> 16),
                     (uint8_t)(stream >> 8),
                     (uint8_t)stream};
  feed_raw(loop, head, sizeof head);
  if (bytes) feed_raw(loop, payload, bytes);
}

static void preface(struct loopback *loop) {
  feed_raw(loop, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
  frame(loop, NGHTTP2_SETTINGS, 0, 0, NULL, 0);
  pump_out(loop);
}

// HPACK without indexing: every block stands alone.
static size_t literal(uint8_t *out, const char *name, const char *value) {
  size_t n = 0, name_bytes = strlen(name), value_bytes = strlen(value);
  assert_true(name_bytes < 127 && value_bytes < 127);
  out[n++] = 0;
  out[n++] = (uint8_t)name_bytes;
  memcpy(out + n, name, name_bytes);
  n += name_bytes;
  out[n++] = (uint8_t)value_bytes;
  memcpy(out + n, value, value_bytes);
  return n + value_bytes;
}

static size_t grpc_block(uint8_t *out, const char *path) {
  size_t n = literal(out, ":method", "POST");
  n += literal(out + n, ":scheme", "http");
  n += literal(out + n, ":path", path);
  n += literal(out + n, ":authority", "x");
  return n + literal(out + n, "content-type", "application/grpc");
}

static void headers(struct loopback *loop, uint32_t stream, const char *path, uint8_t flags) {
  uint8_t block[512];
  frame(loop, NGHTTP2_HEADERS, flags, stream, block, grpc_block(block, path));
}

static void expect_goaway(struct loopback *loop, uint32_t code, const char *text) {
  pump_out(loop);
  assert_int_equal(loop->n_goaways, 1);
  assert_int_equal(loop->goaway_codes[0], code);
  if (text) assert_non_null(strstr(loop->goaway_text, text));
  assert_true(h2_finished(loop->h2));
}

// After a connection error the GOAWAY waits behind what the peer does not take; what it sends on is
// not read for ever. Frames that mean nothing to us are no such thing.
static void who_is_ended_and_sends_on_is_not_read(void **state) {
  static const uint8_t bytes[16384];
  struct loopback *loop = *state;
  struct iovec iov;
  preface(loop);
  for (int i = 0; i < 20; i++)
    frame(loop, 0xfa, 0, 0, bytes, sizeof bytes);
  assert_true(h2_want_read(loop->h2));
  frame(loop, NGHTTP2_DATA, 0, 0, bytes, 16); // on stream 0
  h2_pull(loop->h2, &iov, 1);                 // GOAWAY is there; the peer does not take it
  for (int i = 0; i < 20; i++)
    frame(loop, NGHTTP2_DATA, 0, 1, bytes, sizeof bytes);
  assert_true(h2_want_read(loop->h2)); // not at once
  loop->now_ns += 30 * NS_PER_MS;
  frame(loop, NGHTTP2_DATA, 0, 1, bytes, sizeof bytes);
  assert_false(h2_want_read(loop->h2));
  expect_goaway(loop, NGHTTP2_PROTOCOL_ERROR, NULL); // and is told why, once it takes something
}

static void http1_request_is_told_so(void **state) {
  struct loopback *loop = *state;
  feed_raw(loop, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27);
  struct iovec iov[4];
  assert_int_equal(h2_pull(loop->h2, iov, 4), 1);
  assert_memory_equal(iov[0].iov_base, "HTTP/1.1 400 ", 13);
  h2_sent(loop->h2, iov[0].iov_len);
  assert_true(h2_finished(loop->h2));
}

static void six_pings_on_an_idle_connection_are_too_many(void **state) {
  struct loopback *loop = *state;
  preface(loop);
  for (int i = 0; i < 6; i++)
    frame(loop, NGHTTP2_PING, 0, 0, "12345678", 8);
  expect_goaway(loop, NGHTTP2_ENHANCE_YOUR_CALM, "too_many_pings");
}

static void empty_data_frames_are_counted(void **state) {
  struct loopback *loop = *state;
  preface(loop);
  headers(loop, 1, "/t.T/Echo", NGHTTP2_FLAG_END_HEADERS);
  int n = 0;
  for (; h2_want_read(loop->h2) && n < 20000; n++)
    frame(loop, NGHTTP2_DATA, 0, 1, NULL, 0);
  assert_in_range(n, 500, 1500);
  expect_goaway(loop, NGHTTP2_ENHANCE_YOUR_CALM, "without use");
}

static void padding_alone_is_an_empty_frame(void **state) {
  struct loopback *loop = *state;
  preface(loop);
  headers(loop, 1, "/t.T/Echo", NGHTTP2_FLAG_END_HEADERS);
  uint8_t padded[11] = {10};
  int n = 0;
  for (; h2_want_read(loop->h2) && n < 20000; n++)
    frame(loop, NGHTTP2_DATA, NGHTTP2_FLAG_PADDED, 1, padded, sizeof padded);
  assert_in_range(n, 500, 1500);
}

static void settings_and_priority_floods_end(void **state) {
  struct loopback *loop = *state;
  preface(loop);
  int n = 0;
  for (; h2_want_read(loop->h2) && n < 20000; n++) {
    frame(loop, NGHTTP2_SETTINGS, 0, 0, NULL, 0);
    frame(loop, NGHTTP2_PRIORITY, 0, 1, "\0\0\0\0\0", 5);
    pump_out(loop);
  }
  assert_in_range(n, 200, 1500);
  expect_goaway(loop, NGHTTP2_ENHANCE_YOUR_CALM, NULL);
}

static void streams_broken_on_purpose_end_the_connection(void **state) {
  struct loopback *loop = *state;
  preface(loop);
  uint32_t stream = 1;
  for (; h2_want_read(loop->h2) && stream < 6000; stream += 2) {
    headers(loop, stream, "/t.T/Keep", NGHTTP2_FLAG_END_HEADERS);
    frame(loop, NGHTTP2_WINDOW_UPDATE, 0, stream, "\x7F\xFF\xFF\xFF",
          4); // overflow: we must reset the stream
    pump_out(loop);
  }
  assert_in_range(stream / 2, 100, 300);
  expect_goaway(loop, NGHTTP2_ENHANCE_YOUR_CALM, "in error");
}

static void rapid_resets_leave_no_call_behind_and_end_near_the_limit(void **state) {
  struct loopback *loop = *state;
  preface(loop);
  uint32_t stream = 1;
  int before = loop->n_goaways;
  for (; loop->n_goaways == before && stream < 100000; stream += 2) {
    headers(loop, stream, "/t.T/Echo", NGHTTP2_FLAG_END_HEADERS);
    frame(loop, NGHTTP2_RST_STREAM, 0, stream, "\0\0\0\x8", 4);
    if (loop->n_goaways == before) assert_int_equal(h2_calls(loop->h2), 0);
    pump_out(loop);
  }
  assert_in_range(stream / 2, 9000, 25000);
}

static void header_bomb_is_refused_before_64_kib(void **state) {
  struct loopback *loop = *state;
  preface(loop);
  uint8_t block[8192];
  size_t n = grpc_block(block, "/t.T/Echo");
  block[n++] = 0x40; // a 3000-byte value into the table, then one byte for each use of it
  block[n++] = 1;
  block[n++] = 'b';
  block[n++] = 0x7F;
  block[n++] = (uint8_t)((3000 - 127) % 128 | 128);
  block[n++] = (uint8_t)((3000 - 127) / 128);
  memset(block + n, 'v', 3000);
  n += 3000;
  memset(block + n, 0xBE, 3000);
  n += 3000;
  frame(loop, NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS | NGHTTP2_FLAG_END_STREAM, 1, block, n);
  pump_out(loop);
  assert_int_equal(loop->n_resets, 1);
  assert_int_equal(loop->reset_code, NGHTTP2_ENHANCE_YOUR_CALM);
  assert_int_equal(loop->n_goaways, 0);
  assert_int_equal(loop->n_handled, 0);
  for (uint32_t stream = 3; loop->n_goaways == 0 && stream < 100; stream += 2) {
    frame(loop, NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS | NGHTTP2_FLAG_END_STREAM, stream, block,
          n);
    pump_out(loop);
  }
  expect_goaway(loop, NGHTTP2_ENHANCE_YOUR_CALM, "limits.header_bytes");
}

static void continuation_flood_gets_a_goaway_before_the_close(void **state) {
  struct loopback *loop = *state;
  preface(loop);
  headers(loop, 1, "/t.T/Echo", 0);
  for (int i = 0; i < 20; i++)
    frame(loop, NGHTTP2_CONTINUATION, 0, 1, NULL, 0);
  expect_goaway(loop, NGHTTP2_ENHANCE_YOUR_CALM, NULL);
}

static void connection_errors_have_their_codes(void **state) {
  (void)state;
  static const struct {
    uint8_t type, flags, stream;
    const char *payload;
    size_t bytes;
    uint32_t code;
  } cases[] = {
      {NGHTTP2_SETTINGS, 0, 0, "\0\5\0\0\0\1", 6, NGHTTP2_PROTOCOL_ERROR},       // MAX_FRAME_SIZE 1
      {NGHTTP2_SETTINGS, 0, 0, "\0\2\0\0\0\2", 6, NGHTTP2_PROTOCOL_ERROR},       // ENABLE_PUSH 2
      {NGHTTP2_SETTINGS, 0, 0, "\0\4\x80\0\0\0", 6, NGHTTP2_FLOW_CONTROL_ERROR}, // window 2^31
      {NGHTTP2_SETTINGS, 0, 0, "\0\4\0", 3, NGHTTP2_FRAME_SIZE_ERROR},
      {NGHTTP2_SETTINGS, 0, 1, "", 0, NGHTTP2_PROTOCOL_ERROR},
      {NGHTTP2_WINDOW_UPDATE, 0, 0, "\x7F\xFF\xFF\xFF", 4, NGHTTP2_FLOW_CONTROL_ERROR},
      {NGHTTP2_WINDOW_UPDATE, 0, 0, "\0\0\0\0", 4, NGHTTP2_PROTOCOL_ERROR},
      {NGHTTP2_PING, 0, 0, "1234567", 7, NGHTTP2_FRAME_SIZE_ERROR},
      {NGHTTP2_DATA, 0, 0, "x", 1, NGHTTP2_PROTOCOL_ERROR},
      {NGHTTP2_DATA, 0, 5, "x", 1, NGHTTP2_PROTOCOL_ERROR},              // idle stream
      {NGHTTP2_RST_STREAM, 0, 5, "\0\0\0\0", 4, NGHTTP2_PROTOCOL_ERROR}, // idle stream
      {NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 0, "\x82", 1, NGHTTP2_PROTOCOL_ERROR},
      {NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 2, "\x82", 1, NGHTTP2_PROTOCOL_ERROR},
      {NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 1, "\xFF\xFF\xFF\xFF\xFF\xFF", 6,
       NGHTTP2_COMPRESSION_ERROR},
      {NGHTTP2_CONTINUATION, NGHTTP2_FLAG_END_HEADERS, 1, "", 0, NGHTTP2_PROTOCOL_ERROR},
      {NGHTTP2_PUSH_PROMISE, NGHTTP2_FLAG_END_HEADERS, 1, "\0\0\0\2", 4, NGHTTP2_PROTOCOL_ERROR},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct rpc_limits limits = loopback_limits();
    struct loopback *loop = loopback_open(&limits);
    loop->no_client = true;
    preface(loop);
    frame(loop, cases[i].type, cases[i].flags, cases[i].stream, cases[i].payload, cases[i].bytes);
    pump_out(loop);
    if (loop->n_goaways != 1 || loop->goaway_codes[0] != cases[i].code || !h2_finished(loop->h2))
      fail_msg("case %zu: %d GOAWAYs, code %u, finished %d", i, loop->n_goaways,
               loop->goaway_codes[0], h2_finished(loop->h2));
    loopback_close(loop);
  }
}

static void malformed_requests_reset_their_stream_only(void **state) {
  struct loopback *loop = *state;
  preface(loop);
  static const char *const extra[][2] = {{"Upper", "x"},      {"connection", "close"},
                                         {":path", "/again"}, {"te", "gzip"},
                                         {"bad", "a\x01z"},   {"transfer-encoding", "chunked"}};
  for (size_t i = 0; i < sizeof extra / sizeof extra[0]; i++) {
    uint8_t block[512];
    size_t n = grpc_block(block, "/t.T/Echo");
    n += literal(block + n, extra[i][0], extra[i][1]);
    frame(loop, NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, (uint32_t)(1 + 2 * i), block, n);
    pump_out(loop);
    if (loop->n_resets != (int)i + 1 || loop->reset_code != NGHTTP2_PROTOCOL_ERROR)
      fail_msg("'%s: %s': %d resets, code %u", extra[i][0], extra[i][1], loop->n_resets,
               loop->reset_code);
  }
  assert_int_equal(loop->n_goaways, 0);
  assert_int_equal(h2_calls(loop->h2), 0);
  assert_true(h2_want_read(loop->h2));
}

// Odd but legal: padding that is longer than the message, trailers, UTF-8 in a value, no `te`.
static void odd_but_legal_requests_are_served(void **state) {
  struct loopback *loop = *state;
  preface(loop);
  headers(loop, 1, "/t.T/Echo", NGHTTP2_FLAG_END_HEADERS);
  uint8_t padded[1 + 10 + 255] = {255, 0, 0, 0, 0, 5, 'h', 'e', 'l', 'l', 'o'};
  frame(loop, NGHTTP2_DATA, NGHTTP2_FLAG_PADDED | NGHTTP2_FLAG_END_STREAM, 1, padded,
        sizeof padded);
  assert_int_equal(loop->n_handled, 1);
  uint8_t block[512];
  size_t n = grpc_block(block, "/t.T/Echo");
  n += literal(block + n, "x-name", "na\xC3\xAFve");
  frame(loop, NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 3, block, n);
  frame(loop, NGHTTP2_DATA, 0, 3, padded + 1, 10);
  assert_int_equal(loop->n_handled, 1); // the request has not ended
  n = literal(block, "x-trailer", "1");
  frame(loop, NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS | NGHTTP2_FLAG_END_STREAM, 3, block, n);
  assert_int_equal(loop->n_handled, 2);
  headers(loop, 5, "/t.T/Echo", NGHTTP2_FLAG_END_HEADERS);
  frame(loop, NGHTTP2_DATA, 0, 5, padded + 1, 10);
  frame(loop, NGHTTP2_DATA, NGHTTP2_FLAG_END_STREAM, 5, NULL, 0);
  assert_int_equal(loop->n_handled, 3);
  frame(loop, 0xFE, 0xFF, 77, "an unknown frame", 16);
  pump_out(loop);
  assert_int_equal(loop->n_done, 3);
  assert_int_equal(loop->n_resets + loop->n_goaways, 0);
  assert_int_equal(h2_calls(loop->h2), 0);
}

static void frames_out_of_order_or_too_long_end_the_connection(void **state) {
  struct loopback *loop = *state;
  preface(loop);
  headers(loop, 1, "/t.T/Echo", 0);
  frame(loop, NGHTTP2_PING, 0, 0, "12345678", 8); // only CONTINUATION may follow
  expect_goaway(loop, NGHTTP2_PROTOCOL_ERROR, NULL);
  struct rpc_limits limits = loopback_limits();
  struct loopback *other = loopback_open(&limits);
  other->no_client = true;
  preface(other);
  headers(other, 1, "/t.T/Echo", NGHTTP2_FLAG_END_HEADERS);
  static uint8_t large[70000];
  frame(other, NGHTTP2_DATA, 0, 1, large, sizeof large);
  expect_goaway(other, NGHTTP2_FRAME_SIZE_ERROR, NULL);
  loopback_close(other);
}

static void nine_hundred_declared_messages_stay_within_the_connections_budget(void **state) {
  struct loopback *loop = *state;
  preface(loop);
  for (uint32_t stream = 1; stream < 1800; stream += 2) {
    headers(loop, stream, "/t.T/Echo", NGHTTP2_FLAG_END_HEADERS);
    frame(loop, NGHTTP2_DATA, 0, stream, "\0\0\x3F\0\0x", 6); // "4 MiB follow", and one byte
    pump_out(loop);
  }
  assert_in_range(rpc_used_bytes(loop->rpc), 1, 16 << 20);
  assert_in_range(h2_calls(loop->h2), 1, 5); // the others were refused
  assert_true(h2_want_read(loop->h2));
}

static void silence_and_half_headers_time_out(void **state) {
  struct loopback *loop = *state;
  h2_tick(loop->h2, T0 + 500 * NS_PER_MS);
  assert_true(h2_want_read(loop->h2));
  h2_tick(loop->h2, T0 + 1100 * NS_PER_MS);
  expect_goaway(loop, NGHTTP2_SETTINGS_TIMEOUT, "handshake_timeout");
}

static void unfinished_header_block_times_out(void **state) {
  struct loopback *loop = *state;
  preface(loop);
  h2_tick(loop->h2, T0 + 5 * NS_PER_S);
  loop->now_ns = T0 + 5 * NS_PER_S;
  headers(loop, 1, "/t.T/Echo", 0);
  h2_tick(loop->h2, T0 + 5500 * NS_PER_MS);
  assert_true(h2_want_read(loop->h2));
  h2_tick(loop->h2, T0 + 6100 * NS_PER_MS);
  expect_goaway(loop, NGHTTP2_ENHANCE_YOUR_CALM, "headers");
}

static void a_request_that_never_ends_gives_back_its_slot_and_bytes(void **state) {
  struct loopback *loop = *state;
  preface(loop);
  headers(loop, 1, "/t.T/Echo", NGHTTP2_FLAG_END_HEADERS);
  headers(loop, 3, "/t.T/Echo", NGHTTP2_FLAG_END_HEADERS);
  for (int second = 1; second <= 61; second++) { // a byte now and then is no progress
    loop->now_ns = T0 + second * NS_PER_S;
    frame(loop, NGHTTP2_DATA, 0, 3, second == 1 ? "\0\0\1\0\0" : "x", second == 1 ? 5 : 1);
    h2_tick(loop->h2, loop->now_ns);
    pump_out(loop);
    if (second == 59) {
      assert_int_equal(loop->n_resets, 0);
      assert_int_equal(h2_calls(loop->h2), 2);
      assert_in_range(rpc_used_bytes(loop->rpc), 1, 1 << 20);
    }
  }
  assert_int_equal(loop->n_resets, 2);
  assert_int_equal(loop->reset_code, NGHTTP2_NO_ERROR); // behind the trailers
  assert_int_equal(h2_calls(loop->h2), 0);
  assert_int_equal(rpc_used_bytes(loop->rpc), 0);
  assert_int_equal(loop->n_goaways, 0);
  assert_true(h2_want_read(loop->h2));
}

static void random_bytes_after_the_preface_never_hurt(void **state) {
  (void)state;
  test_random_seed(424242);
  for (int round = 0; round < 300; round++) {
    struct rpc_limits limits = loopback_limits();
    struct loopback *loop = loopback_open(&limits);
    loop->no_client = true;
    loop->chunk = test_random() % 50;
    preface(loop);
    for (uint32_t i = 0, stream = 1; i < 40; i++) {
      uint8_t junk[64];
      for (size_t at = 0; at < sizeof junk; at++)
        junk[at] = (uint8_t)test_random();
      if (i % 3 == 0) {
        headers(loop, stream, i % 2 ? "/t.T/Keep" : "/t.T/Echo", NGHTTP2_FLAG_END_HEADERS);
        stream += 2;
      }
      frame(loop, (uint8_t)(test_random() % 11), (uint8_t)test_random(),
            (uint32_t)(test_random() % (stream + 2)), junk, test_random() % sizeof junk);
      if (i % 5 == 0) pump_out(loop);
    }
    pump_out(loop);
    loopback_close(loop);
  }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, up, down)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(http1_request_is_told_so),
      TEST(six_pings_on_an_idle_connection_are_too_many),
      TEST(empty_data_frames_are_counted),
      TEST(padding_alone_is_an_empty_frame),
      TEST(settings_and_priority_floods_end),
      TEST(streams_broken_on_purpose_end_the_connection),
      TEST(rapid_resets_leave_no_call_behind_and_end_near_the_limit),
      TEST(header_bomb_is_refused_before_64_kib),
      TEST(continuation_flood_gets_a_goaway_before_the_close),
      TEST(who_is_ended_and_sends_on_is_not_read),
      cmocka_unit_test(connection_errors_have_their_codes),
      TEST(malformed_requests_reset_their_stream_only),
      TEST(odd_but_legal_requests_are_served),
      TEST(frames_out_of_order_or_too_long_end_the_connection),
      TEST(nine_hundred_declared_messages_stay_within_the_connections_budget),
      TEST(silence_and_half_headers_time_out),
      TEST(unfinished_header_block_times_out),
      TEST(a_request_that_never_ends_gives_back_its_slot_and_bytes),
      cmocka_unit_test(random_bytes_after_the_preface_never_hurt),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
