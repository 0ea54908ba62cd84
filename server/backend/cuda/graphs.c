// CUDA graphs: a plan captured for every bucket, once a lane, and replayed. Copies stay outside, as
// only they have addresses of requests; the geometry goes with them (copies.c).
#include "backend/cuda/choices.h"
#include "backend/cuda/cuda_device.h"
#include "base/clock.h"
#include "base/log.h"

#include <stdlib.h>

// ---- one run, launch by launch ----
// The lane's arrays with these counts.
static struct batch_geometry on_device(const struct lane *lane,
                                       const struct batch_geometry *counts) {
  struct batch_geometry geometry = lane->geometry;
  geometry.n_tokens = counts->n_tokens;
  geometry.n_seqs = counts->n_seqs;
  geometry.max_seqlen = counts->max_seqlen;
  geometry.sum_sq = counts->sum_sq;
  return geometry;
}

static int launch_batch(struct lane *lane, const struct bound_plan *bound,
                        const struct batch_geometry *counts, uint8_t outputs, cudaStream_t stream) {
  struct batch_geometry geometry = on_device(lane, counts);
  return cuda_launch_all(bound->lanes[lane->index], bound->plan->n_steps, &geometry, outputs,
                         stream);
}

// ---- capture ----
// On a stream of its own: the lane's may be running batches of other plans.
static int capture(struct lane *lane, const struct bound_plan *bound, const struct bucket *bucket,
                   cudaStream_t stream, cudaGraphExec_t *out) {
  struct batch_geometry counts = {.n_tokens = bucket->n_tokens,
                                  .n_seqs = bucket->n_seqs,
                                  .max_seqlen = bucket->max_seqlen,
                                  .sum_sq = (int64_t)bucket->n_tokens * bucket->max_seqlen};
  cudaGraph_t graph = NULL;
  // relaxed: a kernel's first use may load it, which stricter modes refuse
  int rc = cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
  if (rc != 0) return rc;
  int launched = launch_batch(lane, bound, &counts, bucket->outputs, stream);
  rc = cudaStreamEndCapture(stream, &graph);
  if (launched != 0) rc = launched;
  if (rc == 0) rc = cudaGraphInstantiate(out, graph, 0);
  if (graph) cudaGraphDestroy(graph);
  if (rc == 0) rc = cudaGraphUpload(*out, stream);
  return rc;
}

static enum status capture_all(struct lane *lane, struct bound_plan *bound, struct lane_plan *plan,
                               struct error *err) {
  size_t before = 0, after = 0, total;
  int64_t began_ns = clock_now_ns();
  cudaStream_t stream = NULL;
  int rc = cudaMemGetInfo(&before, &total);
  if (rc == 0) rc = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  for (int32_t i = 0; rc == 0 && i < bucket_count(&bound->buckets); i++) {
    struct bucket bucket;
    if (!bucket_at(&bound->buckets, i, &bucket)) continue;
    rc = capture(lane, bound, &bucket, stream, &plan->graphs[i]);
    plan->n_graphs += rc == 0;
    struct batch_geometry counts = {.n_tokens = bucket.n_tokens, .n_seqs = bucket.n_seqs};
    plan->fallbacks[i] = (int16_t)choices_fallbacks(bound, &counts, bucket.outputs);
  }
  if (rc == 0) rc = cudaStreamSynchronize(stream);
  if (stream) (void)cudaStreamDestroy(stream);
  if (rc == 0) rc = cudaMemGetInfo(&after, &total);
  enum status status = cuda_check(lane->device, rc, "capture of a graph", err);
  if (status != STATUS_OK || after >= before) return status;
  plan->graph_bytes = (int64_t)(before - after);
  ledger_note(&lane->device->ledger, LEDGER_GRAPHS, plan->graph_bytes);
  log_info("graphs_captured", "device cuda:%d lane %d, fusion %s: %d graphs, %.1f MiB, %lld ms",
           lane->device->index, lane->index, fusion_name(bound->plan->mode), plan->n_graphs,
           (double)plan->graph_bytes / 1048576, (long long)((clock_now_ns() - began_ns) / 1000000));
  return STATUS_OK;
}

static enum status make_events(struct lane_plan *plan, struct device *device, int32_t n_steps,
                               struct error *err) {
  plan->step_events = calloc((size_t)n_steps + 1, sizeof(cudaEvent_t));
  if (!plan->step_events) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for events");
  int rc = 0;
  for (int32_t i = 0; rc == 0 && i <= n_steps; i++)
    rc = cudaEventCreate(&plan->step_events[i]);
  return cuda_check(device, rc, "events between steps", err);
}

enum status cuda_prepare(struct lane *lane, struct bound_plan *bound, struct error *err) {
  struct device *device = lane->device;
  FW_ASSERT(lane->index >= 0 && lane->index < LIMIT_LANES);
  enum status status = cuda_enter(device, err);
  if (status != STATUS_OK) return status;
  if (bound->lanes[lane->index]) cuda_lane_plan_close(device, bound, lane->index);
  struct lane_plan *plan = calloc(1, sizeof *plan);
  if (!plan) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a lane's plan");
  bound->lanes[lane->index] = plan;
  plan->graphs = calloc((size_t)bucket_count(&bound->buckets) + 1, sizeof(cudaGraphExec_t));
  plan->fallbacks = calloc((size_t)bucket_count(&bound->buckets) + 1, sizeof *plan->fallbacks);
  if (!plan->graphs || !plan->fallbacks)
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for graphs");
  status = cuda_launches_make(bound, lane, plan, err);
  if (status != STATUS_OK) return status;
  if (device->timing) return make_events(plan, device, bound->plan->n_steps, err);
  return capture_all(lane, bound, plan, err);
}

void cuda_lane_plan_close(struct device *device, struct bound_plan *bound, int lane) {
  struct lane_plan *plan = bound->lanes[lane];
  bound->lanes[lane] = NULL;
  for (int32_t i = 0; plan->graphs && i < bucket_count(&bound->buckets); i++)
    if (plan->graphs[i]) cudaGraphExecDestroy(plan->graphs[i]);
  for (int32_t i = 0; plan->step_events && i <= bound->plan->n_steps; i++)
    if (plan->step_events[i]) cudaEventDestroy(plan->step_events[i]);
  if (plan->graph_bytes > 0) ledger_release(&device->ledger, LEDGER_GRAPHS, plan->graph_bytes);
  free(plan->step_events);
  free(plan->fallbacks);
  free(plan->graphs);
  free(plan->launches);
  free(plan);
}

// ---- run ----
static int run_timed(struct lane *lane, const struct bound_plan *bound,
                     const struct batch_geometry *geometry, uint8_t outputs) {
  struct lane_plan *plan = bound->lanes[lane->index];
  struct batch_geometry counts = on_device(lane, geometry);
  int rc = 0;
  for (int32_t i = 0; rc == 0 && i < bound->plan->n_steps; i++) {
    struct launch *launch = &plan->launches[i];
    rc = cudaEventRecord(plan->step_events[i], lane->stream);
    if (rc == 0 && (launch->needed_by & outputs)) rc = launch->run(launch, &counts, lane->stream);
  }
  if (rc == 0) rc = cudaEventRecord(plan->step_events[bound->plan->n_steps], lane->stream);
  plan->timed = rc == 0;
  return rc;
}

enum status cuda_run(struct lane *lane, const struct bound_plan *bound,
                     const struct batch_geometry *geometry, uint8_t outputs) {
  struct device *device = lane->device;
  const struct lane_plan *plan = bound->lanes[lane->index];
  FW_ASSERT(plan);
  FW_ASSERT(geometry->n_tokens >= 1 && geometry->n_tokens <= bound->plan->limits.max_tokens);
  FW_ASSERT(geometry->n_seqs >= 1 && geometry->n_seqs <= bound->plan->limits.max_seqs);
  enum status status = cuda_enter(device, NULL);
  if (status != STATUS_OK) return status;
  struct bucket bucket = {geometry->n_tokens, geometry->n_seqs, geometry->max_seqlen, outputs};
  int32_t index = plan->step_events ? -1 : bucket_find(&bound->buckets, geometry, outputs);
  bool captured = index >= 0 && plan->graphs[index] && bucket_at(&bound->buckets, index, &bucket);
  geometry_fill(lane->geometry_host, lane->geometry_pitch, geometry, bucket.n_tokens,
                bucket.n_seqs);
  lane->replayed = captured;
  lane->ran_tokens = bucket.n_tokens;
  lane->fallbacks = captured ? plan->fallbacks[index] : choices_fallbacks(bound, geometry, outputs);
  int rc = copies_flush_in(lane, bucket.n_tokens, bucket.n_seqs);
  if (rc != 0) return cuda_check(device, rc, "copying a batch in", NULL);
  if (captured)
    rc = cudaGraphLaunch(plan->graphs[index], lane->stream);
  else if (plan->step_events)
    rc = run_timed(lane, bound, geometry, outputs);
  else
    rc = launch_batch(lane, bound, geometry, outputs, lane->stream);
  if (rc == 0) rc = cuda_turn_give(lane, bucket.n_tokens);
  return cuda_check(device, rc, "start of a batch", NULL);
}

int cuda_step_times(struct lane *lane, const struct bound_plan *bound, int64_t *ns,
                    int32_t n_steps) {
  const struct lane_plan *plan = bound->lanes[lane->index];
  if (!plan || !plan->timed) return 0;
  int32_t n = n_steps < bound->plan->n_steps ? n_steps : bound->plan->n_steps;
  for (int32_t i = 0; i < n; i++) {
    float ms = 0;
    if (cudaEventElapsedTime(&ms, plan->step_events[i], plan->step_events[i + 1]) != 0) return 0;
    ns[i] = (int64_t)((double)ms * 1e6);
  }
  return n;
}
