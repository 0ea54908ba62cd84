#include "client/h2.h"
#include "base/clock.h"
#include "base/log.h"
#include <nghttp2/nghttp2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STREAM_WINDOW                                                                              \
  (16 << 20) // answers are read at once and kept by their callers: windows cost nothing
#define CONNECTION_WINDOW (256 << 20)
#define FRAME_BYTES (1 << 20)

// ---- the list of running calls ------------------------------------------------------------------

static void list_add(struct h2 *h2, struct call *call) {
  call->next = NULL;
  call->prev = h2->last;
  if (h2->last)
    h2->last->next = call;
  else
    h2->first = call;
  h2->last = call;
  h2->n_running++;
  call->active = true;
}

static void list_remove(struct h2 *h2, struct call *call) {
  FW_ASSERT(call->active && h2->n_running > 0);
  if (call->prev)
    call->prev->next = call->next;
  else
    h2->first = call->next;
  if (call->next)
    call->next->prev = call->prev;
  else
    h2->last = call->prev;
  h2->n_running--;
  call->active = false;
}

static void finish(struct h2 *h2, struct call *call) {
  list_remove(h2, call);
  call->done_ns = clock_now_ns();
  call->done(call); // may start the next call in the same memory
}

static void finish_as(struct h2 *h2, struct call *call, enum status status, const char *message) {
  call->status = status;
  snprintf(call->message, sizeof call->message, "%s", message);
  finish(h2, call);
}

// ---- sending ------------------------------------------------------------------------------------

static size_t message_bytes(const struct call *call) {
  return call->part[0].bytes + call->part[1].bytes;
}

static ssize_t on_send(nghttp2_session *session, const uint8_t *data, size_t bytes, int flags,
                       void *arg) {
  struct h2 *h2 = arg;
  (void)session, (void)flags;
  if (bytes > OUTQ_ARENA_BYTES) bytes = OUTQ_ARENA_BYTES;
  return outq_copy(h2->out, data, bytes) ? (ssize_t)bytes : NGHTTP2_ERR_WOULDBLOCK;
}

static ssize_t on_read_source(nghttp2_session *session, int32_t stream_id, uint8_t *buf,
                              size_t length, uint32_t *data_flags, nghttp2_data_source *source,
                              void *arg) {
  const struct call *call = nghttp2_session_get_stream_user_data(session, stream_id);
  (void)buf, (void)source, (void)arg;
  if (!call) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE; // cancelled
  const size_t left = message_bytes(call) - call->sent_bytes;
  *data_flags |= NGHTTP2_DATA_FLAG_NO_COPY;
  if (length < left) return (ssize_t)length;
  *data_flags |= NGHTTP2_DATA_FLAG_EOF;
  return (ssize_t)left;
}

static int on_send_data(nghttp2_session *session, nghttp2_frame *frame, const uint8_t *head,
                        size_t length, nghttp2_data_source *source, void *arg) {
  struct h2 *h2 = arg;
  struct call *call = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
  (void)source;
  if (!call) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
  FW_ASSERT(frame->data.padlen == 0); // we never select padding
  if (!outq_has_room(h2->out, 9, CALL_PARTS)) return NGHTTP2_ERR_WOULDBLOCK;
  const bool copied = outq_copy(h2->out, head, 9);
  FW_ASSERT(copied);
  size_t skip = call->sent_bytes;
  for (int i = 0; i < CALL_PARTS; i++) {
    const struct slice part = call->part[i];
    const size_t from = skip < part.bytes ? skip : part.bytes;
    const size_t n = part.bytes - from < length ? part.bytes - from : length;
    outq_reference(h2->out, part.data + from, n);
    skip -= from;
    length -= n;
    call->sent_bytes += n;
  }
  return 0;
}

static ssize_t on_frame_length(nghttp2_session *session, uint8_t frame_type, int32_t stream_id,
                               int32_t connection_window, int32_t stream_window,
                               uint32_t remote_max_frame, void *arg) {
  (void)session, (void)frame_type, (void)stream_id, (void)arg;
  ssize_t length = FRAME_BYTES;
  if (connection_window < length) length = connection_window;
  if (stream_window < length) length = stream_window;
  if ((ssize_t)remote_max_frame < length) length = (ssize_t)remote_max_frame;
  return length;
}

// A request that never left (GOAWAY in between) has no stream whose close would tell us.
static int on_frame_not_send(nghttp2_session *session, const nghttp2_frame *frame, int error,
                             void *arg) {
  struct h2 *h2 = arg;
  if (frame->hd.type != NGHTTP2_HEADERS) return 0;
  for (struct call *call = h2->first; call; call = call->next) {
    if (call->stream_id != frame->hd.stream_id) continue;
    nghttp2_session_set_stream_user_data(session, call->stream_id, NULL); // a close may yet follow
    h2->draining = true;
    call->unprocessed = true;
    finish_as(h2, call, STATUS_UNAVAILABLE, nghttp2_strerror(error));
    break;
  }
  return 0;
}

// ---- receiving ----------------------------------------------------------------------------------

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                     size_t n_name, const uint8_t *value, size_t n_value, uint8_t flags,
                     void *arg) {
  struct call *call = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
  (void)flags, (void)arg;
  if (call) call_header(call, (struct slice){name, n_name}, (struct slice){value, n_value});
  return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t stream_id, const uint8_t *data,
                   size_t bytes, void *arg) {
  struct call *call = nghttp2_session_get_stream_user_data(session, stream_id);
  (void)flags;
  if (!call || call_receive(call, data, bytes)) return 0;
  h2_cancel(arg, call, STATUS_RESOURCE_EXHAUSTED, "no memory here for the reply");
  return 0;
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *arg) {
  struct h2 *h2 = arg;
  (void)session;
  if (frame->hd.type == NGHTTP2_SETTINGS) h2->settings_seen = true;
  if (frame->hd.type == NGHTTP2_GOAWAY) h2->draining = true;
  return 0;
}

static int on_stream_close(nghttp2_session *session, int32_t stream_id, uint32_t error, void *arg) {
  struct h2 *h2 = arg;
  struct call *call = nghttp2_session_get_stream_user_data(session, stream_id);
  if (!call) return 0;
  nghttp2_session_set_stream_user_data(session, stream_id, NULL);
  call->unprocessed = error == NGHTTP2_REFUSED_STREAM && h2->draining;
  call_conclude(call, error);
  finish(h2, call);
  return 0;
}

// ---- the session --------------------------------------------------------------------------------

static void *mem_malloc(size_t bytes, void *pool) {
  return pool_malloc(pool, bytes);
}

static void mem_free(void *memory, void *pool) {
  pool_free(pool, memory);
}

static void *mem_calloc(size_t n, size_t bytes, void *pool) {
  return pool_calloc(pool, n, bytes);
}

static void *mem_realloc(void *memory, size_t bytes, void *pool) {
  return pool_realloc(pool, memory, bytes);
}

static void set_callbacks(nghttp2_session_callbacks *callbacks) {
  nghttp2_session_callbacks_set_send_callback(callbacks, on_send);
  nghttp2_session_callbacks_set_send_data_callback(callbacks, on_send_data);
  nghttp2_session_callbacks_set_data_source_read_length_callback(callbacks, on_frame_length);
  nghttp2_session_callbacks_set_on_frame_not_send_callback(callbacks, on_frame_not_send);
  nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
  nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
  nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_stream_close);
}

static int submit_preface(nghttp2_session *session) {
  const nghttp2_settings_entry settings[] = {
      {NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
      {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, STREAM_WINDOW},
      {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, FRAME_BYTES},
  };
  const int error = nghttp2_submit_settings(session, NGHTTP2_FLAG_NONE, settings, 3);
  if (error) return error;
  return nghttp2_session_set_local_window_size(session, NGHTTP2_FLAG_NONE, 0, CONNECTION_WINDOW);
}

enum status h2_open(struct h2 *h2, const struct h2_headers *headers) {
  nghttp2_session_callbacks *callbacks = NULL;
  nghttp2_option *option = NULL;
  enum status status = STATUS_RESOURCE_EXHAUSTED;
  *h2 = (struct h2){.headers = headers, .out = malloc(sizeof *h2->out)};
  if (!h2->out) return status;
  outq_reset(h2->out);
  if (nghttp2_session_callbacks_new(&callbacks) != 0 || nghttp2_option_new(&option) != 0) goto out;
  set_callbacks(callbacks);
  nghttp2_option_set_no_closed_streams(option, 1);
  nghttp2_mem mem = {&h2->pool, mem_malloc, mem_free, mem_calloc, mem_realloc};
  if (nghttp2_session_client_new3(&h2->session, callbacks, h2, option, &mem) != 0) goto out;
  if (submit_preface(h2->session) == 0) status = STATUS_OK;
out:
  nghttp2_option_del(option);
  nghttp2_session_callbacks_del(callbacks);
  if (status != STATUS_OK) h2_close(h2);
  return status;
}

void h2_close(struct h2 *h2) {
  FW_ASSERT(h2->n_running == 0);
  nghttp2_session_del(h2->session);
  h2->session = NULL;
  pool_deinit(&h2->pool);
  free(h2->out);
  h2->out = NULL;
}

static nghttp2_nv header(const char *name, size_t n_name, const char *value) {
  return (nghttp2_nv){(uint8_t *)(uintptr_t)name, (uint8_t *)(uintptr_t)value, n_name,
                      strlen(value), NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE};
}
#define HEADER(name, value) header(name, sizeof(name) - 1, value)

bool h2_start(struct h2 *h2, struct call *call) {
  if (h2->draining || !h2->settings_seen) return false;
  nghttp2_nv headers[9] = {
      HEADER(":method", "POST"),
      HEADER(":scheme", h2->headers->scheme),
      HEADER(":path", call->method->path),
      HEADER(":authority", h2->headers->authority),
      HEADER("te", "trailers"),
      HEADER("content-type", "application/grpc"),
      HEADER("user-agent", "fusewire/" FUSEWIRE_VERSION),
  };
  size_t n = 7;
  if (call->method->timeout[0]) headers[n++] = HEADER("grpc-timeout", call->method->timeout);
  if (h2->headers->authorization[0])
    headers[n++] = HEADER("authorization", h2->headers->authorization);
  const nghttp2_data_provider body = {.read_callback = on_read_source};
  call_reset(call);
  const int32_t id = nghttp2_submit_request(h2->session, NULL, headers, n, &body, call);
  if (id < 0) {
    h2->draining = true; // out of stream ids or memory: a new connection has both
    return false;
  }
  call->stream_id = id;
  list_add(h2, call);
  return true;
}

int h2_feed(struct h2 *h2, const uint8_t *data, size_t bytes) {
  const ssize_t n = nghttp2_session_mem_recv(h2->session, data, bytes);
  return n < 0 ? (int)n : 0;
}

int h2_pull(struct h2 *h2) {
  return nghttp2_session_send(h2->session);
}

bool h2_over(const struct h2 *h2) {
  return !nghttp2_session_want_read(h2->session) && !nghttp2_session_want_write(h2->session);
}

void h2_cancel(struct h2 *h2, struct call *call, enum status status, const char *message) {
  // Without user data the callbacks of what is left of the stream no longer see the call.
  nghttp2_session_set_stream_user_data(h2->session, call->stream_id, NULL);
  nghttp2_submit_rst_stream(h2->session, NGHTTP2_FLAG_NONE, call->stream_id, NGHTTP2_CANCEL);
  finish_as(h2, call, status, message);
}

void h2_fail_calls(struct h2 *h2, enum status status, const char *message) {
  while (h2->first) {
    struct call *call = h2->first;
    if (h2->session) nghttp2_session_set_stream_user_data(h2->session, call->stream_id, NULL);
    finish_as(h2, call, status, message);
  }
}

uint32_t h2_max_calls(const struct h2 *h2) {
  return nghttp2_session_get_remote_settings(h2->session, NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS);
}

const char *h2_error_text(int error) {
  return nghttp2_strerror(error);
}
