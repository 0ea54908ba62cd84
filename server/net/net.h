// The serving front: loop threads that own connections, the gRPC listener, the admin port,
// draining.
//
// net_open binds both ports and answers on the admin port at once; net_start starts the loop
// threads, and only from then on are calls served (connections made earlier wait in the backlog).
// Handlers (rpc/call.h) and `reap` run on loop threads. Signals are the caller's: the threads
// started here block all of them, and SIGPIPE is ignored.
//
// Life, as main.c walks it:
//   net_open -> executor_open(loop_wakes[i] = net_loop_wake(net, i)) -> net_start -> serve ->
//   SIGTERM -> (drain delay: main's sleep) -> net_drain -> net_join -> executor_stop -> net_close
//   -> executor_close
// net_close calls `reap` once more for each loop, on the caller's thread, so that requests whose
// clients vanished give their slabs back before the pools go.
#ifndef NET_NET_H
#define NET_NET_H

#include "base/wake.h"
#include "rpc/rpc.h"

struct net;
struct tls_files;
struct trace;

struct net_options {
  // gRPC: "host:port", "[::1]:port"; port 0: a free one (net_port).
  const char *listen;
  const char *unix_path;       // also on this Unix socket, in clear text; "" or NULL: not
  const struct tls_files *tls; // TLS on `listen` (net/tls.h); NULL: clear text
  bool kernel_accepts;         // a socket for each loop (SO_REUSEPORT) instead of dealing in turn
  const char *admin;           // HTTP/1.1 /metrics, /v2/health/*; "" or NULL: none
  int n_loops;                 // 1..LIMIT_LOOPS
  struct rpc_limits limits;
  const struct method *methods; // borrowed for the life of the net
  int n_methods;
  struct trace *trace; // spans of calls (obs/trace.h); borrowed; NULL: none
  void *app;           // handed to handlers, reap and the admin callbacks
  // Loop thread `loop`, soon after net_loop_wake(net, loop) was signalled: pick up finished
  // requests, find their calls with call_find(rpc, ref), answer. Answers of one reap leave in one
  // write per connection. May be NULL.
  void (*reap)(struct rpc *rpc, int loop, void *app);
  // Longest wait of a loop for more without sleeping (net/spin.h); 0: none. Not while requests of
  // it are with other threads (`busy`, loop thread, may be NULL), and not for a while after these
  // have finished some if they compute on the loops' cores.
  int64_t spin_us;
  bool (*busy)(int loop, void *app);
  bool app_computes;
  // Pools of the loops have shrunk by a MiB or more, which malloc may still hold: the time for a
  // malloc_trim on a thread that nobody waits for. Loop threads; must be cheap. May be NULL.
  void (*given_back)(void *app);
  // Admin callbacks; the admin's own thread calls them, so they must be thread safe.
  size_t (*metrics)(char *out, size_t out_bytes, void *app); // as metrics_expose; NULL: 404
  bool (*ready)(void *app);                                  // NULL: always ready
  bool (*live)(void *app);                                   // NULL: always live
  // Memory of message and response slabs (pinned on a GPU back end). NULL: ordinary memory.
  void *(*host_alloc)(void *arg, size_t bytes);
  void (*host_free)(void *arg, void *memory, size_t bytes);
  void *host_arg;
};

// INVALID_ARGUMENT: an address that does not parse; UNAVAILABLE: cannot bind; RESOURCE_EXHAUSTED:
// memory, threads. On failure nothing is left behind and `err` names the address or what was
// missing.
MUST_USE enum status net_open(const struct net_options *options, struct net **out,
                              struct error *err);
// Starts the loop threads. RESOURCE_EXHAUSTED: a thread cannot be started; net_close is still owed.
MUST_USE enum status net_start(struct net *net, struct error *err);
int net_port(const struct net *net);                   // bound gRPC port
int net_admin_port(const struct net *net);             // bound admin port; 0: none
struct wake *net_loop_wake(struct net *net, int loop); // signal it after publishing work for `reap`
int64_t net_connections(const struct net *net);        // open now; any thread
int64_t net_used_bytes(const struct net *net); // request and response bytes held now; any thread
// Stop accepting, say GOAWAY twice with a PING between, finish the calls in flight, close. After
// `timeout_ms` what is left is cut off. Returns at once; call net_join to wait. Any thread, more
// than once: a later, shorter timeout wins.
void net_drain(struct net *net, int64_t timeout_ms);
// Waits until every connection is closed and the loop threads have ended. Returns the number of
// calls cut off.
int net_join(struct net *net);
// After net_join (or without: then it drains with timeout 0). The admin port stays open until here.
void net_close(struct net *net);

#endif
