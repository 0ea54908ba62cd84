// A unary gRPC call as its handler sees it. Loop thread only, all of it.
//
// Life: HEADERS arrive -> message assembled in a slab -> method handler called once with the whole
// message -> the handler answers at once, or keeps the call_ref and answers later through
// call_find. If the client resets, the connection dies or the deadline passes before an answer, the
// cancel hook is called once, the rpc layer sends what is owed (DEADLINE_EXCEEDED), and call_find
// finds nothing from then on. Exactly one answer per call, never two.
#ifndef RPC_CALL_H
#define RPC_CALL_H

#include "base/slab.h"
#include "rpc/call_ref.h"

struct call;

struct method {
  const char *path; // "/inference.GRPCInferenceService/ModelInfer"
  void (*handle)(struct call *call, void *app);
};

struct call_ref call_ref_of(const struct call *call);
struct slice call_message(const struct call *call); // the whole request message
struct slab *
call_take_message(struct call *call); // moves the slab that call_message points into to the handler
struct slab_pool *call_pool(struct call *call);    // this loop's pool, for the response
int64_t call_deadline_ns(const struct call *call); // CLOCK_NEVER: none. Absolute, from HEADERS on
int64_t call_headers_ns(const struct call *call);  // when HEADERS arrived
int64_t call_message_ns(const struct call *call);  // when the message was complete
void *call_app(struct call *call);                 // the `app` pointer given to rpc_open
int call_loop(const struct call *call);
void call_on_cancel(struct call *call, void (*hook)(void *arg), void *arg);

// Answer OK with one message: `head` (copied) followed by `payload` slices (borrowed until `done`,
// which is called exactly once on this loop thread, also when the stream or the connection dies
// first). n_payload may be 0.
#define CALL_MAX_PAYLOAD 64
void call_reply(struct call *call, const void *head, size_t head_bytes, const struct slice *payload,
                int n_payload, void (*done)(void *arg), void *arg);
// Answer with a status and no message (Trailers-Only). The text is percent-encoded by the rpc layer
// and capped at 1 KiB.
void call_fail(struct call *call, enum status code, const char *message);

#endif
