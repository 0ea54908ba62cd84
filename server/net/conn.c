// A connection's sockets side: reads into the loop's buffer, corked writes, back-pressure, a polite
// end.
#include "base/log.h"
#include "net/internal.h"
#include "obs/metrics.h"
#include <stdlib.h>
#include <unistd.h>

#define READ_BYTES (256 * 1024) // also the most one connection gets of a loop's turn
#define MAX_IOV 256
#define MAX_BACKLOG_BYTES (256 * 1024) // of cipher text: the peer makes us answer and does not read
#define WRITES_PER_TURN 8              // then the others' turn, however fast this peer reads
#define LINGER_NS NS_PER_S             // for the peer to read our last words and close
#define KEEPALIVE_S 120          // TCP's own: the kernel notices a peer that is gone without a word
#define STUCK_NS (60 * NS_PER_S) // a write without progress: the peer reads nothing any more

// ---- end ----

static void on_closed(uv_handle_t *handle) {
  struct conn *conn = (struct conn *)handle;
  struct loop *loop = conn->loop;
  if (conn->h2) h2_close(conn->h2); // every write callback has been called by now
  tls_close(conn->tls);
  if (conn->dirty)
    for (struct conn **at = &loop->dirty; *at; at = &(*at)->next_dirty)
      if (*at == conn) {
        *at = conn->next_dirty;
        break;
      }
  if (conn->next) conn->next->previous = conn->previous;
  if (conn->previous)
    conn->previous->next = conn->next;
  else
    loop->conns = conn->next;
  loop->n_conns--;
  atomic_fetch_sub_explicit(&loop->net->n_conns, 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&rpc_metrics.connections_closed, 1, memory_order_relaxed);
  free(conn);
  loop_conns_changed(loop);
}

void conn_abort(struct conn *conn) {
  if (conn->closing) return;
  conn->closing = true;
  if (conn->h2) h2_lost(conn->h2);
  uv_close((uv_handle_t *)&conn->tcp, on_closed);
}

static void on_shutdown(uv_shutdown_t *request, int status) {
  struct conn *conn = request->handle->data;
  if (status < 0) conn_abort(conn);
}

// Half-close and wait for the peer's EOF: closing with unread input would make the kernel send RST,
// and the peer might lose our last answer (haproxy#736).
static void half_close(struct conn *conn) {
  conn->half_closed = true;
  conn->close_by_ns = clock_now_ns() + LINGER_NS;
  if (uv_shutdown(&conn->shutdown, (uv_stream_t *)&conn->tcp, on_shutdown) != 0) conn_abort(conn);
}

// ---- write ----

void conn_mark_dirty(void *arg) {
  struct conn *conn = arg;
  if (conn->dirty) return;
  conn->dirty = true;
  conn->next_dirty = conn->loop->dirty;
  conn->loop->dirty = conn;
}

static void on_written(uv_write_t *request, int status) {
  struct conn *conn = request->handle->data;
  conn->writing = false;
  conn->stuck_since_ns = 0;
  if (status < 0) {
    conn_abort(conn);
    return;
  }
  atomic_fetch_add_explicit(&rpc_metrics.bytes_out, conn->write_bytes, memory_order_relaxed);
  if (conn->tls)
    tls_sent(conn->tls, conn->write_bytes);
  else
    h2_sent(conn->h2, conn->write_bytes);
  conn_mark_dirty(conn);
}

static size_t total_bytes(const struct iovec *iov, int n) {
  size_t bytes = 0;
  for (int i = 0; i < n; i++)
    bytes += iov[i].iov_len;
  return bytes;
}

// The socket is full: libuv goes on when it can be written again. The slices stay in the queue
// until then.
static void write_later(struct conn *conn, const struct iovec *iov, int n) {
  conn->write_bytes = total_bytes(iov, n);
  conn->writing = true;
  conn->stuck_since_ns = clock_now_ns();
  int rv = uv_write(&conn->write, (uv_stream_t *)&conn->tcp, (const uv_buf_t *)iov, (unsigned)n,
                    on_written);
  if (rv != 0) {
    conn->writing = false;
    conn_abort(conn);
  }
}
_Static_assert(sizeof(struct iovec) == sizeof(uv_buf_t), "on Linux a uv_buf_t is an iovec");

// Bytes that went at once; -1: the connection is gone.
static ssize_t write_now(struct conn *conn, const struct iovec *iov, int n) {
  int rv = uv_try_write((uv_stream_t *)&conn->tcp, (const uv_buf_t *)iov, (unsigned)n);
  if (rv < 0 && rv != UV_EAGAIN) {
    conn_abort(conn);
    return -1;
  }
  ssize_t sent = rv > 0 ? rv : 0;
  atomic_fetch_add_explicit(&rpc_metrics.bytes_out, (uint64_t)sent, memory_order_relaxed);
  return sent;
}

static void write_clear(struct conn *conn) {
  struct iovec iov[MAX_IOV];
  for (int i = 0; i < WRITES_PER_TURN; i++) {
    int n = h2_pull(conn->h2, iov, MAX_IOV);
    if (n == 0) return;
    ssize_t sent = write_now(conn, iov, n);
    if (sent < 0) return;
    h2_sent(conn->h2, (size_t)sent);
    if ((size_t)sent < total_bytes(iov, n)) break;
  }
  int n = h2_pull(conn->h2, iov, MAX_IOV);
  if (n > 0) write_later(conn, iov, n);
}

// False: nothing more to encrypt.
static bool encrypt_some(struct conn *conn) {
  struct iovec iov[MAX_IOV];
  if (!tls_ready(conn->tls)) return false;
  int n = h2_pull(conn->h2, iov, MAX_IOV);
  if (n == 0) {
    if (h2_finished(conn->h2)) tls_goodbye(conn->tls);
    return tls_output(conn->tls).bytes > 0;
  }
  size_t taken = tls_write(conn->tls, iov, n);
  if (taken == 0) conn_abort(conn);
  h2_sent(conn->h2, taken);
  return taken > 0;
}

static void write_tls(struct conn *conn) {
  for (int i = 0; i < WRITES_PER_TURN || tls_output(conn->tls).bytes > 0; i++) {
    struct slice out = tls_output(conn->tls);
    if (out.bytes == 0 && !encrypt_some(conn)) return;
    out = tls_output(conn->tls);
    struct iovec iov = {(uint8_t *)(uintptr_t)out.data, out.bytes};
    ssize_t sent = write_now(conn, &iov, 1);
    if (sent < 0) return;
    tls_sent(conn->tls, (size_t)sent);
    if ((size_t)sent < out.bytes) {
      out = tls_output(conn->tls);
      iov = (struct iovec){(uint8_t *)(uintptr_t)out.data, out.bytes};
      write_later(conn, &iov, 1);
      return;
    }
  }
  conn_mark_dirty(conn); // more to encrypt in the next turn
}

// ---- read ----

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer) {
  (void)suggested;
  struct conn *conn = handle->data;
  // libuv reads again after a full buffer; an empty one ends that until the next turn.
  bool again = conn->read_turn == conn->loop->turn;
  conn->read_turn = conn->loop->turn;
  *buffer = uv_buf_init((char *)conn->loop->read_buffer, again ? 0 : READ_BYTES);
}

// A client that breaks TLS is told so, if it has not said anything else yet.
static void tls_failed(struct conn *conn) {
  if (tls_error(conn->tls)[0]) log_warn("tls", "connection ended: %s", tls_error(conn->tls));
  h2_lost(conn->h2);
  struct slice alert = tls_output(conn->tls);
  struct iovec iov = {(uint8_t *)(uintptr_t)alert.data, alert.bytes};
  if (!conn->writing && alert.bytes > 0 && write_now(conn, &iov, 1) < 0) return;
  half_close(conn);
}

static void feed_cipher(struct conn *conn, const uint8_t *data, size_t bytes, int64_t now_ns) {
  uint8_t *plain = conn->loop->plain;
  tls_feed(conn->tls, data, bytes);
  for (ssize_t n; (n = tls_read(conn->tls, plain, PLAIN_BYTES)) != 0;) {
    if (n < 0) {
      tls_failed(conn);
      return;
    }
    h2_feed(conn->h2, plain, (size_t)n, now_ns);
  }
  conn_mark_dirty(conn);
}

static void on_read(uv_stream_t *stream, ssize_t bytes, const uv_buf_t *buffer) {
  struct conn *conn = stream->data;
  if (bytes == 0 || bytes == UV_ENOBUFS) return; // EAGAIN; the others' turn
  if (bytes < 0) {
    conn_abort(conn); // EOF or reset: nobody is there to read an answer
    return;
  }
  if (conn->half_closed) return;
  atomic_fetch_add_explicit(&rpc_metrics.bytes_in, (uint64_t)bytes, memory_order_relaxed);
  int64_t now_ns = clock_now_ns();
  spin_came(&conn->loop->spin, (size_t)bytes, now_ns);
  if (conn->tls)
    feed_cipher(conn, (const uint8_t *)buffer->base, (size_t)bytes, now_ns);
  else
    h2_feed(conn->h2, (const uint8_t *)buffer->base, (size_t)bytes, now_ns);
}

static void update_reading(struct conn *conn) {
  bool want = conn->half_closed || (h2_want_read(conn->h2) &&
                                    (!conn->tls || tls_backlog(conn->tls) < MAX_BACKLOG_BYTES));
  if (want == conn->reading) return;
  conn->reading = want;
  if (!want)
    uv_read_stop((uv_stream_t *)&conn->tcp);
  else if (uv_read_start((uv_stream_t *)&conn->tcp, on_alloc, on_read) != 0)
    conn_abort(conn);
}

// ---- turn ----

static void conn_flush(struct conn *conn) {
  if (conn->closing) return;
  // What h2 has to say to a client that never finished its handshake cannot be said.
  if (conn->tls && !tls_ready(conn->tls) && !conn->half_closed && !h2_want_read(conn->h2)) {
    conn_abort(conn);
    return;
  }
  if (!conn->writing && !conn->half_closed) {
    if (conn->tls)
      write_tls(conn);
    else
      write_clear(conn);
  }
  if (!conn->closing && !conn->writing && !conn->half_closed && h2_finished(conn->h2))
    half_close(conn);
  if (!conn->closing) update_reading(conn);
}

void conn_flush_dirty(struct loop *loop) {
  while (loop->dirty) {
    struct conn *conn = loop->dirty;
    loop->dirty = conn->next_dirty;
    conn->dirty = false;
    conn_flush(conn);
  }
}

void conn_tick(struct conn *conn, int64_t now_ns) {
  if (conn->closing) return;
  bool waited_enough = conn->close_by_ns != 0 && now_ns >= conn->close_by_ns;
  bool stuck = conn->stuck_since_ns != 0 && now_ns - conn->stuck_since_ns > STUCK_NS;
  if (waited_enough || stuck || (!conn->half_closed && !h2_tick(conn->h2, now_ns)))
    conn_abort(conn);
}

// ---- begin ----

static void link_conn(struct loop *loop, struct conn *conn) {
  conn->loop = loop;
  conn->next = loop->conns;
  if (conn->next) conn->next->previous = conn;
  loop->conns = conn;
  loop->n_conns++;
}

static bool tune(struct conn *conn) {
  return uv_tcp_nodelay(&conn->tcp, 1) == 0 && uv_tcp_keepalive(&conn->tcp, 1, KEEPALIVE_S) == 0;
}

static bool open_tls(struct conn *conn, int64_t now_ns) {
  struct tls_server *server = conn->loop->tls;
  if (!server) return true;
  tls_server_refresh(server, now_ns);
  return tls_open(server, &conn->tls) == STATUS_OK;
}

// One that was accepted, and then no memory was left to begin with it.
void conn_refuse(struct loop *loop, int fd) {
  close(fd);
  atomic_fetch_sub_explicit(&loop->net->n_conns, 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&rpc_metrics.connections_closed, 1, memory_order_relaxed);
}

// libuv takes any stream socket for a TCP one, but for the options that only TCP has.
void conn_open(struct loop *loop, int fd, bool local) {
  struct conn *conn = calloc(1, sizeof *conn);
  if (!conn || uv_tcp_init(&loop->uv, &conn->tcp) != 0) {
    free(conn);
    conn_refuse(loop, fd);
    return;
  }
  conn->tcp.data = conn;
  link_conn(loop, conn);
  loop_conns_changed(loop);
  if (uv_tcp_open(&conn->tcp, fd) != 0) {
    close(fd);
    conn_abort(conn);
    return;
  }
  int64_t now_ns = clock_now_ns();
  if ((!local && (!tune(conn) || !open_tls(conn, now_ns))) ||
      h2_open(loop->rpc, conn, now_ns, &conn->h2) != STATUS_OK) {
    conn_abort(conn);
    return;
  }
  if (loop->drain_by_ns != 0) h2_drain(conn->h2, now_ns);
  conn_mark_dirty(conn); // the flush sends our SETTINGS and starts reading
}
