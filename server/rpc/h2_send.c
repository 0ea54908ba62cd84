// What goes out: answers as HEADERS, DATA by reference and trailers; errors as Trailers-Only; all
// into one queue in order.
#include "base/log.h"
#include "obs/metrics.h"
#include "rpc/internal.h"
#include <stdio.h>
#include <string.h>

#define MAX_DATA_BYTES                                                                             \
  (256 * 1024) // of one DATA frame, where the peer allows it: calls share the connection fairly

#define NO_COPY (NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE)
#define FIELD(name, value)                                                                         \
  {                                                                                                \
    (uint8_t *)(uintptr_t)(name), (uint8_t *)(uintptr_t)(value), sizeof(name) - 1,                 \
        sizeof(value) - 1, NO_COPY                                                                 \
  }
static const nghttp2_nv response_fields[] = {FIELD(":status", "200"),
                                             FIELD("content-type", "application/grpc")};
static const nghttp2_nv ok_trailers[] = {FIELD("grpc-status", "0")};

// ---- into the queue ----

ssize_t h2_on_send(nghttp2_session *session, const uint8_t *data, size_t bytes, int flags,
                   void *arg) {
  (void)session, (void)flags;
  struct h2 *h2 = arg;
  if (outq_full(&h2->outq)) return NGHTTP2_ERR_WOULDBLOCK;
  if (!outq_copy(&h2->outq, data, bytes)) return NGHTTP2_ERR_CALLBACK_FAILURE;
  return (ssize_t)bytes;
}

// Moves `bytes` of the answer's slices into the queue.
static bool queue_answer(struct outq *queue, struct answer *answer, size_t bytes) {
  while (bytes > 0) {
    FW_ASSERT(answer->current < answer->n_slices);
    const struct slice *slice = &answer->slices[answer->current];
    size_t take = slice->bytes - answer->at;
    take = take < bytes ? take : bytes;
    const uint8_t *from = slice->data + answer->at;
    bool queued = take <= OUTQ_COPY_BYTES ? outq_copy(queue, from, take)
                                          : outq_refer(queue, from, take, &answer->ref);
    if (!queued) return false;
    answer->at += take;
    bytes -= take;
    if (answer->at == slice->bytes) {
      answer->current++;
      answer->at = 0;
    }
  }
  return true;
}

int h2_on_send_data(nghttp2_session *session, nghttp2_frame *frame, const uint8_t *header,
                    size_t bytes, nghttp2_data_source *source, void *arg) {
  (void)session;
  struct h2 *h2 = arg;
  struct call *call = source->ptr;
  FW_ASSERT(frame->data.padlen == 0); // we never ask for padding
  if (outq_full(&h2->outq)) return NGHTTP2_ERR_WOULDBLOCK;
  // A stream may end without a message to go with the last frame.
  if (!outq_copy(&h2->outq, header, 9) ||
      (bytes > 0 && !queue_answer(&h2->outq, call->answer, bytes)))
    return NGHTTP2_ERR_CALLBACK_FAILURE;
  return 0;
}

static int32_t smaller(int32_t a, int32_t b) {
  return a < b ? a : b;
}

ssize_t h2_data_length(nghttp2_session *session, uint8_t frame_type, int32_t stream_id,
                       int32_t session_window, int32_t stream_window, uint32_t max_frame,
                       void *arg) {
  (void)session, (void)frame_type, (void)stream_id, (void)arg;
  int32_t frame = max_frame < MAX_DATA_BYTES ? (int32_t)max_frame : MAX_DATA_BYTES;
  return smaller(frame, smaller(session_window, stream_window));
}

// Says how much comes next; h2_on_send_data does the work. Trailers must be submitted at the last
// byte and not before, or they overtake it (nghttp2#269).
static ssize_t read_answer(nghttp2_session *session, int32_t stream_id, uint8_t *buffer,
                           size_t length, uint32_t *data_flags, nghttp2_data_source *source,
                           void *arg) {
  (void)buffer, (void)arg;
  struct call *call = source->ptr;
  struct answer *answer = call->answer;
  uint64_t left = answer->total_bytes - answer->offered_bytes;
  size_t take = left < length ? (size_t)left : length;
  answer->offered_bytes += take;
  *data_flags |= NGHTTP2_DATA_FLAG_NO_COPY;
  if (answer->offered_bytes < answer->total_bytes) return (ssize_t)take;
  *data_flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
  if (nghttp2_submit_trailer(session, stream_id, ok_trailers,
                             sizeof ok_trailers / sizeof ok_trailers[0]) != 0)
    return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
  return (ssize_t)take;
}

// ---- answers ----

static void answered(struct call *call, enum status code) {
  call->state = CALL_ANSWERED;
  call->cancel = NULL;
  if (call->trace) call->trace->status = code;
  deadline_remove(&call->rpc->deadlines, &call->deadline);
  atomic_fetch_add_explicit(&rpc_metrics.calls_finished[code], 1, memory_order_relaxed);
  call->rpc->dirty(call->h2->owner);
}

static void submit_or_reset(struct call *call, const nghttp2_nv *fields, size_t n_fields,
                            const nghttp2_data_provider *provider) {
  nghttp2_session *session = call->h2->session;
  if (nghttp2_submit_response(session, call->stream_id, fields, n_fields, provider) == 0) return;
  if (nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, call->stream_id,
                                NGHTTP2_INTERNAL_ERROR) != 0)
    call->h2->dead = true; // no memory even for that
}

void h2_call_reply(struct call *call) {
  answered(call, STATUS_OK);
  const nghttp2_data_provider provider = {.source.ptr = call, .read_callback = read_answer};
  submit_or_reset(call, response_fields, sizeof response_fields / sizeof response_fields[0],
                  &provider);
}

void h2_stream_begin(struct call *call) {
  const nghttp2_data_provider provider = {.source.ptr = call, .read_callback = stream_read};
  submit_or_reset(call, response_fields, sizeof response_fields / sizeof response_fields[0],
                  &provider);
}

void h2_stream_finish(struct call *call, enum status code, const char *message) {
  answered(call, code);
  stream_end(call, code, message);
}

size_t h2_status_fields(nghttp2_nv fields[2], enum status code, uint8_t number[4], uint8_t *text,
                        size_t text_bytes) {
  int number_bytes = snprintf((char *)number, 4, "%d", (int)code);
  fields[0] = (nghttp2_nv){(uint8_t *)(uintptr_t) "grpc-status", number, 11, (size_t)number_bytes,
                           NGHTTP2_NV_FLAG_NO_COPY_NAME};
  fields[1] = (nghttp2_nv){(uint8_t *)(uintptr_t) "grpc-message", text, 12, text_bytes,
                           NGHTTP2_NV_FLAG_NO_COPY_NAME};
  return text_bytes > 0 ? 2 : 1;
}

void h2_call_fail(struct call *call, enum status code, const char *message) {
  FW_ASSERT(call->state == CALL_RECEIVING || call->state == CALL_HANDLING);
  if (!call->message_ns) // no handler has seen it
    grpc_framer_drop(&call->framer, &call->h2->room);
  if (call->trace)
    trace_put_text(call->trace->text, sizeof call->trace->text, message, strlen(message));
  if (call->stream && call->stream->begun) {
    stream_forget(call);
    h2_stream_finish(call, code, message);
    return;
  }
  answered(call, code);
  uint8_t text[GRPC_MESSAGE_ENCODED_BYTES], number[4];
  nghttp2_nv fields[5] = {response_fields[0], response_fields[1]};
  size_t n =
      2 + h2_status_fields(fields + 2, code, number, text, grpc_message_encode(message, text));
  if (call->encoding == GRPC_UNSUPPORTED && code == STATUS_UNIMPLEMENTED)
    fields[n++] = (nghttp2_nv)FIELD("grpc-accept-encoding", "identity"); // owed to such a client
  submit_or_reset(call, fields, n, NULL);
}

void h2_call_fail_http(struct call *call, const char status[4]) {
  answered(call, STATUS_UNKNOWN);
  const nghttp2_nv fields[] = {{(uint8_t *)(uintptr_t) ":status", (uint8_t *)(uintptr_t)status, 7,
                                3, NGHTTP2_NV_FLAG_NO_COPY_NAME}};
  submit_or_reset(call, fields, 1, NULL);
}

// ---- what has left the session ----

// An answer that ends before the request does: tell the client to stop sending, in order behind the
// trailers, and not as an error (CANCEL makes proxies drop the answer).
static void headers_left(struct h2 *h2, const nghttp2_frame *frame) {
  guard_sent(&h2->guard);
  if (!(frame->hd.flags & NGHTTP2_FLAG_END_STREAM)) return;
  struct call *call = h2_call_of_stream(h2, frame->hd.stream_id);
  if (call && !call->remote_closed)
    (void)nghttp2_submit_rst_stream(h2->session, NGHTTP2_FLAG_NONE, frame->hd.stream_id,
                                    NGHTTP2_NO_ERROR);
}

static void data_left(struct h2 *h2, int32_t stream_id) {
  guard_sent(&h2->guard);
  guard_useful(&h2->guard);
  struct call *call = h2_call_of_stream(h2, stream_id);
  if (call && call->stream) stream_frame_left(call);
}

static void reset_left(struct h2 *h2, uint32_t code) {
  if (code == NGHTTP2_NO_ERROR || code == NGHTTP2_CANCEL || code == NGHTTP2_REFUSED_STREAM) return;
  if (guard_reset_sent(&h2->guard, h2->now_ns))
    h2_goaway(h2, NGHTTP2_ENHANCE_YOUR_CALM, "too many streams in error");
}

int h2_on_frame_send(nghttp2_session *session, const nghttp2_frame *frame, void *arg) {
  (void)session;
  struct h2 *h2 = arg;
  switch (frame->hd.type) {
  case NGHTTP2_DATA:
    data_left(h2, frame->hd.stream_id);
    return 0;
  case NGHTTP2_HEADERS:
    headers_left(h2, frame);
    return 0;
  case NGHTTP2_RST_STREAM:
    reset_left(h2, frame->rst_stream.error_code);
    return 0;
  case NGHTTP2_GOAWAY:
    h2_goaway_left(h2);
    h2->last_word = h2->closing && frame->goaway.error_code != NGHTTP2_NO_ERROR; // not the drain's
    atomic_fetch_add_explicit(&rpc_metrics.goaways_sent, 1, memory_order_relaxed);
    return 0;
  default:
    return 0;
  }
}
