// Lanes: stream, arena, geometry, workspace, events; all of it made at load.
#include "backend/cuda/cuda_device.h"
#include "base/log.h"

#include <stdlib.h>

// positions, cu_seqlens, scores_offset: a row each, wide enough for the longest.
static enum status geometry_open(struct lane *lane, struct error *err) {
  lane->geometry_pitch = geometry_pitch(lane->max_tokens, lane->max_seqs);
  int64_t bytes = GEOMETRY_ROWS * lane->geometry_pitch;
  enum status status = cuda_memory_take(lane->device, LEDGER_ARENAS, bytes,
                                        "batch geometry of a lane", &lane->geometry_device, err);
  if (status != STATUS_OK) return status;
  char *at = lane->geometry_device;
  lane->geometry.positions = (const int32_t *)(void *)at;
  lane->geometry.cu_seqlens = (const int32_t *)(void *)(at + lane->geometry_pitch);
  lane->geometry.scores_offset = (const int64_t *)(void *)(at + 2 * lane->geometry_pitch);
  int rc = cudaHostAlloc(&lane->geometry_host, (size_t)bytes, cudaHostAllocPortable);
  return cuda_check(lane->device, rc, "pinned memory for a lane", err);
}

static enum status stream_open(struct lane *lane, struct error *err) {
  int rc = cudaStreamCreateWithFlags(&lane->stream, cudaStreamNonBlocking);
  if (rc == 0) rc = cudaEventCreateWithFlags(&lane->done, cudaEventDisableTiming);
  cudaEvent_t *computed = &lane->device->turns.computed[lane->index];
  if (rc == 0 && !*computed) rc = cudaEventCreateWithFlags(computed, cudaEventDisableTiming);
  return cuda_check(lane->device, rc, "a lane's stream", err);
}

// ---- turns ----
// Kernels of two large batches side by side take each other's cache and the ends of each other's
// waves: BERT-base on one H200 served 1.97 million tokens a second from one lane, 1.38 million
// from two and 1.13 million from three before they took turns. Small batches leave multiprocessors
// idle and gain by company.
#define CROWD_TOKENS 8 // a multiprocessor, of both batches

int cuda_turn_take(struct lane *lane, int32_t n_tokens) {
  const struct device *device = lane->device;
  const struct turns *turns = &device->turns;
  int64_t room = (int64_t)device->kernels.multiprocessors * CROWD_TOKENS;
  if (turns->last < 0 || turns->last == lane->index ||
      turns->last_tokens + (int64_t)n_tokens < room)
    return 0;
  return cudaStreamWaitEvent(lane->stream, turns->computed[turns->last], 0);
}

int cuda_turn_give(struct lane *lane, int32_t n_tokens) {
  struct turns *turns = &lane->device->turns;
  turns->last = lane->index;
  turns->last_tokens = n_tokens;
  return cudaEventRecord(turns->computed[lane->index], lane->stream);
}

void cuda_turns_close(struct device *device) {
  if (cuda_enter(device, NULL) != STATUS_OK) return; // lost: nothing to give back to
  for (int i = 0; i < LIMIT_LANES; i++)
    if (device->turns.computed[i]) (void)cudaEventDestroy(device->turns.computed[i]);
}

// ---- opening ----
enum status cuda_lane_open(struct device *device, const struct lane_sizes *sizes, struct lane **out,
                           struct error *err) {
  FW_ASSERT(sizes->max_tokens > 0 && sizes->max_seqs > 0);
  // The lowest number that is free: lanes that take the place of others live beside them for a
  // while.
  int index = 0;
  while (index < LIMIT_LANES && (device->lanes_used >> index & 1))
    index++;
  if (index == LIMIT_LANES)
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "device.lanes: more than %d on one card",
                     LIMIT_LANES);
  struct lane *lane = calloc(1, sizeof *lane);
  if (!lane) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a lane");
  *lane = (struct lane){.device = device,
                        .index = index,
                        .arena_bytes = sizes->arena_bytes,
                        .max_tokens = sizes->max_tokens,
                        .max_seqs = sizes->max_seqs,
                        .workspace_bytes =
                            CUDA_WORKSPACE_BYTES + KERNEL_COUNTERS * (int64_t)sizeof(uint32_t)};
  device->lanes_used |= 1u << index;
  void *arena = NULL;
  enum status status = cuda_enter(device, err);
  if (status == STATUS_OK) status = stream_open(lane, err);
  if (status == STATUS_OK)
    status =
        cuda_memory_take(device, LEDGER_ARENAS, lane->arena_bytes, "arena of a lane", &arena, err);
  lane->arena = arena;
  if (status == STATUS_OK)
    status = cuda_memory_take(device, LEDGER_WORKSPACE, lane->workspace_bytes,
                              "workspace of a lane", &lane->workspace, err);
  if (status == STATUS_OK) status = geometry_open(lane, err);
  if (status == STATUS_OK) status = copies_open(lane, err);
  // What an arena holds before its first batch is looked at by rows past a batch; no NaN of a
  // former life may be there to be traced by a tool or a person.
  if (status == STATUS_OK) {
    lane->counters = (uint32_t *)(void *)((char *)lane->workspace + CUDA_WORKSPACE_BYTES);
    int rc = cudaMemsetAsync(lane->arena, 0, (size_t)lane->arena_bytes, lane->stream);
    if (rc == 0)
      rc = cudaMemsetAsync(lane->counters, 0, KERNEL_COUNTERS * sizeof *lane->counters,
                           lane->stream);
    if (rc == 0) rc = cudaStreamSynchronize(lane->stream);
    status = cuda_check(device, rc, "clearing an arena", err);
  }
  if (status == STATUS_OK)
    *out = lane;
  else
    cuda_lane_close(device, lane);
  return status;
}

void cuda_lane_close(struct device *device, struct lane *lane) {
  if (!lane) return;
  if (cuda_enter(device, NULL) == STATUS_OK) {
    if (lane->stream) (void)cudaStreamSynchronize(lane->stream);
    if (lane->done) (void)cudaEventDestroy(lane->done);
    if (lane->geometry_host) (void)cudaFreeHost(lane->geometry_host);
    if (lane->stream) (void)cudaStreamDestroy(lane->stream);
  }
  copies_close(lane);
  cuda_memory_give(device, LEDGER_ARENAS, lane->geometry_device,
                   GEOMETRY_ROWS * lane->geometry_pitch);
  cuda_memory_give(device, LEDGER_WORKSPACE, lane->workspace, lane->workspace_bytes);
  cuda_memory_give(device, LEDGER_ARENAS, lane->arena, lane->arena_bytes);
  device->lanes_used &= ~(1u << lane->index);
  free(lane);
}
