// Which batch sizes a plan's graphs are captured for, and which of them a batch takes. Pure
// arithmetic on the plan's limits and steps; no CUDA here, so that it is tested anywhere.
//
// A captured graph has its row counts built in, so a batch runs in the smallest bucket that holds
// it: tokens, sequences and longest sequence of the bucket are at least the batch's. Rows past the
// batch compute on what the arena holds and are never looked at; row-local work cannot carry them
// into a real row, and attention and pooling see only the sequences of the batch's cu_seqlens.
//
// Tokens: 1, 2, 4, .. 64 (a product's tile has 64 rows or more, so these cost alike), multiples of
// 64 up to 256, then four steps an octave: at most 20 % of a bucket's rows are waste from 256
// tokens on, a tenth on average. Sequences: 1, 4, 16, 64, ..: only attention and pooling see them,
// attention's tiles are found on the device, and an empty sequence has none. The longest sequence
// follows from both. A graph of BERT-base's 84 kernels takes 2.4 ms to capture and 0.34 MiB
// (measured on an H200).
#ifndef BACKEND_CUDA_BUCKETS_H
#define BACKEND_CUDA_BUCKETS_H

#include "graph/plan.h"

// Above so many tokens a batch keeps the card busy for longer than its launches take, and runs step
// by step at its own size.
#define BUCKET_GRAPH_TOKENS 4096
#define BUCKET_RUNGS_MAX 112 // enough for 2^31 tokens
#define BUCKET_MASKS_MAX 4   // sets of outputs with graphs of their own; others run step by step

struct bucket {
  int32_t n_tokens, n_seqs, max_seqlen;
  uint8_t outputs; // a mask that needs exactly the steps to run
};

struct bucket_set {
  struct plan_limits limits;
  int32_t graph_tokens; // no graphs above; such batches run step by step at their own size
  // The ladder of row counts, ascending, up to the most rows of any step. Graphs are captured for
  // the first n_tokens of them; products choose their kernel by all.
  int32_t rungs[BUCKET_RUNGS_MAX];
  int32_t n_rungs, n_tokens;
  int32_t n_seqs; // classes: up to 1, 4, 16, ..; 1 when no step sees sequences
  int32_t n_masks;
  uint8_t masks[BUCKET_MASKS_MAX];
  uint8_t mask_class[1 << LIMIT_MODEL_OUTPUTS]; // BUCKET_MASKS_MAX: none
};

// Buckets of a plan, none above `graph_tokens`.
void bucket_set_make(const struct plan *plan, int32_t graph_tokens, struct bucket_set *out);
// Buckets with an index in [0, bucket_count); not all of them can hold a batch.
int32_t bucket_count(const struct bucket_set *set);
// False: no batch falls into this one (more sequences than tokens, or too few to be so many).
bool bucket_at(const struct bucket_set *set, int32_t index, struct bucket *out);
// The lowest rung that holds so many rows; n_rungs when none does.
int32_t bucket_rung(const struct bucket_set *set, int64_t rows);
// The bucket of a batch; -1 when it has none.
int32_t bucket_find(const struct bucket_set *set, const struct batch_geometry *geometry,
                    uint8_t outputs);

// Bytes between the rows of a lane's geometry block: positions (int32 [max_tokens]), cu_seqlens
// (int32 [max_seqs + 1]), scores_offset (int64 [max_seqs + 1]).
int64_t geometry_pitch(int32_t max_tokens, int32_t max_seqs);
#define GEOMETRY_ROWS 3
// Bytes of each row that a bucket uses.
int64_t geometry_used(int32_t n_tokens, int32_t n_seqs);
// The batch's arrays into a block of that pitch, padded to the bucket.
void geometry_fill(void *block, int64_t pitch, const struct batch_geometry *from, int32_t n_tokens,
                   int32_t n_seqs);

#endif
