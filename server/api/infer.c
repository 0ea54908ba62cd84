// ModelInfer: a call becomes a request, goes to an executor, comes back, is answered.
#include "api/infer.h"
#include "api/handlers.h"
#include "base/log.h"
#include "sched/core.h"
#include "sched/needs.h"
#include "sched/pack.h"

#include <stdio.h>

// ---- endings ----
// Everything that a request holds goes back. Loop thread. Also the `done` hook of its reply.
void infer_release(void *arg) {
  struct request *request = arg;
  if (request->message) slab_put(request->slabs, request->message);
  if (request->response) slab_put(request->slabs, request->response);
  model_put(request->model);
  request_put(request);
}

static void metrics_bytes(struct model_metrics *metrics, const struct request *request) {
  const struct request_cost *cost = &request->cost;
  atomic_fetch_add_explicit(&metrics->rows, (uint64_t)request->n_seqs, memory_order_relaxed);
  if (cost->kernels == 0) return;
  atomic_fetch_add_explicit(&metrics->read_bytes, (uint64_t)cost->read_bytes, memory_order_relaxed);
  atomic_fetch_add_explicit(&metrics->write_bytes, (uint64_t)cost->write_bytes,
                            memory_order_relaxed);
  atomic_fetch_add_explicit(&metrics->unfused_bytes, (uint64_t)cost->unfused_bytes,
                            memory_order_relaxed);
  // In whole bytes, as the reply has them, so that replies add up to the counters.
  int64_t saved =
      (int64_t)cost->unfused_bytes - (int64_t)cost->read_bytes - (int64_t)cost->write_bytes;
  if (saved > 0)
    atomic_fetch_add_explicit(&metrics->saved_bytes, (uint64_t)saved, memory_order_relaxed);
}

static void metrics_times(struct model_metrics *metrics, const struct request *request) {
  const struct request_cost *cost = &request->cost;
  hist_record(&metrics->queue_ns, (uint64_t)cost->queue_ns);
  hist_record(&metrics->copy_in_ns, (uint64_t)cost->copy_in_ns);
  hist_record(&metrics->compute_ns, (uint64_t)cost->compute_ns);
  hist_record(&metrics->copy_out_ns, (uint64_t)cost->copy_out_ns);
  hist_record(&metrics->total_ns,
              (uint64_t)(request->t_ns[STAGE_DONE] - request->t_ns[STAGE_MESSAGE]));
}

static struct model_metrics *metrics_of(const struct model *model, enum fusion_mode fusion) {
  return model->metrics[fusion] ? model->metrics[fusion] : model->metrics[model->fusion_default];
}

// Each accepted request passes here exactly once: accepted = finished + in flight, whatever
// happened.
void infer_count(const struct request *request, enum status status, const char *message) {
  infer_log(request, status, message);
  struct model_metrics *metrics = metrics_of(request->model, request->fusion);
  if (!metrics) return;
  atomic_fetch_sub_explicit(&metrics->in_flight, 1, memory_order_relaxed);
  // Release: whoever sees this end sees the beginning too.
  atomic_fetch_add_explicit(&metrics->finished[status], 1, memory_order_release);
  if (status != STATUS_OK) {
    atomic_fetch_add_explicit(
        status == STATUS_CANCELLED ? &metrics->cancelled_ns : &metrics->failed_ns,
        (uint64_t)(clock_now_ns() - request->t_ns[STAGE_MESSAGE]), memory_order_relaxed);
    return;
  }
  atomic_store_explicit(&metrics->last_ns, request->t_ns[STAGE_DONE], memory_order_relaxed);
  metrics_bytes(metrics, request);
  metrics_times(metrics, request);
}

static void count_refused(const struct model *model, enum fusion_mode fusion, enum refused why) {
  struct model_metrics *metrics = metrics_of(model, fusion);
  if (metrics) atomic_fetch_add_explicit(&metrics->refused[why], 1, memory_order_relaxed);
}

static void metrics_accepted(const struct model *model, enum fusion_mode fusion) {
  struct model_metrics *metrics = metrics_of(model, fusion);
  if (!metrics) return;
  atomic_fetch_add_explicit(&metrics->accepted, 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&metrics->in_flight, 1, memory_order_relaxed);
}

// Memory of the answer counts against the client's connection from when it is taken. From here on
// the answer itself does.
static bool reserve(struct call *call, struct request *request) {
  if (!request->response) return true;
  request->reserved = call_reserve(call, request->response->capacity_bytes);
  return request->reserved;
}

static void unreserve(struct call *call, struct request *request) {
  if (request->reserved) call_release(call, request->response->capacity_bytes);
  request->reserved = false;
}

static void request_fail(struct call *call, struct request *request, enum status status,
                         const char *message) {
  unreserve(call, request);
  if (request->item) {
    infer_item_done(call, request->item, request, status, message);
    return;
  }
  infer_count(request, status, message);
  infer_trace(call, request, status);
  call_fail(call, status, message);
  infer_release(request);
}

static void request_answer(const struct api *api, struct call *call, struct request *request) {
  unreserve(call, request);
  if (request->item) {
    infer_item_done(call, request->item, request, STATUS_OK, "");
    return;
  }
  infer_count(request, STATUS_OK, "");
  infer_trace(call, request, STATUS_OK);
  infer_reply(api, call, request, infer_release);
}

// What became of a request whose call is gone: what its client was told, so that both count alike.
static enum status gone_status(const struct request *request) {
  if (request->gone != STATUS_OK && request->gone != STATUS_CANCELLED) return request->gone;
  return request->status != STATUS_OK ? request->status : STATUS_CANCELLED;
}

void infer_finished(struct api *api, struct rpc *rpc, struct request *request) {
  struct call *call = call_find(rpc, request->call);
  if (!call && request->item) {
    infer_item_done(NULL, request->item, request, gone_status(request), "");
  } else if (!call) { // rpc/ has answered what had to be answered
    infer_count(request, gone_status(request), request->message_text);
    infer_release(request);
  } else if (request->status != STATUS_OK) {
    request_fail(call, request, request->status, request->message_text);
  } else {
    request_answer(api, call, request);
  }
}

// ---- on the way in ----
// The client reset the call, its connection died, or its deadline passed. The request itself comes
// back in its own time.
void infer_cancel(struct request *request, enum status why) {
  request->gone = why;
  atomic_store_explicit(&request->cancelled, true, memory_order_relaxed);
  if (request->executor) executor_note_cancel(request->executor);
}

static void request_cancel(void *arg, enum status why) {
  infer_cancel(arg, why);
}

// Outputs that need no step of the plan are complete as soon as their memory is: no device, no
// other thread.
static void finish_here(struct api *api, struct call *call, struct request *request) {
  request->t_ns[STAGE_BATCHED] = request->t_ns[STAGE_ADMITTED];
  request->cost.batch_requests = 1;
  request->cost.batch_tokens = request->n_tokens;
  request->cost.close = CLOSE_IDLE;
  pack_identity(request);
  core_cost(request, &(struct lane_times){0}, request->n_tokens);
  request->t_ns[STAGE_DONE] = clock_now_ns();
  request_answer(api, call, request);
}

// The device with the least work before it.
static struct executor *executor_pick(const struct api *api) {
  struct executor *best = api->executors[0];
  for (int i = 1; i < api->n_executors; i++) {
    struct executor *executor = api->executors[i];
    if (executor_lost(best) ||
        (!executor_lost(executor) && executor_queued(executor) < executor_queued(best)))
      best = executor;
  }
  return best;
}

// It could not be done by its deadline. Another server might, where it is the queue; none would,
// where it is the time that its own batch takes.
static void refuse_late(struct call *call, struct request *request,
                        const struct forecast *forecast) {
  int64_t left_ns = request->deadline_ns - request->t_ns[STAGE_ADMITTED];
  bool slow = forecast->own_ns > left_ns;
  char text[192];
  snprintf(text, sizeof text,
           "refused at once: %.1f ms are left until the deadline, of a batch of this size %.1f ms "
           "are expected, and %.1f ms of work ahead of it",
           left_ns > 0 ? (double)left_ns * 1e-6 : 0.0, (double)forecast->own_ns * 1e-6,
           (double)forecast->ahead_ns * 1e-6);
  count_refused(request->model, request->fusion, slow ? REFUSED_SLOW : REFUSED_BUSY);
  request_fail(call, request, slow ? STATUS_DEADLINE_EXCEEDED : STATUS_RESOURCE_EXHAUSTED, text);
}

static void submit(struct api *api, struct call *call, struct request *request) {
  struct executor *executor = executor_pick(api);
  if (executor_lost(executor)) {
    request_fail(call, request, STATUS_UNAVAILABLE,
                 "the device was lost; this server is shutting down");
    return;
  }
  struct forecast forecast;
  if (!executor_forecast(executor, request, &forecast)) {
    refuse_late(call, request, &forecast);
    return;
  }
  request->executor = executor;
  if (!request->item) call_on_cancel(call, request_cancel, request);
  if (executor_submit(executor, call_loop(call), request)) return;
  if (!request->item) call_on_cancel(call, NULL, NULL);
  request->executor = NULL;
  count_refused(request->model, request->fusion, REFUSED_QUEUE);
  request_fail(call, request, STATUS_RESOURCE_EXHAUSTED,
               "the queue is full (batch.queue_requests)");
}

static enum status request_fill(const struct wire_infer *wire, struct request *request,
                                struct error *err) {
  struct infer_shape shape;
  enum status status = infer_check(request->model, wire, request, &shape, err);
  // Among those that are fit to run, so that what runs is what the share says.
  if (status == STATUS_OK && !shape.fusion_named && share_takes(&request->model->unfused))
    request->fusion = FUSION_OFF;
  if (status == STATUS_OK)
    status = infer_rows(request->model, wire, &shape, request->slabs, request, err);
  return status;
}

static void request_init(struct request *request, struct call *call, struct model *model) {
  model_get(model);
  request->model = model;
  request->fusion = model->fusion_default;
  request->slabs = call_pool(call);
  request->call = call_ref_of(call);
  request->deadline_ns = call_deadline_ns(call);
  request->t_ns[STAGE_HEADERS] = call_headers_ns(call);
  request->t_ns[STAGE_MESSAGE] = call_message_ns(call);
  const char *traceparent = call_traceparent(call);
  request->traceparent[0] = 0;
  if (traceparent[0])
    snprintf(request->traceparent, sizeof request->traceparent, "%s", traceparent);
}

// No request came of it.
static void refuse(struct call *call, void *item, enum status status, const char *message) {
  infer_log_refused(call, status, message);
  if (item)
    infer_item_done(call, item, NULL, status, message);
  else
    call_fail(call, status, message);
}

static void infer(struct api *api, struct call *call, const struct wire_infer *wire,
                  struct model *model, void *item) {
  struct request *request = request_take(api->pools[call_loop(call)]);
  if (!request) {
    count_refused(model, model->fusion_default, REFUSED_QUEUE);
    refuse(call, item, STATUS_RESOURCE_EXHAUSTED,
           "too many requests at once (batch.queue_requests)");
    return;
  }
  struct error err;
  request_init(request, call, model);
  request->item = item;
  if (item) infer_item_begun(item, request);
  enum status status = request_fill(wire, request, &err);
  metrics_accepted(model, request->fusion);
  if (status == STATUS_OK && !reserve(call, request))
    status = error_set(
        &err, STATUS_RESOURCE_EXHAUSTED,
        "no room for one more reply of %zu bytes on this connection: limits.total_bytes is "
        "nearly used up",
        request->response->capacity_bytes);
  if (status != STATUS_OK) {
    if (status == STATUS_RESOURCE_EXHAUSTED)
      count_refused(model, request->fusion,
                    request->n_tokens > model->max_request_rows ? REFUSED_SIZE : REFUSED_MEMORY);
    request_fail(call, request, status, err.message);
    return;
  }
  request->message_bytes = (uint32_t)call_message(call).bytes;
  request->message = call_take_message(call);
  request->t_ns[STAGE_ADMITTED] = clock_now_ns();
  if (needs_steps(model, request->fusion, request->outputs))
    submit(api, call, request);
  else
    finish_here(api, call, request);
}

void infer_begin(struct api *api, struct call *call, void *item) {
  struct wire_infer wire;
  struct error err;
  enum status status = wire_split(call_message(call), &wire, &err);
  struct model *model = status == STATUS_OK
                            ? model_find(api, wire.model_name, wire.model_version, &status, &err)
                            : NULL;
  if (model)
    infer(api, call, &wire, model, item);
  else
    refuse(call, item, status, err.message);
}

void model_infer(struct call *call, void *app) {
  infer_begin(app, call, NULL);
}
