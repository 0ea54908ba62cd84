// A gRPC server for the client's tests: one thread, nghttp2, answers each call with what it "cost",
// and misbehaves on request. Answers are held back a little (half of those waiting, every
// millisecond), so that calls do overlap.
#ifndef UNIT_CLIENT_FAKE_SERVER_H
#define UNIT_CLIENT_FAKE_SERVER_H

#include "client/pb.h"
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <nghttp2/nghttp2.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define FAKE_CONNS 8
#define FAKE_CALLS 65536

struct fake_server {
  // Set before fake_start.
  int fail_every;     // every n-th call ends RESOURCE_EXHAUSTED; 0: none
  int close_at_call;  // drop the connection when this call arrives; 0: never
  int goaway_at_call; // GOAWAY (all earlier calls are answered) after this call; 0: never
  bool always_goaway; // every connection gets a GOAWAY that refuses its first call
  int mute_from_call; // no answers from this call on; 0: never
  int stall_at_call;  // when this call arrives, do nothing for stall_ms
  int stall_ms;
  int compute_us[2]; // told in the answer to a fused (0) and to an unfused (1) call
  // Read after fake_stop.
  int n_calls, most_running;
  bool variants_overlapped;
  char variants[FAKE_CALLS]; // in order of arrival: '0' fused, '1' unfused
  bool timeout_header_seen;
  // Inside.
  int listen_fd, port;
  pthread_t thread;
  atomic_bool stop;
  struct fake_conn *conns[FAKE_CONNS];
};

struct fake_call {
  int32_t id;
  int number, variant;
  bool ended;
};

struct fake_conn {
  struct fake_server *server;
  int fd;
  bool dead;
  nghttp2_session *session;
  struct fake_call calls[4096]; // waiting for their answer, oldest first
  int n_calls;
  struct {
    uint8_t bytes[512];
    size_t n, sent;
  } answers[4096];
  int n_answers;
};

static struct fake_call *fake_call_of(struct fake_conn *conn, int32_t id) {
  for (int i = 0; i < conn->n_calls; i++) {
    if (conn->calls[i].id == id) return &conn->calls[i];
  }
  return NULL;
}

static int fake_begin(nghttp2_session *session, const nghttp2_frame *frame, void *arg) {
  struct fake_conn *conn = arg;
  (void)session;
  if (frame->hd.type != NGHTTP2_HEADERS || conn->n_calls == 4096) return 0;
  conn->calls[conn->n_calls++] = (struct fake_call){.id = frame->hd.stream_id};
  return 0;
}

static int fake_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                       size_t n_name, const uint8_t *value, size_t n_value, uint8_t flags,
                       void *arg) {
  struct fake_conn *conn = arg;
  (void)session, (void)frame, (void)value, (void)n_value, (void)flags;
  if (n_name == 12 && memcmp(name, "grpc-timeout", 12) == 0)
    conn->server->timeout_header_seen = true;
  return 0;
}

static int fake_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data,
                     size_t n, void *arg) {
  struct fake_call *call = fake_call_of(arg, id);
  (void)session, (void)flags;
  if (call && memmem(data, n, "off", 3)) call->variant = 1;
  return 0;
}

static void fake_arrived(struct fake_conn *conn, struct fake_call *call) {
  struct fake_server *server = conn->server;
  int running = 0;
  if (server->always_goaway) {
    nghttp2_submit_goaway(conn->session, 0, 0, NGHTTP2_NO_ERROR, NULL, 0);
    return;
  }
  call->ended = true;
  call->number = ++server->n_calls;
  if (call->number <= FAKE_CALLS) server->variants[call->number - 1] = (char)('0' + call->variant);
  for (int i = 0; i < conn->n_calls; i++) {
    if (!conn->calls[i].ended) continue;
    running++;
    if (conn->calls[i].variant != call->variant) server->variants_overlapped = true;
  }
  if (running > server->most_running) server->most_running = running;
  if (call->number == server->close_at_call) conn->dead = true;
  if (call->number == server->goaway_at_call) {
    nghttp2_submit_goaway(conn->session, 0, call->id, NGHTTP2_NO_ERROR, NULL, 0);
  }
  if (call->number == server->stall_at_call) {
    const struct timespec pause = {server->stall_ms / 1000, server->stall_ms % 1000 * 1000000L};
    nanosleep(&pause, NULL);
  }
}

static int fake_frame(nghttp2_session *session, const nghttp2_frame *frame, void *arg) {
  (void)session;
  if (!(frame->hd.flags & NGHTTP2_FLAG_END_STREAM)) return 0;
  struct fake_call *call = fake_call_of(arg, frame->hd.stream_id);
  if (call) fake_arrived(arg, call);
  return 0;
}

static int fake_close(nghttp2_session *session, int32_t id, uint32_t error, void *arg) {
  struct fake_conn *conn = arg;
  struct fake_call *call = fake_call_of(conn, id);
  (void)session, (void)error;
  if (!call) return 0;
  *call = conn->calls[--conn->n_calls];
  return 0;
}

static ssize_t fake_read(nghttp2_session *session, int32_t id, uint8_t *buffer, size_t length,
                         uint32_t *flags, nghttp2_data_source *source, void *arg) {
  struct fake_conn *conn = arg;
  const size_t left = conn->answers[source->fd].n - conn->answers[source->fd].sent;
  const size_t n = left < length ? left : length;
  memcpy(buffer, conn->answers[source->fd].bytes + conn->answers[source->fd].sent, n);
  conn->answers[source->fd].sent += n;
  if (n == left) {
    const nghttp2_nv trailer = {(uint8_t *)(uintptr_t) "grpc-status", (uint8_t *)(uintptr_t) "0",
                                11, 1, 0};
    *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
    nghttp2_submit_trailer(session, id, &trailer, 1);
  }
  return (ssize_t)n;
}

static void fake_parameter(struct pb_buf *reply, const char *key, const char *text,
                           uint64_t number) {
  struct pb_buf entry = {0}, value = {0};
  pb_put_text(&entry, 1, key);
  if (text)
    pb_put_text(&value, 3, text);
  else
    pb_put_varint(&value, 2, number);
  pb_put_message(&entry, 2, &value);
  pb_put_message(reply, 4, &entry);
  pb_free(&entry);
  pb_free(&value);
}

static void fake_answer(struct fake_conn *conn, const struct fake_call *call) {
  const struct fake_server *server = conn->server;
  nghttp2_nv headers[3] = {
      {(uint8_t *)(uintptr_t) ":status", (uint8_t *)(uintptr_t) "200", 7, 3, 0},
      {(uint8_t *)(uintptr_t) "content-type", (uint8_t *)(uintptr_t) "application/grpc", 12, 16, 0},
      {(uint8_t *)(uintptr_t) "grpc-status", (uint8_t *)(uintptr_t) "8", 11, 1, 0}};
  if (server->fail_every && call->number % server->fail_every == 0) {
    nghttp2_submit_response(conn->session, call->id, headers, 3, NULL);
    return;
  }
  struct pb_buf reply = {0};
  fake_parameter(&reply, "fusion", call->variant ? "off" : "on", 0);
  fake_parameter(&reply, "compute_us", NULL, (uint64_t)server->compute_us[call->variant]);
  fake_parameter(&reply, "hbm_read_bytes", NULL, call->variant ? 3000 : 1000);
  fake_parameter(&reply, "hbm_write_bytes", NULL, 1000);
  const int slot = conn->n_answers++ % 4096;
  conn->answers[slot].sent = 0;
  conn->answers[slot].n = 5 + reply.bytes;
  memset(conn->answers[slot].bytes, 0, 5);
  conn->answers[slot].bytes[3] = (uint8_t)(reply.bytes >> 8);
  conn->answers[slot].bytes[4] = (uint8_t)reply.bytes;
  memcpy(conn->answers[slot].bytes + 5, reply.data, reply.bytes);
  pb_free(&reply);
  const nghttp2_data_provider body = {.source.fd = slot, .read_callback = fake_read};
  nghttp2_submit_response(conn->session, call->id, headers, 2, &body);
}

static void fake_answer_some(struct fake_conn *conn) {
  int budget = (conn->n_calls + 1) / 2;
  for (int i = 0; i < conn->n_calls && budget > 0; i++) {
    struct fake_call *call = &conn->calls[i];
    const int mute = conn->server->mute_from_call;
    if (!call->ended || (mute && call->number >= mute)) continue;
    call->ended = false; // answered; fake_close takes it off the list
    fake_answer(conn, call);
    budget--;
  }
}

static void fake_pump(struct fake_conn *conn) {
  static _Thread_local uint8_t buffer[65536];
  const ssize_t n = recv(conn->fd, buffer, sizeof buffer, MSG_DONTWAIT);
  if (n == 0) conn->dead = true;
  if (n > 0 && nghttp2_session_mem_recv(conn->session, buffer, (size_t)n) < 0) conn->dead = true;
  fake_answer_some(conn);
  const uint8_t *out = NULL;
  for (ssize_t m; !conn->dead && (m = nghttp2_session_mem_send(conn->session, &out)) > 0;) {
    for (ssize_t done = 0; done < m;) {
      const ssize_t sent = send(conn->fd, out + done, (size_t)(m - done), MSG_NOSIGNAL);
      if (sent <= 0) {
        conn->dead = true;
        break;
      }
      done += sent;
    }
  }
}

static void fake_accept(struct fake_server *server) {
  const int fd = accept(server->listen_fd, NULL, NULL), one = 1;
  if (fd >= 0) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  for (int i = 0; fd >= 0 && i < FAKE_CONNS; i++) {
    if (server->conns[i]) continue;
    struct fake_conn *conn = calloc(1, sizeof *conn);
    nghttp2_session_callbacks *callbacks = NULL;
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, fake_begin);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, fake_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, fake_data);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, fake_frame);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, fake_close);
    conn->server = server;
    conn->fd = fd;
    nghttp2_session_server_new(&conn->session, callbacks, conn);
    nghttp2_session_callbacks_del(callbacks);
    nghttp2_submit_settings(conn->session, 0, NULL, 0);
    server->conns[i] = conn;
    return;
  }
  if (fd >= 0) close(fd);
}

static void fake_drop(struct fake_server *server, int i) {
  nghttp2_session_del(server->conns[i]->session);
  close(server->conns[i]->fd);
  free(server->conns[i]);
  server->conns[i] = NULL;
}

static void *fake_main(void *arg) {
  struct fake_server *server = arg;
  while (!atomic_load(&server->stop)) {
    struct pollfd polls[1 + FAKE_CONNS] = {{server->listen_fd, POLLIN, 0}};
    for (int i = 0; i < FAKE_CONNS; i++) {
      polls[1 + i] = (struct pollfd){server->conns[i] ? server->conns[i]->fd : -1, POLLIN, 0};
    }
    poll(polls, 1 + FAKE_CONNS, 1);
    if (polls[0].revents) fake_accept(server);
    for (int i = 0; i < FAKE_CONNS; i++) {
      if (server->conns[i]) fake_pump(server->conns[i]);
      if (server->conns[i] && server->conns[i]->dead) fake_drop(server, i);
    }
  }
  for (int i = 0; i < FAKE_CONNS; i++) {
    if (server->conns[i]) fake_drop(server, i);
  }
  return NULL;
}

static void fake_start(struct fake_server *server) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  server->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(server->listen_fd, (struct sockaddr *)&address, length) != 0 ||
      listen(server->listen_fd, 8) != 0 ||
      getsockname(server->listen_fd, (struct sockaddr *)&address, &length) != 0) {
    abort();
  }
  server->port = ntohs(address.sin_port);
  if (pthread_create(&server->thread, NULL, fake_main, server) != 0) abort();
}

// May be called twice. Only after it may the counts be read.
static void fake_stop(struct fake_server *server) {
  if (atomic_load(&server->stop)) return;
  atomic_store(&server->stop, true);
  pthread_join(server->thread, NULL);
  close(server->listen_fd);
}

#endif
