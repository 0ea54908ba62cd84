// The card as a back end: copies, the order of a batch on its lane's stream, times, the vtable.
//
// On a lane's stream, in this order: copies in, steps, copies out, `done`; between them the card
// writes the time into the lane's stamps. Nothing here waits; poll asks whether `done` has passed.
#include "backend/cuda/cuda_device.h"
#include "backend/cuda/weights.h"
#include "base/log.h"

_Static_assert(cudaErrorNotReady == 600 && cudaErrorMemoryAllocation == 2, "errors.c");
_Static_assert(cudaErrorIllegalAddress == 700 && cudaErrorLaunchFailure == 719, "errors.c");
_Static_assert(cudaErrorECCUncorrectable == 214 && cudaErrorUnknown == 999, "errors.c");

static const struct device_caps *caps(const struct device *device) {
  return &device->caps;
}

static void *host_alloc(struct device *device, size_t bytes) {
  return host_pool_take(device->host, bytes);
}

static void host_free(struct device *device, void *memory, size_t bytes) {
  host_pool_give(device->host, memory, bytes);
}

static int memory(const struct device *device, struct device_memory *out) {
  _Static_assert(LEDGER_KINDS + 1 <= DEVICE_MEMORY_MAX, "a line for each, and what is free");
  for (int kind = 0; kind < LEDGER_KINDS; kind++)
    out[kind] = (struct device_memory){ledger_kind_name((enum ledger_kind)kind),
                                       atomic_load(&device->ledger.held_bytes[kind])};
  out[LEDGER_KINDS] = (struct device_memory){"free", ledger_free_bytes(&device->ledger)};
  return LEDGER_KINDS + 1;
}

// ---- a batch ----
// Calls that cannot return an error leave it for run, submit and poll.
static void keep(struct lane *lane, int rc) {
  if (lane->error == 0) lane->error = rc;
}

static bool usable(struct lane *lane) {
  return lane->error == 0 && cuda_enter(lane->device, NULL) == STATUS_OK;
}

// `rows` NULL: zeros.
static void copy(struct lane *lane, const struct operand *operand, int64_t row, int64_t n_rows,
                 const void *rows, bool in) {
  int64_t element = (int64_t)dtype_bytes(operand->dtype), bytes = operand->cols * element;
  int64_t stride = operand->stride * element;
  char *at = lane->arena + operand->offset_bytes + row * stride;
  void *to = in ? at : (void *)(uintptr_t)rows;
  const void *from = in ? rows : at;
  keep(lane, stride == bytes ? copy_add(lane, to, from, bytes * n_rows, in)
                             : copy_add_rows(lane, to, from, stride, bytes, n_rows, in));
}

static void copy_in(struct lane *lane, const struct bound_plan *bound, int input, int64_t row,
                    int64_t n_rows, const void *rows) {
  const struct operand *operand = &bound->plan->inputs[input];
  if (operand->place == PLACE_ARENA && n_rows > 0 && usable(lane))
    copy(lane, operand, row, n_rows, rows, true);
}

static void zero_in(struct lane *lane, const struct bound_plan *bound, int input, int64_t row,
                    int64_t n_rows) {
  copy_in(lane, bound, input, row, n_rows, NULL);
}

static void copy_out(struct lane *lane, const struct bound_plan *bound, int output, int64_t row,
                     int64_t n_rows, void *rows) {
  const struct operand *operand = &bound->plan->outputs[output];
  FW_ASSERT(operand->place == PLACE_ARENA);
  if (n_rows > 0 && usable(lane)) copy(lane, operand, row, n_rows, rows, false);
}

// The batch did not come about: its host memory goes back to its owners, so nothing may still be
// copying.
static enum status give_up(struct lane *lane, enum status status) {
  int rc = cudaStreamSynchronize(lane->stream);
  enum status after = cuda_check(lane->device, rc, "a failed batch", NULL);
  if (after == STATUS_UNAVAILABLE) status = after;
  copies_forget(lane);
  lane->error = 0;
  return status;
}

static enum status run(struct lane *lane, const struct bound_plan *bound,
                       const struct batch_geometry *geometry, uint8_t outputs) {
  struct error err;
  enum status status = cuda_enter(lane->device, &err);
  if (status != STATUS_OK) return status;
  status = cuda_check(lane->device, lane->error, "copying a batch in", &err);
  if (status == STATUS_OK)
    status = cuda_run(lane, bound, geometry, outputs);
  else
    log_error("batch_failed", "%s", err.message);
  return status == STATUS_OK ? status : give_up(lane, status);
}

static void submit(struct lane *lane) {
  if (usable(lane)) keep(lane, copies_flush_out(lane));
}

// An error of a copy out or of an event says that what the reply holds is not to be trusted and
// that we misuse the runtime or lose the card: the device counts as lost either way.
static int lose(struct lane *lane, int rc) {
  if (!atomic_exchange(&lane->device->lost, true))
    log_error("device_lost", "device cuda:%d: a batch: %s (%s)", lane->device->index,
              cudaGetErrorString((cudaError_t)rc), cudaGetErrorName((cudaError_t)rc));
  return -1;
}

static int64_t between(const int64_t stamps[4], int first) {
  int64_t ns = stamps[first + 1] - stamps[first];
  return ns > 0 ? ns : 0;
}

static int poll(struct lane *lane, struct lane_times *times) {
  if (lane->error != 0) return lose(lane, lane->error);
  if (cuda_enter(lane->device, NULL) != STATUS_OK) return -1;
  int rc = cudaEventQuery(lane->done);
  if (rc == cudaErrorNotReady) return 0;
  if (rc != 0) return lose(lane, rc);
  times->copy_in_ns = between(lane->stamps, 0);
  times->compute_ns = between(lane->stamps, 1);
  times->copy_out_ns = between(lane->stamps, 2);
  times->span = (struct device_span){lane->stamps[0], lane->stamps[lane->took_turn ? 4 : 1],
                                     lane->stamps[2], lane->stamps[3]};
  times->ran_tokens = lane->ran_tokens;
  times->fallbacks = lane->fallbacks;
  times->replayed = lane->replayed;
  return 1;
}

static bool warm_size(const struct bound_plan *bound, int32_t index, struct warm_size *out) {
  struct bucket bucket;
  if (index >= bucket_count(&bound->buckets)) return false;
  *out = (struct warm_size){0};
  if (bucket_at(&bound->buckets, index, &bucket))
    *out = (struct warm_size){bucket.n_tokens, bucket.n_seqs, bucket.outputs};
  return true;
}

const struct backend_ops backend_cuda = {
    .name = "cuda",
    .probe = cuda_probe,
    .absent = cuda_absent,
    .open = cuda_open,
    .close = cuda_close,
    .caps = caps,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .load = cuda_load,
    .unload = cuda_unload,
    .lane_open = cuda_lane_open,
    .prepare = cuda_prepare,
    .warm_size = warm_size,
    .lane_close = cuda_lane_close,
    .copy_in = copy_in,
    .zero_in = zero_in,
    .copy_out = copy_out,
    .run = run,
    .submit = submit,
    .poll = poll,
    .step_times = cuda_step_times,
    .counters = &cuda_counters,
    .memory = memory,
    .weight_bytes = weight_table_bytes,
};
