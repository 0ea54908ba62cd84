// rpc_echo_server PORT [LOOPS]: the gRPC layer without a model. Prints the bound port; SIGTERM
// drains, SIGINT too.
//
//   /bench.Echo/Unary   the message back, by reference
//   /bench.Echo/Later   the same after a thread that stands for the executor has slept: deadlines
//   and cancels can be tried /bench.Echo/Fail    INVALID_ARGUMENT with the message as its text
#include "base/log.h"
#include "net/net.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LATER_MS 100
#define MAX_LATER 4096

struct kept { // a message that is being sent back
  struct slab_pool *pool;
  struct slab *slab;
};

struct later {
  struct call_ref call;
  int64_t due_ns;
};

struct echo {
  struct net *net;
  pthread_mutex_t lock; // a bench may lock; the daemon's executor does not
  struct later waiting[MAX_LATER];
  int n_waiting, n_loops;
  atomic_bool stop;
};

static void give_back(void *arg) {
  struct kept *kept = arg;
  slab_put(kept->pool, kept->slab);
}

// The reference to the message lies behind the message itself when the slab has room, so that
// nothing is allocated.
static void echo_now(struct call *call, void *app) {
  (void)app;
  struct slice message = call_message(call);
  struct slab *slab = call_take_message(call);
  size_t at = (message.bytes + 15) & ~(size_t)15;
  if (at + sizeof(struct kept) >
      slab->capacity_bytes) { // a full class: copy into the next larger one
    struct slab *larger = slab_get(call_pool(call), at + sizeof(struct kept));
    if (!larger) {
      slab_put(call_pool(call), slab);
      call_fail(call, STATUS_RESOURCE_EXHAUSTED, "no room for the answer");
      return;
    }
    memcpy(larger->data, slab->data, message.bytes);
    slab_put(call_pool(call), slab);
    slab = larger;
    message.data = slab->data;
  }
  struct kept *kept = (struct kept *)(slab->data + at);
  *kept = (struct kept){call_pool(call), slab};
  call_reply(call, NULL, 0, &message, 1, give_back, kept);
}

static void echo_later(struct call *call, void *app) {
  struct echo *echo = app;
  bool full;
  pthread_mutex_lock(&echo->lock);
  full = echo->n_waiting == MAX_LATER;
  if (!full)
    echo->waiting[echo->n_waiting++] =
        (struct later){call_ref_of(call), clock_now_ns() + LATER_MS * NS_PER_MS};
  pthread_mutex_unlock(&echo->lock);
  if (full) call_fail(call, STATUS_RESOURCE_EXHAUSTED, "too many calls wait");
}

static void echo_fail(struct call *call, void *app) {
  (void)app;
  struct slice message = call_message(call);
  char text[256];
  snprintf(text, sizeof text, "%.*s", (int)(message.bytes < 255 ? message.bytes : 255),
           (const char *)message.data);
  call_fail(call, STATUS_INVALID_ARGUMENT, text);
}

static void reap(struct rpc *rpc, int loop, void *app) {
  struct echo *echo = app;
  int64_t now_ns = clock_now_ns();
  pthread_mutex_lock(&echo->lock);
  for (int i = 0; i < echo->n_waiting;) {
    if (echo->waiting[i].call.loop != loop || echo->waiting[i].due_ns > now_ns) {
      i++;
      continue;
    }
    struct call *call = call_find(rpc, echo->waiting[i].call);
    echo->waiting[i] = echo->waiting[--echo->n_waiting];
    if (call) echo_now(call, app);
  }
  pthread_mutex_unlock(&echo->lock);
}

static void *later_main(void *arg) {
  struct echo *echo = arg;
  while (!atomic_load(&echo->stop)) {
    usleep(5000);
    pthread_mutex_lock(&echo->lock);
    bool any = echo->n_waiting > 0;
    pthread_mutex_unlock(&echo->lock);
    for (int i = 0; any && i < echo->n_loops; i++)
      wake_signal(net_loop_wake(echo->net, i));
  }
  return NULL;
}

static const struct method methods[] = {
    {"/bench.Echo/Unary", echo_now, NULL},
    {"/bench.Echo/Later", echo_later, NULL},
    {"/bench.Echo/Fail", echo_fail, NULL},
};

int main(int argc, char **argv) {
  static struct echo echo = {.lock = PTHREAD_MUTEX_INITIALIZER};
  char listen[32];
  echo.n_loops = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 1;
  snprintf(listen, sizeof listen, "127.0.0.1:%s", argc > 1 ? argv[1] : "0");
  struct net_options options = {
      .listen = listen,
      .admin = getenv("ECHO_ADMIN"),
      .n_loops = echo.n_loops,
      .limits = {.max_message_bytes = 64 << 20,
                 .max_connections = 1024,
                 .max_calls = 1024,
                 .connection_bytes = 128 << 20,
                 .total_bytes = 1 << 30,
                 .header_bytes = 16384,
                 .handshake_timeout_ms = 10000,
                 .stream_window_bytes = 1 << 20,
                 .connection_window_bytes = 4 << 20},
      .methods = methods,
      .n_methods = sizeof methods / sizeof methods[0],
      .app = &echo,
      .reap = reap,
  };
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, NULL);
  static struct error err;
  if (net_open(&options, &echo.net, &err) != STATUS_OK || net_start(echo.net, &err) != STATUS_OK) {
    fprintf(stderr, "%s\n", err.message);
    net_close(echo.net);
    return 1;
  }
  pthread_t later;
  if (pthread_create(&later, NULL, later_main, &echo) != 0) return 1;
  printf("port %d admin %d\n", net_port(echo.net), net_admin_port(echo.net));
  fflush(stdout);
  int signal;
  sigwait(&signals, &signal);
  net_drain(echo.net, 10000);
  int cut = net_join(echo.net);
  atomic_store(&echo.stop, true);
  pthread_join(later, NULL);
  net_close(echo.net);
  printf("drained, %d calls cut off\n", cut);
  return 0;
}
