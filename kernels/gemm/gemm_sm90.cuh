// y = epilogue(x W^T) on Hopper: x [m, k], W [n, k], 16-bit, row-major; fp32 accumulation.
//
// Persistent blocks in clusters of two along m. In each block one warp feeds a ring of stages by
// bulk tensor copies; two warpgroups compute. A stage holds BM x 64 of x and BN x 64 of W; the two
// blocks of a cluster share their part of W: each fetches half of it and the copy engine delivers
// it to both, so that a stage costs its own x and half a W.
//
//          producer warp              warpgroup 0               warpgroup 1
//   ring   [ 0 | 1 | 2 | .. ]  --->   tile 0, products    <->   epilogue of the tile before
//          full / empty barriers      epilogue            <->   tile 1, products
//
// PING-PONG: each warpgroup owns whole tiles (128 x 128) and they take turns at the tensor cores,
// so one's epilogue runs under the other's products. It moves 160 bytes of shared memory a clock at
// the tensor cores' full rate (a product of 64 x 128 reads 96, filling the ring writes 64), and a
// multiprocessor has 128: the tensor cores can be 80 % busy. COOPERATIVE: both work on one tile
// (128 x 192, 64 rows each): 138 bytes a clock. One warpgroup stays a little ahead of the other,
// results wait in registers as 16 bits and go out under the next tile's products. No residual by
// bulk copy. gemm_pick_tile chooses.
//
// Each consumer warp has boxes of 16 x 64 results (2 KiB) in shared memory, in which fragments
// become rows (stmatrix under the 128-byte swizzle) for the copy engine to store. Where there are
// as many boxes as a tile needs, the residual comes to the same boxes by bulk copies that were
// asked for before the products began.
//
// Shared memory: STAGES x (BM + BN) x 128 bytes, BOXES x 16 KiB, bias, barriers. Everything outside
// m, n, k is zero-filled or clipped by the copy engine.
//
// Bound: the tensor cores, at the clock that the card's power limit allows (an H200 at 690 W ran
// them at 1.4 to 1.7 GHz). By the clock inside a block (16384 x 768 -> 3072): the products of a
// tile take 7600 clocks, 6144 by the tensor cores and 7680 by shared memory. Beside them an
// instruction of the epilogue costs 2.7 clocks and one that touches shared memory far more, so that
// bias + GELU took 10,400 clocks a tile and were not hidden; hence the bias asked for a tile ahead,
// and as few operations a value as the output can tell. Measured on an H200, bf16, against
// cuBLASLt's plain product in the same run (bench/results): no epilogue 0.99x to 1.03x; bias +
// exact erf GELU 1.19x (16384 x 768 -> 3072; before 1.22x to 1.25x), 1.13x (16384 x 1024 ->
// 4096), 1.02x (8192 x 4096 -> 16384).
#ifndef GEMM_GEMM_SM90_CUH
#define GEMM_GEMM_SM90_CUH

#include "kernels/gemm/gemm_sm90_tile.cuh"

// A warp's part of a finished tile: epilogue, boxes, and off to memory. `bias`: that of the first
// 64 columns, here already; row0, col0: its first row, the tile's first column.
template <class C, int ACT>
static __device__ __forceinline__ void
gemm_finish(float (&d)[C::HALVES][C::BN / 2], const gemm_args &args, const CUtensorMap *map_y,
            float2 (&bias)[2][8], uint32_t bias_at, uint32_t boxes, int64_t row0, int col0) {
#pragma unroll
  for (int i = 0; i < C::PARTS; i++) { // 64 columns of all rows, then the next 64
    const int h = i % C::HALVES, c = i / C::HALVES, col = col0 + c * 64;
    if (row0 - threadIdx.x / 32 % 4 * 16 + h * 64 < args.m && col < args.n) {
      float v[32];
#pragma unroll
      for (int j = 0; j < 32; j++)
        v[j] = d[h][c * 32 + j];
      gemm_write<C, ACT>(v, args, bias[c % 2], boxes + (h * C::PARTS_N + c) * 2048, row0 + h * 64,
                         col);
    }
    if (h == C::HALVES - 1 && c + 1 < C::PARTS_N)
      epilogue_load_bias(bias[(c + 1) % 2], bias_at + (c + 1) * 256);
  }
  if (!args.y_bulk) return;
  fence_async_proxy(); // once for all boxes: it is dear
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int part = 0; part < C::PARTS; part++)
      tma_store_2d(map_y, boxes + part * 2048, col0 + part % C::PARTS_N * 64,
                   (int)row0 + part / C::PARTS_N * 64);
    tma_store_commit();
  }
}

template <class C, int ACT>
static __device__ __forceinline__ void
gemm_consume_pingpong(const gemm_args &args, const CUtensorMap *map_y, const CUtensorMap *map_r,
                      const gemm_tiles &tiles, int k_steps, gemm_place<C> at) {
  const int warp = threadIdx.x / 32, wg = at.wg, stride = gridDim.x / C::CLUSTER;
  int place = 0; // of the bias
  float bias_next[gemm_place<C>::BIAS_VALUES];
  uint32_t residual_parity = 0;
  // every other tile is this warpgroup's; the other's stages pass by
  int t = blockIdx.x / C::CLUSTER + wg * stride, m, n;
  if (wg == 1) {
    bar_arrive(2, 256); // warpgroup 0 has the first turn
    at.skip(k_steps);
  }
  if (t < tiles.total) {
    tiles.locate(t, C::GROUP, &m, &n);
    at.ask_bias(args.epilogue, bias_next, n * C::BN, args.n);
  }
  for (; t < tiles.total; t += 2 * stride, place ^= 1) {
    tiles.locate(t, C::GROUP, &m, &n);
    const int64_t row0 = (int64_t)(m * C::CLUSTER + cluster_rank()) * C::BM + warp % 4 * 16;
    if (args.residual_bulk)
      gemm_fetch_residual<C>(args, map_r, at.boxes(), at.residual_bar(), row0, n * C::BN);
    at.put_bias(bias_next, place);
    if (t + 2 * stride < tiles.total) {
      int next_m, next_n;
      tiles.locate(t + 2 * stride, C::GROUP, &next_m, &next_n);
      at.ask_bias(args.epilogue, bias_next, next_n * C::BN, args.n);
    }
    float d[C::HALVES][C::BN / 2];
    at.stage =
        __shfl_sync(0xffffffffu, at.stage, 0); // all lanes agree: told so, the compiler keeps
    at.parity = __shfl_sync(0xffffffffu, at.parity, 0); // addresses in the warp's uniform registers
    bar_sync(2 + wg, 256);
    int before = -1;
    for (int k = 0; k < k_steps; k++) {
      mbar_wait(at.full(), at.parity);
      gemm_multiply<C>(d, at.ring(), 0, k);
      wgmma_wait<1>();
      if (before >= 0) at.release(before);
      before = at.stage;
      at.next();
    }
    bar_arrive(2 + (wg ^ 1), 256);
    // under the last products: what the epilogue would wait for
    float2 bias[2][8];
    bar_sync(4 + wg, 128); // the bias is there
    const uint32_t bias_at = at.bias(place) + threadIdx.x % 4 * 8;
    epilogue_load_bias(bias[0], bias_at);
    if (args.residual_bulk) {
      mbar_wait(at.residual_bar(), residual_parity);
      residual_parity ^= 1;
    } else {
      if (threadIdx.x % 32 == 0) tma_store_wait_read<0>(); // of the tile before: long done
      __syncwarp();
    }
    wgmma_wait<0>();
#pragma unroll
    for (int h = 0; h < C::HALVES; h++)
      hold(d[h]);
    at.release(before);
    gemm_finish<C, ACT>(d, args, map_y, bias, bias_at, at.boxes(), row0, n * C::BN);
    at.skip(k_steps); // the other warpgroup's
  }
  if (threadIdx.x % 32 == 0) tma_store_wait_read<0>();
}

// A finished tile on its way out: packed results, a part (64 columns) at a time, under the next
// tile's products.
template <class C> struct gemm_pending {
  uint32_t w[C::PARTS * 16];
  uint32_t mn; // where: (m << 16 | n) in tiles, one register
  // Part `part`, the next in order.
  __device__ __forceinline__ void send(const gemm_args &args, const CUtensorMap *map_y,
                                       uint32_t box, int part) {
    const int row0 = ((mn >> 16) * C::CLUSTER + cluster_rank()) * C::BM + threadIdx.x / 32 * 16,
              col0 = (mn & 0xffff) * C::BN + part * 64;
    if (row0 < args.m && col0 < args.n) {
      if (threadIdx.x % 32 == 0) tma_store_wait_read<0>(); // the part before, a step ago
      __syncwarp();
#pragma unroll
      for (int j = 0; j < 8; j += 2)
        stmatrix_x4(gemm_box_at(box, j), w[2 * j], w[2 * j + 1], w[2 * j + 2], w[2 * j + 3]);
      fence_async_proxy();
      __syncwarp();
      if (threadIdx.x % 32 == 0) {
        tma_store_2d(map_y, box, col0, row0);
        tma_store_commit();
      }
    }
#pragma unroll
    for (int i = 0; i < (C::PARTS - 1) * 16; i++)
      w[i] = w[i + 16];
  }
};

// 16-bit results in the order stmatrix wants them.
template <class T>
static __device__ __forceinline__ void gemm_pack(const float (&v)[16], uint32_t *w) {
#pragma unroll
  for (int i = 0; i < 8; i++) {
    if (__is_same(T, __nv_bfloat16))
      asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w[i]) : "f"(v[2 * i + 1]), "f"(v[2 * i]));
    else
      asm volatile("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w[i]) : "f"(v[2 * i + 1]), "f"(v[2 * i]));
  }
}

template <class C, int ACT>
static __device__ __forceinline__ void
gemm_consume_cooperative(const gemm_args &args, const CUtensorMap *map_y, const gemm_tiles &tiles,
                         int k_steps, gemm_place<C> at) {
  using T = typename C::T;
  constexpr int DEGREE = __is_same(T, __nv_bfloat16) ? 6 : 7;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, wg = at.wg;
  gemm_pending<C> pending;
  int place = 0; // of the bias
  // Warpgroup 1 starts a few stages late and stays behind: one's epilogue then meets the other's
  // products.
  const int first = blockIdx.x / C::CLUSTER;
  if (wg == 1) bar_sync(2, 256);
  for (int t = first; t < tiles.total; t += gridDim.x / C::CLUSTER) {
    int m, n;
    tiles.locate(t, C::GROUP, &m, &n);
    float bias_values[gemm_place<C>::BIAS_VALUES];
    at.ask_bias(args.epilogue, bias_values, n * C::BN, args.n);
    at.put_bias(bias_values, place);
    float d[1][C::BN / 2];
    int before = -1;
#pragma unroll 1
    for (int k = 0; k < k_steps; k++) {
      mbar_wait(at.full(), at.parity);
      gemm_multiply<C>(d, at.ring(), wg * C::WM * 128, k);
      if (k < C::PARTS && t != first) pending.send(args, map_y, at.boxes(), k);
      wgmma_wait<1>();
      if (before >= 0) at.release(before);
      before = at.stage;
      at.next();
      if (wg == 0 && t == first && k == (k_steps - 1 < C::LEAD ? k_steps - 1 : C::LEAD))
        bar_arrive(2, 256);
    }
#pragma unroll 1
    for (int k = k_steps; k < C::PARTS && t != first; k++)
      pending.send(args, map_y, at.boxes(), k); // fewer steps than parts
    wgmma_wait<0>();
    hold(d[0]);
    at.release(before);
    bar_sync(4 + wg, 128); // the bias is there
#pragma unroll
    for (int c = 0; c < C::BN / 32;
         c++) { // 32 columns at a time: more would not fit beside what is pending
      float v[16];
#pragma unroll
      for (int i = 0; i < 16; i++)
        v[i] = d[0][c * 16 + i];
      const int col = c * 32 + lane % 4 * 2,
                row = (m * C::CLUSTER + (int)cluster_rank()) * C::BM + warp * 16 + lane / 4;
      float2 bias[4];
      epilogue_load_bias(bias, at.bias(place) + col * 4);
      epilogue_apply<T, ACT, DEGREE, false>(args.epilogue, v, bias, row, n * C::BN + col, args.m,
                                            args.n);
      gemm_pack<T>(v, pending.w + c * 8);
    }
    pending.mn = m << 16 | n;
    place ^= 1;
  }
#pragma unroll 1
  for (int part = 0; part < C::PARTS; part++)
    pending.send(args, map_y, at.boxes(), part); // a block has a tile
  if (lane == 0) tma_store_wait_read<0>();
}

template <class C, int ACT>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(C::THREADS, 1)
    gemm_sm90(const __grid_constant__ CUtensorMap map_x, const __grid_constant__ CUtensorMap map_w,
              const __grid_constant__ CUtensorMap map_y, const __grid_constant__ CUtensorMap map_r,
              const __grid_constant__ gemm_args args) {
  extern __shared__ __align__(1024) uint8_t raw[];
  const uint32_t base = smem_address(raw), full = base + C::FULL_AT, empty = base + C::EMPTY_AT;
  const int wg = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    tma_prefetch_map(&map_x);
    tma_prefetch_map(&map_w);
    if (args.y_bulk) tma_prefetch_map(&map_y);
    for (int w = 0; w < 8; w++)
      mbar_init(base + C::RESIDUAL_AT + 8 * w, 1);
    for (int s = 0; s < C::STAGES; s++) {
      mbar_init(full + 8 * s, 1);
      mbar_init(empty + 8 * s, C::CLUSTER * (C::PINGPONG ? 1 : 2));
    }
    mbar_init_fence();
  }
  cluster_sync();
  if (wg == 2) {
    registers_shrink<C::PRODUCER_REGISTERS>();
    if (threadIdx.x == 256) gemm_produce<C>(&map_x, &map_w, args.tiles, base);
  } else {
    registers_grow<C::CONSUMER_REGISTERS>();
    gemm_place<C> at;
    at.base = base, at.wg = wg;
    if constexpr (C::PINGPONG)
      gemm_consume_pingpong<C, ACT>(args, &map_y, &map_r, args.tiles, args.tiles.k_steps, at);
    else
      gemm_consume_cooperative<C, ACT>(args, &map_y, args.tiles, args.tiles.k_steps, at);
  }
  __syncwarp();
  cluster_sync(); // nobody leaves while the other block may still write here
}

#endif
