// What the files of net/ share and nobody else sees.
#ifndef NET_INTERNAL_H
#define NET_INTERNAL_H

#include "base/ring.h"
#include "net/net.h"
#include "net/spin.h"
#include "net/tls.h"
#include "rpc/h2.h"
#include <pthread.h>
#include <uv.h>

#define PLAIN_BYTES (64 * 1024)
#define NET_MAX_LOOPS 64 // far above LIMIT_LOOPS; a wild count is our bug

struct loop;

// One connection. Owned by its loop for life.
struct conn {
  uv_tcp_t tcp; // first: its address is the connection's
  uv_write_t write;
  uv_shutdown_t shutdown;
  struct loop *loop;
  struct h2 *h2;
  struct tls *tls; // NULL: clear text
  struct conn *next, *previous, *next_dirty;
  uint64_t read_turn;     // the last turn of the loop in which it was read from
  size_t write_bytes;     // of the write under way
  int64_t stuck_since_ns; // when that write began; 0: none is under way
  int64_t close_by_ns;    // half-closed: the end of politeness; 0: open
  bool dirty, reading, writing, half_closed, closing;
};

struct loop {
  struct net *net;
  int index;
  struct rpc *rpc;
  uv_loop_t uv;
  uv_async_t wake_async;    // the app has finished work for `reap`
  uv_async_t control_async; // a connection was handed over, or the drain began
  uv_prepare_t prepare;
  uv_check_t check;
  uv_idle_t awake; // active: the next poll does not sleep
  struct spin spin;
  uv_timer_t deadline_timer, tick_timer;
  int64_t armed_ns; // when deadline_timer fires; CLOCK_NEVER: not armed
  struct wake wake;
  struct ring handover; // descriptors from the acceptor, each plus one as a pointer
  struct conn *conns, *dirty;
  int n_conns;
  uint64_t turn;        // begins at 1
  int64_t drain_by_ns;  // 0: not draining
  int n_cut;            // calls cut off by the drain's end
  size_t given_bytes;   // by the pools to malloc, and not told yet
  uint8_t *read_buffer; // nghttp2 consumes it within the read callback
  struct tls_server *tls;
  uint8_t *plain; // what TLS makes of the read buffer; NULL without TLS
  pthread_t thread;
  bool uv_ready, started, joined;
};

// Accepts on one socket; runs on `loop`, for all loops or for that one alone.
struct listener {
  struct net *net;
  struct loop *loop;
  bool local;  // a Unix socket
  bool shared; // with the sockets of other loops (SO_REUSEPORT): what is accepted stays here
  uv_poll_t poll;
  int fd, spare_fd; // spare: given up for a moment when descriptors run out, so that the client
                    // hears no
  int port;
  int next_loop;
  bool polling;
};

struct MHD_Daemon;
struct admin {
  struct MHD_Daemon *daemon;
  int port;
};

struct net {
  struct net_options options;
  struct method_table *methods;
  struct budget total;
  struct listener listeners[NET_MAX_LOOPS + 1]; // the last one: server.unix
  struct admin admin;
  _Atomic int64_t n_conns;
  _Atomic int64_t drain_by_ns; // CLOCK_NEVER: serve on
  int n_loops;
  struct loop loops[];
};

// conn.c; loop thread
// Takes the descriptor, also when it fails. Local: a Unix socket.
void conn_open(struct loop *loop, int fd, bool local);
void conn_refuse(struct loop *loop, int fd); // accepted, but there is no room for it
void conn_flush_dirty(struct loop *loop);    // one write per connection that has something to say
void conn_tick(struct conn *conn, int64_t now_ns);
void conn_abort(struct conn *conn); // at once, without a word; calls are cancelled
void conn_mark_dirty(void *conn);   // rpc_options.dirty

// loop.c
MUST_USE enum status loop_open(struct net *net, int index, struct error *err);
MUST_USE enum status loop_start(struct loop *loop, struct error *err);
void loop_join(struct loop *loop);
void loop_close(struct loop *loop); // joined or never started
void loop_adopt(struct loop *loop, int fd, bool local, const struct loop *acceptor); // its thread
void loop_conns_changed(struct loop *loop); // a connection came or went

// listener.c
MUST_USE enum status listener_open(struct net *net, struct error *err);
MUST_USE enum status listener_start(struct net *net, struct error *err); // before the loops run
void listener_stop(struct loop *loop); // its thread: new connections are refused
void listener_close(struct net *net);

// admin.c
MUST_USE enum status admin_open(struct net *net, struct error *err);
void admin_close(struct net *net);

#endif
