// The card as a back end: copies, the order of a batch on its lane's stream, times, the vtable.
//
// On a lane's stream, in this order: began | copies in | copied_in | steps | computed | copies out
// | done. Nothing here waits; poll asks whether `done` has passed.
#include "backend/cuda/cuda_device.h"
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

static bool begin(struct lane *lane) {
  if (lane->error != 0 || cuda_enter(lane->device, NULL) != STATUS_OK) return false;
  if (!lane->started) keep(lane, cudaEventRecord(lane->began, lane->stream));
  lane->started = true;
  return lane->error == 0;
}

static int copy_rows(const struct lane *lane, const struct operand *operand, int64_t row,
                     int64_t n_rows, void *rows, bool in) {
  size_t element = dtype_bytes(operand->dtype), bytes = (size_t)operand->cols * element;
  size_t stride = (size_t)operand->stride * element;
  char *at = lane->arena + operand->offset_bytes + (size_t)row * stride;
  if (stride == bytes)
    return in ? cudaMemcpyAsync(at, rows, bytes * (size_t)n_rows, cudaMemcpyHostToDevice,
                                lane->stream)
              : cudaMemcpyAsync(rows, at, bytes * (size_t)n_rows, cudaMemcpyDeviceToHost,
                                lane->stream);
  return in ? cudaMemcpy2DAsync(at, stride, rows, bytes, bytes, (size_t)n_rows,
                                cudaMemcpyHostToDevice, lane->stream)
            : cudaMemcpy2DAsync(rows, bytes, at, stride, bytes, (size_t)n_rows,
                                cudaMemcpyDeviceToHost, lane->stream);
}

static void copy_in(struct lane *lane, const struct bound_plan *bound, int input, int64_t row,
                    int64_t n_rows, const void *rows) {
  const struct operand *operand = &bound->plan->inputs[input];
  if (operand->place != PLACE_ARENA || n_rows == 0 || !begin(lane)) return;
  keep(lane, copy_rows(lane, operand, row, n_rows, (void *)(uintptr_t)rows, true));
}

static void zero_in(struct lane *lane, const struct bound_plan *bound, int input, int64_t row,
                    int64_t n_rows) {
  const struct operand *operand = &bound->plan->inputs[input];
  if (operand->place != PLACE_ARENA || n_rows == 0 || !begin(lane)) return;
  size_t element = dtype_bytes(operand->dtype), stride = (size_t)operand->stride * element;
  keep(lane, cudaMemset2DAsync(lane->arena + operand->offset_bytes + (size_t)row * stride, stride,
                               0, (size_t)operand->cols * element, (size_t)n_rows, lane->stream));
}

static void copy_out(struct lane *lane, const struct bound_plan *bound, int output, int64_t row,
                     int64_t n_rows, void *rows) {
  const struct operand *operand = &bound->plan->outputs[output];
  FW_ASSERT(operand->place == PLACE_ARENA);
  if (n_rows == 0 || lane->error != 0 || cuda_enter(lane->device, NULL) != STATUS_OK) return;
  keep(lane, copy_rows(lane, operand, row, n_rows, rows, false));
}

// The batch did not come about: its host memory goes back to its owners, so nothing may still be
// copying.
static enum status give_up(struct lane *lane, enum status status) {
  int rc = cudaStreamSynchronize(lane->stream);
  enum status after = cuda_check(lane->device, rc, "a failed batch", NULL);
  if (after == STATUS_UNAVAILABLE) status = after;
  lane->started = false;
  lane->error = 0;
  return status;
}

static enum status run(struct lane *lane, const struct bound_plan *bound,
                       const struct batch_geometry *geometry, uint8_t outputs) {
  struct error err;
  enum status status = cuda_enter(lane->device, &err);
  if (status != STATUS_OK) return status;
  (void)begin(lane);
  if (lane->error == 0) keep(lane, cudaEventRecord(lane->copied_in, lane->stream));
  status = cuda_check(lane->device, lane->error, "copying a batch in", &err);
  if (status == STATUS_OK) status = cuda_run(lane, bound, geometry, outputs);
  if (status == STATUS_OK)
    status =
        cuda_check(lane->device, cudaEventRecord(lane->computed, lane->stream), "an event", &err);
  if (status == STATUS_OK) return status;
  log_error("batch_failed", "%s", err.message);
  return give_up(lane, status);
}

static void submit(struct lane *lane) {
  if (lane->error == 0 && cuda_enter(lane->device, NULL) == STATUS_OK)
    keep(lane, cudaEventRecord(lane->done, lane->stream));
}

static int64_t between(struct lane *lane, cudaEvent_t from, cudaEvent_t to) {
  float ms = 0;
  keep(lane, cudaEventElapsedTime(&ms, from, to));
  return (int64_t)((double)ms * 1e6);
}

// An error of a copy out or of an event says that what the reply holds is not to be trusted and
// that we misuse the runtime or lose the card: the device counts as lost either way.
static int lose(struct lane *lane, int rc) {
  if (!atomic_exchange(&lane->device->lost, true))
    log_error("device_lost", "device cuda:%d: a batch: %s (%s)", lane->device->index,
              cudaGetErrorString((cudaError_t)rc), cudaGetErrorName((cudaError_t)rc));
  lane->started = false;
  return -1;
}

static int poll(struct lane *lane, struct lane_times *times) {
  if (atomic_load_explicit(&lane->device->lost, memory_order_relaxed)) return -1;
  if (lane->error != 0) return lose(lane, lane->error);
  int rc = cuda_enter(lane->device, NULL) == STATUS_OK ? (int)cudaEventQuery(lane->done)
                                                       : (int)cudaErrorUnknown;
  if (rc == cudaErrorNotReady) return 0;
  if (rc != 0) return lose(lane, rc);
  times->copy_in_ns = between(lane, lane->began, lane->copied_in);
  times->compute_ns = between(lane, lane->copied_in, lane->computed);
  times->copy_out_ns = between(lane, lane->computed, lane->done);
  lane->started = false;
  return lane->error != 0 ? lose(lane, lane->error) : 1;
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
    .lane_close = cuda_lane_close,
    .copy_in = copy_in,
    .zero_in = zero_in,
    .copy_out = copy_out,
    .run = run,
    .submit = submit,
    .poll = poll,
    .step_times = cuda_step_times,
    .memory = memory,
};
