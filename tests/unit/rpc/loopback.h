// A server connection and an nghttp2 client joined in memory: no socket, no thread, a clock of our
// own.
#ifndef UNIT_RPC_LOOPBACK_H
#define UNIT_RPC_LOOPBACK_H

#include "harness/cmocka_all.h"
#include "rpc/h2.h"
#include "rpc/method.h"
#include <nghttp2/nghttp2.h>

#define MAX_STREAMS 4096
#define T0 (1000 * NS_PER_S)

struct seen { // what the client saw of one stream
  int status, grpc_status, header_blocks;
  char message[256], content_type[64], accept_encoding[32];
  uint8_t *data;
  size_t bytes;
  bool end_on_headers, end_on_data, closed;
  uint32_t close_code;
};

struct upload {
  const uint8_t *data;
  size_t bytes, at;
  bool stay_open; // defer instead of END_STREAM
};

struct loopback {
  struct rpc *rpc;
  struct method_table *methods;
  struct budget total;
  struct rpc_limits limits;
  struct h2 *h2;
  nghttp2_session *client;
  int64_t now_ns;
  size_t chunk; // feed at most so many bytes at once; 0: all
  bool stuck;   // the socket takes nothing
  struct seen seen[MAX_STREAMS];
  struct upload uploads[MAX_STREAMS];
  uint32_t goaway_codes[8];
  int n_goaways, n_pings, n_resets;
  uint32_t reset_code;
  int32_t goaway_last[8];
  char goaway_text[64];
  // what the handlers did
  int n_handled, n_done, n_cancelled, n_closed;
  uint32_t most_queued;
  struct call_ref kept[MAX_STREAMS];
  int n_kept;
  struct slab *slabs[MAX_STREAMS];
  bool no_client;        // raw bytes only: what the server says is not shown to the nghttp2 client
  bool no_credit;        // the client opens no windows by itself
  uint8_t frame[9 + 64]; // what pump_out has of the frame that it is in
  size_t frame_have, frame_left;
};

// ---- handlers ----

struct echo_done {
  struct loopback *loop;
  struct slab_pool *pool;
  struct slab *slab;
};

static void on_done(void *arg) {
  struct echo_done *done = arg;
  done->loop->n_done++;
  slab_put(done->pool, done->slab);
  free(done);
}

static void echo_reply(struct call *call, struct loopback *loop) {
  struct slice message = call_message(call);
  struct echo_done *done = malloc(sizeof *done);
  *done = (struct echo_done){loop, call_pool(call), call_take_message(call)};
  size_t head = message.bytes < 10 ? message.bytes : 10, half = (message.bytes - head) / 2;
  struct slice payload[3] = {{message.data + head, half},
                             {NULL, 0},
                             {message.data + head + half, message.bytes - head - half}};
  call_reply(call, message.data, head, payload, 3, on_done, done);
}

static void handle_echo(struct call *call, void *app) {
  struct loopback *loop = app;
  loop->n_handled++;
  echo_reply(call, loop);
}

static void on_cancel(void *arg, enum status why) {
  (void)why;
  ((struct loopback *)arg)->n_cancelled++;
}

static void handle_keep(struct call *call, void *app) {
  struct loopback *loop = app;
  loop->n_handled++;
  assert_true(loop->n_kept < MAX_STREAMS);
  loop->kept[loop->n_kept++] = call_ref_of(call);
  call_on_cancel(call, on_cancel, loop);
}

static void handle_fail(struct call *call, void *app) {
  ((struct loopback *)app)->n_handled++;
  call_fail(call, STATUS_INVALID_ARGUMENT, "field 'x': 100%\nna\xC3\xAFve");
}

// Streams: Count answers one message with as many as its first byte says, then keeps the call when
// the second byte is not 0. Chat echoes every message, at most CHAT_QUEUED ahead of the client.
#define CHAT_QUEUED 4

static void handle_count(struct call *call, void *app) {
  struct loopback *loop = app;
  struct slice message = call_message(call);
  loop->n_handled++;
  call_on_cancel(call, on_cancel, loop);
  for (uint8_t i = 0; message.bytes > 0 && i < message.data[0]; i++)
    if (!call_send(call, &i, 1, NULL, 0, NULL, NULL)) return;
  if (message.bytes > 1 && message.data[1])
    loop->kept[loop->n_kept++] = call_ref_of(call);
  else
    call_finish(call, STATUS_OK, "");
}

static void chat_sent(struct call *call, void *arg) {
  (void)arg;
  if (call_queued(call) < CHAT_QUEUED) call_let_go(call);
}

struct chat_done {
  struct loopback *loop;
  struct call_ref ref;
  struct slab_pool *pool;
  struct slab *slab;
  size_t bytes;
};

static void chat_done(void *arg) {
  struct chat_done *done = arg;
  struct call *call = call_find(done->loop->rpc, done->ref);
  if (call) call_message_done(call, done->bytes);
  done->loop->n_done++;
  slab_put(done->pool, done->slab);
  free(done);
}

static void handle_chat(struct call *call, void *app) {
  struct loopback *loop = app;
  struct slice message = call_message(call);
  loop->n_handled++;
  call_on_cancel(call, on_cancel, loop);
  call_on_sent(call, chat_sent, loop);
  if (message.bytes == 3 && memcmp(message.data, "bye", 3) == 0) {
    call_finish(call, STATUS_INVALID_ARGUMENT, "bye is no word");
    return;
  }
  struct chat_done *done = malloc(sizeof *done);
  *done = (struct chat_done){loop, call_ref_of(call), call_pool(call), call_take_message(call),
                             message.bytes};
  if (!call_send(call, NULL, 0, &message, 1, chat_done, done)) return;
  loop->most_queued = call_queued(call) > loop->most_queued ? call_queued(call) : loop->most_queued;
  if (call_queued(call) >= CHAT_QUEUED) call_hold(call);
}

static void chat_closed(struct call *call, void *app) {
  ((struct loopback *)app)->n_closed++;
  call_finish(call, STATUS_OK, "");
}

static const struct method_stream count_stream = {.many_in = false};
static const struct method_stream chat_stream = {.many_in = true, .closed = chat_closed};

static const struct method loopback_methods[] = {{"/t.T/Echo", handle_echo, NULL},
                                                 {"/t.T/Keep", handle_keep, NULL},
                                                 {"/t.T/Fail", handle_fail, NULL},
                                                 {"/t.T/Count", handle_count, &count_stream},
                                                 {"/t.T/Chat", handle_chat, &chat_stream}};
#define LOOPBACK_METHODS ((int)(sizeof loopback_methods / sizeof loopback_methods[0]))

static inline void answer_kept(struct loopback *loop, int index) {
  struct call *call = call_find(loop->rpc, loop->kept[index]);
  if (call) echo_reply(call, loop);
}

// ---- client ----

static struct seen *seen_of(struct loopback *loop, int32_t stream_id) {
  assert_in_range(stream_id / 2, 0, MAX_STREAMS - 1);
  return &loop->seen[stream_id / 2];
}

static void copy_text(char *out, size_t out_bytes, const uint8_t *value, size_t bytes) {
  snprintf(out, out_bytes, "%.*s", (int)bytes, (const char *)value);
}

static int client_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                         size_t name_bytes, const uint8_t *value, size_t bytes, uint8_t flags,
                         void *arg) {
  (void)session, (void)flags;
  struct seen *seen = seen_of(arg, frame->hd.stream_id);
  char text[32];
  copy_text(text, sizeof text, name, name_bytes);
  if (strcmp(text, ":status") == 0)
    seen->status = (int)strtol((const char *)value, NULL, 10);
  else if (strcmp(text, "grpc-status") == 0)
    seen->grpc_status = (int)strtol((const char *)value, NULL, 10);
  else if (strcmp(text, "grpc-message") == 0)
    copy_text(seen->message, sizeof seen->message, value, bytes);
  else if (strcmp(text, "content-type") == 0)
    copy_text(seen->content_type, sizeof seen->content_type, value, bytes);
  else if (strcmp(text, "grpc-accept-encoding") == 0)
    copy_text(seen->accept_encoding, sizeof seen->accept_encoding, value, bytes);
  return 0;
}

static int client_data(nghttp2_session *session, uint8_t flags, int32_t stream_id,
                       const uint8_t *data, size_t bytes, void *arg) {
  (void)flags;
  struct seen *seen = seen_of(arg, stream_id);
  seen->data = realloc(seen->data, seen->bytes + bytes);
  if (bytes) memcpy(seen->data + seen->bytes, data, bytes);
  seen->bytes += bytes;
  if (!((struct loopback *)arg)->no_credit)
    assert_int_equal(nghttp2_session_consume(session, stream_id, bytes), 0);
  return 0;
}

static int client_frame(nghttp2_session *session, const nghttp2_frame *frame, void *arg) {
  (void)session;
  struct loopback *loop = arg;
  bool end = frame->hd.flags & NGHTTP2_FLAG_END_STREAM;
  if (frame->hd.type == NGHTTP2_HEADERS) {
    seen_of(loop, frame->hd.stream_id)->header_blocks++;
    seen_of(loop, frame->hd.stream_id)->end_on_headers |= end;
  } else if (frame->hd.type == NGHTTP2_DATA) {
    seen_of(loop, frame->hd.stream_id)->end_on_data |= end;
  }
  return 0;
}

static int client_close(nghttp2_session *session, int32_t stream_id, uint32_t code, void *arg) {
  (void)session;
  struct seen *seen = seen_of(arg, stream_id);
  seen->closed = true;
  seen->close_code = code;
  return 0;
}

static ssize_t client_read(nghttp2_session *session, int32_t stream_id, uint8_t *buffer,
                           size_t length, uint32_t *flags, nghttp2_data_source *source, void *arg) {
  (void)session, (void)stream_id, (void)arg;
  struct upload *upload = source->ptr;
  size_t take = upload->bytes - upload->at;
  take = take < length ? take : length;
  if (take == 0 && upload->stay_open) return NGHTTP2_ERR_DEFERRED;
  if (take) memcpy(buffer, upload->data + upload->at, take);
  upload->at += take;
  if (upload->at == upload->bytes && !upload->stay_open) *flags |= NGHTTP2_DATA_FLAG_EOF;
  return (ssize_t)take;
}

static void mark_dirty(void *owner) {
  (void)owner;
}

static void open_client(struct loopback *loop) {
  nghttp2_session_callbacks *callbacks;
  assert_int_equal(nghttp2_session_callbacks_new(&callbacks), 0);
  nghttp2_session_callbacks_set_on_header_callback(callbacks, client_header);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, client_data);
  nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, client_frame);
  nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, client_close);
  nghttp2_option *option;
  assert_int_equal(nghttp2_option_new(&option), 0);
  nghttp2_option_set_no_auto_window_update(option, 1);
  assert_int_equal(nghttp2_session_client_new2(&loop->client, callbacks, loop, option), 0);
  nghttp2_option_del(option);
  nghttp2_session_callbacks_del(callbacks);
  assert_int_equal(nghttp2_submit_settings(loop->client, NGHTTP2_FLAG_NONE, NULL, 0),
                   0); // the preface's second half
}

static inline struct rpc_limits loopback_limits(void) {
  return (struct rpc_limits){.max_message_bytes = 4 << 20,
                             .ping_interval_ms = 5000,
                             .max_connections = 10,
                             .max_calls = 1000,
                             .connection_bytes = 16 << 20,
                             .total_bytes = 64 << 20,
                             .header_bytes = 8192,
                             .handshake_timeout_ms = 1000,
                             .request_timeout_ms = 60000,
                             .idle_timeout_ms = 0,
                             .stream_window_bytes = 256 << 10,
                             .connection_window_bytes = 1 << 20};
}

static inline struct loopback *loopback_open(const struct rpc_limits *limits) {
  struct loopback *loop = calloc(1, sizeof *loop);
  loop->limits = *limits;
  loop->now_ns = T0;
  loop->total.limit_bytes = limits->total_bytes;
  for (int i = 0; i < MAX_STREAMS; i++)
    loop->seen[i].grpc_status = -1;
  assert_int_equal(method_table_open(loopback_methods, LOOPBACK_METHODS, &loop->methods, NULL),
                   STATUS_OK);
  struct rpc_options options = {.limits = &loop->limits,
                                .methods = loop->methods,
                                .app = loop,
                                .total = &loop->total,
                                .dirty = mark_dirty};
  assert_int_equal(rpc_open(&options, &loop->rpc, NULL), STATUS_OK);
  assert_int_equal(h2_open(loop->rpc, loop, T0, &loop->h2), STATUS_OK);
  open_client(loop);
  return loop;
}

static inline void loopback_close(struct loopback *loop) {
  h2_close(loop->h2);
  assert_int_equal(rpc_used_bytes(loop->rpc), 0); // nothing may be left behind, whatever happened
  rpc_close(loop->rpc);
  assert_int_equal(atomic_load(&loop->total.used_bytes), 0);
  method_table_close(loop->methods);
  nghttp2_session_del(loop->client);
  for (int i = 0; i < MAX_STREAMS; i++)
    free(loop->seen[i].data);
  free(loop);
}

static inline void feed_raw(struct loopback *loop, const void *data, size_t bytes) {
  size_t chunk = loop->chunk ? loop->chunk : bytes;
  for (size_t at = 0; at < bytes; at += chunk)
    h2_feed(loop->h2, (const uint8_t *)data + at, chunk < bytes - at ? chunk : bytes - at,
            loop->now_ns);
}

static uint32_t big_endian(const uint8_t *at) {
  return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

// nghttp2's client ignores what comes after the first GOAWAY; the frames are counted by hand.
static void frame_out(struct loopback *loop) {
  const uint8_t *frame = loop->frame;
  if (frame[3] == NGHTTP2_GOAWAY && loop->n_goaways < 8) {
    loop->goaway_last[loop->n_goaways] = (int32_t)(big_endian(frame + 9) & INT32_MAX);
    loop->goaway_codes[loop->n_goaways++] = big_endian(frame + 13);
    copy_text(loop->goaway_text, sizeof loop->goaway_text, frame + 17, loop->frame_have - 17);
  } else if (frame[3] == NGHTTP2_PING && !(frame[4] & NGHTTP2_FLAG_ACK)) {
    loop->n_pings++;
  } else if (frame[3] == NGHTTP2_RST_STREAM) {
    loop->n_resets++;
    loop->reset_code = big_endian(frame + 9);
  }
}

static void watch_out(struct loopback *loop, const uint8_t *data, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) {
    if (loop->frame_have < sizeof loop->frame) loop->frame[loop->frame_have] = data[i];
    loop->frame_have++;
    if (loop->frame_have == 9) loop->frame_left = (big_endian(loop->frame) >> 8) + 1;
    if (loop->frame_have >= 9 && --loop->frame_left == 0) {
      loop->frame_have =
          loop->frame_have < sizeof loop->frame ? loop->frame_have : sizeof loop->frame;
      frame_out(loop);
      loop->frame_have = 0;
    }
  }
}

// Server output to the client; returns bytes moved.
static inline size_t pump_out(struct loopback *loop) {
  size_t moved = 0;
  struct iovec iov[16];
  int n;
  while (!loop->stuck && (n = h2_pull(loop->h2, iov, 16)) > 0) {
    size_t bytes = 0;
    for (int i = 0; i < n; i++) {
      watch_out(loop, iov[i].iov_base, iov[i].iov_len);
      if (!loop->no_client)
        assert_int_equal(nghttp2_session_mem_recv(loop->client, iov[i].iov_base, iov[i].iov_len),
                         iov[i].iov_len);
      bytes += iov[i].iov_len;
    }
    h2_sent(loop->h2, bytes);
    moved += bytes;
  }
  return moved;
}

static inline size_t pump_in(struct loopback *loop) {
  size_t moved = 0;
  const uint8_t *data;
  ssize_t bytes;
  while (h2_want_read(loop->h2) && (bytes = nghttp2_session_mem_send(loop->client, &data)) > 0) {
    feed_raw(loop, data, (size_t)bytes);
    moved += (size_t)bytes;
  }
  return moved;
}

static inline void pump(struct loopback *loop) {
  while (pump_in(loop) + pump_out(loop) > 0) {
  }
}

#define NV(name, value)                                                                            \
  {                                                                                                \
    (uint8_t *)(uintptr_t)(name), (uint8_t *)(uintptr_t)(value), strlen(name), strlen(value),      \
        NGHTTP2_NV_FLAG_NONE                                                                       \
  }

struct request {
  const char *path, *method, *type, *extra_name, *extra_value;
  const uint8_t *body; // with prefix
  size_t bytes;
  bool stay_open, headers_only;
};

static inline int32_t request_send(struct loopback *loop, const struct request *request) {
  nghttp2_nv fields[] = {NV(":method", request->method ? request->method : "POST"),
                         NV(":scheme", "http"),
                         NV(":path", request->path),
                         NV(":authority", "x"),
                         NV("te", "trailers"),
                         NV("content-type", request->type ? request->type : "application/grpc"),
                         NV(request->extra_name ? request->extra_name : "x",
                            request->extra_value ? request->extra_value : "")};
  int32_t next = (int32_t)nghttp2_session_get_next_stream_id(loop->client);
  assert_in_range(next / 2, 0, MAX_STREAMS - 1);
  struct upload *upload = &loop->uploads[next / 2];
  *upload = (struct upload){request->body, request->bytes, 0, request->stay_open};
  nghttp2_data_provider provider = {.source.ptr = upload, .read_callback = client_read};
  int32_t id = nghttp2_submit_request(loop->client, NULL, fields, 7,
                                      request->headers_only ? NULL : &provider, NULL);
  assert_int_equal(id, next);
  return id;
}

// `bytes` of message, prefix in front; the caller frees.
static inline uint8_t *message_make(size_t bytes) {
  uint8_t *message = malloc(bytes + 5);
  message[0] = 0;
  for (int i = 0; i < 4; i++)
    message[1 + i] = (uint8_t)(bytes >> (24 - 8 * i));
  for (size_t i = 0; i < bytes; i++)
    message[5 + i] = (uint8_t)(i * 31 + i / 251);
  return message;
}

static inline int32_t call_path(struct loopback *loop, const char *path) {
  static const uint8_t hello[] = {0, 0, 0, 0, 5, 'h', 'e', 'l', 'l', 'o'};
  return request_send(loop, &(struct request){.path = path, .body = hello, .bytes = sizeof hello});
}

static inline void expect_fail(struct loopback *loop, int32_t id, int grpc_status) {
  struct seen *seen = seen_of(loop, id);
  assert_int_equal(seen->status, 200);
  assert_int_equal(seen->grpc_status, grpc_status);
  assert_string_equal(seen->content_type, "application/grpc");
  assert_int_equal(seen->header_blocks, 1); // Trailers-Only
  assert_true(seen->end_on_headers);
  assert_int_equal(seen->bytes, 0);
  assert_true(seen->closed);
}

static inline void expect_echo(struct loopback *loop, int32_t id, const uint8_t *message,
                               size_t bytes) {
  struct seen *seen = seen_of(loop, id);
  assert_int_equal(seen->status, 200);
  assert_int_equal(seen->grpc_status, 0);
  assert_int_equal(seen->header_blocks, 2);
  assert_true(seen->end_on_headers); // END_STREAM belongs on the trailers
  assert_false(seen->end_on_data);
  assert_int_equal(seen->bytes, bytes);
  assert_memory_equal(seen->data, message, bytes);
  assert_true(seen->closed);
  assert_int_equal(seen->close_code, NGHTTP2_NO_ERROR);
}

static inline void expect_alive(struct loopback *loop) {
  int32_t id = call_path(loop, "/t.T/Echo");
  pump(loop);
  expect_echo(loop, id, (const uint8_t *)"\0\0\0\0\5hello", 10);
  assert_int_equal(loop->n_goaways, 0);
}

#endif
