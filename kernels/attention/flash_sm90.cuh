// Attention forward on Hopper without the score matrix ever leaving registers: packed sequences,
// causal or not, grouped heads.
//
//   S = Q K^T,  P = exp2(c S - c max),  O += P V        one block of keys at a time, newest maximum
//   rescales O
//
// Persistent blocks: one producer warp, two warpgroups of 64 query rows each. Q, K and V come by
// bulk tensor copies as panels of 64 columns under the 128-byte swizzle (the last panel of a head
// size that is no multiple of 64 is filled with zeros by the copy engine, and the products stop at
// the head size). K and V have rings of STAGES; Q has NQ buffers, so that the next tile's Q is
// there before this one's result is out. The result passes through its own rows of Q's buffer.
//
// Two overlaps hide the exponentials: inside a warpgroup, the next S and this P V are both in
// flight while the softmax of the next S waits only for the former; between them, the warpgroups
// take turns to issue (named barriers), so that one's softmax runs under the other's products.
//
// A sequence of up to 64 tokens would leave half of a tile empty, and half of its exponentials
// wasted: there the warpgroups take a head each, with 64 keys (FLASH_SHORT).
//
// Keys behind the end of a sequence belong to the next one: their scores are set to -inf, and their
// rows of V to zero, since 0 * NaN would leak. A query that sees no key gives zeros.
//
// Shared memory: NQ x 128 x PANELS x 128 B + STAGES x 2 x KEYS x PANELS x 128 B (head size 128: 192
// KiB).
// Bound: the tensor cores from head size 128 on, the exponentials at 64. Measured on H200s, bf16
// (bench/results, gpu-2026-11-30.jsonl, -2, -4), TFLOP/s: b32 h12 s512 d64 338, b8 h16 s2048 d128
// 545 to 596 (causal 394 to 441), b2 h16 s8192 d128 622 to 628 (causal 500 to 507), b4 h16 s2048
// d256 617 to 622 (causal 424 to 432). 256 sequences of 20 tokens, h12 d32: 22 us, where whole
// tiles took 46 (not recorded).
#ifndef ATTENTION_FLASH_SM90_CUH
#define ATTENTION_FLASH_SM90_CUH

#include "kernels/attention/flash_common.cuh"
#include "kernels/ptx/wgmma.cuh"

template <class T_, int D_, int KEYS_, int NQ_, bool CAUSAL_> struct flash_config {
  using T = T_;
  static constexpr int D = D_, KEYS = KEYS_, NQ = NQ_, STAGES = 2, ROWS = 128, THREADS = 384;
  static constexpr bool CAUSAL = CAUSAL_, PAIRS = KEYS == 2 * FLASH_SHORT && D <= 96; // registers
  static constexpr int PANELS = (D + 63) / 64;
  static constexpr int Q_PANEL = ROWS * 128, KV_PANEL = KEYS * 128;
  static constexpr int Q_BYTES = Q_PANEL * PANELS, KV_BYTES = KV_PANEL * PANELS;
  static constexpr int SHARED_BYTES =
      1024 + NQ * Q_BYTES + 2 * STAGES * KV_BYTES + 8 * (2 * NQ + 4 * STAGES) + 16 * NQ;
};

// Boxes of whole tiles, and of FLASH_SHORT rows for the halves of a pair.
struct flash_maps {
  CUtensorMap q, k, v, short_q, short_k, short_v;
};

// Barriers and buffers of a block, by shared-memory address: constant distances from the first.
template <class C> struct flash_shared {
  static constexpr int K_AT = C::NQ * C::Q_BYTES, V_AT = K_AT + C::STAGES * C::KV_BYTES,
                       TILES_AT = V_AT + C::STAGES * C::KV_BYTES, BARS_AT = TILES_AT + 16 * C::NQ;
  uint32_t base;
  __device__ __forceinline__ uint32_t q_at(int i) const {
    return base + i * C::Q_BYTES;
  }
  __device__ __forceinline__ uint32_t k_at(int i) const {
    return base + K_AT + i * C::KV_BYTES;
  }
  __device__ __forceinline__ uint32_t v_at(int i) const {
    return base + V_AT + i * C::KV_BYTES;
  }
  __device__ __forceinline__ uint32_t tile_at(int i) const {
    return base + TILES_AT + 16 * i;
  }
  __device__ __forceinline__ uint32_t q_full(int i) const {
    return base + BARS_AT + 8 * i;
  }
  __device__ __forceinline__ uint32_t q_empty(int i) const {
    return q_full(C::NQ + i);
  }
  __device__ __forceinline__ uint32_t k_full(int i) const {
    return q_full(2 * C::NQ + i);
  }
  __device__ __forceinline__ uint32_t k_empty(int i) const {
    return k_full(C::STAGES + i);
  }
  __device__ __forceinline__ uint32_t v_full(int i) const {
    return k_full(2 * C::STAGES + i);
  }
  __device__ __forceinline__ uint32_t v_empty(int i) const {
    return k_full(3 * C::STAGES + i);
  }
};

// What the producer found goes to the consumers beside Q, under the same barriers.
static __device__ __forceinline__ void flash_tile_put(uint32_t to, const flash_tile &t) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(t.head), "r"(t.q0),
               "r"(t.length), "r"(t.token0)
               : "memory");
}
// By the lane that will say that it has been read; the others hear it from that one.
static __device__ __forceinline__ flash_tile flash_tile_get(uint32_t from) {
  flash_tile t = {};
  if (threadIdx.x % 32 == 0)
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(t.head), "=r"(t.q0), "=r"(t.length), "=r"(t.token0)
                 : "r"(from)
                 : "memory");
  return {__shfl_sync(0xffffffffu, t.head, 0), __shfl_sync(0xffffffffu, t.q0, 0),
          __shfl_sync(0xffffffffu, t.length, 0), __shfl_sync(0xffffffffu, t.token0, 0)};
}

// Which buffer of a ring, and the parity of its phase, from one count. A producer begins a round
// ahead: every buffer is empty.
template <int STAGES> struct flash_ring {
  uint32_t n;
  __device__ __forceinline__ int stage() const {
    return (int)(n % STAGES);
  }
  __device__ __forceinline__ uint32_t parity() const {
    return n / STAGES & 1;
  }
  __device__ __forceinline__ flash_ring before() const {
    return {n - 1};
  }
};

// One operand's `rows` rows from `token` on, panel by panel.
template <class C>
static __device__ __forceinline__ void flash_load(uint32_t to, int panel_bytes,
                                                  const CUtensorMap *map, uint32_t bar, int head,
                                                  int token) {
  for (int p = 0; p < C::PANELS; p++)
    tma_load_3d(to + p * panel_bytes, map, bar, p * 64, head, token);
}

// Two heads of a short sequence, one under the other in each buffer; the last may be alone.
template <class C>
static __device__ __forceinline__ void
flash_load_pair(const flash_args &a, const flash_shared<C> &s, const flash_maps &maps,
                const flash_tile &tile, uint32_t q, uint32_t q_full, int stage, uint32_t parity) {
  constexpr int HALF = FLASH_SHORT * 128;
  const int heads = tile.head + 1 < a.heads ? 2 : 1, bytes = heads * HALF * C::PANELS;
  mbar_expect(q_full, bytes);
  for (int i = 0; i < heads; i++)
    flash_load<C>(q + i * HALF, C::Q_PANEL, &maps.short_q, q_full, tile.head + i, tile.token0);
  mbar_wait(s.k_empty(stage), parity);
  mbar_expect(s.k_full(stage), bytes);
  for (int i = 0; i < heads; i++)
    flash_load<C>(s.k_at(stage) + i * HALF, C::KV_PANEL, &maps.short_k, s.k_full(stage),
                  (tile.head + i) / a.group, tile.token0);
  mbar_wait(s.v_empty(stage), parity);
  mbar_expect(s.v_full(stage), bytes);
  for (int i = 0; i < heads; i++)
    flash_load<C>(s.v_at(stage) + i * HALF, C::KV_PANEL, &maps.short_v, s.v_full(stage),
                  (tile.head + i) / a.group, tile.token0);
}

// One thread's part of a tile: Q, then the blocks of K and V from the last to the first.
template <class C>
static __device__ __forceinline__ void
flash_load_tile(const flash_args &a, const flash_shared<C> &s, const flash_maps &maps,
                const flash_tile &tile, flash_ring<C::NQ> &q, flash_ring<C::STAGES> &kv) {
  const uint32_t q_at = s.q_at(q.stage()), q_full = s.q_full(q.stage());
  mbar_wait(s.q_empty(q.stage()), q.parity());
  flash_tile_put(s.tile_at(q.stage()), tile);
  if (tile.head < 0) {
    mbar_arrive(q_full);
    return;
  }
  q.n++;
  if (tile.is_pair<C>()) {
    flash_load_pair<C>(a, s, maps, tile, q_at, q_full, kv.stage(), kv.parity());
    kv.n++;
    return;
  }
  const int kv_head = tile.head / a.group;
  mbar_expect(q_full, C::Q_BYTES);
  flash_load<C>(q_at, C::Q_PANEL, &maps.q, q_full, tile.head, tile.token0 + tile.q0);
  for (int j = tile.blocks<C>() - 1; j >= 0; j--) {
    const int token = tile.token0 + j * C::KEYS;
    mbar_wait(s.k_empty(kv.stage()), kv.parity());
    mbar_expect(s.k_full(kv.stage()), C::KV_BYTES);
    flash_load<C>(s.k_at(kv.stage()), C::KV_PANEL, &maps.k, s.k_full(kv.stage()), kv_head, token);
    mbar_wait(s.v_empty(kv.stage()), kv.parity());
    mbar_expect(s.v_full(kv.stage()), C::KV_BYTES);
    flash_load<C>(s.v_at(kv.stage()), C::KV_PANEL, &maps.v, s.v_full(kv.stage()), kv_head, token);
    kv.n++;
  }
}

// The producer warp: all lanes look for tiles, the first one moves them.
template <class C>
static __device__ __forceinline__ void flash_produce(const flash_args &a, const flash_shared<C> &s,
                                                     const flash_maps &maps) {
  flash_ring<C::NQ> q = {C::NQ};
  flash_ring<C::STAGES> kv = {C::STAGES};
  flash_order<C> order(a);
  for (int t = blockIdx.x;; t += gridDim.x) {
    const flash_tile tile = order.at(t);
    if (threadIdx.x % 32 == 0) flash_load_tile<C>(a, s, maps, tile, q, kv);
    __syncwarp();
    if (tile.head < 0) return;
  }
}

// S = Q K^T of 64 rows and one block of keys; committed, not waited for.
template <class C, int N>
static __device__ __forceinline__ void flash_scores(float (&s)[N], uint32_t q, uint32_t k) {
  const uint64_t desc_q = tile_descriptor(q, 16, 1024), desc_k = tile_descriptor(k, 16, 1024);
  hold(s);
  wgmma_fence();
#pragma unroll
  for (int kk = 0; kk < C::D / 16; kk++) {
    const int panel = kk / 4, step = kk % 4 * 2;
    wgmma<2 * N, typename C::T>::shared(s, desc_q + (panel * C::Q_PANEL >> 4) + step,
                                        desc_k + (panel * C::KV_PANEL >> 4) + step, kk != 0);
  }
  wgmma_commit();
  hold(s);
}

// O += P V; committed, not waited for.
template <class C, int N>
static __device__ __forceinline__ void flash_values(float (&o)[C::D / 2], const uint32_t (&p)[N],
                                                    uint32_t v) {
  const uint64_t desc_v = tile_descriptor(v, C::KV_PANEL, 1024);
  hold(o);
  wgmma_fence();
#pragma unroll
  for (int kk = 0; kk < N / 4; kk++)
    wgmma<C::D, typename C::T>::mixed(o, p + 4 * kk, desc_v + kk * (16 * 128 >> 4), 1);
  wgmma_commit();
  hold(o);
}

// The rows of V from `valid` up to `rows`, to zero: they are another sequence's.
template <class C>
static __device__ __forceinline__ void flash_clear_tail(uint32_t v, int valid, int rows, int wg) {
  const int thread = threadIdx.x % 128;
  for (int i = valid * 8 + thread; i < rows * 8; i += 128) {
#pragma unroll
    for (int p = 0; p < C::PANELS; p++)
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(v + p * C::KV_PANEL + i * 16),
                   "r"(0)
                   : "memory");
  }
  fence_async_proxy();
  bar_sync(4 + wg, 128);
}

// Normalise, turn into rows in the warp's own rows of Q's buffer, write rows that exist.
template <class C>
static __device__ __forceinline__ void flash_write(float (&o)[C::D / 2], const float (&sum)[2],
                                                   const flash_args &a, const flash_tile &tile,
                                                   uint32_t q, int wg) {
  using T = typename C::T;
  const int lane = threadIdx.x % 32, row0 = wg * 64 + threadIdx.x / 32 % 4 * 16;
  float inverse[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const float total = quad_sum(sum[h]);
    inverse[h] = total == 0.0f ? 0.0f : 1.0f / total;
  }
  const uint32_t rows = q + row0 * 128;
#pragma unroll
  for (int j = 0; j < C::D / 8; j += 2) {
    float x[8];
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 8; i++)
      x[i] = o[4 * j + i] * inverse[i / 2 % 2];
    flash_pack<T, 8>(x, w);
    const int chunk = j % 8 + lane / 16;
    stmatrix_x4(rows + j / 8 * C::Q_PANEL + lane % 16 * 128 + ((chunk ^ (lane & 7)) << 4), w[0],
                w[1], w[2], w[3]);
  }
  __syncwarp();
  constexpr int CHUNKS = C::D / 8; // of 16 bytes in a row
#pragma unroll
  for (int i = 0; i < (16 * CHUNKS + 31) / 32; i++) {
    const int n = i * 32 + lane, r = n / CHUNKS, chunk = n % CHUNKS, token = tile.q0 + row0 + r;
    if (r >= 16 || token >= tile.length) continue;
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(rows + chunk / 8 * C::Q_PANEL + r * 128 + (((chunk % 8) ^ (r & 7)) << 4)));
    *(uint4 *)((T *)a.o + (int64_t)(tile.token0 + token) * a.o_stride + tile.head * C::D +
               chunk * 8) = x;
  }
}

template <class C>
static __device__ __forceinline__ void
flash_consume_tile(const flash_args &a, const flash_shared<C> &sh, const flash_tile &tile,
                   uint32_t q, flash_ring<C::STAGES> &kr, int wg) {
  using T = typename C::T;
  const int thread = threadIdx.x % 128,
            row = tile.q0 + wg * 64 + thread / 32 * 16 + thread % 32 / 4;
  const uint32_t my_q = q + wg * 64 * 128;
  float s[C::KEYS / 2], o[C::D / 2], top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f},
                                     scale[2];
  uint32_t p[C::KEYS / 4];
#pragma unroll
  for (int i = 0; i < C::D / 2; i++)
    o[i] = 0.0f;
  int j = tile.blocks<C>() - 1;
  // a block is masked where it reaches beyond the sequence, or beyond this warpgroup's first row
  auto masked = [&](int block) {
    const int end = (block + 1) * C::KEYS;
    return end > tile.length || (C::CAUSAL && end > tile.q0 + wg * 64 + 1);
  };
  mbar_wait(sh.k_full(kr.stage()), kr.parity());
  flash_scores<C>(s, my_q, sh.k_at(kr.stage()));
  wgmma_wait<0>();
  hold(s);
  if (thread == 0) mbar_arrive(sh.k_empty(kr.stage()));
  kr.n++;
  if (masked(j)) flash_mask<C>(s, j * C::KEYS, row, tile.length);
  flash_softmax(s, top, sum, scale, a.scale_log2);
  flash_pack<T>(s, p);
  for (; j > 0; j--) {
    const flash_ring<C::STAGES> vr = kr.before();
    mbar_wait(sh.k_full(kr.stage()), kr.parity());
    bar_sync(2 + wg, 256);
    flash_scores<C>(s, my_q, sh.k_at(kr.stage()));
    mbar_wait(sh.v_full(vr.stage()), vr.parity());
    if ((j + 1) * C::KEYS > tile.length)
      flash_clear_tail<C>(sh.v_at(vr.stage()), tile.length - j * C::KEYS, C::KEYS, wg);
    flash_values<C>(o, p, sh.v_at(vr.stage()));
    bar_arrive(2 + (wg ^ 1), 256);
    wgmma_wait<1>();
    hold(s);
    if (thread == 0) mbar_arrive(sh.k_empty(kr.stage()));
    kr.n++;
    if (masked(j - 1)) flash_mask<C>(s, (j - 1) * C::KEYS, row, tile.length);
    flash_softmax(s, top, sum, scale, a.scale_log2);
    wgmma_wait<0>();
    hold(o);
    if (thread == 0) mbar_arrive(sh.v_empty(vr.stage()));
#pragma unroll
    for (int i = 0; i < C::D / 2; i++)
      o[i] *= scale[i / 2 % 2];
    flash_pack<T>(s, p);
  }
  const flash_ring<C::STAGES> vr = kr.before();
  mbar_wait(sh.v_full(vr.stage()), vr.parity());
  if (C::KEYS > tile.length) flash_clear_tail<C>(sh.v_at(vr.stage()), tile.length, C::KEYS, wg);
  flash_values<C>(o, p, sh.v_at(vr.stage()));
  wgmma_wait<0>();
  hold(o);
  if (thread == 0) mbar_arrive(sh.v_empty(vr.stage()));
  bar_sync(4 + wg, 128); // every warp is done with this warpgroup's rows of Q
  flash_write<C>(o, sum, a, tile, q, wg);
}

// Half of a tile: this warpgroup's head of a short sequence, if there is one. One block of keys.
template <class C>
static __device__ __forceinline__ void
flash_consume_pair(const flash_args &a, const flash_shared<C> &sh, const flash_tile &tile,
                   uint32_t q, flash_ring<C::STAGES> &kr, int wg) {
  constexpr int HALF = FLASH_SHORT * 128;
  const int thread = threadIdx.x % 128, row = thread / 32 * 16 + thread % 32 / 4;
  const bool live = tile.head + wg < a.heads;
  const uint32_t k = sh.k_at(kr.stage()) + wg * HALF, v = sh.v_at(kr.stage()) + wg * HALF;
  float s[FLASH_SHORT / 2], o[C::D / 2], top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f},
                                         scale[2];
  uint32_t p[FLASH_SHORT / 4];
#pragma unroll
  for (int i = 0; i < C::D / 2; i++)
    o[i] = 0.0f;
  mbar_wait(sh.k_full(kr.stage()), kr.parity());
  if (live) {
    flash_scores<C>(s, q + wg * HALF, k);
    wgmma_wait<0>();
    hold(s);
  }
  if (thread == 0) mbar_arrive(sh.k_empty(kr.stage()));
  kr.n++;
  if (live) {
    flash_mask<C>(s, 0, row, tile.length);
    flash_softmax(s, top, sum, scale, a.scale_log2);
    flash_pack<typename C::T>(s, p);
  }
  const flash_ring<C::STAGES> vr = kr.before();
  mbar_wait(sh.v_full(vr.stage()), vr.parity());
  if (live) {
    if (tile.length < FLASH_SHORT) flash_clear_tail<C>(v, tile.length, FLASH_SHORT, wg);
    flash_values<C>(o, p, v);
    wgmma_wait<0>();
    hold(o);
  }
  if (thread == 0) mbar_arrive(sh.v_empty(vr.stage()));
  if (!live) return;
  bar_sync(4 + wg, 128); // every warp is done with this warpgroup's rows of Q
  flash_write<C>(o, sum, a, {tile.head + wg, -wg * FLASH_SHORT, tile.length, tile.token0}, q, wg);
}

template <class C>
__global__ void __launch_bounds__(C::THREADS, 1)
    flash_sm90(const __grid_constant__ flash_maps maps, const __grid_constant__ flash_args a) {
  extern __shared__ uint8_t raw[];
  flash_shared<C> s;
  s.base = (smem_address(raw) + 1023) & ~1023u;
  const int wg = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    tma_prefetch_map(&maps.q);
    tma_prefetch_map(&maps.k);
    tma_prefetch_map(&maps.v);
    for (int i = 0; i < C::NQ; i++)
      mbar_init(s.q_full(i), 1), mbar_init(s.q_empty(i), 8); // 8 warps
    for (int i = 0; i < C::STAGES; i++) {
      mbar_init(s.k_full(i), 1), mbar_init(s.k_empty(i), 2);
      mbar_init(s.v_full(i), 1), mbar_init(s.v_empty(i), 2);
    }
    mbar_init_fence();
  }
  __syncthreads();
  if (wg == 2) {
    registers_shrink<56>();
    if (threadIdx.x < 256 + 32) flash_produce<C>(a, s, maps);
    return;
  }
  registers_grow<224>();
  if (wg == 1) bar_arrive(2, 256); // warpgroup 0 has the first turn
  flash_ring<C::NQ> q = {0};
  flash_ring<C::STAGES> kr = {0}; // V follows one behind K
  while (true) {
    mbar_wait(s.q_full(q.stage()), q.parity());
    const flash_tile tile = flash_tile_get(s.tile_at(q.stage()));
    if (tile.head < 0) return;
    if constexpr (C::PAIRS) {
      if (tile.is_pair<C>())
        flash_consume_pair<C>(a, s, tile, s.q_at(q.stage()), kr, wg);
      else
        flash_consume_tile<C>(a, s, tile, s.q_at(q.stage()), kr, wg);
    } else {
      flash_consume_tile<C>(a, s, tile, s.q_at(q.stage()), kr, wg);
    }
    fence_async_proxy();
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbar_arrive(s.q_empty(q.stage()));
    q.n++;
  }
}

#endif
