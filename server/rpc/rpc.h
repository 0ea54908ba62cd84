// One loop's share of the gRPC layer: call table, deadlines, method table, slab pool and byte
// budgets. Sans-I/O: net/ feeds bytes and time in (rpc/h2.h) and writes what comes out. Loop thread
// only, all of it.
#ifndef RPC_RPC_H
#define RPC_RPC_H

#include "base/clock.h"
#include "rpc/call.h"

// Run-time limits; same names as the keys' fields in conf/keys.def, so that messages can name the
// key.
struct auth;
struct rpc_limits {
  int64_t max_message_bytes, max_connections, max_calls, connection_bytes, total_bytes,
      header_bytes;
  int64_t handshake_timeout_ms, request_timeout_ms, idle_timeout_ms, stream_window_bytes,
      connection_window_bytes;
  int64_t keepalive_time_ms, keepalive_timeout_ms, connection_age_ms, connection_age_grace_ms;
  int64_t
      ping_interval_ms; // of the client's own PINGs while nothing leaves; 0: as often as it likes
  const struct auth *auth; // rpc/auth.h; NULL: every call is welcome
};

struct rpc;
struct trace_source;

// ---- for handlers and `reap` ----

// The call that `ref` names, or NULL: answered, reset, expired, or its connection is gone.
struct call *call_find(struct rpc *rpc, struct call_ref ref);
struct slab_pool *rpc_pool(struct rpc *rpc);
int rpc_loop_index(const struct rpc *rpc);
void *rpc_app(const struct rpc *rpc);
struct trace_source *rpc_trace(const struct rpc *rpc); // NULL: no traces

// ---- for net/ ----

struct method_table;
struct rpc_options {
  int loop;
  const struct rpc_limits *limits;    // copied
  const struct method_table *methods; // borrowed
  void *app;
  struct trace_source *trace; // of this loop; borrowed; NULL: no traces
  struct budget *total;       // limits.total_bytes of the whole process; borrowed
  void *(*host_alloc)(void *arg, size_t bytes);
  void (*host_free)(void *arg, void *memory, size_t bytes);
  void *host_arg;
  void (*dirty)(void *owner); // connection `owner` (h2_open) has something to send; called often,
                              // must be cheap
};
MUST_USE enum status rpc_open(const struct rpc_options *options, struct rpc **out,
                              struct error *err);
void rpc_close(struct rpc *rpc); // every connection must be closed, every slab put back
// Answer DEADLINE_EXCEEDED to every call whose deadline is at or before `now_ns`.
void rpc_expire(struct rpc *rpc, int64_t now_ns);
int64_t rpc_next_deadline_ns(const struct rpc *rpc); // CLOCK_NEVER: none
size_t rpc_used_bytes(const struct rpc *rpc);        // slabs handed out
// About once a second: memory that was not needed lately goes back. Returns how many bytes.
size_t rpc_tick(struct rpc *rpc);
size_t rpc_idle_bytes(const struct rpc *rpc); // kept for reuse, where nothing is in flight

#endif
