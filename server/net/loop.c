// A loop thread: reads, parses, hands over, writes; model work happens elsewhere and comes back
// through `reap`.
//
//   poll: reads, wake-ups (reap), written  ->  check: one flush per connection
//   timers: deadlines, ticks               ->  prepare: one flush per connection, arm the next
//   deadline
#include "base/copy.h"
#include "base/log.h"
#include "net/internal.h"
#include "obs/trace.h"
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define READ_BUFFER_BYTES (256 * 1024)
#define HANDOVER_CAPACITY 1024
#define TICK_MS 1000
#define DRAIN_TICK_MS 20
#define GIVEN_BYTES_TOLD ((size_t)1 << 20)

// ---- timers ----

static void on_deadline(uv_timer_t *timer) {
  struct loop *loop = timer->data;
  loop->armed_ns = CLOCK_NEVER;
  rpc_expire(loop->rpc, clock_now_ns());
}

static void arm_deadline(struct loop *loop) {
  int64_t next_ns = rpc_next_deadline_ns(loop->rpc);
  if (next_ns >= loop->armed_ns) return; // armed early enough; on_deadline looks again
  int64_t wait_ns = next_ns - clock_now_ns();
  uint64_t wait_ms = wait_ns > 0 ? (uint64_t)((wait_ns + NS_PER_MS - 1) / NS_PER_MS) : 0;
  uv_update_time(&loop->uv);
  if (uv_timer_start(&loop->deadline_timer, on_deadline, wait_ms, 0) == 0) loop->armed_ns = next_ns;
}

static void cut_off(struct loop *loop) {
  for (struct conn *conn = loop->conns; conn; conn = conn->next) {
    if (conn->closing) continue;
    loop->n_cut += conn->h2 ? (int)h2_calls(conn->h2) : 0;
    conn_abort(conn);
  }
}

// malloc keeps what it is given, between blocks that live on: whoever has the time makes it part
// with that.
static void give_back(struct loop *loop) {
  const struct net_options *options = &loop->net->options;
  loop->given_bytes += rpc_tick(loop->rpc);
  if (loop->given_bytes < GIVEN_BYTES_TOLD || !options->given_back) return;
  loop->given_bytes = 0;
  options->given_back(options->app);
}

static void on_tick(uv_timer_t *timer) {
  struct loop *loop = timer->data;
  int64_t now_ns = clock_now_ns();
  for (struct conn *conn = loop->conns; conn; conn = conn->next)
    conn_tick(conn, now_ns);
  if (loop->drain_by_ns == 0)
    give_back(loop);
  else if (now_ns >= loop->drain_by_ns)
    cut_off(loop);
  if (loop->n_conns == 0 && rpc_idle_bytes(loop->rpc) == 0) uv_timer_stop(timer);
}

// ---- flushes ----

// Keeps the loop from sleeping while active. Whoever shares the core goes first.
static void on_awake(uv_idle_t *awake) {
  (void)awake;
  sched_yield();
}

static void choose_sleep(struct loop *loop) {
  const struct net_options *options = &loop->net->options;
  if (options->spin_us == 0) return;
  bool busy = loop->n_conns == 0 || (options->busy && options->busy(loop->index, options->app));
  if (spin_stay_awake(&loop->spin, busy, clock_now_ns()))
    uv_idle_start(&loop->awake, on_awake);
  else
    uv_idle_stop(&loop->awake);
}

static void on_prepare(uv_prepare_t *prepare) {
  struct loop *loop = prepare->data;
  loop->turn++;
  conn_flush_dirty(loop);
  arm_deadline(loop);
  choose_sleep(loop);
}

static void on_check(uv_check_t *check) {
  conn_flush_dirty(check->data);
}

static void on_wake(uv_async_t *async) {
  struct loop *loop = async->data;
  const struct net_options *options = &loop->net->options;
  if (options->app_computes)
    spin_rest(&loop->spin, clock_now_ns());
  else
    spin_came(&loop->spin, 0, clock_now_ns());
  if (options->reap) options->reap(loop->rpc, loop->index, options->app);
}

static void wake_hook(void *arg) {
  uv_async_send(arg);
}

// ---- connections, drain ----

void loop_conns_changed(struct loop *loop) {
  if (loop->n_conns == 0 && loop->drain_by_ns != 0) {
    uv_timer_stop(&loop->tick_timer);
    uv_stop(&loop->uv);
  } else if (!uv_is_active((uv_handle_t *)&loop->tick_timer)) {
    uint64_t every_ms = loop->drain_by_ns != 0 ? DRAIN_TICK_MS : TICK_MS;
    uv_timer_start(&loop->tick_timer, on_tick, every_ms, every_ms);
  }
}

// A descriptor and whether it is local, as a pointer that is not NULL.
static void *pack(int fd, bool local) {
  return (void *)(((intptr_t)fd + 1) * 2 + local);
}

static int unpack(const void *item, bool *local) {
  *local = (intptr_t)item & 1;
  return (int)((intptr_t)item / 2 - 1);
}

void loop_adopt(struct loop *loop, int fd, bool local, const struct loop *acceptor) {
  if (loop == acceptor) {
    conn_open(loop, fd, local);
    return;
  }
  if (!ring_push(&loop->handover, pack(fd, local))) {
    conn_refuse(loop, fd);
    return;
  }
  // uv_async_send begins with a relaxed read: base/wake.h.
  atomic_thread_fence(memory_order_seq_cst);
  uv_async_send(&loop->control_async);
}

static void drain_begin(struct loop *loop) {
  int64_t now_ns = clock_now_ns();
  listener_stop(loop);
  for (struct conn *conn = loop->conns; conn; conn = conn->next)
    if (!conn->closing && !conn->half_closed) h2_drain(conn->h2, now_ns);
  uv_timer_stop(&loop->tick_timer);
}

static void on_control(uv_async_t *async) {
  struct loop *loop = async->data;
  void *item;
  while ((item = ring_pop(&loop->handover))) {
    bool local;
    int fd = unpack(item, &local);
    conn_open(loop, fd, local);
  }
  int64_t drain_by_ns = atomic_load_explicit(&loop->net->drain_by_ns, memory_order_acquire);
  if (drain_by_ns == CLOCK_NEVER) return;
  bool begins = loop->drain_by_ns == 0;
  loop->drain_by_ns = drain_by_ns;
  if (begins) drain_begin(loop);
  loop_conns_changed(loop);
}

// ---- life ----

static void *loop_main(void *arg) {
  struct loop *loop = arg;
  uv_run(&loop->uv, UV_RUN_DEFAULT); // until uv_stop: the async handles keep it alive
  return NULL;
}

static int init_handles(struct loop *loop) {
  int rv = uv_loop_init(&loop->uv);
  if (rv != 0) return rv;
  loop->uv_ready = true;
  if ((rv = uv_async_init(&loop->uv, &loop->wake_async, on_wake)) != 0 ||
      (rv = uv_async_init(&loop->uv, &loop->control_async, on_control)) != 0)
    return rv;
  uv_prepare_init(&loop->uv, &loop->prepare); // these five cannot fail
  uv_check_init(&loop->uv, &loop->check);
  uv_idle_init(&loop->uv, &loop->awake);
  uv_timer_init(&loop->uv, &loop->deadline_timer);
  uv_timer_init(&loop->uv, &loop->tick_timer);
  loop->wake_async.data = loop->control_async.data = loop->prepare.data = loop->check.data = loop;
  loop->deadline_timer.data = loop->tick_timer.data = loop;
  uv_prepare_start(&loop->prepare, on_prepare);
  uv_check_start(&loop->check, on_check);
  wake_init(&loop->wake, wake_hook, &loop->wake_async);
  return 0;
}

enum status loop_open(struct net *net, int index, struct error *err) {
  struct loop *loop = &net->loops[index];
  const struct net_options *options = &net->options;
  loop->net = net;
  loop->index = index;
  loop->armed_ns = CLOCK_NEVER;
  loop->turn = 1;
  spin_init(&loop->spin, options->spin_us * NS_PER_US);
  struct rpc_options rpc = {
      .loop = index,
      .limits = &options->limits,
      .methods = net->methods,
      .app = options->app,
      .trace = trace_source_of(options->trace, index),
      .total = &net->total,
      .host_alloc = options->host_alloc,
      .host_free = options->host_free,
      .host_arg = options->host_arg,
      .dirty = conn_mark_dirty,
  };
  enum status status = rpc_open(&rpc, &loop->rpc, err);
  if (status != STATUS_OK) return status;
  loop->read_buffer = aligned_alloc(PAGE_BYTES, READ_BUFFER_BYTES); // base/copy.h
  if (!loop->read_buffer || ring_init(&loop->handover, HANDOVER_CAPACITY) != STATUS_OK)
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for loop %d", index);
  if (options->tls) {
    status = tls_server_open(options->tls, &loop->tls, err);
    if (status != STATUS_OK) return status;
    if (!(loop->plain = malloc(PLAIN_BYTES)))
      return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for loop %d", index);
  }
  int rv = init_handles(loop);
  return rv == 0 ? STATUS_OK
                 : error_set(err, STATUS_RESOURCE_EXHAUSTED, "loop %d: %s", index, uv_strerror(rv));
}

enum status loop_start(struct loop *loop, struct error *err) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int rv = pthread_create(&loop->thread, NULL, loop_main, loop);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (rv != 0)
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cannot start the thread of loop %d: %s",
                     loop->index, strerror(rv));
  loop->started = true;
  return STATUS_OK;
}

void loop_join(struct loop *loop) {
  if (loop->started && !loop->joined) {
    pthread_join(loop->thread, NULL);
    loop->joined = true;
  }
}

static void close_handle(uv_handle_t *handle, void *arg) {
  (void)arg;
  if (!uv_is_closing(handle)) uv_close(handle, NULL);
}

void loop_close(struct loop *loop) {
  const struct net_options *options = loop->net ? &loop->net->options : NULL;
  if (!options) return; // never opened
  if (loop->rpc && loop->started && options->reap)
    options->reap(loop->rpc, loop->index,
                  options->app); // requests whose clients are gone give their slabs back
  if (loop->uv_ready) {
    listener_stop(loop);
    uv_walk(&loop->uv, close_handle, NULL);
    uv_run(&loop->uv, UV_RUN_DEFAULT);
    int rv = uv_loop_close(&loop->uv);
    FW_ASSERT(rv == 0);
  }
  void *item;
  while (loop->handover.slots && (item = ring_pop(&loop->handover))) {
    bool local;
    close(unpack(item, &local));
  }
  ring_deinit(&loop->handover);
  free(loop->read_buffer);
  free(loop->plain);
  tls_server_close(loop->tls);
  rpc_close(loop->rpc);
}
