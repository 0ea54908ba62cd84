// One unary gRPC call of the client, and what its answer means. The struct is the caller's memory
// and is reused from call to call; conn.c fills the result and calls `done` exactly once for each
// conn_start that succeeded.
#ifndef CLIENT_CALL_H
#define CLIENT_CALL_H

#include "base/slab.h"
#include "base/status.h"
#include <stdint.h>

#define CALL_MESSAGE_BYTES 512
#define CALL_PARTS 2

struct call_method { // request headers that many calls share
  char path[192];    // "/inference.GRPCInferenceService/ModelInfer"
  char timeout[24];  // grpc-timeout's value; "" for none
};

struct call {
  // Set by the caller.
  const struct call_method *method;
  struct slice part[CALL_PARTS]; // the message with its gRPC prefix, in one or two pieces; borrowed
                                 // until done
  int64_t expire_ns;             // the client gives up here; CLOCK_NEVER for never
  uint8_t *reply;                // first `reply_capacity` bytes of the answer's message land here
  size_t reply_capacity;
  bool grow; // reply is malloc'd (or NULL) and grows to hold the whole message
  void (*done)(struct call *call);
  void *arg;

  // The result.
  enum status status;
  char message[CALL_MESSAGE_BYTES]; // grpc-message, or ours
  size_t reply_bytes;               // captured: min(length, capacity)
  uint64_t reply_length;            // of the message, as its prefix says
  int64_t done_ns;
  bool unprocessed; // it never left, or the server said while draining (GOAWAY) that it has not
                    // looked at it

  // conn.c's.
  struct conn *conn;
  struct call *next, *prev;
  int32_t stream_id;
  int32_t http_status;
  int32_t grpc_status;   // -1: none came
  uint32_t prefix_bytes; // of the reply's 5
  uint8_t prefix[5];
  uint64_t reply_seen; // message bytes so far
  size_t sent_bytes;
  bool faulty; // the answer broke gRPC's framing
  bool active;
};

void call_reset(struct call *call); // clear result and conn.c's part
// DATA of the answer, in any pieces. False when there is no memory for it.
bool call_receive(struct call *call, const uint8_t *data, size_t bytes);
void call_header(struct call *call, struct slice name, struct slice value);
// The status by gRPC's rules, from grpc-status, HTTP status, HTTP/2 error code, framing.
void call_conclude(struct call *call, uint32_t http2_error);
// Milliseconds or finer, at most 8 digits: "1500m", "250000u". 0 or less gives "".
void call_timeout_text(int64_t timeout_ns, char out[24]);
// A server's text on its way to a terminal: control characters become spaces, and
// what is no UTF-8 (or one of U+0080..U+009F) "?", in place.
void call_tame(char *text);
// `text` with %XX undone into out (cut at a UTF-8 boundary).
void call_percent_decode(struct slice text, char *out, size_t out_bytes);

#endif
