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
// multiprocessor has 128: the tensor cores can be 80 % busy. DEFERRED (gemm_sm90_deferred.cuh):
// both work on one tile (128 x 192, 64 rows each): 138 bytes a clock. Each has two sets of
// accumulators; the epilogue of the last tile runs in pieces between the matrix instructions of the
// next. The same with 128 x 64 where that makes one wave of few rows. gemm_pick_tile chooses.
//
// Results leave in one of two ways. DIRECT, for [bias] [activation] (gemm_sm90_direct.cuh) and for
// any list whose operands are aligned (gemm_sm90_any.cuh): from registers. Else each consumer warp
// has boxes of 16 x 64 results (2 KiB) in shared memory, in which fragments become rows (stmatrix
// under the 128-byte swizzle) for the copy engine to store, and to which the residual comes by bulk
// copies that were asked for before the products began.
//
// Shared memory: STAGES x (BM + BN) x 128 bytes, BOXES x 16 KiB, bias, barriers. Everything outside
// m, n, k is zero-filled or clipped.
//
// Bound: the tensor cores, at the clock that the card's power limit allows (an H200 at 690 W ran
// them at 1.4 to 1.7 GHz): time goes with clocks and with energy. An epilogue that touches shared
// memory, which the products fill, waits long for it: through the boxes bias + GELU took 10,400
// clocks a tile of 128 x 128 against 7600 for the products (k = 768; 6144 by the tensor cores
// alone), and was not hidden. Hence direct stores, and as few operations a value as the output can
// tell. Measured on H200s, bf16, bias + exact erf GELU against cuBLASLt's plain product, in turns
// at one clock and each alone at the clock that its power leaves it (bench/results,
// gpu-linear-2026-11-30.jsonl, gpu-table-2026-11-30-2.txt to -4): 1.05x to 1.06x and 1.09x to 1.10x
// (16384 x 768 -> 3072; the library's own epilogue, tanh: 1.17x and 1.13x), 0.98x to 0.99x and
// 1.08x to 1.12x (16384 x 1024 -> 4096), 0.97x and 0.89x to 0.98x (8192 x 4096 -> 16384).
#ifndef GEMM_GEMM_SM90_CUH
#define GEMM_GEMM_SM90_CUH

#include "kernels/gemm/gemm_sm90_any.cuh"
#include "kernels/gemm/gemm_sm90_deferred.cuh"

// A warp's part of a finished tile: epilogue, boxes, and off to memory. `bias`: that of the first
// 64 columns, here already; row0, col0: its first row, the tile's first column.
template <class C, int ACT>
static __device__ __forceinline__ void
gemm_finish(float (&d)[C::HALVES][C::BN / 2], const gemm_args &args, const CUtensorMap *map_y,
            float2 (&bias)[2][8], uint32_t bias_at, uint32_t boxes, int64_t row0, int col0) {
  if constexpr (ACT == GEMM_ACT_ANY) gemm_finish_any<C>(d, args, bias_at, boxes, row0, col0);
#pragma unroll
  for (int i = 0; i < C::PARTS && ACT != GEMM_ACT_ANY;
       i++) { // 64 columns of all rows, then the next
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

// The same straight to memory. `bias`: that of the first 32 columns.
template <class C, int ACT>
static __device__ __forceinline__ void
gemm_finish_direct(float (&d)[C::HALVES][C::BN / 2], const gemm_args &args, float (&bias)[2][8],
                   uint32_t bias_at, int64_t row0, int col0) {
  using T = typename C::T;
  if constexpr (ACT == GEMM_ACT_ANY) gemm_finish_direct_any<C>(d, args, bias_at, row0, col0);
  gemm_part part[C::HALVES];
#pragma unroll
  for (int h = 0; h < C::HALVES; h++)
    part[h] = gemm_part_at(args, (int)row0 + h * 64, col0);
#pragma unroll
  for (int block = 0; block < C::BN && ACT != GEMM_ACT_ANY; block += 32) {
    const int place = block / 32 % 2;
    if (block + 32 < C::BN) load_shared_8(bias[place ^ 1], bias_at + (block + 32) * 4);
#pragma unroll
    for (int h = 0; h < C::HALVES; h++) {
      uint32_t low[4], high[4];
      gemm_finish_8<T, ACT, 0>(d[h] + block / 2, bias[place], low);
      gemm_finish_8<T, ACT, 1>(d[h] + block / 2, bias[place], high);
      char *y = part[h].y + block * 2;
      if (block < part[h].left[0]) store_global_16(y, low);
      if (block < part[h].left[1]) store_global_16(y + args.y_stride * 16, high);
    }
  }
}

// A row of what the epilogue reads from memory itself, towards the L2: each thread has one.
template <class C, int ACT>
static __device__ __forceinline__ void gemm_prefetch_operands(const gemm_args &args, int64_t row,
                                                              int col0) {
  static_assert(C::BM == 128, "a thread a row");
  const gemm_epilogue &e = args.epilogue;
  const int n = ACT == GEMM_ACT_ANY ? e.n : e.residual;
#pragma unroll 1
  for (int o = 0; o < n; o++)
    epilogue_prefetch<typename C::T>(e.op[o], row, col0, C::BN, args.m, args.n);
}

// The products of one tile in this warpgroup's turn, the last still under way. The stage that they
// read, not yet released.
template <class C>
static __device__ __forceinline__ int gemm_products(float (&d)[C::HALVES][C::BN / 2],
                                                    gemm_place<C> &at, int k_steps) {
  // All lanes agree: told so, the compiler keeps addresses in the warp's uniform registers.
  at.stage = __shfl_sync(0xffffffffu, at.stage, 0);
  at.parity = __shfl_sync(0xffffffffu, at.parity, 0);
  bar_sync(2 + at.wg, 256);
  int before = -1;
  for (int k = 0; k < k_steps; k++) {
    mbar_wait(at.full(), at.parity);
    gemm_multiply<C>(d, at.ring(), 0, k);
    wgmma_wait<1>();
    if (before >= 0) at.release(before);
    before = at.stage;
    at.next();
  }
  return before;
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
    else if (!C::DIRECT || ACT == GEMM_ACT_ANY)
      gemm_prefetch_operands<C, ACT>(args, row0 - warp % 4 * 16 + threadIdx.x % 128, n * C::BN);
    at.put_bias(bias_next, place);
    if (t + 2 * stride < tiles.total) {
      int next_m, next_n;
      tiles.locate(t + 2 * stride, C::GROUP, &next_m, &next_n);
      at.ask_bias(args.epilogue, bias_next, next_n * C::BN, args.n);
    }
    float d[C::HALVES][C::BN / 2];
    const int before = gemm_products<C>(d, at, k_steps);
    bar_arrive(2 + (wg ^ 1), 256);
    // under the last products: what the epilogue would wait for
    bar_sync(4 + wg, 128); // the bias is there
    if constexpr (C::DIRECT) {
      float bias[2][8];
      const uint32_t bias_at = at.bias(place) + threadIdx.x % 4 * 32;
      load_shared_8(bias[0], bias_at);
      wgmma_wait<0>();
#pragma unroll
      for (int h = 0; h < C::HALVES; h++)
        hold(d[h]);
      at.release(before);
      gemm_finish_direct<C, ACT>(d, args, bias, bias_at, row0, n * C::BN);
      at.skip(k_steps); // the other warpgroup's
      continue;
    }
    float2 bias[2][8];
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
  if (!C::DIRECT && threadIdx.x % 32 == 0) tma_store_wait_read<0>();
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
    at.base = C::PINGPONG ? base : __shfl_sync(0xffffffffu, base, 0), at.wg = wg;
    if constexpr (C::PINGPONG)
      gemm_consume_pingpong<C, ACT>(args, &map_y, &map_r, args.tiles, args.tiles.k_steps, at);
    else
      gemm_consume_deferred<C, ACT>(args, args.tiles, args.tiles.k_steps, at);
  }
  __syncwarp();
  cluster_sync(); // nobody leaves while the other block may still write here
}

#endif
