#include "net/net.h"
#include "base/log.h"
#include "net/internal.h"
#include "rpc/method.h"
#include <signal.h>
#include <stdlib.h>

enum status net_open(const struct net_options *options, struct net **out, struct error *err) {
  FW_ASSERT(options->n_loops >= 1 && options->n_loops <= NET_MAX_LOOPS);
  *out = NULL;
  struct net *net = calloc(1, sizeof *net + (size_t)options->n_loops * sizeof net->loops[0]);
  if (!net)
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for %d loops", options->n_loops);
  net->options = *options;
  net->total.limit_bytes = options->limits.total_bytes;
  for (int i = 0; i <= NET_MAX_LOOPS; i++)
    net->listeners[i].fd = net->listeners[i].spare_fd = -1;
  atomic_init(&net->drain_by_ns, CLOCK_NEVER);
  signal(SIGPIPE, SIG_IGN); // a peer that closes mid-write is an error code, not a death
  enum status status = method_table_open(options->methods, options->n_methods, &net->methods, err);
  for (int i = 0; i < options->n_loops && status == STATUS_OK; i++) {
    net->n_loops = i + 1;
    status = loop_open(net, i, err);
  }
  if (status == STATUS_OK) status = listener_open(net, err);
  if (status == STATUS_OK) status = admin_open(net, err);
  if (status != STATUS_OK) {
    net_close(net);
    return status;
  }
  *out = net;
  return STATUS_OK;
}

enum status net_start(struct net *net, struct error *err) {
  enum status status = listener_start(net, err);
  for (int i = net->n_loops; i-- > 0 && status == STATUS_OK;) // loop 0, which accepts, last
    status = loop_start(&net->loops[i], err);
  return status;
}

int net_port(const struct net *net) {
  return net->listeners[0].port;
}

int net_admin_port(const struct net *net) {
  return net->admin.port;
}

struct wake *net_loop_wake(struct net *net, int loop) {
  FW_ASSERT(loop >= 0 && loop < net->n_loops);
  return &net->loops[loop].wake;
}

int64_t net_connections(const struct net *net) {
  return atomic_load_explicit(&net->n_conns, memory_order_relaxed);
}

int64_t net_used_bytes(const struct net *net) {
  return atomic_load_explicit(&net->total.used_bytes, memory_order_relaxed);
}

void net_drain(struct net *net, int64_t timeout_ms) {
  int64_t by_ns = clock_now_ns() + timeout_ms * NS_PER_MS;
  int64_t before = atomic_load_explicit(&net->drain_by_ns, memory_order_relaxed);
  while (by_ns < before &&
         !atomic_compare_exchange_weak_explicit(&net->drain_by_ns, &before, by_ns,
                                                memory_order_release, memory_order_relaxed)) {
  }
  // uv_async_send begins with a relaxed read: base/wake.h.
  atomic_thread_fence(memory_order_seq_cst);
  for (int i = 0; i < net->n_loops; i++)
    if (net->loops[i].started) uv_async_send(&net->loops[i].control_async);
}

int net_join(struct net *net) {
  int n_cut = 0;
  for (int i = 0; i < net->n_loops; i++) {
    loop_join(&net->loops[i]);
    n_cut += net->loops[i].n_cut;
  }
  return n_cut;
}

void net_close(struct net *net) {
  if (!net) return;
  net_drain(net, 0);
  (void)net_join(net);
  admin_close(net);
  for (int i = 0; i < net->n_loops; i++)
    loop_close(&net->loops[i]);
  listener_close(net);
  method_table_close(net->methods);
  free(net);
}
