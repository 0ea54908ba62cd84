// What comes in: headers into a call, DATA into its message, a whole message into its handler, and
// the frames that a hostile peer could send for ever.
#include "base/log.h"
#include "obs/metrics.h"
#include "rpc/auth.h"
#include "rpc/internal.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct call *h2_call_of_stream(struct h2 *h2, int32_t stream_id) {
  if (!h2->recent || h2->recent->stream_id != stream_id)
    h2->recent = nghttp2_session_get_stream_user_data(h2->session, stream_id);
  return h2->recent;
}

// ---- a call begins and ends ----

static struct call *call_begin(struct h2 *h2, int32_t stream_id) {
  struct call *call = call_table_take(&h2->rpc->calls);
  if (!call) return NULL;
  call->rpc = h2->rpc;
  call->h2 = h2;
  call->stream_id = stream_id;
  call->headers_ns = h2->now_ns;
  call->deadline.at_ns = CLOCK_NEVER;
  call->next = h2->calls;
  if (call->next) call->next->previous = call;
  h2->calls = h2->recent = call;
  h2->n_calls++;
  atomic_fetch_add_explicit(&rpc_metrics.calls_started, 1, memory_order_relaxed);
  return call;
}

static void unlink_call(struct h2 *h2, struct call *call) {
  if (call->next) call->next->previous = call->previous;
  if (call->previous)
    call->previous->next = call->next;
  else
    h2->calls = call->next;
  h2->n_calls--;
  if (h2->n_calls == 0) h2->idle_since_ns = h2->now_ns;
}

void h2_call_end(struct call *call) {
  struct h2 *h2 = call->h2;
  if (h2->headers.call == call) h2->headers.call = NULL;
  if (h2->recent == call) h2->recent = NULL;
  if (call->state != CALL_ANSWERED) {
    if (call->state == CALL_HANDLING) call_cancel(call, STATUS_CANCELLED);
    atomic_fetch_add_explicit(&rpc_metrics.calls_reset, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&rpc_metrics.calls_finished[STATUS_CANCELLED], 1,
                              memory_order_relaxed);
  }
  deadline_remove(&h2->rpc->deadlines, &call->deadline);
  if (call->message_ns && !(call->stream && call->stream->many_in))
    h2->busy_bytes -= call->framer.counted;
  grpc_framer_drop(&call->framer, &h2->room);
  h2->room.held_bytes -= call->reserved_bytes;
  if (call->stream) stream_close(call);
  if (call->answer) out_ref_put(&call->answer->ref);
  if (call->trace) trace_end(h2->rpc->trace, call->trace, clock_now_ns());
  unlink_call(h2, call);
  call_table_put(&h2->rpc->calls, call);
}

int h2_on_stream_close(nghttp2_session *session, int32_t stream_id, uint32_t code, void *arg) {
  (void)session, (void)code;
  struct call *call = h2_call_of_stream(arg, stream_id);
  if (call) h2_call_end(call);
  return 0;
}

// ---- headers ----

int h2_on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *arg) {
  struct h2 *h2 = arg;
  struct header_block *block = &h2->headers;
  block->list_bytes = 0;
  block->over_limit = block->is_post = block->content_type_ok = block->timeout_bad =
      block->path_seen = block->authorized = block->state_over = false;
  block->state_bytes = 0;
  h2->headers_since_ns = h2->now_ns;
  block->trailers = frame->headers.cat != NGHTTP2_HCAT_REQUEST;
  if (block->trailers) {
    block->call = h2_call_of_stream(h2, frame->hd.stream_id);
    return 0;
  }
  block->call = call_begin(h2, frame->hd.stream_id);
  if (!block->call) {
    metrics_call_refused(CALL_REFUSED_CALLS);
    return nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id,
                                     NGHTTP2_REFUSED_STREAM);
  }
  return nghttp2_session_set_stream_user_data(session, frame->hd.stream_id, block->call);
}

#define IS(text) (memcmp(name, text, sizeof(text) - 1) == 0)

static void take_path(struct header_block *block, const uint8_t *value, size_t bytes) {
  block->path_seen = true;
  block->call->method = method_find(block->call->rpc->methods, value, bytes);
  if (block->call->method) return;
  block->path_bytes = bytes < PATH_KEPT_BYTES ? (uint16_t)bytes : PATH_KEPT_BYTES;
  memcpy(block->path, value, block->path_bytes);
}

static void take_timeout(struct header_block *block, const uint8_t *value, size_t bytes) {
  int64_t timeout_ns;
  struct call *call = block->call;
  if (!grpc_timeout_parse(value, bytes, &timeout_ns))
    block->timeout_bad = true;
  else if (__builtin_add_overflow(call->headers_ns, timeout_ns, &call->deadline.at_ns))
    call->deadline.at_ns = CLOCK_NEVER;
}

// Headers of one name are one list.
static void take_tracestate(struct header_block *block, const uint8_t *value, size_t bytes) {
  size_t comma = block->state_bytes > 0;
  if (bytes == 0) return;
  if (block->state_bytes + comma + bytes > sizeof block->state) {
    block->state_over = true;
    return;
  }
  if (comma) block->state[block->state_bytes++] = ',';
  memcpy(block->state + block->state_bytes, value, bytes);
  block->state_bytes += (uint16_t)bytes;
}

// By length first: most headers are told apart by one comparison.
static void take_header(struct header_block *block, const uint8_t *name, size_t name_bytes,
                        const uint8_t *value, size_t value_bytes) {
  switch (name_bytes) {
  case 5:
    if (IS(":path")) take_path(block, value, value_bytes);
    return;
  case 7:
    if (IS(":method")) block->is_post = value_bytes == 4 && memcmp(value, "POST", 4) == 0;
    return;
  case 10:
    if (block->call->rpc->trace && IS("tracestate")) take_tracestate(block, value, value_bytes);
    return;
  case 11:
    if (IS("traceparent"))
      (void)grpc_traceparent_take(value, value_bytes, block->call->traceparent);
    return;
  case 12:
    if (IS("content-type"))
      block->content_type_ok = grpc_content_type_ok(value, value_bytes);
    else if (IS("grpc-timeout"))
      take_timeout(block, value, value_bytes);
    return;
  case 13:
    if (IS("grpc-encoding"))
      block->call->encoding = grpc_encoding_parse(value, value_bytes);
    else if (block->call->rpc->limits.auth && IS("authorization"))
      block->authorized = auth_ok(block->call->rpc->limits.auth, value, value_bytes);
    return;
  default:
    return;
  }
}

// Indexed fields make a few bytes into many: MAX_HEADER_LIST_SIZE is only advice, so count what is
// decoded. A little too much gets an answer in words; far too much is not even looked at.
#define HEADER_FLOOD_FACTOR 4

int h2_on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                 size_t name_bytes, const uint8_t *value, size_t value_bytes, uint8_t flags,
                 void *arg) {
  (void)flags;
  struct h2 *h2 = arg;
  struct header_block *block = &h2->headers;
  if (!block->call) return 0;
  block->list_bytes += name_bytes + value_bytes + 32;
  uint64_t limit = (uint64_t)h2->rpc->limits.header_bytes;
  if (block->list_bytes > limit) {
    block->over_limit = true;
    if (block->list_bytes <= limit * HEADER_FLOOD_FACTOR) return 0;
    if (guard_header_flood(&h2->guard))
      h2_goaway(h2, NGHTTP2_ENHANCE_YOUR_CALM, "header lists far over limits.header_bytes");
    (void)nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id,
                                    NGHTTP2_ENHANCE_YOUR_CALM);
    return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
  }
  if (!block->trailers) take_header(block, name, name_bytes, value, value_bytes);
  return 0;
}

// A field that HTTP forbids (control characters, upper case, connection headers) makes the request
// malformed.
int h2_on_invalid_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                         size_t name_bytes, const uint8_t *value, size_t value_bytes, uint8_t flags,
                         void *arg) {
  (void)session, (void)frame, (void)name, (void)name_bytes, (void)value, (void)value_bytes,
      (void)flags, (void)arg;
  return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
}

static void fail_path(struct h2 *h2, struct call *call) {
  char text[PATH_KEPT_BYTES + 32];
  snprintf(text, sizeof text, "unknown method %.*s", (int)h2->headers.path_bytes, h2->headers.path);
  h2_call_fail(call, STATUS_UNIMPLEMENTED, text);
}

static void fail_header_limit(struct h2 *h2, struct call *call) {
  char text[128];
  metrics_call_refused(CALL_REFUSED_HEADER_BYTES);
  snprintf(text, sizeof text,
           "header list of %" PRIu64 " bytes is larger than limits.header_bytes (%" PRId64 ")",
           h2->headers.list_bytes, h2->rpc->limits.header_bytes);
  h2_call_fail(call, STATUS_RESOURCE_EXHAUSTED, text);
}

// Probes of an orchestrator carry no token, and health tells no secret.
static bool welcome(const struct h2 *h2, const struct call *call) {
  static const char health[] = "/grpc.health.v1.Health/";
  return !h2->rpc->limits.auth || h2->headers.authorized ||
         strncmp(call->method->path, health, sizeof health - 1) == 0;
}

static void begin_trace(struct h2 *h2, struct call *call) {
  const struct header_block *block = &h2->headers;
  call->trace = trace_begin(h2->rpc->trace, call->traceparent, call->headers_ns);
  if (!call->trace) return;
  if (call->trace->has_parent && !block->state_over &&
      grpc_tracestate_ok((const uint8_t *)block->state, block->state_bytes))
    trace_put_text(call->trace->state, sizeof call->trace->state, block->state, block->state_bytes);
  call->trace->method = call->method ? call->method->path : NULL;
  call->trace->status = STATUS_CANCELLED; // unless somebody answers
}

// The header list is complete: refuse now what can be refused, before its body is read.
static void headers_done(struct h2 *h2, struct call *call) {
  const struct header_block *block = &h2->headers;
  if (h2->rpc->trace) begin_trace(h2, call);
  if (block->over_limit)
    fail_header_limit(h2, call);
  else if (!block->is_post)
    h2_call_fail_http(call, "405");
  else if (!block->content_type_ok)
    h2_call_fail_http(call, "415");
  else if (!call->method)
    fail_path(h2, call);
  else if (!welcome(h2, call))
    h2_call_fail(call, STATUS_UNAUTHENTICATED,
                 "authorization: expected Bearer and a token that this server knows");
  else if (block->timeout_bad)
    h2_call_fail(call, STATUS_INTERNAL,
                 "malformed grpc-timeout: expected 1 to 8 digits and one of HMSmun");
  else if (call->deadline.at_ns <= h2->now_ns)
    h2_call_fail(call, STATUS_DEADLINE_EXCEEDED, "grpc-timeout had passed on arrival");
  else if (call->deadline.at_ns != CLOCK_NEVER &&
           deadline_add(&h2->rpc->deadlines, &call->deadline) != STATUS_OK)
    h2_call_fail(call, STATUS_RESOURCE_EXHAUSTED, "no memory for a deadline");
  else if (call->method->stream && !stream_open(call))
    h2_call_fail(call, STATUS_RESOURCE_EXHAUSTED, "no memory for a stream");
  else if (call->stream && call->stream->many_in)
    call->state = CALL_HANDLING; // its messages are handled as they come
}

// ---- message ----

int h2_on_data(nghttp2_session *session, uint8_t flags, int32_t stream_id, const uint8_t *data,
               size_t bytes, void *arg) {
  (void)flags;
  struct h2 *h2 = arg;
  h2->credit_bytes += bytes;
  struct call *call = h2_call_of_stream(h2, stream_id);
  if (call && call->state == CALL_HANDLING && call->stream && call->stream->many_in) {
    stream_data(call, data, bytes);
    return 0;
  }
  if (!call || call->state != CALL_RECEIVING) return 0; // refused already: read and forget
  struct grpc_framer *framer = &call->framer;
  struct error *err = &h2->rpc->err;
  if (grpc_framer_feed(framer, &h2->room, call->encoding, data, bytes, err) != STATUS_OK) {
    h2_call_fail(call, err->code, err->message);
    return 0;
  }
  // A message that fits half a window never needs a window update; a longer one has its room
  // counted already.
  if (framer->declared > h2->rpc->limits.stream_window_bytes / 2 - GRPC_PREFIX_BYTES)
    (void)nghttp2_session_consume_stream(session, stream_id, bytes);
  return 0;
}

static void message_done(struct h2 *h2, struct call *call) {
  call->remote_closed = true;
  if (call->state == CALL_HANDLING && call->stream && call->stream->many_in) stream_closed(call);
  if (call->state != CALL_RECEIVING) return;
  struct error *err = &h2->rpc->err;
  if (grpc_framer_end(&call->framer, err) != STATUS_OK) {
    h2_call_fail(call, err->code, err->message);
    return;
  }
  call->state = CALL_HANDLING;
  call->message_ns = h2->now_ns;
  h2->busy_bytes += call->framer.counted;
  guard_useful(&h2->guard);
  call->method->handle(call, h2->rpc->app);
  if (!call->stream) return;
  // The answer may take for ever: the question is not kept for so long.
  h2->busy_bytes -= call->framer.counted;
  grpc_framer_drop(&call->framer, &h2->room);
  call->framer = (struct grpc_framer){0};
}

// ---- frames ----

static void on_headers(struct h2 *h2, const nghttp2_frame *frame) {
  struct call *call = h2->headers.call;
  bool trailers = h2->headers.trailers;
  h2->headers.call = NULL;
  h2->headers_since_ns = 0;
  if (!call) return;
  bool end_stream = frame->hd.flags & NGHTTP2_FLAG_END_STREAM;
  call->remote_closed |= end_stream;
  if (!trailers)
    headers_done(h2, call);
  else if (h2->headers.over_limit && call->state == CALL_RECEIVING)
    fail_header_limit(h2, call);
  if (end_stream) message_done(h2, call);
}

static void idle_frame(struct h2 *h2, uint32_t weight) {
  if (guard_idle_frame(&h2->guard, weight))
    h2_goaway(h2, NGHTTP2_ENHANCE_YOUR_CALM, "too many frames without use");
}

static void on_ping(struct h2 *h2, const nghttp2_frame *frame) {
  if (frame->hd.flags & NGHTTP2_FLAG_ACK)
    h2_ping_answered(h2, frame->ping.opaque_data);
  else if (guard_ping(&h2->guard, h2->now_ns, h2->rpc->limits.ping_interval_ms * NS_PER_MS))
    h2_goaway(h2, NGHTTP2_ENHANCE_YOUR_CALM, "too_many_pings");
}

static void on_data_frame(struct h2 *h2, const nghttp2_frame *frame) {
  if (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) {
    struct call *call = h2_call_of_stream(h2, frame->hd.stream_id);
    if (call) message_done(h2, call);
  } else if (frame->hd.length <= frame->data.padlen) {
    idle_frame(h2, GUARD_IDLE_FRAME);
  }
}

int h2_on_begin_frame(nghttp2_session *session, const nghttp2_frame_hd *head, void *arg) {
  (void)session, (void)head;
  ((struct h2 *)arg)->heard = true;
  return 0;
}

int h2_on_frame_recv(nghttp2_session *session, const nghttp2_frame *frame, void *arg) {
  (void)session;
  struct h2 *h2 = arg;
  switch (frame->hd.type) {
  case NGHTTP2_DATA:
    on_data_frame(h2, frame);
    return 0;
  case NGHTTP2_HEADERS:
    on_headers(h2, frame);
    return 0;
  case NGHTTP2_PING:
    on_ping(h2, frame);
    return 0;
  case NGHTTP2_SETTINGS:
    if (frame->hd.flags & NGHTTP2_FLAG_ACK) return 0;
    h2->settings_seen = true;
    idle_frame(h2, GUARD_IDLE_FRAME);
    return 0;
  case NGHTTP2_RST_STREAM:
    if (guard_cancelled(&h2->guard, h2->now_ns))
      h2_goaway(h2, NGHTTP2_ENHANCE_YOUR_CALM, "too many calls are reset");
    return 0;
  case NGHTTP2_PRIORITY:
    idle_frame(h2, GUARD_IDLE_FRAME);
    return 0;
  case NGHTTP2_WINDOW_UPDATE:
    idle_frame(h2, GUARD_WINDOW_UPDATE);
    return 0;
  default:
    return 0;
  }
}
