// What a trace tells of an inference: which model, in which batch, where the time went, the bytes.
#include "api/infer.h"
#include "obs/trace.h"

#include <string.h>

static void put(char *out, const char *text, size_t bytes) {
  trace_put_text(out, TRACE_NAME_BYTES, text, bytes);
}

static void fill(struct trace_span *span, const struct request *request, enum status status) {
  const struct model *model = request->model;
  const struct request_cost *cost = &request->cost;
  put(span->model, model->name, strlen(model->name));
  put(span->version, model->version, strlen(model->version));
  put(span->request_id, request->id, request->id_bytes);
  span->fusion = fusion_name(request->fusion);
  if (status != STATUS_OK) return;
  const int64_t *t_ns = request->t_ns;
  span->ran = true;
  span->stages[TRACE_QUEUE].from_ns = t_ns[STAGE_ADMITTED];
  span->stages[TRACE_QUEUE].ns = cost->queue_ns;
  span->stages[TRACE_COPY_IN].from_ns = t_ns[STAGE_BATCHED];
  span->stages[TRACE_COPY_IN].ns = cost->copy_in_ns;
  span->stages[TRACE_COMPUTE].from_ns = t_ns[STAGE_COMPUTE];
  span->stages[TRACE_COMPUTE].ns = cost->compute_ns;
  span->stages[TRACE_COPY_OUT].from_ns = t_ns[STAGE_COMPUTE] + cost->compute_ns;
  span->stages[TRACE_COPY_OUT].ns = cost->copy_out_ns;
  span->batch_requests = cost->batch_requests;
  span->batch_tokens = cost->batch_tokens;
  span->close = batch_close_name(cost->close);
  span->kernels = cost->kernels;
  span->read_bytes = cost->read_bytes;
  span->write_bytes = cost->write_bytes;
  span->unfused_bytes = cost->unfused_bytes;
}

void infer_trace(const struct call *call, const struct request *request, enum status status) {
  struct trace_span *span = call_trace(call);
  if (span) fill(span, request, status);
}

void infer_trace_item(struct call *call, const struct request *request, enum status status,
                      const char *message) {
  struct trace_span *parent = call ? call_trace(call) : NULL;
  struct trace_source *source = parent ? rpc_trace(call_rpc(call)) : NULL;
  struct trace_span *span = parent ? trace_child(source, parent) : NULL;
  if (!span) return;
  int64_t now_ns = clock_now_ns();
  span->began_ns = request ? request->t_ns[STAGE_MESSAGE] : now_ns;
  span->status = status;
  trace_put_text(span->text, sizeof span->text, message, strlen(message));
  if (request) fill(span, request, status);
  trace_end(source, span, now_ns);
}
