// One acceptor for all loops: connections are dealt out in turn, because the kernel's hash would
// put a few long-lived gRPC channels on one loop.
#include "base/log.h"
#include "net/address.h"
#include "net/internal.h"
#include "obs/metrics.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ACCEPTS_PER_TURN 64

enum status listener_open(struct net *net, struct error *err) {
  struct listener *listener = &net->listener;
  listener->net = net;
  listener->fd = listener->spare_fd = -1;
  enum status status = address_listen(net->options.listen, &listener->fd, &listener->port, err);
  if (status == STATUS_OK) listener->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  return status;
}

void listener_close(struct listener *listener) {
  if (listener->fd >= 0) close(listener->fd);
  if (listener->spare_fd >= 0) close(listener->spare_fd);
  listener->fd = listener->spare_fd = -1;
}

static void refuse(int fd) {
  close(fd);
  atomic_fetch_add_explicit(&rpc_metrics.connections_refused, 1, memory_order_relaxed);
}

// Out of descriptors: without the spare one the connection would stay in the backlog and poll would
// spin.
static void refuse_with_spare(struct listener *listener) {
  if (listener->spare_fd < 0) return;
  close(listener->spare_fd);
  int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC);
  if (fd >= 0) refuse(fd);
  listener->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  log_warn("accept", "no file descriptor left; a connection was refused");
}

static void deal(struct listener *listener, int fd) {
  struct net *net = listener->net;
  int64_t before = atomic_fetch_add_explicit(&net->n_conns, 1, memory_order_relaxed);
  if (before >= net->options.limits.max_connections) {
    atomic_fetch_sub_explicit(&net->n_conns, 1, memory_order_relaxed);
    refuse(fd);
    log_warn("accept", "limits.connections (%lld) reached; a connection was refused",
             (long long)net->options.limits.max_connections);
    return;
  }
  atomic_fetch_add_explicit(&rpc_metrics.connections_accepted, 1, memory_order_relaxed);
  loop_adopt(&net->loops[listener->next_loop], fd);
  listener->next_loop = (listener->next_loop + 1) % net->n_loops;
}

static void on_acceptable(uv_poll_t *poll, int status, int events) {
  (void)events;
  struct listener *listener = poll->data;
  if (status < 0) return;
  for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
    int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      deal(listener, fd);
    } else if (errno == EMFILE || errno == ENFILE) {
      refuse_with_spare(listener);
      return;
    } else if (errno != ECONNABORTED && errno != EINTR) {
      return; // EAGAIN, or nothing that trying again now would help
    }
  }
}

enum status listener_start(struct net *net, struct error *err) {
  struct listener *listener = &net->listener;
  int rv = uv_poll_init(&net->loops[0].uv, &listener->poll, listener->fd);
  if (rv == 0) {
    listener->poll.data = listener;
    listener->polling = true;
    rv = uv_poll_start(&listener->poll, UV_READABLE, on_acceptable);
  }
  return rv == 0 ? STATUS_OK
                 : error_set(err, STATUS_RESOURCE_EXHAUSTED, "cannot wait for connections: %s",
                             uv_strerror(rv));
}

static void on_poll_closed(uv_handle_t *handle) {
  struct listener *listener = handle->data;
  listener_close(listener);
}

void listener_stop(struct listener *listener) {
  if (!listener->polling) return;
  listener->polling = false;
  uv_close((uv_handle_t *)&listener->poll, on_poll_closed);
}
