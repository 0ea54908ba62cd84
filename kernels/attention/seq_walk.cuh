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
// forward only, 128 sequences at a time, four a lane, which stay in registers between calls: a
// batch of many short sequences must not cost a round trip to memory for every 32 of them.
template <class COUNT> struct seq_walk {
  static constexpr int MINE = 4, STEP = 32 * MINE;
  const int32_t *cu;
  int n_seqs;
  COUNT count;
  int first, before;            // sequence of lane 0; tiles of all sequences below it
  int bound[MINE + 1], through; // this lane's sequences; tiles up to their end, from `before`

  __device__ __forceinline__ seq_walk(const int32_t *cu_seqlens, int n, COUNT c)
      : cu(cu_seqlens), n_seqs(n), count(c), first(0), before(0) {
    load();
  }
  __device__ __forceinline__ void load() {
    const int lane = threadIdx.x % 32, seq = first + lane * MINE;
#pragma unroll
    for (int i = 0; i <= MINE; i++)
      bound[i] = cu[seq + i < n_seqs ? seq + i : n_seqs];
    through = 0;
#pragma unroll
    for (int i = 0; i < MINE; i++)
      through += count(bound[i + 1] - bound[i]);
    for (int step = 1; step < 32; step *= 2) {
      const int below = __shfl_up_sync(0xffffffffu, through, step);
      if (lane >= step) through += below;
    }
  }
  // False: there are fewer tiles.
  __device__ __forceinline__ bool find(int tile, seq_tile *out) {
    int total;
    while (tile >= before + (total = __shfl_sync(0xffffffffu, through, 31))) {
      if (first + STEP >= n_seqs) return false;
      before += total, first += STEP;
      load();
    }
    const int lane = __ffs(__ballot_sync(0xffffffffu, tile < before + through)) - 1;
    const int below = __shfl_sync(0xffffffffu, through, lane > 0 ? lane - 1 : 0);
    int index = tile - before - (lane > 0 ? below : 0), start = 0, length = 0, which = 0;
    bool found = false;
#pragma unroll
    for (int i = 0; i < MINE; i++) { // among that lane's sequences
      const int from = __shfl_sync(0xffffffffu, bound[i], lane),
                size = __shfl_sync(0xffffffffu, bound[i + 1], lane) - from, tiles = count(size);
      if (found) continue;
      if (index < tiles)
        found = true, start = from, length = size, which = i;
      else
        index -= tiles;
    }
    *out = {first + lane * MINE + which, length, start, index};
    return true;
  }
};

// Tiles of `rows` query rows of every head, those furthest into their sequence first: with a causal
// mask they are the longest work. Numbered by row block from the last down, then sequence, then
// head. Sequences of up to short_max tokens have a tile for every two heads, behind the others.
struct level_walk {
  const int32_t *cu;
  int n_seqs, heads, rows, short_max;
  int level, first, before; // row block; sequence of lane 0; tiles before those two
  int start, length;        // this lane's sequence

  __device__ __forceinline__ level_walk(const int32_t *cu_seqlens, int n, int heads_, int rows_,
                                        int short_max_)
      : cu(cu_seqlens), n_seqs(n), heads(heads_), rows(rows_), short_max(short_max_), before(0) {
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
  // The lane of the `nth` bit.
  static __device__ __forceinline__ int lane_of(unsigned bits, int nth) {
    const int lane = (int)threadIdx.x % 32;
    const bool mine = (bits >> lane & 1) && __popc(bits & ((1u << lane) - 1)) == nth;
    return __ffs(__ballot_sync(0xffffffffu, mine)) - 1;
  }
  // out->index is the head, or the first of two; *q0 the tile's first row.
  __device__ __forceinline__ bool find(int tile, seq_tile *out, int *q0) {
    const int pairs = (heads + 1) / 2;
    unsigned full, half;
    int n;
    while (true) {
      half = __ballot_sync(0xffffffffu, length > 0 && length <= short_max && level == 0);
      full = __ballot_sync(0xffffffffu, length > level * rows) & ~half;
      if (level < 0) return false;
      n = __popc(full) * heads;
      if (tile < before + n + __popc(half) * pairs) break;
      before += n + __popc(half) * pairs;
      first += 32;
      if (first >= n_seqs) first = 0, level--;
      if (n_seqs > 32) load();
    }
    const int at = tile - before, per = at < n ? heads : pairs, local = at < n ? at : at - n;
    const int who = lane_of(at < n ? full : half, local / per);
    out->seq = first + who;
    out->start = __shfl_sync(0xffffffffu, start, who);
    out->length = __shfl_sync(0xffffffffu, length, who);
    out->index = local % per * (at < n ? 1 : 2);
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
