// One gRPC call on a connection of its own, over nghttp2's client half (whose allocations are not
// ours and never fail).
#ifndef FAULT_H2_CLIENT_H
#define FAULT_H2_CLIENT_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <nghttp2/nghttp2.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct h2_call {
  const uint8_t *request; // with its 5-byte prefix
  size_t request_bytes, sent;
  uint8_t reply[65536];
  size_t reply_bytes;
  int grpc_status; // -1: none came
  bool closed;
};

static ssize_t h2_read_request(nghttp2_session *session, int32_t stream, uint8_t *buf,
                               size_t length, uint32_t *flags, nghttp2_data_source *source,
                               void *user) {
  (void)session, (void)stream, (void)user;
  struct h2_call *call = source->ptr;
  size_t n = call->request_bytes - call->sent < length ? call->request_bytes - call->sent : length;
  memcpy(buf, call->request + call->sent, n);
  call->sent += n;
  if (call->sent == call->request_bytes) *flags |= NGHTTP2_DATA_FLAG_EOF;
  return (ssize_t)n;
}
static int h2_on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                        size_t name_bytes, const uint8_t *value, size_t value_bytes, uint8_t flags,
                        void *user) {
  (void)session, (void)frame, (void)value_bytes, (void)flags;
  struct h2_call *call = user;
  if (name_bytes == 11 && memcmp(name, "grpc-status", 11) == 0)
    call->grpc_status = atoi((const char *)value);
  return 0;
}
static int h2_on_data(nghttp2_session *session, uint8_t flags, int32_t stream, const uint8_t *data,
                      size_t bytes, void *user) {
  (void)session, (void)flags, (void)stream;
  struct h2_call *call = user;
  if (call->reply_bytes + bytes > sizeof call->reply) return NGHTTP2_ERR_CALLBACK_FAILURE;
  memcpy(call->reply + call->reply_bytes, data, bytes);
  call->reply_bytes += bytes;
  return 0;
}
static int h2_on_close(nghttp2_session *session, int32_t stream, uint32_t code, void *user) {
  (void)session, (void)stream, (void)code;
  ((struct h2_call *)user)->closed = true;
  return 0;
}

static bool h2_send_all(nghttp2_session *session, int fd) {
  const uint8_t *out;
  ssize_t n;
  while ((n = nghttp2_session_mem_send(session, &out)) > 0)
    for (ssize_t at = 0, sent; at < n; at += sent)
      if ((sent = send(fd, out + at, (size_t)(n - at), MSG_NOSIGNAL)) <= 0) return false;
  return n == 0;
}

// False: the server closed the connection before it answered, or was silent for `seconds`.
static bool h2_exchange(nghttp2_session *session, int fd, struct h2_call *call) {
  uint8_t in[16384];
  while (!call->closed) {
    if (!h2_send_all(session, fd)) return false;
    ssize_t n;
    do
      n = recv(fd, in, sizeof in, 0);
    while (n < 0 && errno == EINTR); // libuv's io_uring interrupts the thread that made it
    if (n <= 0 || nghttp2_session_mem_recv(session, in, (size_t)n) != n) return false;
  }
  return true;
}

static int h2_connect(int port, int seconds) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_in address = {.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr = {htonl(INADDR_LOOPBACK)}};
  struct timeval limit = {.tv_sec = seconds};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
  close(fd);
  return -1;
}

#define H2_HEADER(name, value)                                                                     \
  { (uint8_t *)(uintptr_t)name, (uint8_t *)(uintptr_t)value, sizeof name - 1, sizeof value - 1, 0 }
static bool h2_unary(int port, const char *path, const void *request, size_t request_bytes,
                     int seconds, struct h2_call *call) {
  *call = (struct h2_call){.request = request, .request_bytes = request_bytes, .grpc_status = -1};
  int fd = h2_connect(port, seconds);
  if (fd < 0) return false;
  nghttp2_session_callbacks *callbacks;
  nghttp2_session *session;
  nghttp2_session_callbacks_new(&callbacks);
  nghttp2_session_callbacks_set_on_header_callback(callbacks, h2_on_header);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, h2_on_data);
  nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, h2_on_close);
  nghttp2_session_client_new(&session, callbacks, call);
  nghttp2_session_callbacks_del(callbacks);
  nghttp2_nv headers[] = {
      H2_HEADER(":method", "POST"),
      H2_HEADER(":scheme", "http"),
      {(uint8_t *)(uintptr_t) ":path", (uint8_t *)(uintptr_t)path, 5, strlen(path), 0},
      H2_HEADER(":authority", "test"),
      H2_HEADER("content-type", "application/grpc"),
      H2_HEADER("te", "trailers")};
  nghttp2_data_provider body = {.source = {.ptr = call}, .read_callback = h2_read_request};
  nghttp2_submit_settings(session, 0, NULL, 0);
  nghttp2_submit_request(session, NULL, headers, sizeof headers / sizeof *headers, &body, NULL);
  bool answered = h2_exchange(session, fd, call);
  nghttp2_session_del(session);
  close(fd);
  return answered;
}

#endif
