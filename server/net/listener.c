// One acceptor for all loops: connections are dealt out in turn, because the kernel's hash would
// put a few long-lived gRPC channels on one loop. With many clients that come and go the kernel may
// deal instead (server.accept).
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

static enum status open_one(struct net *net, struct listener *listener, struct loop *loop,
                            struct error *err) {
  listener->net = net;
  listener->loop = loop;
  listener->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (listener->local) return address_listen_unix(net->options.unix_path, &listener->fd, err);
  // With port 0 the first socket picks one for all.
  return address_listen(net->options.listen, listener->shared, net->listeners[0].port,
                        &listener->fd, &listener->port, err);
}

enum status listener_open(struct net *net, struct error *err) {
  const struct net_options *options = &net->options;
  bool shared = options->kernel_accepts && options->n_loops > 1;
  enum status status = STATUS_OK;
  for (int i = 0; i < (shared ? options->n_loops : 1) && status == STATUS_OK; i++) {
    net->listeners[i].shared = shared;
    status = open_one(net, &net->listeners[i], &net->loops[i], err);
  }
  if (status == STATUS_OK && options->unix_path && options->unix_path[0]) {
    struct listener *listener = &net->listeners[NET_MAX_LOOPS];
    listener->local = true;
    status = open_one(net, listener, &net->loops[0], err);
  }
  return status;
}

static void close_one(struct listener *listener) {
  if (listener->fd >= 0) {
    if (listener->local) unlink(listener->net->options.unix_path);
    close(listener->fd);
  }
  if (listener->spare_fd >= 0) close(listener->spare_fd);
  listener->fd = listener->spare_fd = -1;
}

void listener_close(struct net *net) {
  for (int i = 0; i <= NET_MAX_LOOPS; i++)
    close_one(&net->listeners[i]);
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
  struct loop *loop = listener->shared ? listener->loop : &net->loops[listener->next_loop];
  listener->next_loop = (listener->next_loop + 1) % net->n_loops;
  loop_adopt(loop, fd, listener->local, listener->loop);
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

static int start_one(struct listener *listener) {
  int rv = uv_poll_init(&listener->loop->uv, &listener->poll, listener->fd);
  if (rv != 0) return rv;
  listener->poll.data = listener;
  listener->polling = true;
  return uv_poll_start(&listener->poll, UV_READABLE, on_acceptable);
}

enum status listener_start(struct net *net, struct error *err) {
  int rv = 0;
  for (int i = 0; i <= NET_MAX_LOOPS && rv == 0; i++)
    if (net->listeners[i].fd >= 0) rv = start_one(&net->listeners[i]);
  return rv == 0 ? STATUS_OK
                 : error_set(err, STATUS_RESOURCE_EXHAUSTED, "cannot wait for connections: %s",
                             uv_strerror(rv));
}

static void on_poll_closed(uv_handle_t *handle) {
  close_one(handle->data);
}

void listener_stop(struct loop *loop) {
  for (int i = 0; i <= NET_MAX_LOOPS; i++) {
    struct listener *listener = &loop->net->listeners[i];
    if (listener->loop != loop || !listener->polling) continue;
    listener->polling = false;
    uv_close((uv_handle_t *)&listener->poll, on_poll_closed);
  }
}
