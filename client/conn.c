#include "client/conn.h"
#include "base/clock.h"
#include "base/log.h"
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ATTEMPT_NS (5 * NS_PER_S) // TCP, TLS and SETTINGS together
#define RETRY_PAUSE_MS 50
#define READS_PER_TURN 4 // of the shared buffer, before other connections get their turn
#define TLS_RECORD_BYTES (16 * 1024)

struct conn {
  struct conn_options options;
  enum conn_state state;
  struct h2 h2;
  struct tls *tls;  // NULL: clear text, or no socket
  bool has_session; // h2 is open
  bool closing;     // by conn_close: freed when both handles are closed
  bool poll_open;   // handle initialised and not being closed
  int handles;      // open or being closed
  int fd;
  int poll_events;
  int64_t give_up_ns;    // of the present round of trying
  int64_t down_since_ns; // when that round began
  uv_poll_t poll;
  uv_timer_t timer; // limit of an attempt, or pause before the next
  char error[512];
};

static void begin_connect(struct conn *conn);

// ---- going down ---------------------------------------------------------------------------------

static void on_handle_closed(uv_handle_t *handle) {
  struct conn *conn = handle->data;
  conn->handles--;
  if (conn->closing && conn->handles == 0) free(conn);
}

static void drop_socket(struct conn *conn) {
  if (conn->poll_open) uv_close((uv_handle_t *)&conn->poll, on_handle_closed);
  conn->poll_open = false;
  tls_close(conn->tls);
  conn->tls = NULL;
  if (conn->fd >= 0) close(conn->fd);
  conn->fd = -1;
}

static void drop_session(struct conn *conn, enum status status, const char *message) {
  if (!conn->has_session) return;
  h2_fail_calls(&conn->h2, status, message);
  h2_close(&conn->h2);
  conn->has_session = false;
}

static void on_timer(uv_timer_t *timer);

// The connection is of no more use: end its calls, then pause and try again, or give up.
static void fail(struct conn *conn, const char *why) {
  const int64_t now = clock_now_ns();
  if (conn->state == CONN_READY || conn->state == CONN_DRAINING) conn->down_since_ns = now;
  const bool give_up =
      now - conn->down_since_ns >= conn->give_up_ns || (conn->tls && tls_hopeless(conn->tls));
  snprintf(conn->error, sizeof conn->error, "%s", why);
  conn->state = give_up ? CONN_DEAD
                        : CONN_WAITING; // before the calls end: their owner may try to start others
  drop_socket(conn);
  drop_session(conn, STATUS_UNAVAILABLE, conn->error);
  uv_timer_stop(&conn->timer);
  if (give_up)
    conn->options.on_state(conn, conn->options.arg);
  else
    uv_timer_start(&conn->timer, on_timer, RETRY_PAUSE_MS, 0);
}

// The peer has ended the connection. Before its first SETTINGS that is often TLS against clear
// text.
static void fail_closed(struct conn *conn) {
  fail(conn, conn->h2.settings_seen || conn->tls
                 ? "the server closed the connection"
                 : "the server closed the connection before it said anything; if it expects TLS: "
                   "--tls");
}

static void fail_errno(struct conn *conn, const char *what, int error) {
  char text[256];
  snprintf(text, sizeof text, "%s: %s", what, strerror(error));
  fail(conn, text);
}

static void on_timer(uv_timer_t *timer) {
  struct conn *conn = timer->data;
  if (conn->state == CONN_CONNECTING)
    fail(conn, "connect: no answer within 5 s");
  else if (conn->state == CONN_HANDSHAKE)
    fail(conn, conn->tls ? "connected, but no TLS and HTTP/2 SETTINGS within 5 s"
                         : "connected, but no HTTP/2 SETTINGS within 5 s");
  else if (conn->state == CONN_WAITING && conn->handles > 1)
    uv_timer_start(timer, on_timer, 1, 0);
  else if (conn->state == CONN_WAITING)
    begin_connect(conn);
}

// ---- reading and writing ------------------------------------------------------------------------

static void on_poll(uv_poll_t *poll, int status, int events);

static void watch(struct conn *conn, int events) {
  if (conn->poll_events == events || !conn->poll_open) return;
  conn->poll_events = events;
  uv_poll_start(&conn->poll, events, on_poll);
}

static void became_ready(struct conn *conn) {
  conn->state = CONN_READY;
  conn->error[0] = 0;
  conn->give_up_ns = conn->options.give_up_ns;
  uv_timer_stop(&conn->timer);
  conn->options.on_state(conn, conn->options.arg);
}

static const char *not_http2(const struct conn *conn) {
  return conn->tls ? "the server does not speak HTTP/2"
                   : "the server does not speak HTTP/2 in clear text; if it expects TLS: --tls";
}

// After bytes came in or went out: has the state of the session moved?
static void follow_session(struct conn *conn) {
  if (h2_over(&conn->h2)) {
    fail(conn, conn->h2.settings_seen ? "the server broke the HTTP/2 protocol" : not_http2(conn));
    return;
  }
  if (conn->state == CONN_HANDSHAKE && conn->h2.settings_seen) became_ready(conn);
  if (conn->state == CONN_READY && conn->h2.draining) conn->state = CONN_DRAINING;
  if (conn->state == CONN_DRAINING && conn->h2.n_running == 0) {
    fail(conn, "the server is draining this connection (GOAWAY)");
  }
}

// Bytes read; 0: none now; -1: the connection has failed and is gone.
static ssize_t read_clear(struct conn *conn) {
  const struct conn_options *options = &conn->options;
  ssize_t n = 0;
  do {
    n = recv(conn->fd, options->read_buffer, options->read_bytes, MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  if (n > 0) return n;
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
  if (n < 0)
    fail_errno(conn, "read", errno);
  else
    fail_closed(conn);
  return -1;
}

// What has come over TLS is read to its end at once: decrypted bytes that stay with OpenSSL would
// not make the socket readable again.
static ssize_t read_tls(struct conn *conn) {
  const ssize_t n = tls_read(conn->tls, conn->options.read_buffer, conn->options.read_bytes);
  if (n < 0) fail(conn, tls_error(conn->tls));
  return n;
}

static void on_readable(struct conn *conn) {
  const bool whole = conn->tls != NULL;
  for (int i = 0; i < READS_PER_TURN || whole; i++) {
    const ssize_t n = whole ? read_tls(conn) : read_clear(conn);
    if (n < 0) return;
    if (n == 0) break;
    const int error = h2_feed(&conn->h2, conn->options.read_buffer, (size_t)n);
    if (error) {
      fail(conn, conn->h2.settings_seen ? h2_error_text(error) : not_http2(conn));
      return;
    }
    if (!whole && (size_t)n < conn->options.read_bytes) break;
  }
  conn->options.on_dirty(conn, conn->options.arg); // window updates, acknowledgements
  follow_session(conn);
}

// A record at a time, gathered: slices are smaller than what is worth encrypting. Stops when the
// socket takes no more; false: the connection has failed and is gone.
static bool write_tls(struct conn *conn) {
  uint8_t record[TLS_RECORD_BYTES];
  while (!outq_empty(conn->h2.out)) {
    const size_t bytes = outq_peek(conn->h2.out, record, sizeof record);
    const ssize_t n = tls_write(conn->tls, record, bytes);
    if (n == 0) return true;
    if (n < 0) {
      fail(conn, tls_error(conn->tls));
      return false;
    }
    outq_advance(conn->h2.out, (size_t)n);
  }
  return true;
}

static bool write_clear(struct conn *conn) {
  const int error = outq_write(conn->h2.out, conn->fd);
  if (error) fail_errno(conn, "write", -error);
  return error == 0;
}

void conn_flush(struct conn *conn) {
  if (!conn->has_session || conn->state == CONN_CONNECTING) return;
  for (;;) {
    const int error = outq_empty(conn->h2.out) ? h2_pull(&conn->h2) : 0;
    if (error) {
      fail(conn, h2_error_text(error));
      return;
    }
    if (outq_empty(conn->h2.out)) break;
    if (!(conn->tls ? write_tls(conn) : write_clear(conn))) return;
    if (!outq_empty(conn->h2.out)) { // a handshake under way waits for the peer
      const bool writable = !conn->tls || tls_wants_write(conn->tls);
      watch(conn, UV_READABLE | (writable ? UV_WRITABLE : 0));
      return;
    }
  }
  watch(conn, UV_READABLE);
  follow_session(conn);
}

static void on_connected(struct conn *conn) {
  int error = 0;
  socklen_t length = sizeof error;
  if (getsockopt(conn->fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  if (error) {
    fail_errno(conn, "connect", error);
    return;
  }
  if (h2_open(&conn->h2, conn->options.headers) != STATUS_OK) {
    fail(conn, "no memory for an HTTP/2 session");
    return;
  }
  conn->has_session = true;
  if (conn->options.tls) {
    conn->tls = tls_open(conn->options.tls, conn->fd, conn->options.tls_name);
    if (!conn->tls) {
      fail(conn, "no memory for TLS");
      return;
    }
  }
  conn->state = CONN_HANDSHAKE;
  conn_flush(conn);
}

static void on_poll(uv_poll_t *poll, int status, int events) {
  struct conn *conn = poll->data;
  if (conn->state == CONN_CONNECTING) {
    on_connected(conn);
    return;
  }
  if (status < 0 || events & UV_READABLE) on_readable(conn);
  if (events & UV_WRITABLE && conn->poll_open) conn_flush(conn);
}

// ---- going up -----------------------------------------------------------------------------------

static void begin_connect(struct conn *conn) {
  const int one = 1;
  const struct conn_options *options = &conn->options;
  const struct target *target = options->target;
  conn->state = CONN_CONNECTING;
  conn->fd = socket(target->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (conn->fd < 0) {
    fail_errno(conn, "socket", errno);
    return;
  }
  if (target->address.ss_family != AF_UNIX)
    setsockopt(conn->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (connect(conn->fd, (const struct sockaddr *)&target->address, target->address_bytes) != 0 &&
      errno != EINPROGRESS) {
    fail_errno(conn, "connect", errno);
    return;
  }
  if (uv_poll_init_socket(options->loop, &conn->poll, conn->fd) != 0) {
    fail(conn, "cannot watch the socket");
    return;
  }
  conn->poll.data = conn;
  conn->poll_open = true;
  conn->poll_events = 0;
  conn->handles++;
  watch(conn, UV_WRITABLE);
  uv_timer_start(&conn->timer, on_timer, ATTEMPT_NS / NS_PER_MS, 0);
}

enum status conn_open(const struct conn_options *options, struct conn **out) {
  struct conn *conn = calloc(1, sizeof *conn);
  if (!conn) return STATUS_RESOURCE_EXHAUSTED;
  conn->options = *options;
  conn->fd = -1;
  conn->give_up_ns = options->first_give_up_ns;
  conn->down_since_ns = clock_now_ns();
  uv_timer_init(options->loop, &conn->timer);
  conn->timer.data = conn;
  conn->handles = 1;
  conn->state = CONN_WAITING;
  uv_timer_start(&conn->timer, on_timer, 0,
                 0); // so that on_state never comes before conn_open has returned
  *out = conn;
  return STATUS_OK;
}

void conn_close(struct conn *conn) {
  conn->state = CONN_DEAD;
  conn->closing = true;
  drop_socket(conn);
  drop_session(conn, STATUS_CANCELLED, "the client closed the connection");
  uv_timer_stop(&conn->timer);
  uv_close((uv_handle_t *)&conn->timer, on_handle_closed);
}

// ---- calls --------------------------------------------------------------------------------------

bool conn_start(struct conn *conn, struct call *call) {
  if (conn->state != CONN_READY) return false;
  conn->options.on_dirty(conn, conn->options.arg);
  if (!h2_start(&conn->h2, call)) {
    conn->state = CONN_DRAINING; // conn_flush looks after it
    return false;
  }
  call->conn = conn;
  return true;
}

void conn_cancel(struct conn *conn, struct call *call, enum status status, const char *message) {
  FW_ASSERT(call->active && call->conn == conn);
  h2_cancel(&conn->h2, call, status, message);
  if (conn->has_session) conn->options.on_dirty(conn, conn->options.arg);
}

void conn_expire(struct conn *conn, int64_t now_ns) {
  // Calls of one run share one time limit, so the oldest expires first.
  while (conn->has_session && conn->h2.first && conn->h2.first->expire_ns <= now_ns) {
    conn_cancel(conn, conn->h2.first, STATUS_DEADLINE_EXCEEDED,
                "no answer in time; given up by the client");
  }
}

enum conn_state conn_state(const struct conn *conn) {
  return conn->state;
}

const char *conn_error(const struct conn *conn) {
  return conn->error;
}

uint32_t conn_max_calls(const struct conn *conn) {
  return conn->has_session ? h2_max_calls(&conn->h2) : 0;
}

int conn_running(const struct conn *conn) {
  return conn->has_session ? conn->h2.n_running : 0;
}
