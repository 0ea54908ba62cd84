// One HTTP/2 connection to the server (prior knowledge, or ALPN over TLS): an nghttp2 client
// session on a non-blocking socket watched by libuv. Many calls at once. Writes are corked:
// conn_start only queues; conn_flush (once per loop turn, from net.c) sends all that is queued with
// one writev. Loop thread only.
//
// A connection that breaks ends its calls with UNAVAILABLE and is opened again after a pause, until
// `give_up_ns` of fruitless trying; calls are started on ready connections only.
#ifndef CLIENT_CONN_H
#define CLIENT_CONN_H

#include "client/call.h"
#include "client/h2.h"
#include "client/target.h"
#include "client/tls.h"
#include <uv.h>

enum conn_state {
  CONN_CONNECTING, // TCP
  CONN_HANDSHAKE,  // TLS where asked for, and waiting for the server's SETTINGS
  CONN_READY,
  CONN_DRAINING, // GOAWAY came: running calls finish, then it is opened anew
  CONN_WAITING,  // pause before the next try
  CONN_DEAD,     // given up
};

struct conn;
struct conn_options {
  uv_loop_t *loop;
  const struct target *target; // this and the next three are borrowed
  const struct h2_headers *headers;
  struct tls_context *tls;  // NULL: clear text
  const char *tls_name;     // the name to check
  int64_t first_give_up_ns; // how long to go on trying before the first success; 0: one attempt
  int64_t give_up_ns;       // the same after a connection broke
  uint8_t *read_buffer;     // shared by all connections of the loop
  size_t read_bytes;
  void (*on_dirty)(struct conn *conn, void *arg); // has something to flush
  void (*on_state)(struct conn *conn, void *arg); // became READY or DEAD
  void *arg;
};

MUST_USE enum status conn_open(const struct conn_options *options, struct conn **out);
// Ends running calls with CANCELLED; never from a `done`. The loop must run once more to free it.
void conn_close(struct conn *conn);
enum conn_state conn_state(const struct conn *conn);
const char *conn_error(const struct conn *conn);  // why it is not ready; "" when nothing went wrong
uint32_t conn_max_calls(const struct conn *conn); // the server's SETTINGS_MAX_CONCURRENT_STREAMS
int conn_running(const struct conn *conn);

// Begin a call. False when the connection is not ready: nothing happened, `done` will not be
// called.
MUST_USE bool conn_start(struct conn *conn, struct call *call);
// Give a call up: RST_STREAM to the server, `done` at once with this status and message.
void conn_cancel(struct conn *conn, struct call *call, enum status status, const char *message);
void conn_flush(struct conn *conn);
void conn_expire(struct conn *conn,
                 int64_t now_ns); // calls past expire_ns end with DEADLINE_EXCEEDED

#endif
