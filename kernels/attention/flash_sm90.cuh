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
// Keys behind the end of a sequence belong to the next one: their scores are set to -inf, and their
// rows of V to zero, since 0 * NaN would leak. A query that sees no key gives zeros.
//
// Shared memory: NQ x 128 x PANELS x 128 B + STAGES x 2 x KEYS x PANELS x 128 B (head size 128: 192
// KiB).
// Bound: the tensor cores from head size 128 on, the exponentials at 64. Measured on an H200, bf16,
// against cuDNN in the same run (bench/results): b32 h12 s512 d64 0.98x, b8 h16 s2048 d128 0.86x
// (causal 0.76x), b2 h16 s8192 d128 1.00x (causal 0.88x), b32 h12 s128 d64 1.17x.
#ifndef ATTENTION_FLASH_SM90_CUH
#define ATTENTION_FLASH_SM90_CUH

#include "kernels/attention/flash_common.cuh"
#include "kernels/ptx/wgmma.cuh"

template <class T_, int D_, int KEYS_, int NQ_, bool CAUSAL_> struct flash_config {
  using T = T_;
  static constexpr int D = D_, KEYS = KEYS_, NQ = NQ_, STAGES = 2, ROWS = 128, THREADS = 384;
  static constexpr bool CAUSAL = CAUSAL_;
  static constexpr int PANELS = (D + 63) / 64;
  static constexpr int Q_PANEL = ROWS * 128, KV_PANEL = KEYS * 128;
  static constexpr int Q_BYTES = Q_PANEL * PANELS, KV_BYTES = KV_PANEL * PANELS;
  static constexpr int SHARED_BYTES =
      1024 + NQ * Q_BYTES + 2 * STAGES * KV_BYTES + 8 * (2 * NQ + 4 * STAGES) + 16 * NQ;
};

// Barriers and buffers of a block, by shared-memory address.
template <class C> struct flash_shared {
  uint32_t q, k, v, bars, tiles;
  __device__ __forceinline__ uint32_t q_at(int i) const {
    return q + i * C::Q_BYTES;
  }
  __device__ __forceinline__ uint32_t q_full(int i) const {
    return bars + 8 * i;
  }
  __device__ __forceinline__ uint32_t q_empty(int i) const {
    return bars + 8 * (C::NQ + i);
  }
  __device__ __forceinline__ uint32_t k_full(int i) const {
    return bars + 8 * (2 * C::NQ + i);
  }
  __device__ __forceinline__ uint32_t k_empty(int i) const {
    return bars + 8 * (2 * C::NQ + C::STAGES + i);
  }
  __device__ __forceinline__ uint32_t v_full(int i) const {
    return bars + 8 * (2 * C::NQ + 2 * C::STAGES + i);
  }
  __device__ __forceinline__ uint32_t v_empty(int i) const {
    return bars + 8 * (2 * C::NQ + 3 * C::STAGES + i);
  }
};

// What the producer found goes to the consumers beside Q, under the same barriers.
static __device__ __forceinline__ void flash_tile_put(uint32_t to, const flash_tile &t) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(t.head), "r"(t.q0),
               "r"(t.length), "r"(t.token0)
               : "memory");
}
static __device__ __forceinline__ flash_tile flash_tile_get(uint32_t from) {
  flash_tile t;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(t.head), "=r"(t.q0), "=r"(t.length), "=r"(t.token0)
               : "r"(from)
               : "memory");
  return t;
}

template <int STAGES> struct flash_ring {
  int stage = 0;
  uint32_t parity;
  __device__ __forceinline__ explicit flash_ring(uint32_t p) : parity(p) {}
  __device__ __forceinline__ void next() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

// One thread's part of a tile: Q, then the blocks of K and V from the last to the first.
template <class C>
static __device__ __forceinline__ void
flash_load_tile(const flash_args &a, const flash_shared<C> &s, const CUtensorMap *map_q,
                const CUtensorMap *map_k, const CUtensorMap *map_v, const flash_tile &tile,
                flash_ring<C::NQ> &q, flash_ring<C::STAGES> &kv) {
  mbar_wait(s.q_empty(q.stage), q.parity);
  flash_tile_put(s.tiles + 16 * q.stage, tile);
  if (tile.head < 0) {
    mbar_arrive(s.q_full(q.stage));
    return;
  }
  const int kv_head = tile.head / a.group;
  mbar_expect(s.q_full(q.stage), C::Q_BYTES);
  for (int p = 0; p < C::PANELS; p++)
    tma_load_3d(s.q_at(q.stage) + p * C::Q_PANEL, map_q, s.q_full(q.stage), p * 64, tile.head,
                tile.token0 + tile.q0);
  q.next();
  for (int j = tile.blocks<C>() - 1; j >= 0; j--) {
    const int token = tile.token0 + j * C::KEYS;
    mbar_wait(s.k_empty(kv.stage), kv.parity);
    mbar_expect(s.k_full(kv.stage), C::KV_BYTES);
    for (int p = 0; p < C::PANELS; p++)
      tma_load_3d(s.k + kv.stage * C::KV_BYTES + p * C::KV_PANEL, map_k, s.k_full(kv.stage), p * 64,
                  kv_head, token);
    mbar_wait(s.v_empty(kv.stage), kv.parity);
    mbar_expect(s.v_full(kv.stage), C::KV_BYTES);
    for (int p = 0; p < C::PANELS; p++)
      tma_load_3d(s.v + kv.stage * C::KV_BYTES + p * C::KV_PANEL, map_v, s.v_full(kv.stage), p * 64,
                  kv_head, token);
    kv.next();
  }
}

// The producer warp: all lanes look for tiles, the first one moves them.
template <class C>
static __device__ __forceinline__ void
flash_produce(const flash_args &a, const flash_shared<C> &s, const CUtensorMap *map_q,
              const CUtensorMap *map_k, const CUtensorMap *map_v) {
  flash_ring<C::NQ> q(1);
  flash_ring<C::STAGES> kv(1);
  flash_order<C> order(a);
  for (int t = blockIdx.x;; t += gridDim.x) {
    const flash_tile tile = order.at(t);
    if (threadIdx.x % 32 == 0) flash_load_tile<C>(a, s, map_q, map_k, map_v, tile, q, kv);
    __syncwarp();
    if (tile.head < 0) return;
  }
}

// S = Q K^T of 64 rows and one block of keys; committed, not waited for.
template <class C>
static __device__ __forceinline__ void flash_scores(float (&s)[C::KEYS / 2], uint32_t q,
                                                    uint32_t k) {
  const uint64_t desc_q = tile_descriptor(q, 16, 1024), desc_k = tile_descriptor(k, 16, 1024);
  hold(s);
  wgmma_fence();
#pragma unroll
  for (int kk = 0; kk < C::D / 16; kk++) {
    const int panel = kk / 4, step = kk % 4 * 2;
    wgmma<C::KEYS, typename C::T>::shared(s, desc_q + (panel * C::Q_PANEL >> 4) + step,
                                          desc_k + (panel * C::KV_PANEL >> 4) + step, kk != 0);
  }
  wgmma_commit();
  hold(s);
}

// O += P V; committed, not waited for.
template <class C>
static __device__ __forceinline__ void flash_values(float (&o)[C::D / 2],
                                                    const uint32_t (&p)[C::KEYS / 4], uint32_t v) {
  const uint64_t desc_v = tile_descriptor(v, C::KV_PANEL, 1024);
  hold(o);
  wgmma_fence();
#pragma unroll
  for (int kk = 0; kk < C::KEYS / 16; kk++)
    wgmma<C::D, typename C::T>::mixed(o, p + 4 * kk, desc_v + kk * (16 * 128 >> 4), 1);
  wgmma_commit();
  hold(o);
}

// The rows of V from `valid` on, to zero: they are another sequence's.
template <class C>
static __device__ __forceinline__ void flash_clear_tail(uint32_t v, int valid, int wg) {
  const int thread = threadIdx.x % 128;
  for (int i = valid * 8 + thread; i < C::KEYS * 8; i += 128) {
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
                   uint32_t q, flash_ring<C::STAGES> &kr, flash_ring<C::STAGES> &vr, int wg) {
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
  mbar_wait(sh.k_full(kr.stage), kr.parity);
  flash_scores<C>(s, my_q, sh.k + kr.stage * C::KV_BYTES);
  wgmma_wait<0>();
  hold(s);
  if (thread == 0) mbar_arrive(sh.k_empty(kr.stage));
  kr.next();
  if (masked(j)) flash_mask<C>(s, j * C::KEYS, row, tile.length);
  flash_softmax(s, top, sum, scale, a.scale_log2);
  flash_pack<T>(s, p);
  for (; j > 0; j--) {
    mbar_wait(sh.k_full(kr.stage), kr.parity);
    bar_sync(2 + wg, 256);
    flash_scores<C>(s, my_q, sh.k + kr.stage * C::KV_BYTES);
    mbar_wait(sh.v_full(vr.stage), vr.parity);
    if ((j + 1) * C::KEYS > tile.length)
      flash_clear_tail<C>(sh.v + vr.stage * C::KV_BYTES, tile.length - j * C::KEYS, wg);
    flash_values<C>(o, p, sh.v + vr.stage * C::KV_BYTES);
    bar_arrive(2 + (wg ^ 1), 256);
    wgmma_wait<1>();
    hold(s);
    if (thread == 0) mbar_arrive(sh.k_empty(kr.stage));
    kr.next();
    if (masked(j - 1)) flash_mask<C>(s, (j - 1) * C::KEYS, row, tile.length);
    flash_softmax(s, top, sum, scale, a.scale_log2);
    wgmma_wait<0>();
    hold(o);
    if (thread == 0) mbar_arrive(sh.v_empty(vr.stage));
    vr.next();
#pragma unroll
    for (int i = 0; i < C::D / 2; i++)
      o[i] *= scale[i / 2 % 2];
    flash_pack<T>(s, p);
  }
  mbar_wait(sh.v_full(vr.stage), vr.parity);
  if (C::KEYS > tile.length) flash_clear_tail<C>(sh.v + vr.stage * C::KV_BYTES, tile.length, wg);
  flash_values<C>(o, p, sh.v + vr.stage * C::KV_BYTES);
  wgmma_wait<0>();
  hold(o);
  if (thread == 0) mbar_arrive(sh.v_empty(vr.stage));
  vr.next();
  bar_sync(4 + wg, 128); // every warp is done with this warpgroup's rows of Q
  flash_write<C>(o, sum, a, tile, q, wg);
}

template <class C>
__global__ void __launch_bounds__(C::THREADS, 1)
    flash_sm90(const __grid_constant__ CUtensorMap map_q, const __grid_constant__ CUtensorMap map_k,
               const __grid_constant__ CUtensorMap map_v, const __grid_constant__ flash_args a) {
  extern __shared__ uint8_t raw[];
  flash_shared<C> s;
  s.q = (smem_address(raw) + 1023) & ~1023u;
  s.k = s.q + C::NQ * C::Q_BYTES;
  s.v = s.k + C::STAGES * C::KV_BYTES;
  s.tiles = s.v + C::STAGES * C::KV_BYTES;
  s.bars = s.tiles + 16 * C::NQ;
  const int wg = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    tma_prefetch_map(&map_q);
    tma_prefetch_map(&map_k);
    tma_prefetch_map(&map_v);
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
    registers_shrink<40>();
    if (threadIdx.x < 256 + 32) flash_produce<C>(a, s, &map_q, &map_k, &map_v);
    return;
  }
  registers_grow<232>();
  if (wg == 1) bar_arrive(2, 256); // warpgroup 0 has the first turn
  flash_ring<C::NQ> q(0);
  flash_ring<C::STAGES> kr(0), vr(0);
  while (true) {
    mbar_wait(s.q_full(q.stage), q.parity);
    const flash_tile tile = flash_tile_get(s.tiles + 16 * q.stage);
    if (tile.head < 0) return;
    flash_consume_tile<C>(a, s, tile, s.q_at(q.stage), kr, vr, wg);
    fence_async_proxy();
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbar_arrive(s.q_empty(q.stage));
    q.next();
  }
}

#endif
