#include "sched/work.h"
#include "sched/needs.h"

#include <unistd.h>

enum status work_open(struct work *work, const struct work_device *on,
                      const struct lane_sizes *sizes, struct error *err) {
  *work = (struct work){.on = on};
  enum status status = pack_arrays_init(&work->arrays, sizes->max_tokens, sizes->max_seqs);
  if (status != STATUS_OK)
    return error_set(err, status, "out of memory for the batch arrays of %d tokens",
                     sizes->max_tokens);
  status = on->backend->lane_open(on->device, sizes, &work->lane, err);
  if (status != STATUS_OK) pack_arrays_deinit(&work->arrays);
  return status;
}

void work_close(struct work *work) {
  work->on->backend->lane_close(work->on->device, work->lane);
  pack_arrays_deinit(&work->arrays);
}

// ---- warming ----
#define WARM_TOKENS_LOG2 7 // up to here batches differ in what they run; above, in how often

// As many rows as the size says, in sequences as alike as may be.
static struct request warm_request(const struct model *model, enum fusion_mode fusion,
                                   const struct warm_size *size, int32_t *seqlens) {
  for (int32_t s = 0; s < size->n_seqs; s++)
    seqlens[s] = size->n_tokens / size->n_seqs + (s < size->n_tokens % size->n_seqs);
  return (struct request){.model = (struct model *)(uintptr_t)model,
                          .fusion = fusion,
                          .outputs = size->outputs,
                          .dense = true,
                          .seqlens = seqlens,
                          .n_tokens = size->n_tokens,
                          .n_seqs = size->n_seqs,
                          .padded_seqlen = seqlens[0]};
}

bool work_warm_size(const struct work_device *on, const struct model *model,
                    enum fusion_mode fusion, int32_t index, struct warm_size *out) {
  if (on->backend->warm_size) {
    if (!on->backend->warm_size(model->bound[on->index][fusion], index, out)) return false;
  } else {
    if (index > WARM_TOKENS_LOG2) return false;
    *out = (struct warm_size){1 << index, 1, (uint8_t)((1u << model->n_outputs) - 1)};
  }
  const struct plan_limits *limits = &model->plans[fusion]->limits;
  int32_t longest = model->has_sequences ? model->max_seqlen : 1;
  int32_t fewest = (out->n_tokens + longest - 1) / longest;
  if (out->n_seqs < fewest) out->n_seqs = fewest;
  bool fits = out->n_tokens <= limits->max_tokens && out->n_seqs <= limits->max_seqs &&
              out->n_seqs <= out->n_tokens && out->outputs != 0;
  if (!fits) out->n_tokens = 0;
  return true;
}

static enum status run_and_wait(struct work *work, const struct bound_plan *bound,
                                const struct request *request, struct lane_times *times) {
  const struct backend_ops *backend = work->on->backend;
  struct pack_target target = {backend, work->lane, bound};
  int done;
  pack_in(&target, request, (struct pack_origin){0, 0},
          needs_inputs(request->model, request->fusion, request->outputs));
  pack_geometry(request, &work->arrays, &work->geometry);
  enum status status = backend->run(work->lane, bound, &work->geometry, request->outputs);
  if (status != STATUS_OK) return status;
  backend->submit(work->lane);
  while ((done = backend->poll(work->lane, times)) == 0)
    usleep(100);
  return done < 0 ? STATUS_UNAVAILABLE : STATUS_OK;
}

enum status work_prepare(struct work *work, const struct model *model, enum fusion_mode fusion,
                         struct error *err) {
  const struct work_device *on = work->on;
  uint8_t all = (uint8_t)((1u << model->n_outputs) - 1);
  if (!on->backend->prepare || !needs_steps(model, fusion, all)) return STATUS_OK;
  return on->backend->prepare(work->lane, model->bound[on->index][fusion], err);
}

enum status work_warm(struct work *work, const struct model *model, enum fusion_mode fusion,
                      const struct warm_size *size, int32_t *seqlens, struct lane_times *times,
                      struct error *err) {
  struct request request = warm_request(model, fusion, size, seqlens);
  *times = (struct lane_times){0};
  if (!needs_steps(model, fusion, request.outputs)) return STATUS_OK;
  enum status status = run_and_wait(work, model->bound[work->on->index][fusion], &request, times);
  if (status == STATUS_OK) return status;
  return error_set(err, status, "model \"%s\", fusion %s: its first batch of %d tokens failed: %s",
                   model->name, fusion_name(fusion), size->n_tokens, status_name(status));
}

// ---- a batch ----
static void work_sum(struct work *work) {
  work->n_tokens = work->n_seqs = work->sum_sq = 0;
  work->n_requests = 0;
  work->outputs = 0;
  for (const struct request *request = work->first; request; request = request->next) {
    work->n_tokens += request->n_tokens;
    work->n_seqs += request->n_seqs;
    work->sum_sq += request->sum_sq;
    work->outputs |= request->outputs;
    work->n_requests++;
  }
}

static void work_stamp(struct work *work) {
  for (struct request *request = work->first; request; request = request->next) {
    request->t_ns[STAGE_BATCHED] = work->began_ns;
    request->cost.batch_requests = work->n_requests;
    request->cost.batch_tokens = (int32_t)work->n_tokens;
    request->cost.close = work->close;
  }
}

void work_take(struct work *work, struct queue *queue, struct request *first,
               enum batch_close close, int64_t now_ns) {
  work->queue = queue;
  work->first = first;
  work->close = close;
  work->began_ns = now_ns;
  work_sum(work);
  work_stamp(work);
}

bool work_has_steps(const struct work *work) {
  return needs_steps(work->queue->model, work->queue->fusion, work->outputs);
}

static struct pack_origin origin_after(struct pack_origin origin, const struct request *request) {
  return (struct pack_origin){origin.token + request->n_tokens, origin.seq + request->n_seqs};
}

static enum status run_steps(struct work *work, const struct pack_target *target) {
  uint32_t inputs = needs_inputs(work->queue->model, work->queue->fusion, work->outputs);
  struct pack_origin origin = {0, 0};
  for (const struct request *request = work->first; request; request = request->next) {
    pack_in(target, request, origin, inputs);
    origin = origin_after(origin, request);
  }
  pack_geometry(work->first, &work->arrays, &work->geometry);
  return target->backend->run(work->lane, target->bound, &work->geometry, work->outputs);
}

enum status work_run(struct work *work) {
  const struct work_device *on = work->on;
  struct pack_target target = {on->backend, work->lane,
                               work->queue->model->bound[on->index][work->queue->fusion]};
  bool steps = work_has_steps(work);
  enum status status = steps ? run_steps(work, &target) : STATUS_OK;
  if (status != STATUS_OK) return status;
  struct pack_origin origin = {0, 0};
  for (const struct request *request = work->first; request; request = request->next) {
    if (steps)
      pack_out(&target, request, origin);
    else
      pack_identity(request);
    origin = origin_after(origin, request);
  }
  if (steps) on->backend->submit(work->lane);
  return STATUS_OK;
}

static void add(_Atomic uint64_t *counter, int64_t n) {
  atomic_fetch_add_explicit(counter, (uint64_t)n, memory_order_relaxed);
}

void work_count(const struct work *work, const struct lane_times *times,
                const struct traffic_total *total) {
  struct model_metrics *metrics = work->queue->model->metrics[work->queue->fusion];
  if (!metrics) return;
  add(&metrics->batches, 1);
  add(&metrics->batch_requests, work->n_requests);
  add(&metrics->batch_tokens, work->n_tokens);
  add(&metrics->ran_tokens, times->ran_tokens > 0 ? times->ran_tokens : work->n_tokens);
  add(&metrics->graph_replays, times->replayed);
  add(&metrics->fallback_kernels, times->fallbacks);
  add(&metrics->batch_close[work->close], 1);
  if (total->kernels > 0)
    metrics_batch_work(metrics, total->read_bytes + total->write_bytes, total->flops,
                       times->compute_ns);
  hist_record(&metrics->batch_size_tokens, (uint64_t)work->n_tokens);
  int64_t rows = work->n_seqs < METRICS_BATCH_ROWS ? work->n_seqs : METRICS_BATCH_ROWS;
  struct batch_metrics *batch = &metrics->batch_rows[rows > 0 ? rows - 1 : 0];
  add(&batch->runs, 1);
  add(&batch->copy_in_ns, times->copy_in_ns);
  add(&batch->compute_ns, times->compute_ns);
  add(&batch->copy_out_ns, times->copy_out_ns);
}
