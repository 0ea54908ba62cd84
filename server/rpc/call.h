// A gRPC call as its handler sees it. Loop thread only, all of it.
//
// Life of a unary call: HEADERS arrive -> message assembled in a slab -> method handler called once
// with the whole message -> the handler answers at once, or keeps the call_ref and answers later
// through call_find. If the client resets, the connection dies or the deadline passes before an
// answer, the cancel hook is called once, the rpc layer sends what is owed (DEADLINE_EXCEEDED), and
// call_find finds nothing from then on. Exactly one answer per call, never two.
//
// A stream differs in what it may do before that end: the handler calls call_send any number of
// times and ends with call_finish (or call_fail in the place of a first message), and with
// `many_in` it is called again for every message. Both ways are bounded: call_hold stops what comes
// in (the client's window closes), call_queued and call_on_sent tell how far behind the client is.
#ifndef RPC_CALL_H
#define RPC_CALL_H

#include "base/slab.h"
#include "rpc/call_ref.h"

struct call;
struct rpc;
struct trace_span;

// What makes a method a stream. Without it (NULL) it is unary: one message each way.
struct method_stream {
  // The client sends any number of messages too; `handle` is called for each as it comes. False:
  // one, and `handle` is called once.
  bool many_in;
  // many_in: the client has sent its last message. NULL: the call ends OK then.
  void (*closed)(struct call *call, void *app);
  // The connection is being drained: send what is owed and call_finish, now or soon. NULL: the
  // cancel hook is called and the call ends UNAVAILABLE.
  void (*drain)(struct call *call, void *app);
};

struct method {
  const char *path; // "/inference.GRPCInferenceService/ModelInfer"
  void (*handle)(struct call *call, void *app);
  const struct method_stream *stream; // NULL: unary
};

struct call_ref call_ref_of(const struct call *call);
struct slice call_message(const struct call *call); // the whole request message
struct slab *
call_take_message(struct call *call); // moves the slab that call_message points into to the handler
struct slab_pool *call_pool(struct call *call);    // this loop's pool, for the response
int64_t call_deadline_ns(const struct call *call); // CLOCK_NEVER: none. Absolute, from HEADERS on
int64_t call_headers_ns(const struct call *call);  // when HEADERS arrived
int64_t call_message_ns(const struct call *call);  // when the message was complete
const char *call_traceparent(const struct call *call); // of the client's trace; "": none
// What the handler may add to; NULL: this call is not traced. Gone with the call's answer.
struct trace_span *call_trace(const struct call *call);
void *call_app(struct call *call); // the `app` pointer given to rpc_open
int call_loop(const struct call *call);
struct rpc *call_rpc(const struct call *call);
// `why`: what the client is told in the place of the handler's answer; STATUS_CANCELLED: nobody is.
typedef void (*cancel_hook)(void *arg, enum status why);
void call_on_cancel(struct call *call, cancel_hook hook, void *arg);
// Memory that the handler took for the answer counts against the connection, until call_release or
// the call's end. False: that is more than the connection may have (grpc_room_fair); answer
// RESOURCE_EXHAUSTED.
bool call_reserve(struct call *call, size_t bytes);
void call_release(struct call *call, size_t bytes);

// Answer OK with one message: `head` (copied) followed by `payload` slices (borrowed until `done`,
// which is called exactly once on this loop thread, also when the stream or the connection dies
// first). n_payload may be 0.
#define CALL_MAX_PAYLOAD 64
void call_reply(struct call *call, const void *head, size_t head_bytes, const struct slice *payload,
                int n_payload, void (*done)(void *arg), void *arg);
// Answer with a status and no message (Trailers-Only). The text is percent-encoded by the rpc layer
// and capped at 1 KiB. For a stream that has sent messages: those leave first, then the status.
void call_fail(struct call *call, enum status code, const char *message);

// ---- streams ----
// One more message of the answer, as call_reply's. False: no memory, the call has been ended for
// it (the cancel hook was called), `done` too.
bool call_send(struct call *call, const void *head, size_t head_bytes, const struct slice *payload,
               int n_payload, void (*done)(void *arg), void *arg);
// The last word, behind every message that was sent. The hook for cancels is not called any more.
void call_finish(struct call *call, enum status code, const char *message);
uint32_t call_queued(const struct call *call); // messages sent that the client's window holds back
// Called whenever one of those has left, from inside the session: it may send, hold, let go and
// finish, nothing else.
void call_on_sent(struct call *call, void (*hook)(struct call *call, void *arg), void *arg);
// No further message is delivered until call_let_go; the client may send what its window allows,
// which is kept as bytes. May be called by `handle`.
void call_hold(struct call *call);
void call_let_go(struct call *call);
// The handler took this message (call_take_message) and has now given its slab back: its bytes do
// not count against limits.connection_bytes any more. What is not given back is, when the call
// ends.
void call_message_done(struct call *call, size_t bytes);
void call_set_user(struct call *call, void *user); // the handler's own, until the call ends
void *call_user(const struct call *call);

#endif
