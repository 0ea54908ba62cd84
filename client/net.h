// The client's event loop and its connections to one server. One thread owns all of it.
#ifndef CLIENT_NET_H
#define CLIENT_NET_H

#include "client/conn.h"

#define NET_CONNS_MAX 256
#define NET_TOKEN_BYTES 4096 // longest bearer token
#define METHOD_INFER "/inference.GRPCInferenceService/ModelInfer"

struct net;
struct net_options {
  const char *url; // as target.h takes it
  int n_conns;
  int64_t wait_ns; // keep trying for a server that is not up yet; 0: one attempt
  bool tls;        // also on by the URL's scheme
  struct tls_files files;
  const char *server_name; // what the certificate must be for; NULL: the URL's host
  const char *token;       // bearer token of every call; NULL for none
};

// Resolve, connect, wait until every connection is ready. UNAVAILABLE (with the cause) or
// INVALID_ARGUMENT (the URL, a file of TLS).
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
// The token would travel over a network that others may read.
bool net_token_in_clear(const struct net *net);

#endif
