// The slots of one loop's calls. Slots never move, so a call may be pointed to while it lives;
// across threads it is named by slot and generation. Loop thread only.
#ifndef RPC_CALL_TABLE_H
#define RPC_CALL_TABLE_H

#include "obs/trace.h"
#include "rpc/call.h"
#include "rpc/deadline.h"
#include "rpc/grpc.h"
#include "rpc/rpc.h"

enum call_state {
  CALL_FREE,
  CALL_RECEIVING, // headers or message incomplete
  CALL_HANDLING,  // the handler has it; the only state that call_find shows
  CALL_ANSWERED,  // an answer is submitted, or nobody waits for one
};

struct answer;
struct h2;
struct call {
  struct rpc *rpc;
  struct h2 *h2;
  struct call *next, *previous; // the connection's list; `next` also links free slots
  int32_t stream_id;
  uint32_t slot, generation;
  enum call_state state;
  enum grpc_encoding encoding;
  bool remote_closed; // END_STREAM has come
  struct deadline deadline;
  int64_t headers_ns, message_ns;
  int64_t reserved_bytes; // in h2->room.held_bytes; call_reserve
  const struct method *method;
  struct grpc_framer framer;
  cancel_hook cancel;
  void *cancel_arg;
  char traceparent[GRPC_TRACEPARENT_BYTES + 1]; // W3C Trace Context; empty: none came
  struct answer *answer;    // of a stream: the first of those that have not left
  struct stream *stream;    // NULL: unary
  struct trace_span *trace; // NULL: not traced
};

#define CALL_TABLE_CHUNK 256
#define CALL_TABLE_MAX (1 << 17) // calls of one loop; more are refused (REFUSED_STREAM)
struct call_table {
  struct call *chunks[CALL_TABLE_MAX / CALL_TABLE_CHUNK];
  uint32_t n_chunks, n_used;
  struct call *free;
};

void call_table_init(struct call_table *table);
void call_table_deinit(struct call_table *table); // every slot must be free
// Zeroed but for slot and generation; state CALL_RECEIVING. NULL: full or no memory.
struct call *call_table_take(struct call_table *table);
void call_table_put(struct call_table *table, struct call *call); // its generation ends here
struct call *call_table_find(struct call_table *table, uint32_t slot,
                             uint32_t generation); // NULL: stale

#endif
