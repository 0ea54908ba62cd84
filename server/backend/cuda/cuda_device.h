// Inside of the CUDA back end: the device, plans bound to it, and lanes. Included by backend/cuda/*.c only.
//
// cuda_backend.c, device.c, lane.c: the card, streams, copies, events. bind.c: a plan's weights and kernels.
// buckets.c: which sizes graphs are captured for (pure). launch.c: a step onto a stream. graphs.c: capture, replay.
#ifndef BACKEND_CUDA_CUDA_DEVICE_H
#define BACKEND_CUDA_CUDA_DEVICE_H

#include "backend/backend.h"
#include "backend/cuda/ledger.h"
#include "kernels/cuda.h"

#include <cuda_runtime_api.h>

struct device {
  struct device_caps caps;
  int index;      // CUDA ordinal; every entry point makes it current first (cuda_enter)
  int sm;         // 90 for sm_90
  char arch[16];  // what NVRTC compiles for: "sm_90a"
  struct jit *jit;
  struct lt *lt;  // cuBLASLt, NULL where it was not found (products fall back to our own)
  struct ledger ledger;
  _Atomic bool lost; // a sticky error was seen: every entry point fails from here on
  int n_lanes;
};

// One batch in flight: a stream, an arena, and the batch geometry on the device at addresses that never change, so
// that captured graphs may hold them.
struct lane {
  struct device *device;
  int index; // 0 .. LANES_MAX - 1: which of a bound plan's graph sets is this lane's
  cudaStream_t stream;
  char *arena; // device memory
  int64_t arena_bytes;
  int32_t max_tokens, max_seqs;
  // Geometry on the device and its pinned image on the host; entries past the batch's n_seqs repeat the end (empty
  // sequences), positions past n_tokens are 0. Uploaded by one copy before each run.
  struct batch_geometry geometry; // device addresses, counts of the batch (or bucket)
  void *geometry_host, *geometry_device;
  int64_t geometry_bytes;
  void *workspace; // cuBLASLt's, this lane's own
  int64_t workspace_bytes;
  cudaEvent_t began, copied_in, computed, done;
  bool ran;
};
#define LANES_MAX 8

// 0 or a status with a message; cudaErrors that do not go away mark the device lost (UNAVAILABLE).
MUST_USE enum status cuda_check(struct device *device, int cuda_error, const char *what, struct error *err);
MUST_USE enum status cuda_enter(struct device *device, struct error *err); // current on this thread; fails when lost

// ---- bind.c, graphs.c ----
MUST_USE enum status cuda_load(struct device *device, const struct plan *plan, const struct weight_table *weights,
                               struct bound_plan **out, struct error *err);
void cuda_unload(struct device *device, struct bound_plan *bound);
// Captures the lane's graphs of every bucket and set of outputs. Load time, after lane_open, before the first run.
MUST_USE enum status cuda_prepare(struct lane *lane, struct bound_plan *bound, struct error *err);
MUST_USE enum status cuda_run(struct lane *lane, const struct bound_plan *bound, const struct batch_geometry *geometry,
                              uint8_t outputs);

#endif
