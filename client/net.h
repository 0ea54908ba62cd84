// The client's event loop and its connections to one server. One thread owns all of it.
#ifndef CLIENT_NET_H
#define CLIENT_NET_H

#include "client/conn.h"

#define NET_CONNS_MAX 256
#define METHOD_INFER "/inference.GRPCInferenceService/ModelInfer"

struct net;
struct net_options {
  const char *url; // host:port, [v6]:port
  int n_conns;
  int64_t wait_ns; // keep trying for a server that is not up yet; 0: one attempt
};

// Resolve, connect, wait until every connection is ready. UNAVAILABLE (with the cause) or
// INVALID_ARGUMENT (the URL).
MUST_USE enum status net_open(const struct net_options *options, struct net **out,
                              struct error *err);
void net_close(struct net *net);
uv_loop_t *net_loop(struct net *net);
int net_n_conns(const struct net *net);
struct conn *net_conn(struct net *net, int index);
const char *net_error(const struct net *net); // of the first connection that has one
bool net_dead(const struct net *net);         // every connection has given up
// Hook for connections that become ready or dead while the loop runs; NULL for none.
void net_watch(struct net *net, void (*on_state)(void *arg), void *arg);

// One call, waited for. `message` without prefix. On OK the reply is malloc'd in `reply` (free with
// file_free's free: it is plain malloc memory); else its status and grpc-message are in `err`.
MUST_USE enum status net_call(struct net *net, const char *path, struct slice message,
                              int64_t timeout_ns, struct slice *reply, struct error *err);
// The same for a message whose parts (with prefix) are already made, as payload.h does.
MUST_USE enum status net_call_parts(struct net *net, const struct call_method *method,
                                    const struct slice part[CALL_PARTS], int64_t timeout_ns,
                                    struct slice *reply, struct error *err);
// "host:port" into its parts. False when it is not of that form. Pure.
bool net_split_url(const char *url, char host[256], char port[16]);

#endif
