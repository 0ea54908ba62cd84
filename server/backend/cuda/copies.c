// The copies of a batch. A batch of sixty-four small requests is sixty-four pieces in and as many
// out: one kernel moves them in the time of two calls of the copy engine. The engine has the large
// ones, which it moves at the bus's full rate beside what the other lanes compute.
#include "backend/cuda/buckets.h"
#include "backend/cuda/cuda_device.h"

#include <stdlib.h>

#define ENGINE_BYTES (64 << 10) // a piece of this size or more is the copy engine's
#define ENGINE_COPIES 64        // handed over by one call

struct copies {
  struct copy_list small;
  int32_t n_large;
  void *to[ENGINE_COPIES];
  const void *from[ENGINE_COPIES];
  size_t bytes[ENGINE_COPIES];
  bool stamped; // this direction's first stamp is under way
  bool out;     // the batch's steps are behind us
};

enum status copies_open(struct lane *lane, struct error *err) {
  void *arrived = NULL, *stamps = NULL;
  lane->copies = calloc(1, sizeof *lane->copies);
  if (!lane->copies) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a lane");
  enum status status =
      cuda_memory_take(lane->device, LEDGER_ARENAS, 4, "a lane's stamps", &arrived, err);
  if (status != STATUS_OK) return status;
  lane->arrived = arrived;
  // on the lane's own stream, which does not wait for the one that plain calls use
  int rc = cudaMemsetAsync(arrived, 0, 4, lane->stream);
  if (rc == 0) rc = cudaHostAlloc(&stamps, 5 * sizeof *lane->stamps, cudaHostAllocPortable);
  lane->stamps = stamps;
  return cuda_check(lane->device, rc, "pinned memory for a lane", err);
}

void copies_close(struct lane *lane) {
  if (lane->stamps && cuda_enter(lane->device, NULL) == STATUS_OK) (void)cudaFreeHost(lane->stamps);
  cuda_memory_give(lane->device, LEDGER_ARENAS, lane->arrived, 4);
  free(lane->copies);
}

// ---- sending off ----
static int send_small(struct lane *lane, bool last) {
  struct copies *copies = lane->copies;
  int64_t *slots = lane->stamps + (copies->out ? 2 : 0);
  struct copy_stamps stamps = {copies->stamped ? NULL : &slots[0], last ? &slots[1] : NULL,
                               lane->arrived, 0};
  int rc = copy_run(&copies->small, &stamps, lane->stream);
  copies->stamped = true;
  copies->small.n = 0;
  return rc;
}

static int send_large(struct lane *lane) {
  struct copies *copies = lane->copies;
  int n = copies->n_large, rc = copies->stamped ? 0 : send_small(lane, false);
  copies->n_large = 0;
#if CUDART_VERSION >= 13000
  size_t first = 0;
  struct cudaMemcpyAttributes attributes = {.srcAccessOrder = cudaMemcpySrcAccessOrderStream};
  if (rc == 0 && n > 1)
    return cudaMemcpyBatchAsync((void *const *)copies->to, copies->from, copies->bytes, (size_t)n,
                                &attributes, &first, 1, lane->stream);
#endif
  for (int i = 0; i < n && rc == 0; i++)
    rc = cudaMemcpyAsync(copies->to[i], copies->from[i], copies->bytes[i], cudaMemcpyDefault,
                         lane->stream);
  return rc;
}

static int send_all(struct lane *lane) {
  bool large = lane->copies->n_large > 0;
  int rc = send_small(lane, !large);
  if (large && rc == 0) rc = send_large(lane);
  if (large && rc == 0) rc = send_small(lane, true);
  return rc;
}

// ---- gathering ----
static int add_large(struct lane *lane, void *to, const void *from, int64_t bytes) {
  struct copies *copies = lane->copies;
  int rc = copies->n_large == ENGINE_COPIES ? send_large(lane) : 0;
  copies->to[copies->n_large] = to;
  copies->from[copies->n_large] = from;
  copies->bytes[copies->n_large++] = (size_t)bytes;
  return rc;
}

static int add_small(struct lane *lane, char *to, const char *from, int64_t bytes) {
  struct copy_list *list = &lane->copies->small;
  int rc = 0;
  for (int64_t done = 0, n; done < bytes && rc == 0; done += n) {
    n = bytes - done < COPY_UNIT_BYTES ? bytes - done : COPY_UNIT_BYTES;
    if (list->n == COPY_UNITS) rc = send_small(lane, false);
    list->units[list->n++] = (struct copy_unit){from ? from + done : NULL, to + done, n};
  }
  return rc;
}

static int stamp_begin(struct lane *lane) {
  return lane->copies->stamped ? 0 : send_small(lane, false);
}

// A kernel may only touch host memory that is pinned; a call of its own takes any.
int copy_add(struct lane *lane, void *to, const void *from, int64_t bytes, bool in) {
  const void *host = in ? from : to;
  if (!from) return add_small(lane, to, NULL, bytes);
  if (host_pool_holds(lane->device->host, host, (size_t)bytes))
    return bytes >= ENGINE_BYTES ? add_large(lane, to, from, bytes)
                                 : add_small(lane, to, from, bytes);
  int rc = stamp_begin(lane);
  return rc != 0 ? rc
                 : (int)cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDefault, lane->stream);
}

int copy_add_rows(struct lane *lane, void *to, const void *from, int64_t pitch, int64_t bytes,
                  int64_t n_rows, bool in) {
  size_t to_pitch = (size_t)(in ? pitch : bytes), from_pitch = (size_t)(in ? bytes : pitch);
  int rc = stamp_begin(lane);
  if (rc != 0) return rc;
  return from ? cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, (size_t)bytes, (size_t)n_rows,
                                  cudaMemcpyDefault, lane->stream)
              : cudaMemset2DAsync(to, to_pitch, 0, (size_t)bytes, (size_t)n_rows, lane->stream);
}

// The engine's copies are done long before the batch's turn comes: when it computes is another
// time.
static int stamp_turn(struct lane *lane) {
  static const struct copy_list nothing;
  struct copy_stamps stamps = {.began = &lane->stamps[4]};
  lane->took_turn = true;
  return copy_run(&nothing, &stamps, lane->stream);
}

int copies_flush_in(struct lane *lane, int32_t n_tokens, int32_t n_seqs) {
  const char *from = lane->geometry_host;
  char *to = lane->geometry_device;
  int64_t pitch = lane->geometry_pitch;
  int rc = 0;
  for (int row = 0; row < GEOMETRY_ROWS && rc == 0; row++)
    rc = add_small(lane, to + row * pitch, from + row * pitch, geometry_used(n_tokens, n_seqs));
  // The engine's copies go ahead of the batch's turn to compute, small ones come with it: what is
  // waited for is no time of the copy.
  bool ahead = lane->copies->n_large > 0;
  if (rc == 0 && !ahead) rc = cuda_turn_take(lane, n_tokens);
  if (rc == 0) rc = send_all(lane);
  if (rc == 0 && ahead) rc = cuda_turn_take(lane, n_tokens);
  lane->took_turn = false;
  if (rc == 0 && ahead && lane->device->counted) rc = stamp_turn(lane);
  lane->copies->stamped = false;
  lane->copies->out = true;
  return rc;
}

int copies_flush_out(struct lane *lane) {
  int rc = send_all(lane);
  if (rc == 0) rc = cudaEventRecord(lane->done, lane->stream);
  copies_forget(lane);
  return rc;
}

void copies_forget(struct lane *lane) {
  struct copies *copies = lane->copies;
  copies->small.n = copies->n_large = 0;
  copies->stamped = copies->out = false;
}
