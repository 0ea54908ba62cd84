// Which sequence a piece of work belongs to, from the device's own cu_seqlens: the host knows upper
// bounds only (kernels/cuda.h). Warp-collective: all 32 lanes call, all get the answer.
#ifndef ATTENTION_SEQ_WALK_CUH
#define ATTENTION_SEQ_WALK_CUH

#include <stdint.h>

struct seq_tile {
  int seq, length;
  int64_t start; // its first token
  int index;     // of the tile in its sequence
};

// Tiles are numbered sequence by sequence; COUNT says how many a length has (0 for length 0). Walks
// forward only, 32 sequences at a time, which stay in the lanes' registers between calls.
template <class COUNT> struct seq_walk {
  const int32_t *cu;
  int n_seqs;
  COUNT count;
  int first, before;          // sequence of lane 0; tiles of all sequences below it
  int start, length, through; // this lane's sequence; tiles up to its end, from `before`

  __device__ __forceinline__ seq_walk(const int32_t *cu_seqlens, int n, COUNT c)
      : cu(cu_seqlens), n_seqs(n), count(c), first(0), before(0) {
    load();
  }
  __device__ __forceinline__ void load() {
    const int lane = threadIdx.x % 32, seq = first + lane;
    start = cu[seq < n_seqs ? seq : n_seqs];
    length = cu[seq < n_seqs ? seq + 1 : n_seqs] - start;
    through = count(length);
    for (int step = 1; step < 32; step *= 2) {
      const int below = __shfl_up_sync(0xffffffffu, through, step);
      if (lane >= step) through += below;
    }
  }
  // False: there are fewer tiles.
  __device__ __forceinline__ bool find(int tile, seq_tile *out) {
    int total;
    while (tile >= before + (total = __shfl_sync(0xffffffffu, through, 31))) {
      if (first + 32 >= n_seqs) return false;
      before += total, first += 32;
      load();
    }
    const int lane = __ffs(__ballot_sync(0xffffffffu, tile < before + through)) - 1;
    const int below = __shfl_sync(0xffffffffu, through, lane > 0 ? lane - 1 : 0);
    out->seq = first + lane;
    out->start = __shfl_sync(0xffffffffu, start, lane);
    out->length = __shfl_sync(0xffffffffu, length, lane);
    out->index = tile - before - (lane > 0 ? below : 0);
    return true;
  }
};

// Tiles of `rows` query rows of every head, those furthest into their sequence first: with a causal
// mask they are the longest work. Numbered by row block from the last down, then sequence, then
// head.
struct level_walk {
  const int32_t *cu;
  int n_seqs, heads, rows;
  int level, first, before; // row block; sequence of lane 0; tiles before those two
  int start, length;        // this lane's sequence

  __device__ __forceinline__ level_walk(const int32_t *cu_seqlens, int n, int heads_, int rows_)
      : cu(cu_seqlens), n_seqs(n), heads(heads_), rows(rows_), before(0) {
    int longest = 0;
    for (first = 0; first < n_seqs; first += 32) {
      load();
      longest = length > longest ? length : longest;
    }
    level = (__reduce_max_sync(0xffffffffu, longest) + rows - 1) / rows - 1;
    first = 0;
    if (n_seqs > 32) load();
  }
  __device__ __forceinline__ void load() {
    const int seq = first + (int)threadIdx.x % 32;
    start = cu[seq < n_seqs ? seq : n_seqs];
    length = cu[seq < n_seqs ? seq + 1 : n_seqs] - start;
  }
  // out->index is the head, *q0 the tile's first row.
  __device__ __forceinline__ bool find(int tile, seq_tile *out, int *q0) {
    unsigned live;
    while (true) {
      live = __ballot_sync(0xffffffffu, length > level * rows);
      if (level < 0) return false;
      if (tile < before + __popc(live) * heads) break;
      before += __popc(live) * heads;
      first += 32;
      if (first >= n_seqs) first = 0, level--;
      if (n_seqs > 32) load();
    }
    const int pair = (tile - before) / heads, lane = (int)threadIdx.x % 32;
    const bool mine = (live >> lane & 1) && __popc(live & ((1u << lane) - 1)) == pair;
    const int who = __ffs(__ballot_sync(0xffffffffu, mine)) - 1;
    out->seq = first + who;
    out->start = __shfl_sync(0xffffffffu, start, who);
    out->length = __shfl_sync(0xffffffffu, length, who);
    out->index = tile - before - pair * heads;
    *q0 = level * rows;
    return true;
  }
};

// The sequence that token `token` < cu[n_seqs] belongs to: 32 probes a round.
static __device__ __forceinline__ int seq_of_token(const int32_t *cu, int n_seqs, int token) {
  int low = 0, n = n_seqs;
  while (n > 1) {
    const int step = (n + 31) / 32, probe = ((int)threadIdx.x % 32 + 1) * step;
    const bool behind = probe < n && cu[low + probe] <= token;
    const int steps = __popc(__ballot_sync(0xffffffffu, behind)) * step;
    low += steps;
    n = n - steps < step ? n - steps : step;
  }
  return low;
}

#endif
