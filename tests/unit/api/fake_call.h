// The call layer for tests of handlers: this file defines rpc/call.h's functions over one call that
// the test fills and looks at, so that rpc/ itself is not linked. Included by one .c file a
// program.
#ifndef UNIT_API_FAKE_CALL_H
#define UNIT_API_FAKE_CALL_H

#include "rpc/rpc.h"

struct call {
  struct slice message;
  struct slab *slab;
  struct slab_pool *pool;
  int64_t deadline_ns;
  cancel_hook cancel;
  void *cancel_arg, *user, *app;
  int answers;
  enum status status;
  char text[ERROR_MESSAGE_BYTES];
  bool gone, no_room;
  size_t reserved;
  size_t reply_bytes;
  uint8_t reply[65536]; // last: not cleared between calls
};
static struct call call;
struct call_ref call_ref_of(const struct call *c) {
  (void)c;
  return (struct call_ref){0, 1, 2};
}
struct call *call_find(struct rpc *rpc, struct call_ref ref) {
  (void)rpc;
  assert_true(ref.slot == 1 && ref.generation == 2);
  return call.gone ? NULL : &call;
}
struct slice call_message(const struct call *c) {
  return c->message;
}
struct slab *call_take_message(struct call *c) {
  struct slab *slab = c->slab;
  c->slab = NULL;
  return slab;
}
struct slab_pool *call_pool(struct call *c) {
  return c->pool;
}
int64_t call_deadline_ns(const struct call *c) {
  return c->deadline_ns;
}
int64_t call_headers_ns(const struct call *c) {
  (void)c;
  return clock_now_ns();
}
int64_t call_message_ns(const struct call *c) {
  (void)c;
  return clock_now_ns();
}
int call_loop(const struct call *c) {
  (void)c;
  return 0;
}
const char *call_traceparent(const struct call *c) {
  (void)c;
  return "";
}
struct trace_span *call_trace(const struct call *c) {
  (void)c;
  return NULL;
}
struct trace_source *rpc_trace(const struct rpc *rpc) {
  (void)rpc;
  return NULL;
}
bool call_reserve(struct call *c, size_t bytes) {
  if (c->no_room) return false;
  c->reserved += bytes;
  return true;
}
void call_release(struct call *c, size_t bytes) {
  assert_true(c->reserved >= bytes);
  c->reserved -= bytes;
}
struct rpc *call_rpc(const struct call *c) {
  (void)c;
  return NULL;
}
void call_on_cancel(struct call *c, cancel_hook hook, void *arg) {
  c->cancel = hook;
  c->cancel_arg = arg;
}
void call_reply(struct call *c, const void *head, size_t head_bytes, const struct slice *payload,
                int n_payload, void (*done)(void *arg), void *arg) {
  c->answers++;
  c->status = STATUS_OK;
  memcpy(c->reply, head, head_bytes);
  c->reply_bytes = head_bytes;
  for (int i = 0; i < n_payload; i++) {
    assert_true(c->reply_bytes + payload[i].bytes <= sizeof c->reply);
    memcpy(c->reply + c->reply_bytes, payload[i].data, payload[i].bytes);
    c->reply_bytes += payload[i].bytes;
  }
  if (done) done(arg);
}
// Streams: a message counts as an answer and has left at once.
bool call_send(struct call *c, const void *head, size_t head_bytes, const struct slice *payload,
               int n_payload, void (*done)(void *arg), void *arg) {
  call_reply(c, head, head_bytes, payload, n_payload, done, arg);
  return true;
}
void call_finish(struct call *c, enum status code, const char *message) {
  c->status = code;
  snprintf(c->text, sizeof c->text, "%s", message);
}
uint32_t call_queued(const struct call *c) {
  (void)c;
  return 0;
}
void call_on_sent(struct call *c, void (*hook)(struct call *call, void *arg), void *arg) {
  (void)c, (void)hook, (void)arg;
}
void call_hold(struct call *c) {
  (void)c;
}
void call_let_go(struct call *c) {
  (void)c;
}
void call_message_done(struct call *c, size_t bytes) {
  (void)c, (void)bytes;
}
void call_set_user(struct call *c, void *user) {
  c->user = user;
}
void *call_user(const struct call *c) {
  return c->user;
}
void *call_app(struct call *c) {
  return c->app;
}
struct slab_pool *rpc_pool(struct rpc *rpc) {
  (void)rpc;
  return call.pool;
}
void call_fail(struct call *c, enum status code, const char *message) {
  c->answers++;
  c->status = code;
  snprintf(c->text, sizeof c->text, "%s", message);
}

#endif
