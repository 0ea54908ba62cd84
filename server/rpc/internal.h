// What the files of rpc/ share and nobody else sees.
#ifndef RPC_INTERNAL_H
#define RPC_INTERNAL_H

#include "rpc/call_table.h"
#include "rpc/guard.h"
#include "rpc/h2.h"
#include "rpc/mem.h"
#include "rpc/method.h"
#include "rpc/outq.h"
#include <nghttp2/nghttp2.h>

struct rpc {
  int loop;
  struct rpc_limits limits;
  const struct method_table *methods;
  void *app;
  struct trace_source *trace; // NULL: no traces
  void (*dirty)(void *owner);
  struct slab_pool *pool;
  struct mem_pool *mem;
  nghttp2_mem h2_mem; // nghttp2's view of `mem`
  nghttp2_session_callbacks *callbacks;
  nghttp2_option *option;
  struct deadline_heap deadlines;
  struct call_table calls;
  uint64_t random;  // for the ages of connections
  struct error err; // scratch: 1.3 KiB that need not be on every stack
};

// An answer on its way: 5-byte prefix and head (copied behind this struct), then borrowed slices.
struct answer {
  struct out_ref ref; // first: one reference of the call, one of each queued slice
  struct h2 *h2;
  struct answer *next; // of a stream
  void (*done)(void *arg);
  void *arg;
  uint64_t total_bytes, offered_bytes; // offered: handed to nghttp2 as frames
  int64_t counted_bytes;               // in h2->room.held_bytes
  size_t at;                           // bytes of slices[current] already queued
  int n_slices, current;
  struct slice slices[];
};

// Bytes of a stream that came while its handler held.
struct backlog {
  struct slab *slab; // NULL: none
  size_t at, filled;
  int64_t counted; // in h2->room.held_bytes and h2->busy_bytes
};

// What a call of many messages has beside the rest. call->answer is the first message that has not
// left.
struct stream {
  struct answer *last;
  uint32_t n_queued;
  bool many_in;
  bool begun;         // response headers are submitted
  bool asleep;        // the data provider waits to be resumed
  bool ending;        // nothing comes behind what is queued, but the trailers
  bool held, feeding; // call_hold; call_let_go is at work
  bool closed_behind; // END_STREAM has come behind what lies aside
  enum status end_code;
  char *end_text;
  void (*on_sent)(struct call *call, void *arg);
  void *sent_arg, *user;
  struct backlog aside;
  int64_t taken_bytes, message_since_ns;
};

// The request headers being received; one block at a time per connection (HTTP/2 forbids
// interleaving).
#define PATH_KEPT_BYTES 200
struct header_block {
  struct call *call; // NULL: ignored
  uint64_t list_bytes;
  bool trailers, over_limit, is_post, content_type_ok, timeout_bad, path_seen, authorized;
  uint16_t path_bytes;
  char path[PATH_KEPT_BYTES]; // beginning of an unknown path, for the error text
  bool state_over;            // more of it came than is kept
  uint16_t state_bytes;
  char state[GRPC_TRACESTATE_BYTES]; // tracestate, where calls are traced
};

enum drain_state { DRAIN_NO, DRAIN_BEGUN, DRAIN_NOTICED, DRAIN_FINAL }; // noticed: the PING too

struct h2 {
  struct rpc *rpc;
  nghttp2_session *session;
  void *owner;
  struct outq outq;
  struct grpc_room room;
  int64_t busy_bytes;     // of held_bytes: whole messages and answers. What is still arriving never
                          // blocks itself
  uint64_t unheard_bytes; // since a frame began
  uint64_t credit_bytes;  // received, not yet given back to the connection's window
  struct guard guard;
  struct header_block headers;
  struct call *calls,
      *recent; // recent: the last one looked up, which is most often the next one too
  uint32_t n_calls;
  int64_t now_ns;
  uint32_t n_answers; // begun and not wholly sent
  int64_t opened_ns, received_ns, age_by_ns, idle_since_ns, sent_ns, headers_since_ns,
      drain_since_ns;
  enum drain_state drain;
  bool heard; // a frame began in what was fed last
  bool fed;   // something was received
  bool asked; // ... and nothing since a keepalive PING
  bool settings_seen;
  bool closing;   // our last GOAWAY is submitted: read nothing more
  bool last_word; // ... and has left the session: say nothing more
  bool dead;      // the session must not be called again
};

// h2.c
void h2_goaway_left(struct h2 *h2);
void h2_ping_answered(struct h2 *h2, const uint8_t opaque[8]);

// h2_recv.c
int h2_on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *arg);
int h2_on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                 size_t name_bytes, const uint8_t *value, size_t value_bytes, uint8_t flags,
                 void *arg);
int h2_on_invalid_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                         size_t name_bytes, const uint8_t *value, size_t value_bytes, uint8_t flags,
                         void *arg);
int h2_on_data(nghttp2_session *session, uint8_t flags, int32_t stream_id, const uint8_t *data,
               size_t bytes, void *arg);
int h2_on_begin_frame(nghttp2_session *session, const nghttp2_frame_hd *head, void *arg);
int h2_on_frame_recv(nghttp2_session *session, const nghttp2_frame *frame, void *arg);
int h2_on_stream_close(nghttp2_session *session, int32_t stream_id, uint32_t code, void *arg);
struct call *h2_call_of_stream(struct h2 *h2, int32_t stream_id); // NULL: none, or refused
// Ends a call whose stream or connection is gone: cancel hook if nobody answered, everything given
// back.
void h2_call_end(struct call *call);

// h2_send.c
ssize_t h2_on_send(nghttp2_session *session, const uint8_t *data, size_t bytes, int flags,
                   void *arg);
int h2_on_send_data(nghttp2_session *session, nghttp2_frame *frame, const uint8_t *header,
                    size_t bytes, nghttp2_data_source *source, void *arg);
int h2_on_frame_send(nghttp2_session *session, const nghttp2_frame *frame, void *arg);
ssize_t h2_data_length(nghttp2_session *session, uint8_t frame_type, int32_t stream_id,
                       int32_t session_window, int32_t stream_window, uint32_t max_frame,
                       void *arg);
void h2_call_reply(struct call *call); // sends call->answer, then the trailers
// Trailers-Only answer to a call that nobody has answered. The cancel hook is not called.
void h2_call_fail(struct call *call, enum status code, const char *message);
void h2_call_fail_http(struct call *call, const char status[4]); // "415", "405": no gRPC at all
// Says why and stops: GOAWAY with debug text, then the connection ends. Once; later calls are
// ignored.
void h2_goaway(struct h2 *h2, uint32_t code, const char *text);

// Headers of a stream's answer, with stream_read for the rest.
void h2_stream_begin(struct call *call);
// The call ends here for its handler; what is queued and then the trailers are still to leave.
void h2_stream_finish(struct call *call, enum status code, const char *message);
// grpc-status and, with text, grpc-message: how many fields. `number` and `text` must outlive them.
size_t h2_status_fields(nghttp2_nv fields[2], enum status code, uint8_t number[4], uint8_t *text,
                        size_t text_bytes);

// call.c
// Runs the hook once; the call is then CALL_RECEIVING. `why`: as for the hook.
void call_cancel(struct call *call, enum status why);
struct answer *answer_make(struct call *call, const void *head, size_t head_bytes,
                           const struct slice *payload, int n_payload);

// stream.c; for calls with call->stream
bool stream_open(struct call *call);                                    // false: no memory
void stream_data(struct call *call, const uint8_t *data, size_t bytes); // many_in: DATA has come
void stream_closed(struct call *call);                                  // many_in: END_STREAM
void stream_end(struct call *call, enum status code, const char *message);
void stream_forget(struct call *call);     // messages of which nothing has left are dropped
void stream_frame_left(struct call *call); // a DATA frame was written
ssize_t stream_read(nghttp2_session *session, int32_t stream_id, uint8_t *buffer, size_t length,
                    uint32_t *data_flags, nghttp2_data_source *source, void *arg);
bool stream_late(const struct call *call, int64_t limit_ns, int64_t now_ns);
void stream_drain(struct call *call);
void stream_drop_aside(struct call *call);
void stream_close(struct call *call); // everything is given back; the call goes on to its end

#endif
