// ModelStreamInfer: as many requests as the client likes on one call, answered in their order.
//
// A stream is a ring of items in the order of its messages. A request may be done before those in
// front of it; it is answered when they are. No more than limits.stream_requests are in the ring or
// wait for the client's window: then the stream holds, and with it the client. A request that fails
// is answered by its error text, and the stream goes on. Loop thread.
#include "api/handlers.h"
#include "api/infer.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>

#define TEXT_BYTES 256 // of an error; longer ones are cut
#define NAME_KEPT 64   // of the model's name and of the id in an error's answer

struct stream_item {
  struct infer_stream *stream;
  struct request *request; // NULL: refused before it was one
  bool done;
  enum status status;
  uint8_t model_bytes, id_bytes;
  char model[NAME_KEPT], id[NAME_KEPT], text[TEXT_BYTES];
};

struct infer_stream {
  struct api *api;
  struct rpc *rpc;
  struct call_ref call;
  struct slab *slab; // this struct lies in it, so that it counts against limits.total_bytes
  struct slab_pool *pool;
  uint32_t refs; // the call, while it lives, and each item in the ring
  uint32_t first, n, limit;
  bool closed, draining;
  enum status gone;           // why the call ended before its requests
  struct stream_item items[]; // [limit]
};

static void stream_put(struct infer_stream *stream) {
  if (--stream->refs == 0) slab_put(stream->pool, stream->slab);
}

static struct stream_item *item_at(struct infer_stream *stream, uint32_t index) {
  return &stream->items[(stream->first + index) % stream->limit];
}

// ---- out ----

// Its reply has left (or never will): memory and the connection's account get their part back.
static void sent(void *arg) {
  struct request *request = arg;
  struct infer_stream *stream = request->item;
  struct call *call = call_find(stream->rpc, stream->call);
  size_t bytes = request->message ? request->message_bytes : 0;
  infer_release(request);
  if (call && bytes) call_message_done(call, bytes);
  stream_put(stream);
}

static struct slice slice_of(const char *text, size_t bytes) {
  return (struct slice){(const uint8_t *)text, bytes};
}

static void answer_error(struct call *call, struct stream_item *item) {
  struct slice model = slice_of(item->model, item->model_bytes), none = {NULL, 0},
               id = slice_of(item->id, item->id_bytes), version = none;
  if (item->request) {
    const struct request *request = item->request;
    model = slice_of(request->model->name, strlen(request->model->name));
    version = slice_of(request->model->version, strlen(request->model->version));
    id = slice_of(request->id, request->id_bytes);
  }
  infer_reply_error(call, item->text, model, version, id);
}

// The ring's first item, which is done, goes out. The reference that it held goes on to `sent`.
static void answer_first(struct infer_stream *stream, struct call *call) {
  struct stream_item *item = item_at(stream, 0);
  struct request *request = item->request;
  enum status status = item->status;
  // It leaves the ring first: a call that ends in the middle of this finds the others only.
  stream->first = (stream->first + 1) % stream->limit;
  stream->n--;
  if (!call && status == STATUS_OK) status = stream->gone; // nobody got it
  if (request) infer_count(request, status, item->text);
  infer_trace_item(call, request, status, item->text);
  if (call && status != STATUS_OK) answer_error(call, item);
  if (!request) {
    stream_put(stream);
    return;
  }
  request->item = stream;
  if (call && status == STATUS_OK)
    infer_reply(stream->api, call, request, sent);
  else
    sent(request);
}

static void let_go_or_end(struct infer_stream *stream) {
  struct call *call = call_find(stream->rpc, stream->call);
  if (!call) return;
  if (stream->n == 0 && stream->draining) {
    stream_put(stream);
    call_finish(call, STATUS_UNAVAILABLE,
                "the server is shutting down; what was asked on this stream is answered");
  } else if (stream->n == 0 && stream->closed) {
    stream_put(stream);
    call_finish(call, STATUS_OK, "");
  } else if (!stream->draining && stream->n + call_queued(call) < stream->limit) {
    call_let_go(call);
  }
}

static void flush(struct infer_stream *stream) {
  stream->refs++; // answers may end the stream
  while (stream->n > 0 && item_at(stream, 0)->done)
    answer_first(stream, call_find(stream->rpc, stream->call));
  let_go_or_end(stream);
  stream_put(stream);
}

// For the answer of a request that is refused before it is one. Best effort: the whole message is
// scanned again only then.
static void remember(struct stream_item *item, struct slice message) {
  struct wire_infer wire;
  struct error err;
  if (wire_split(message, &wire, &err) != STATUS_OK) return;
  item->model_bytes = (uint8_t)(wire.model_name.bytes < NAME_KEPT ? wire.model_name.bytes : 0);
  item->id_bytes = (uint8_t)(wire.id.bytes < NAME_KEPT ? wire.id.bytes : 0);
  if (item->model_bytes) memcpy(item->model, wire.model_name.data, item->model_bytes);
  if (item->id_bytes) memcpy(item->id, wire.id.data, item->id_bytes);
}

void infer_item_begun(void *item, struct request *request) {
  ((struct stream_item *)item)->request = request;
}

void infer_item_done(struct call *call, void *arg, struct request *request, enum status status,
                     const char *message) {
  struct stream_item *item = arg;
  if (!request && call) remember(item, call_message(call));
  item->request = request;
  item->status = status;
  item->done = true;
  snprintf(item->text, sizeof item->text, "%s", message);
  flush(item->stream);
}

static void left(struct call *call, void *arg) {
  (void)call;
  let_go_or_end(arg);
}

// ---- in ----

// The call is gone; its requests come back in their own time.
static void cancelled(void *arg, enum status why) {
  struct infer_stream *stream = arg;
  for (uint32_t i = 0; i < stream->n; i++) {
    struct stream_item *item = item_at(stream, i);
    if (!item->done && item->request) infer_cancel(item->request, why);
  }
  stream->gone = why;
  stream->refs++;
  while (stream->n > 0 && item_at(stream, 0)->done)
    answer_first(stream, NULL);
  stream_put(stream);
  stream_put(stream); // the call's
}

static struct infer_stream *stream_make(struct api *api, struct call *call) {
  size_t bytes =
      sizeof(struct infer_stream) + (size_t)api->stream_requests * sizeof(struct stream_item);
  struct slab *slab = slab_get(call_pool(call), bytes);
  if (!slab) return NULL;
  struct infer_stream *stream = (struct infer_stream *)(void *)slab->data;
  memset(stream, 0, sizeof *stream);
  stream->api = api;
  stream->rpc = call_rpc(call);
  stream->call = call_ref_of(call);
  stream->slab = slab;
  stream->pool = call_pool(call);
  stream->refs = 1;
  stream->limit = (uint32_t)api->stream_requests;
  call_set_user(call, stream);
  call_on_cancel(call, cancelled, stream);
  call_on_sent(call, left, stream);
  return stream;
}

void model_stream_infer(struct call *call, void *app) {
  struct api *api = app;
  struct infer_stream *stream = call_user(call);
  if (!stream && !(stream = stream_make(api, call))) {
    call_fail(call, STATUS_RESOURCE_EXHAUSTED, "no memory for a stream (limits.total_bytes)");
    return;
  }
  FW_ASSERT(stream->n < stream->limit);
  struct stream_item *item = item_at(stream, stream->n);
  memset(item, 0, offsetof(struct stream_item, model));
  item->stream = stream;
  stream->n++;
  stream->refs += 2; // the item's, and ours until the end of this function
  infer_begin(api, call, item);
  call = call_find(stream->rpc, stream->call);
  if (call && stream->n + call_queued(call) >= stream->limit) call_hold(call);
  stream_put(stream);
}

static void closed(struct call *call, void *app) {
  (void)app;
  struct infer_stream *stream = call_user(call);
  if (!stream) {
    call_finish(call, STATUS_OK, "");
    return;
  }
  stream->closed = true;
  let_go_or_end(stream);
}

static void drain(struct call *call, void *app) {
  (void)app;
  struct infer_stream *stream = call_user(call);
  if (!stream) {
    call_finish(call, STATUS_UNAVAILABLE, "the server is shutting down");
    return;
  }
  stream->draining = true;
  call_hold(call);
  let_go_or_end(stream);
}

const struct method_stream model_stream_infer_stream = {
    .many_in = true, .closed = closed, .drain = drain};
