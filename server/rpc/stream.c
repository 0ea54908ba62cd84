// Calls of many messages: out, a list of answers behind one data provider that sleeps while the
// list is empty; in, message after message to the handler, and bytes put aside while it holds.
#include "base/copy.h"
#include "base/log.h"
#include "rpc/internal.h"
#include <string.h>

#define BACKLOG_FIRST_BYTES 4096

bool stream_open(struct call *call) {
  struct stream *stream = mem_take(call->rpc->mem, sizeof *stream);
  if (!stream) return false;
  *stream = (struct stream){.many_in = call->method->stream->many_in};
  call->stream = stream;
  return true;
}

// ---- out ----

static void queue(struct stream *stream, struct call *call, struct answer *answer) {
  if (call->answer)
    stream->last->next = answer;
  else
    call->answer = answer;
  stream->last = answer;
  stream->n_queued++;
}

// The first answer of the list has no more business with the call.
static void pop(struct call *call) {
  struct answer *answer = call->answer;
  call->answer = answer->next;
  call->stream->n_queued--;
  out_ref_put(&answer->ref);
}

static void awake(struct call *call) {
  struct stream *stream = call->stream;
  if (!stream->begun) {
    stream->begun = true;
    h2_stream_begin(call);
  } else if (stream->asleep) {
    stream->asleep = false;
    if (nghttp2_session_resume_data(call->h2->session, call->stream_id) == NGHTTP2_ERR_NOMEM)
      call->h2->dead = true;
  }
  call->rpc->dirty(call->h2->owner);
}

bool call_send(struct call *call, const void *head, size_t head_bytes, const struct slice *payload,
               int n_payload, void (*done)(void *arg), void *arg) {
  FW_ASSERT(call->stream && call->state == CALL_HANDLING);
  FW_ASSERT(n_payload >= 0 && n_payload <= CALL_MAX_PAYLOAD);
  struct answer *answer = answer_make(call, head, head_bytes, payload, n_payload);
  if (!answer) {
    call_cancel(call, STATUS_RESOURCE_EXHAUSTED);
    h2_call_fail(call, STATUS_RESOURCE_EXHAUSTED, "no memory for the answer");
    if (done) done(arg);
    return false;
  }
  answer->done = done;
  answer->arg = arg;
  queue(call->stream, call, answer);
  awake(call);
  return true;
}

void stream_end(struct call *call, enum status code, const char *message) {
  struct stream *stream = call->stream;
  stream->ending = true;
  stream->end_code = code;
  size_t bytes = code == STATUS_OK ? 0 : strnlen(message, GRPC_MESSAGE_MAX_BYTES);
  if (bytes > 0 && (stream->end_text = mem_take(call->rpc->mem, bytes + 1))) {
    memcpy(stream->end_text, message, bytes);
    stream->end_text[bytes] = 0; // cut between characters when it is encoded
  }
  awake(call);
}

void stream_forget(struct call *call) {
  struct answer *first = call->answer;
  if (!first) return;
  bool begun = first->offered_bytes > 0; // half of it may be on the wire: the rest must follow
  struct answer *answer = begun ? first->next : first;
  if (begun)
    first->next = NULL;
  else
    call->answer = NULL;
  call->stream->last = call->answer;
  while (answer) {
    struct answer *next = answer->next;
    call->stream->n_queued--;
    out_ref_put(&answer->ref);
    answer = next;
  }
}

void call_finish(struct call *call, enum status code, const char *message) {
  FW_ASSERT(call->stream && call->state == CALL_HANDLING);
  if (call->stream->begun || code == STATUS_OK)
    h2_stream_finish(call, code, message);
  else
    h2_call_fail(call, code, message);
}

uint32_t call_queued(const struct call *call) {
  return call->stream->n_queued;
}

void call_on_sent(struct call *call, void (*hook)(struct call *call, void *arg), void *arg) {
  call->stream->on_sent = hook;
  call->stream->sent_arg = arg;
}

void stream_frame_left(struct call *call) {
  struct stream *stream = call->stream;
  struct answer *answer = call->answer;
  if (!answer || answer->offered_bytes < answer->total_bytes) return;
  pop(call);
  if (stream->on_sent && call->state == CALL_HANDLING) stream->on_sent(call, stream->sent_arg);
}

// The trailers go at the last byte (nghttp2#269).
static int trailers(nghttp2_session *session, struct call *call) {
  struct stream *stream = call->stream;
  uint8_t text[GRPC_MESSAGE_ENCODED_BYTES], number[4];
  size_t text_bytes = stream->end_text ? grpc_message_encode(stream->end_text, text) : 0;
  nghttp2_nv fields[2];
  size_t n = h2_status_fields(fields, stream->end_code, number, text, text_bytes);
  return nghttp2_submit_trailer(session, call->stream_id, fields, n);
}

ssize_t stream_read(nghttp2_session *session, int32_t stream_id, uint8_t *buffer, size_t length,
                    uint32_t *data_flags, nghttp2_data_source *source, void *arg) {
  (void)stream_id, (void)buffer, (void)arg;
  struct call *call = source->ptr;
  struct stream *stream = call->stream;
  struct answer *answer = call->answer;
  size_t take = 0;
  if (answer) {
    uint64_t left = answer->total_bytes - answer->offered_bytes;
    take = left < length ? (size_t)left : length;
    answer->offered_bytes += take;
  } else if (!stream->ending) {
    stream->asleep = true;
    return NGHTTP2_ERR_DEFERRED;
  }
  *data_flags |= NGHTTP2_DATA_FLAG_NO_COPY;
  bool more = answer && (answer->offered_bytes < answer->total_bytes || answer->next);
  if (more || !stream->ending) return (ssize_t)take;
  *data_flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
  if (trailers(session, call) != 0) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
  return (ssize_t)take;
}

// ---- in ----

static void fail_in(struct call *call, enum status code, const char *message) {
  call_cancel(call, code);
  h2_call_fail(call, code, message);
}

static void deliver(struct call *call) {
  struct h2 *h2 = call->h2;
  int64_t counted = call->framer.counted;
  call->message_ns = h2->now_ns;
  h2->busy_bytes += counted;
  guard_useful(&h2->guard);
  call->method->handle(call, h2->rpc->app);
  if (call->framer.slab) { // the handler did not take it
    h2->busy_bytes -= counted;
    grpc_framer_drop(&call->framer, &h2->room);
  }
  call->framer = (struct grpc_framer){0};
}

// Returns the bytes that were used: all of them, unless the handler holds or the call has ended.
static size_t feed(struct call *call, const uint8_t *data, size_t bytes) {
  struct h2 *h2 = call->h2;
  struct stream *stream = call->stream;
  size_t at = 0;
  while (at < bytes && call->state == CALL_HANDLING && !stream->held) {
    struct error *err = &h2->rpc->err;
    size_t used;
    if (call->framer.have == 0) stream->message_since_ns = h2->now_ns;
    if (grpc_framer_take(&call->framer, &h2->room, call->encoding, data + at, bytes - at, &used,
                         err) != STATUS_OK) {
      grpc_framer_drop(&call->framer, &h2->room);
      fail_in(call, err->code, err->message);
      return bytes;
    }
    at += used;
    if (grpc_framer_whole(&call->framer)) deliver(call);
  }
  // The window of what was used opens again; of what lies aside it stays shut.
  if (at > 0) (void)nghttp2_session_consume_stream(h2->session, call->stream_id, at);
  return at;
}

// What has come and may not be delivered. The window bounds it: none of it was given back.
static bool put_aside(struct call *call, const uint8_t *data, size_t bytes) {
  struct h2 *h2 = call->h2;
  struct backlog *aside = &call->stream->aside;
  size_t kept = aside->filled - aside->at, needed = kept + bytes;
  if (!aside->slab || aside->slab->capacity_bytes < aside->filled + bytes) {
    size_t room = BACKLOG_FIRST_BYTES;
    while (room < needed)
      room *= 2;
    if ((int64_t)room > h2->room.connection_bytes - h2->room.held_bytes ||
        !grpc_room_fair(&h2->room, room))
      return false;
    struct slab *slab = slab_get(h2->room.pool, room);
    if (!slab) return false;
    if (aside->slab) copy_bytes(slab->data, aside->slab->data + aside->at, kept);
    stream_drop_aside(call);
    *aside = (struct backlog){slab, 0, kept, (int64_t)room};
    h2->room.held_bytes += aside->counted;
    h2->busy_bytes += aside->counted;
  }
  copy_bytes(aside->slab->data + aside->filled, data, bytes);
  aside->filled += bytes;
  return true;
}

void stream_drop_aside(struct call *call) {
  struct h2 *h2 = call->h2;
  struct backlog *aside = &call->stream->aside;
  if (!aside->slab) return;
  slab_put(h2->room.pool, aside->slab);
  h2->room.held_bytes -= aside->counted;
  h2->busy_bytes -= aside->counted;
  *aside = (struct backlog){0};
}

void stream_data(struct call *call, const uint8_t *data, size_t bytes) {
  size_t used = call->stream->aside.slab ? 0 : feed(call, data, bytes);
  if (used == bytes || call->state != CALL_HANDLING) return;
  if (!put_aside(call, data + used, bytes - used))
    fail_in(call, STATUS_RESOURCE_EXHAUSTED,
            "no room for messages that wait on a stream (limits.connection_bytes, "
            "limits.total_bytes)");
}

static void all_in(struct call *call) {
  struct error *err = &call->rpc->err;
  if (call->state != CALL_HANDLING) return;
  if (call->framer.have > 0 && grpc_framer_end(&call->framer, err) != STATUS_OK)
    fail_in(call, err->code, err->message);
  else if (call->method->stream->closed)
    call->method->stream->closed(call, call->rpc->app);
  else
    call_finish(call, STATUS_OK, "");
}

void stream_closed(struct call *call) {
  if (call->stream->aside.slab)
    call->stream->closed_behind = true;
  else
    all_in(call);
}

void call_hold(struct call *call) {
  call->stream->held = true;
}

void call_let_go(struct call *call) {
  struct stream *stream = call->stream;
  struct backlog *aside = &stream->aside;
  stream->held = false;
  if (!aside->slab || stream->feeding) return; // `handle` calls this: its caller goes on
  stream->feeding = true;
  aside->at += feed(call, aside->slab->data + aside->at, aside->filled - aside->at);
  stream->feeding = false;
  if (call->state == CALL_HANDLING && aside->at < aside->filled) return;
  stream_drop_aside(call);
  if (stream->closed_behind) all_in(call);
  call->rpc->dirty(call->h2->owner);
}

void call_message_done(struct call *call, size_t bytes) {
  struct stream *stream = call->stream;
  FW_ASSERT(stream->taken_bytes >= (int64_t)bytes);
  stream->taken_bytes -= (int64_t)bytes;
  call->h2->room.held_bytes -= (int64_t)bytes;
  call->h2->busy_bytes -= (int64_t)bytes;
}

void call_set_user(struct call *call, void *user) {
  call->stream->user = user;
}

void *call_user(const struct call *call) {
  return call->stream->user;
}

// ---- ends ----

bool stream_late(const struct call *call, int64_t limit_ns, int64_t now_ns) {
  const struct stream *stream = call->stream;
  return call->framer.have > 0 && !stream->held && now_ns - stream->message_since_ns > limit_ns;
}

void stream_drain(struct call *call) {
  if (call->state != CALL_HANDLING) return;
  if (call->method->stream->drain) {
    call->method->stream->drain(call, call->rpc->app);
    return;
  }
  static const char text[] = "the server is shutting down";
  call_cancel(call, STATUS_UNAVAILABLE);
  if (call->stream->begun) // what waits still leaves
    h2_stream_finish(call, STATUS_UNAVAILABLE, text);
  else
    h2_call_fail(call, STATUS_UNAVAILABLE, text);
}

void stream_close(struct call *call) {
  struct h2 *h2 = call->h2;
  struct stream *stream = call->stream;
  while (call->answer)
    pop(call);
  stream_drop_aside(call);
  h2->room.held_bytes -= stream->taken_bytes;
  h2->busy_bytes -= stream->taken_bytes;
  mem_give(call->rpc->mem, stream->end_text);
  mem_give(call->rpc->mem, stream);
  call->stream = NULL;
}
