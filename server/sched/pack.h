// Rows of requests into a batch and out of it: geometry, copy in (dropping masked positions), copy
// out (zeros where a position was masked). Runs of neighbouring rows go through the back end's
// copies one by one; nothing is staged.
//
//   wire  [batch, seq, ...]   a b . .        packed rows   a b c d e f        cu_seqlens 0 2 5 6
//                             c . d e                                         positions  0 1 0 2 3
//                             1 . f . .
#ifndef SCHED_PACK_H
#define SCHED_PACK_H

#include "sched/request.h"

// The geometry's arrays of one lane, made for the largest batch.
struct pack_arrays {
  int32_t *cu_seqlens;    // [max_seqs + 1]
  int32_t *positions;     // [max_tokens]
  int64_t *scores_offset; // [max_seqs + 1]
  int32_t max_tokens, max_seqs;
};
MUST_USE enum status pack_arrays_init(struct pack_arrays *arrays, int32_t max_tokens,
                                      int32_t max_seqs);
void pack_arrays_deinit(struct pack_arrays *arrays);

// Geometry of the requests linked by `next`, which fit.
void pack_geometry(const struct request *first, const struct pack_arrays *arrays,
                   struct batch_geometry *out);

struct pack_target {
  const struct backend_ops *backend;
  struct lane *lane;
  const struct bound_plan *bound;
};
// Where a request's rows begin in the batch.
struct pack_origin {
  int64_t token, seq;
};
// Inputs whose bit is set in `inputs` (those that the batch's steps read).
void pack_in(const struct pack_target *target, const struct request *request,
             struct pack_origin origin, uint32_t inputs);
void pack_out(const struct pack_target *target, const struct request *request,
              struct pack_origin origin);
// Outputs that are inputs unchanged, for a request that is not dense: on the host, without a
// device. pack_out does it too.
void pack_identity(const struct request *request);

#endif
