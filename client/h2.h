// The client's HTTP/2 protocol engine over nghttp2, without a socket: bytes in by h2_feed, bytes
// out by h2_pull into an output queue. The only file of the client that sees nghttp2. One thread.
#ifndef CLIENT_H2_H
#define CLIENT_H2_H

#include "client/call.h"
#include "client/outq.h"
#include "client/pool.h"

struct nghttp2_session;

struct h2_headers { // of every call on a connection; borrowed for its life
  const char *scheme, *authority;
  const char *authorization; // "Bearer ..."; "" for none
};

struct h2 {
  struct nghttp2_session *session;
  struct pool pool;
  struct outq *out;
  const struct h2_headers *headers;
  struct call *first, *last; // running calls, oldest first
  int n_running;
  bool settings_seen; // the peer speaks HTTP/2
  bool draining;      // GOAWAY, or stream ids used up: no new calls
};

MUST_USE enum status h2_open(struct h2 *h2, const struct h2_headers *headers);
// Every call must have ended (h2_fail_calls).
void h2_close(struct h2 *h2);
MUST_USE bool h2_start(struct h2 *h2, struct call *call); // false: refused, nothing happened
// Bytes from the peer. Negative (an nghttp2 error, see h2_error_text) when the connection cannot go
// on.
MUST_USE int h2_feed(struct h2 *h2, const uint8_t *data, size_t bytes);
// Move frames into `out` until it is full or nothing is left. Negative as h2_feed.
MUST_USE int h2_pull(struct h2 *h2);
bool h2_over(const struct h2 *h2); // the session has ended itself (the peer broke the protocol)
void h2_cancel(struct h2 *h2, struct call *call, enum status status, const char *message);
void h2_fail_calls(struct h2 *h2, enum status status,
                   const char *message); // ends all; oldest first
uint32_t h2_max_calls(const struct h2 *h2);
const char *h2_error_text(int error);

#endif
