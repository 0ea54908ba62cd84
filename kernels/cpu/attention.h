// Attention over packed sequences. One call is one piece of work: some queries of one head of one
// sequence; pieces are independent, so threads take them in any order.
//
// The fused kernel walks the keys in blocks with a running maximum (online softmax): scores of
// ATTENTION_QUERIES x ATTENTION_KEYS live in scratch, nothing of size s^2 is written. Bound:
// arithmetic; 4 s d flops per query and head.
#ifndef KERNELS_CPU_ATTENTION_H
#define KERNELS_CPU_ATTENTION_H

#include "kernels/types.h"

#define ATTENTION_QUERIES 64 // most queries of one call
#define ATTENTION_KEYS 128   // keys of one block

struct finish;

struct attention_call {
  const struct attention_problem *problem;
  const struct batch_geometry *geometry;
  struct view q, k, v, o; // data of token 0; o and v unused by scores, scale, softmax
  void *scores;           // unfused only: heads * sum_sq floats, whatever the dtype
                          // (batch_geometry.scores_offset)
  int32_t seq, head;
  int32_t first,
      count;      // queries of this call, counted within the sequence; count <= ATTENTION_QUERIES
  float *scratch; // attention_scratch_bytes, 64-byte aligned
  const struct finish *finish; // fused: writes the results in place of o (epilogue.h), its views at
                               // token 0, column 0; NULL: there is none
};

size_t attention_scratch_bytes(const struct attention_problem *problem);

#endif
