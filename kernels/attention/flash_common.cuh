// What the flash kernels of every architecture share: the order of tiles, masking, online softmax
// on accumulators that lie as the tensor cores leave them.
//
// Thread t of a group that holds 16 rows: s[4 i], s[4 i + 1] are row t / 4, columns 8 i + 2 (t % 4)
// and the next; s[4 i + 2], s[4 i + 3] eight rows below.
#ifndef ATTENTION_FLASH_COMMON_CUH
#define ATTENTION_FLASH_COMMON_CUH

#include "kernels/attention/seq_walk.cuh"
#include "kernels/common/act.cuh"
#include "kernels/ptx/sm80.cuh"

struct flash_args {
  void *o;
  int64_t o_stride;
  const int32_t *cu_seqlens;
  int32_t n_seqs, heads, group; // group: query heads to a key head
  float scale_log2;             // scale * log2(e), > 0
};

// A sequence of up to so many tokens fills half a tile of a kernel that PAIRS heads: two heads
// share it.
#define FLASH_SHORT 64

struct flash_tile {
  int head, q0, length, token0; // head < 0: there are no more
  template <class C> __device__ __forceinline__ bool is_pair() const {
    return C::PAIRS && length <= FLASH_SHORT;
  }
  template <class C> __device__ __forceinline__ int blocks() const {
    const int last = C::CAUSAL && q0 + C::ROWS < length ? q0 + C::ROWS : length;
    return (last + C::KEYS - 1) / C::KEYS;
  }
};

// Tiles a sequence has, all heads together: heads outside, so that blocks at work at one time share
// keys.
template <class C> struct flash_tiles {
  int heads;
  __device__ __forceinline__ int operator()(int length) const {
    if (C::PAIRS && length <= FLASH_SHORT) return length > 0 ? (heads + 1) / 2 : 0;
    return heads * ((length + C::ROWS - 1) / C::ROWS);
  }
};

// The launch's tiles in order, by the device's own lengths: the host knows a bucket's.
template <class C, bool CAUSAL = C::CAUSAL> struct flash_order;
template <class C> struct flash_order<C, false> {
  seq_walk<flash_tiles<C>> walk;
  __device__ __forceinline__ explicit flash_order(const flash_args &a)
      : walk(a.cu_seqlens, a.n_seqs, {a.heads}) {}
  __device__ __forceinline__ flash_tile at(int t) {
    seq_tile found;
    if (!walk.find(t, &found)) return {-1, 0, 0, 0};
    if (C::PAIRS && found.length <= FLASH_SHORT)
      return {2 * found.index, 0, found.length, (int)found.start};
    const int across = (found.length + C::ROWS - 1) / C::ROWS;
    return {found.index / across, found.index % across * C::ROWS, found.length, (int)found.start};
  }
};
template <class C> struct flash_order<C, true> {
  level_walk walk;
  __device__ __forceinline__ explicit flash_order(const flash_args &a)
      : walk(a.cu_seqlens, a.n_seqs, a.heads, C::ROWS, C::PAIRS ? FLASH_SHORT : 0) {}
  __device__ __forceinline__ flash_tile at(int t) {
    seq_tile found;
    int q0;
    if (!walk.find(t, &found, &q0)) return {-1, 0, 0, 0};
    return {found.index, q0, found.length, (int)found.start};
  }
};

// Columns that row `row` must not see get -inf. `first` is the block's first key.
template <class C, int N>
static __device__ __forceinline__ void flash_mask(float (&s)[N], int first, int row, int length) {
  const int lane = threadIdx.x % 32, col0 = first + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < N; i++) {
    const int col = col0 + i / 4 * 8 + (i & 1), r = row + (i & 2 ? 8 : 0);
    if (col >= length || (C::CAUSAL && col > r)) s[i] = -INFINITY;
  }
}

static __device__ __forceinline__ float quad_max(float x) {
  x = fw_max(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fw_max(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
static __device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Scores become probabilities relative to the new maximum; `scale` gets what O and the sums so far
// must be multiplied by. sum stays a part of each thread until the end.
template <int N>
static __device__ __forceinline__ void flash_softmax(float (&s)[N], float (&top)[2],
                                                     float (&sum)[2], float (&scale)[2], float c) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float m = top[h];
#pragma unroll
    for (int i = 0; i < N / 4; i++)
      m = fw_max(m, fw_max(s[4 * i + 2 * h], s[4 * i + 2 * h + 1]));
    m = quad_max(m);
    const float base = m == -INFINITY ? 0.0f : m * c;
    scale[h] = fw_ex2(top[h] * c - base);
    top[h] = m;
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        float &x = s[4 * i + 2 * h + e];
        x = fw_ex2(fmaf(x, c, -base));
        total += x;
      }
    }
    sum[h] = fmaf(sum[h], scale[h], total);
  }
}

template <class T, int N>
static __device__ __forceinline__ void flash_pack(const float (&s)[N], uint32_t (&p)[N / 2]) {
#pragma unroll
  for (int i = 0; i < N / 2; i++)
    p[i] = pack_pair<T>(s[2 * i], s[2 * i + 1]);
}

// Rows [0, ROWS) from `from` on, those below `valid`, `dim` columns each, zero up to `width`, into
// shared memory in rows padded by 16 bytes: matrix loads then meet no bank twice. Asynchronous, not
// committed.
template <class T, int ROWS, int THREADS>
static __device__ __forceinline__ void load_rows(uint32_t to, const T *from, int64_t stride,
                                                 int valid, int dim, int width) {
  const int chunks = width / 8, row_bytes = width * 2 + 16;
#pragma unroll 1 // nothing waits for these, and registers are dear
  for (int i = threadIdx.x; i < ROWS * chunks; i += THREADS) {
    const int r = i / chunks, c = i % chunks * 8;
    const bool live = r < valid && c < dim;
    copy_16(to + r * row_bytes + c * 2, live ? from + r * stride + c : from, live);
  }
}

#endif
