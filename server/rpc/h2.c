// Life of a connection: open, feed, pull, drain, time-outs. What frames mean is in h2_recv.c, how
// answers leave in h2_send.c.
#include "rpc/h2.h"
#include "base/log.h"
#include "obs/metrics.h"
#include "rpc/internal.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAX_FRAME_BYTES                                                                            \
  (64 * 1024) // of frames we accept: fewer frames per upload, still fair between calls
#define DRAIN_PING_WAIT_NS (5 * NS_PER_S) // for the PING's answer before the final GOAWAY
#define UNREAD_MS 60000 // a peer that opens no window for so long holds our memory for nothing
static const uint8_t drain_ping[8] = {'d', 'r', 'a', 'i', 'n', 'i', 'n', 'g'};

static int submit_settings(struct h2 *h2) {
  const struct rpc_limits *limits = &h2->rpc->limits;
  const nghttp2_settings_entry entries[] = {
      {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, (uint32_t)limits->max_calls},
      {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, (uint32_t)limits->stream_window_bytes},
      {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, MAX_FRAME_BYTES},
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, (uint32_t)limits->header_bytes},
      {NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1},
  };
  int rv = nghttp2_submit_settings(h2->session, NGHTTP2_FLAG_NONE, entries,
                                   sizeof entries / sizeof entries[0]);
  if (rv != 0) return rv;
  return nghttp2_session_set_local_window_size(h2->session, NGHTTP2_FLAG_NONE, 0,
                                               (int32_t)limits->connection_window_bytes);
}

// Up to 10 % more or less, so that clients that came together do not all come back together.
static int64_t age_by_ns(struct rpc *rpc, int64_t now_ns) {
  if (rpc->limits.connection_age_ms == 0) return CLOCK_NEVER;
  rpc->random = rpc->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407) +
                (uint64_t)now_ns;
  int64_t thousandths = 900 + (int64_t)((rpc->random >> 33) % 201);
  return now_ns + rpc->limits.connection_age_ms * NS_PER_MS / 1000 * thousandths;
}

enum status h2_open(struct rpc *rpc, void *owner, int64_t now_ns, struct h2 **out) {
  *out = NULL;
  struct h2 *h2 = mem_take(rpc->mem, sizeof *h2);
  if (!h2) return STATUS_RESOURCE_EXHAUSTED;
  memset(h2, 0, sizeof *h2);
  h2->rpc = rpc;
  h2->owner = owner;
  h2->now_ns = h2->opened_ns = h2->idle_since_ns = h2->received_ns = now_ns;
  h2->age_by_ns = age_by_ns(rpc, now_ns);
  outq_init(&h2->outq, rpc->mem);
  h2->room = (struct grpc_room){
      .pool = rpc->pool,
      .max_message_bytes = rpc->limits.max_message_bytes,
      .connection_bytes = rpc->limits.connection_bytes,
      .ahead_limit =
          2 *
          rpc->limits.connection_window_bytes, // what may be in flight anyway, and as much again
  };
  if (nghttp2_session_server_new3(&h2->session, rpc->callbacks, h2, rpc->option, &rpc->h2_mem) !=
          0 ||
      submit_settings(h2) != 0 || nghttp2_session_send(h2->session) != 0) {
    h2_close(h2);
    return STATUS_RESOURCE_EXHAUSTED;
  }
  *out = h2;
  return STATUS_OK;
}

// nghttp2_session_del calls no on_stream_close: calls are ended from our own list.
void h2_lost(struct h2 *h2) {
  h2->dead = true;
  while (h2->calls)
    h2_call_end(h2->calls);
}

void h2_close(struct h2 *h2) {
  h2_lost(h2);
  outq_clear(&h2->outq);
  FW_ASSERT(h2->room.held_bytes == 0 && h2->room.ahead_bytes == 0 && h2->busy_bytes == 0);
  nghttp2_session_del(h2->session);
  mem_give(h2->rpc->mem, h2);
}

// ---- input ----

// A GOAWAY made by hand, for when the session must not be used any more. The queue holds whole
// frames only.
static void goaway_by_hand(struct h2 *h2, uint32_t code, const char *text) {
  size_t text_bytes = strlen(text), payload = 8 + text_bytes;
  uint32_t last = (uint32_t)nghttp2_session_get_last_proc_stream_id(h2->session);
  uint8_t frame[17] = {0, 0, (uint8_t)payload, NGHTTP2_GOAWAY};
  for (int i = 0; i < 4; i++) {
    frame[9 + i] = (uint8_t)(last >> (24 - 8 * i));
    frame[13 + i] = (uint8_t)(code >> (24 - 8 * i));
  }
  if (outq_copy(&h2->outq, frame, sizeof frame) && outq_copy(&h2->outq, text, text_bytes))
    atomic_fetch_add_explicit(&rpc_metrics.goaways_sent, 1, memory_order_relaxed);
}

// Somebody points a browser or an HTTP/1 health check at us: say so in their language.
static void refuse_preface(struct h2 *h2) {
  static const char text[] =
      "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
      "Content-Length: 40\r\n\r\nThis port speaks gRPC (HTTP/2) only.\r\n\r\n";
  outq_clear(&h2->outq); // our SETTINGS, still here unless the preface came in pieces
  (void)outq_copy(&h2->outq, text, sizeof text - 1);
}

static void feed_failed(struct h2 *h2, int rv) {
  h2->dead = true;
  switch (rv) {
  case NGHTTP2_ERR_BAD_CLIENT_MAGIC:
    refuse_preface(h2);
    return;
  case NGHTTP2_ERR_FLOODED:
  case NGHTTP2_ERR_TOO_MANY_SETTINGS:
    goaway_by_hand(h2, NGHTTP2_ENHANCE_YOUR_CALM, nghttp2_strerror(rv));
    return;
  case NGHTTP2_ERR_NOMEM:
  case NGHTTP2_ERR_CALLBACK_FAILURE:
    goaway_by_hand(h2, NGHTTP2_INTERNAL_ERROR, nghttp2_strerror(rv));
    return;
  default: // more CONTINUATION frames than allowed end here
    goaway_by_hand(h2, NGHTTP2_ENHANCE_YOUR_CALM, nghttp2_strerror(rv));
  }
}

void h2_feed(struct h2 *h2, const uint8_t *data, size_t bytes, int64_t now_ns) {
  h2->now_ns = h2->received_ns = now_ns;
  h2->asked = false;
  if (h2->dead || h2->closing) return;
  h2->fed = true;
  h2->heard = false;
  ssize_t rv = nghttp2_session_mem_recv(h2->session, data, bytes);
  if (rv < 0) feed_failed(h2, (int)rv);
  h2->unheard_bytes = h2->heard ? 0 : h2->unheard_bytes + bytes;
  h2->rpc->dirty(h2->owner);
}

// ---- output ----

// Back-pressure: what a client sends is paid back to the connection's window only while we are not
// busy with more than half of what we may hold for it.
static void give_credit(struct h2 *h2) {
  if (h2->credit_bytes == 0 || h2->busy_bytes > h2->room.connection_bytes / 2) return;
  if (nghttp2_session_consume_connection(h2->session, h2->credit_bytes) == 0) h2->credit_bytes = 0;
}

int h2_pull(struct h2 *h2, struct iovec *iov, int max) {
  if (!h2->fed && !h2->closing) return 0; // silent until we know that the peer speaks HTTP/2
  if (!h2->dead && !h2->last_word) {
    give_credit(h2);
    int rv = nghttp2_session_send(h2->session);
    if (rv != 0) {
      log_warn("h2_send", "connection given up: %s", nghttp2_strerror(rv));
      h2->dead = true;
    }
  }
  return outq_gather(&h2->outq, iov, max);
}

void h2_sent(struct h2 *h2, size_t bytes) {
  h2->sent_ns = h2->now_ns;
  outq_pop(&h2->outq, bytes);
}

// A peer that takes nothing of what we say, and of what it sends nothing counts. So it is after a
// connection error: our GOAWAY waits behind its answers, and the session passes over what comes. It
// may be frames of other streams' leftovers too: when it takes something, we read on.
#define UNHEARD_BYTES (2 * (MAX_FRAME_BYTES + 9))
#define STUCK_NS (20 * NS_PER_MS)
static bool talks_for_nothing(const struct h2 *h2) {
  return h2->unheard_bytes > UNHEARD_BYTES && h2->outq.bytes > 0 &&
         h2->now_ns - h2->sent_ns > STUCK_NS;
}

bool h2_want_read(const struct h2 *h2) {
  return !h2->dead && !h2->closing && h2->outq.bytes < OUTQ_MAX_BYTES && !talks_for_nothing(h2);
}

bool h2_finished(const struct h2 *h2) {
  if (h2->dead && !h2->fed) return true;
  if (h2->outq.bytes > 0) return false;
  if (h2->dead || h2->last_word) return true;
  return !nghttp2_session_want_read(h2->session) && !nghttp2_session_want_write(h2->session);
}

uint32_t h2_calls(const struct h2 *h2) {
  return h2->n_calls;
}

// ---- ending ----

void h2_goaway(struct h2 *h2, uint32_t code, const char *text) {
  if (h2->closing || h2->dead) return;
  h2->closing = true;
  int32_t last = nghttp2_session_get_last_proc_stream_id(h2->session);
  if (nghttp2_submit_goaway(h2->session, NGHTTP2_FLAG_NONE, last, code, (const uint8_t *)text,
                            strlen(text)) != 0)
    h2->dead = true;
  h2->rpc->dirty(h2->owner);
}

void h2_drain(struct h2 *h2, int64_t now_ns) {
  if (h2->dead || h2->closing || h2->drain != DRAIN_NO) return;
  h2->drain = DRAIN_BEGUN;
  h2->drain_since_ns = now_ns;
  // A connection that never said anything is owed nothing.
  if (!h2->fed || nghttp2_submit_shutdown_notice(h2->session) != 0) h2->dead = true;
  h2->rpc->dirty(h2->owner);
}

// nghttp2 lets a PING overtake a GOAWAY. Its answer is to say that the peer has seen the notice.
void h2_goaway_left(struct h2 *h2) {
  if (h2->drain != DRAIN_BEGUN) return;
  h2->drain = DRAIN_NOTICED;
  if (nghttp2_submit_ping(h2->session, NGHTTP2_FLAG_NONE, drain_ping) != 0) h2->dead = true;
}

static void drain_final(struct h2 *h2) {
  h2->drain = DRAIN_FINAL;
  for (struct call *call = h2->calls; call; call = call->next)
    if (call->stream) stream_drain(call);
  int32_t last = nghttp2_session_get_last_proc_stream_id(h2->session);
  if (nghttp2_submit_goaway(h2->session, NGHTTP2_FLAG_NONE, last, NGHTTP2_NO_ERROR, NULL, 0) != 0)
    h2->dead = true;
  h2->rpc->dirty(h2->owner);
}

void h2_ping_answered(struct h2 *h2, const uint8_t opaque[8]) {
  if (h2->drain == DRAIN_NOTICED && memcmp(opaque, drain_ping, sizeof drain_ping) == 0)
    drain_final(h2);
}

static bool passed(int64_t since_ns, int64_t limit_ms, int64_t now_ns) {
  return since_ns != 0 && limit_ms > 0 && now_ns - since_ns > limit_ms * NS_PER_MS;
}

// A call that never becomes a whole request (or a message of a stream that never becomes whole)
// would hold its slot and the bytes that came for ever.
static void late_requests(struct h2 *h2, int64_t now_ns) {
  int64_t limit_ms = h2->rpc->limits.request_timeout_ms;
  for (struct call *call = h2->calls; call; call = call->next) {
    bool late = call->state == CALL_RECEIVING
                    ? passed(call->headers_ns, limit_ms, now_ns)
                    : call->state == CALL_HANDLING && call->stream && limit_ms > 0 &&
                          stream_late(call, limit_ms * NS_PER_MS, now_ns);
    if (!late) continue;
    if (call->state == CALL_HANDLING) call_cancel(call, STATUS_DEADLINE_EXCEEDED);
    metrics_call_refused(CALL_REFUSED_REQUEST_TIMEOUT);
    char text[96];
    snprintf(text, sizeof text,
             "the request did not arrive within limits.request_timeout (%" PRId64 " ms)", limit_ms);
    h2_call_fail(call, STATUS_DEADLINE_EXCEEDED, text);
  }
}

// A client that is gone without a word leaves a connection that TCP may keep for hours. False: it
// did not answer.
static bool keepalive(struct h2 *h2, int64_t now_ns) {
  static const uint8_t alive[8] = {'a', 'l', 'i', 'v', 'e', '?'};
  const struct rpc_limits *limits = &h2->rpc->limits;
  if (!h2->fed || !passed(h2->received_ns, limits->keepalive_time_ms, now_ns)) return true;
  if (h2->asked)
    return !passed(h2->received_ns, limits->keepalive_time_ms + limits->keepalive_timeout_ms,
                   now_ns);
  h2->asked = true;
  if (nghttp2_submit_ping(h2->session, NGHTTP2_FLAG_NONE, alive) != 0) h2->dead = true;
  h2->rpc->dirty(h2->owner);
  return true;
}

// False: its calls have had their time.
static bool old_age(struct h2 *h2, int64_t now_ns) {
  const struct rpc_limits *limits = &h2->rpc->limits;
  if (now_ns < h2->age_by_ns) return true;
  if (h2->drain == DRAIN_NO) h2_drain(h2, now_ns);
  return !passed(h2->drain_since_ns, limits->connection_age_grace_ms, now_ns);
}

bool h2_tick(struct h2 *h2, int64_t now_ns) {
  const struct rpc_limits *limits = &h2->rpc->limits;
  h2->now_ns = now_ns;
  if (h2->dead || h2->closing) return true;
  late_requests(h2, now_ns);
  if (!keepalive(h2, now_ns) || !old_age(h2, now_ns)) return false;
  if (!h2->settings_seen && passed(h2->opened_ns, limits->handshake_timeout_ms, now_ns))
    h2_goaway(h2, NGHTTP2_SETTINGS_TIMEOUT, "no SETTINGS within limits.handshake_timeout");
  else if (passed(h2->headers_since_ns, limits->handshake_timeout_ms, now_ns))
    h2_goaway(h2, NGHTTP2_ENHANCE_YOUR_CALM,
              "headers not finished within limits.handshake_timeout");
  else if (h2->n_answers > 0 && passed(h2->sent_ns, UNREAD_MS, now_ns))
    h2_goaway(h2, NGHTTP2_ENHANCE_YOUR_CALM, "answers are not read");
  else if ((h2->drain == DRAIN_BEGUN || h2->drain == DRAIN_NOTICED) &&
           now_ns - h2->drain_since_ns > DRAIN_PING_WAIT_NS)
    drain_final(h2);
  else if (h2->drain == DRAIN_NO && h2->n_calls == 0 &&
           passed(h2->idle_since_ns, limits->idle_timeout_ms, now_ns))
    h2_drain(h2, now_ns);
  return true;
}
