// The handler's view of a call: accessors, and how an answer is put together.
#include "rpc/call.h"
#include "base/log.h"
#include "rpc/internal.h"
#include <string.h>

struct call_ref call_ref_of(const struct call *call) {
  return (struct call_ref){(uint16_t)call->rpc->loop, call->slot, call->generation};
}

struct slice call_message(const struct call *call) {
  if (!call->framer.slab) return (struct slice){NULL, 0};
  return (struct slice){call->framer.slab->data, call->framer.filled};
}

struct slab *call_take_message(struct call *call) {
  struct slab *slab = call->framer.slab;
  call->framer.slab = NULL;
  if (call->stream && call->stream->many_in) {
    call->stream->taken_bytes += call->framer.counted; // until call_message_done
    call->framer.counted = 0;
  }
  return slab;
}

struct slab_pool *call_pool(struct call *call) {
  return call->rpc->pool;
}

int64_t call_deadline_ns(const struct call *call) {
  return call->deadline.at_ns;
}

int64_t call_headers_ns(const struct call *call) {
  return call->headers_ns;
}

int64_t call_message_ns(const struct call *call) {
  return call->message_ns;
}

const char *call_traceparent(const struct call *call) {
  return call->traceparent;
}

struct trace_span *call_trace(const struct call *call) {
  return call->trace;
}

void *call_app(struct call *call) {
  return call->rpc->app;
}

struct rpc *call_rpc(const struct call *call) {
  return call->rpc;
}

int call_loop(const struct call *call) {
  return call->rpc->loop;
}

void call_on_cancel(struct call *call, cancel_hook hook, void *arg) {
  call->cancel = hook;
  call->cancel_arg = arg;
}

bool call_reserve(struct call *call, size_t bytes) {
  struct grpc_room *room = &call->h2->room;
  // They have been taken from what is free already: what was (free - held) / 2 then is
  // (free + bytes - held) / 2 now.
  int64_t fair_bytes = slab_pool_fair_bytes(room->pool, room->held_bytes);
  if (fair_bytes != INT64_MAX && (int64_t)bytes > 2 * fair_bytes) return false;
  room->held_bytes += (int64_t)bytes;
  call->reserved_bytes += (int64_t)bytes;
  return true;
}

void call_release(struct call *call, size_t bytes) {
  FW_ASSERT(call->reserved_bytes >= (int64_t)bytes);
  call->h2->room.held_bytes -= (int64_t)bytes;
  call->reserved_bytes -= (int64_t)bytes;
}

void call_cancel(struct call *call, enum status why) {
  FW_ASSERT(call->state == CALL_HANDLING);
  cancel_hook hook = call->cancel;
  call->cancel = NULL;
  call->state = CALL_RECEIVING; // the hook must not find it, and h2_call_fail may still answer
  if (hook) hook(call->cancel_arg, why);
}

void call_fail(struct call *call, enum status code, const char *message) {
  FW_ASSERT(call->state == CALL_HANDLING);
  FW_ASSERT(code != STATUS_OK);
  h2_call_fail(call, code, message);
}

// The last reference is gone: the handler gets its memory back.
static void answer_release(struct out_ref *ref) {
  struct answer *answer = (struct answer *)ref;
  struct h2 *h2 = answer->h2;
  h2->room.held_bytes -= answer->counted_bytes;
  h2->busy_bytes -= answer->counted_bytes;
  h2->n_answers--;
  if (answer->done) answer->done(answer->arg);
  mem_give(h2->rpc->mem, answer);
}

struct answer *answer_make(struct call *call, const void *head, size_t head_bytes,
                           const struct slice *payload, int n_payload) {
  struct h2 *h2 = call->h2;
  uint64_t message_bytes = head_bytes;
  for (int i = 0; i < n_payload; i++)
    message_bytes += payload[i].bytes;
  FW_ASSERT(message_bytes <= UINT32_MAX); // the handler's limits are far below
  size_t slices_bytes = ((size_t)n_payload + 1) * sizeof(struct slice);
  struct answer *answer =
      mem_take(h2->rpc->mem, sizeof *answer + slices_bytes + GRPC_PREFIX_BYTES + head_bytes);
  if (!answer) return NULL;
  memset(answer, 0, sizeof *answer);
  uint8_t *text = (uint8_t *)answer + sizeof *answer + slices_bytes;
  grpc_prefix_write(text, (uint32_t)message_bytes);
  if (head_bytes) memcpy(text + GRPC_PREFIX_BYTES, head, head_bytes);
  answer->slices[0] = (struct slice){text, GRPC_PREFIX_BYTES + head_bytes};
  if (n_payload) memcpy(answer->slices + 1, payload, (size_t)n_payload * sizeof *payload);
  answer->n_slices = n_payload + 1;
  answer->ref = (struct out_ref){1, answer_release};
  answer->h2 = h2;
  answer->total_bytes = GRPC_PREFIX_BYTES + message_bytes;
  answer->counted_bytes = (int64_t)message_bytes;
  h2->room.held_bytes += answer->counted_bytes;
  h2->busy_bytes += answer->counted_bytes;
  if (h2->n_answers++ == 0) h2->sent_ns = h2->now_ns;
  return answer;
}

void call_reply(struct call *call, const void *head, size_t head_bytes, const struct slice *payload,
                int n_payload, void (*done)(void *arg), void *arg) {
  FW_ASSERT(call->state == CALL_HANDLING && !call->stream);
  FW_ASSERT(n_payload >= 0 && n_payload <= CALL_MAX_PAYLOAD);
  struct answer *answer = answer_make(call, head, head_bytes, payload, n_payload);
  if (!answer) {
    h2_call_fail(call, STATUS_RESOURCE_EXHAUSTED, "no memory for the answer");
    if (done) done(arg);
    return;
  }
  answer->done = done;
  answer->arg = arg;
  call->answer = answer;
  h2_call_reply(call);
}
