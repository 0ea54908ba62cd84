// One loop's share of the gRPC layer: call table, deadlines, method table, slab pool and byte budgets. Sans-I/O: net/ feeds
// bytes and time in (rpc/h2.h) and writes what comes out. Loop thread only, all of it.
#ifndef RPC_RPC_H
#define RPC_RPC_H

#include "base/clock.h"
#include "rpc/call.h"

// Run-time limits; same names as the keys' fields in conf/keys.def, so that messages can name the key.
struct rpc_limits {
  int64_t max_message_bytes, max_connections, max_calls, connection_bytes, total_bytes, header_bytes;
  int64_t handshake_timeout_ms, idle_timeout_ms, stream_window_bytes, connection_window_bytes;
};

struct rpc;

// The call that `ref` names, or NULL: answered, reset, expired, or its connection is gone.
struct call *call_find(struct rpc *rpc, struct call_ref ref);

struct slab_pool *rpc_pool(struct rpc *rpc);
int rpc_loop_index(const struct rpc *rpc);
void *rpc_app(const struct rpc *rpc);

#endif
