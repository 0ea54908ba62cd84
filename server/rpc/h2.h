// One HTTP/2 connection, sans-I/O: bytes in by h2_feed, bytes out by h2_pull and h2_sent, time by
// h2_tick. Loop thread only.
//
//   socket bytes -> h2_feed -> handlers run inside -> answers queue up -> h2_pull -> writev ->
//   h2_sent
//
// The owner reads while h2_want_read, and when h2_finished says so it flushes, half-closes and
// closes.
#ifndef RPC_H2_H
#define RPC_H2_H

#include "rpc/rpc.h"
#include <sys/uio.h>

struct h2;
// RESOURCE_EXHAUSTED: no memory. `owner` is what rpc_options.dirty gets. Our SETTINGS are queued at
// once.
MUST_USE enum status h2_open(struct rpc *rpc, void *owner, int64_t now_ns, struct h2 **out);
// Ends every call (cancel hooks run); the session takes no more input. What is queued stays until
// h2_close, because a write may still be reading it.
void h2_lost(struct h2 *h2);
void h2_close(struct h2 *h2); // no write may be under way

void h2_feed(struct h2 *h2, const uint8_t *data, size_t bytes, int64_t now_ns);
// Slices to write next, from the front of the queue; 0: nothing to send now. The same bytes come
// again until h2_sent.
int h2_pull(struct h2 *h2, struct iovec *iov, int max);
void h2_sent(struct h2 *h2, size_t bytes);
// False: output is stuck (back-pressure), or the connection is ending.
bool h2_want_read(const struct h2 *h2);
bool h2_finished(const struct h2 *h2); // nothing more to send or to wait for
// Handshake, header and idle timeouts, keepalive, age, the drain's fallback. To be called about
// once a second, and after h2_drain more often. False: nobody is waited for any longer, abort.
bool h2_tick(struct h2 *h2, int64_t now_ns);
// GOAWAY in two steps with a PING between (gRFC A9); finished when the last call is.
void h2_drain(struct h2 *h2, int64_t now_ns);
uint32_t h2_calls(const struct h2 *h2); // open now

#endif
