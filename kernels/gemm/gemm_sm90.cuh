// y = epilogue(x W^T) on Hopper: x [m, k], W [n, k], 16-bit, row-major; fp32 accumulation.
//
// Persistent blocks in clusters of two along m. In each block one warp feeds a ring of stages by bulk tensor copies; two
// warpgroups compute. A stage holds BM x 64 of x and BN x 64 of W; the two blocks of a cluster share their part of W: each
// fetches half of it and the copy engine delivers it to both, so that a stage costs its own x and half a W.
//
//          producer warp              warpgroup 0               warpgroup 1
//   ring   [ 0 | 1 | 2 | .. ]  --->   tile 0, products    <->   epilogue of the tile before
//          full / empty barriers      epilogue            <->   tile 1, products
//
// PING-PONG: each warpgroup owns whole tiles (128 x 128) and they take turns at the tensor cores, so one's epilogue runs
// under the other's products. COOPERATIVE: both work on one tile (128 x 192, 64 rows each): less traffic a product, the
// epilogue is exposed. gemm_pick chooses.
//
// Each consumer warp has boxes of 16 x 64 results (2 KiB) in shared memory, in which fragments become rows (stmatrix under
// the 128-byte swizzle) for the copy engine to store. Where there are as many boxes as a tile needs, the residual comes to the
// same boxes by bulk copies that were asked for before the products began.
//
// Shared memory: STAGES x (BM + BN) x 128 bytes, BOXES x 16 KiB, bias, barriers. Everything outside m, n, k is zero-filled or
// clipped by the copy engine.
#ifndef GEMM_GEMM_SM90_CUH
#define GEMM_GEMM_SM90_CUH

#include "kernels/gemm/epilogue.cuh"
#include "kernels/ptx/wgmma.cuh"

struct gemm_args {
  int64_t m;
  int32_t n, k;
  enum dtype y_dtype;
  bool y_bulk;        // y can be written by the copy engine
  bool residual_bulk; // and the residual read by it
  void *y;
  int64_t y_stride;
  struct gemm_epilogue epilogue;
};

template <class T_, int BM_, int BN_, int STAGES_, int BOXES_, bool PINGPONG_> struct gemm_config {
  using T = T_;
  static constexpr int BM = BM_, BN = BN_, STAGES = STAGES_, BOXES = BOXES_;
  static constexpr bool PINGPONG = PINGPONG_;
  static constexpr int BK = 64, CLUSTER = 2, THREADS = 384;
  static constexpr int WM = PINGPONG ? BM : BM / 2; // rows of a warpgroup's part of a tile
  static constexpr int HALVES = WM / 64;
  static constexpr int A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2, STAGE_BYTES = A_BYTES + B_BYTES;
  static constexpr int PARTS_N = BN / 64, PARTS = HALVES * PARTS_N; // boxes of a warp's part of a tile
  static constexpr bool RESIDUAL = BOXES >= PARTS;
  static constexpr int OUT_BYTES = 8 * BOXES * 2048; // 8 warps
  static constexpr int BIAS_BYTES = 2 * BN * 4; // of a warpgroup: this tile's and the next one's
  static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES + OUT_BYTES + 2 * BIAS_BYTES + 2 * STAGES * 8 + 8 * 8;
  static_assert(SHARED_BYTES <= 232448, "a block has 227 KiB");
  static constexpr int GROUP = 8; // clusters along m that walk n together: their x and W stay in L2
};

struct gemm_tiles {
  int clusters_m, tiles_n, total;
  __device__ __forceinline__ void locate(int t, int group, int *m, int *n) const {
    const int per_group = group * tiles_n, g = t / per_group, first = g * group;
    const int rows = clusters_m - first < group ? clusters_m - first : group, r = t - g * per_group;
    *m = first + r % rows;
    *n = r / rows;
  }
};

template <class C>
static __device__ __forceinline__ void gemm_produce(const CUtensorMap *map_x, const CUtensorMap *map_w, const gemm_tiles &tiles,
                                                    int k_steps, uint32_t stages, uint32_t full, uint32_t empty) {
  const uint32_t rank = cluster_rank();
  int stage = 0;
  uint32_t parity = 1; // a fresh ring is empty
  for (int t = blockIdx.x / C::CLUSTER; t < tiles.total; t += gridDim.x / C::CLUSTER) {
    int m, n;
    tiles.locate(t, C::GROUP, &m, &n);
    const int row = (m * C::CLUSTER + rank) * C::BM, col = n * C::BN + rank * (C::BN / 2);
    for (int k = 0; k < k_steps; k++) {
      const uint32_t a = stages + stage * C::STAGE_BYTES, b = a + C::A_BYTES + rank * (C::B_BYTES / 2), bar = full + 8 * stage;
      mbar_wait(empty + 8 * stage, parity);
      mbar_expect(bar, C::STAGE_BYTES);
      tma_load_2d(a, map_x, bar, k * C::BK, row);
      tma_multicast_2d(b, map_w, bar, k * C::BK, col, 3);
      if (++stage == C::STAGES) stage = 0, parity ^= 1;
    }
  }
}

// Where a lane finds its row of a box for stmatrix and ldmatrix: lanes 16 and up serve the next block of 8 columns.
static __device__ __forceinline__ uint32_t gemm_box_at(uint32_t box, int block) {
  const int lane = threadIdx.x % 32, r = lane % 16;
  return box + r * 128 + (((block + lane / 16) ^ (r & 7)) << 4);
}

template <class T, int N> static __device__ __forceinline__ void gemm_add_box(float (&v)[N], uint32_t box, bool gate) {
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    uint32_t w[4];
    ldmatrix_x4(gemm_box_at(box, j), w);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float2 r = unpack_pair<T>(w[i]);
      float &x = v[4 * j + 2 * i], &y = v[4 * j + 2 * i + 1];
      x = gate ? x * r.x : x + r.x;
      y = gate ? y * r.y : y + r.y;
    }
  }
  __syncwarp(); // the result is about to take its place
}

// 64 columns of a warp's 16 rows: epilogue, then to memory.
template <class C, int ACT>
static __device__ __forceinline__ void gemm_write(float (&v)[32], const gemm_args &args, const CUtensorMap *map_y, uint32_t bias,
                                                  uint32_t box, int64_t row0, int col0) {
  using T = typename C::T;
  constexpr int DEGREE = __is_same(T, __nv_bfloat16) ? 7 : 9;
  const int lane = threadIdx.x % 32;
  const int64_t row = row0 + lane / 4;
  const int col = col0 + lane % 4 * 2;
  epilogue_apply<T, ACT, DEGREE>(args.epilogue, v, bias, row, col, args.m, args.n);
  if (C::RESIDUAL && args.residual_bulk) gemm_add_box<T>(v, box, args.epilogue.op[0].kind == EPI_MUL);
  if (args.y_bulk) {
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float lo = v[4 * j + 2 * i], hi = v[4 * j + 2 * i + 1];
        if (__is_same(T, __nv_bfloat16)) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w[i]) : "f"(hi), "f"(lo));
        else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w[i]) : "f"(hi), "f"(lo));
      }
      stmatrix_x4(gemm_box_at(box, j), w[0], w[1], w[2], w[3]);
    }
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) {
      tma_store_2d(map_y, box, col0, (int)row0);
      tma_store_commit();
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 32; i++) {
    const int64_t r = row + (i & 2 ? 8 : 0);
    const int c = col + i / 4 * 8 + (i & 1);
    if (r >= args.m || c >= args.n) continue;
    const int64_t at = r * args.y_stride + c;
    if (args.y_dtype == DTYPE_F32) ((float *)args.y)[at] = v[i];
    else if (args.y_dtype == DTYPE_BF16) ((__nv_bfloat16 *)args.y)[at] = __float2bfloat16(v[i]);
    else ((__half *)args.y)[at] = __float2half(v[i]);
  }
}

// A warp asks for its part of the residual: into boxes whose last results have left.
template <class C>
static __device__ __forceinline__ void gemm_fetch_residual(const gemm_args &args, const CUtensorMap *map_r, uint32_t boxes, uint32_t bar,
                                                           int64_t row0, int col0) {
  if (threadIdx.x % 32 != 0) return;
  tma_store_wait_read<0>();
  mbar_expect(bar, C::PARTS * 2048); // what lies outside is filled with zeros, and counts
  for (int i = 0; i < C::PARTS; i++)
    tma_load_2d(boxes + i * 2048, map_r, bar, col0 + i % C::PARTS_N * 64, (int)row0 + i / C::PARTS_N * 64);
}

template <class C, int ACT>
static __device__ __forceinline__ void gemm_consume(const gemm_args &args, const CUtensorMap *map_y, const CUtensorMap *map_r,
                                                    const gemm_tiles &tiles, int k_steps, uint32_t stages, uint32_t full, uint32_t empty,
                                                    uint32_t out, uint32_t biases, int wg) {
  using T = typename C::T;
  const int thread = threadIdx.x % 128, warp = threadIdx.x / 32;
  const uint32_t rank = cluster_rank(), boxes = out + warp * C::BOXES * 2048, residual_bar = empty + 8 * (C::STAGES + warp);
  int stage = 0, mine = 0, box = 0, turn = 0;
  uint32_t parity = 0, residual_parity = 0;
  auto skip = [&](int steps) {
    stage += steps;
    parity ^= stage / C::STAGES & 1;
    stage %= C::STAGES;
  };
  auto release = [&](int s) { // to both blocks' producers, since both write this stage
    if (thread < C::CLUSTER) mbar_arrive_at(empty + 8 * s, thread);
  };
  if (C::PINGPONG && wg == 1) {
    bar_arrive(2, 256); // warpgroup 0 has the first turn
  }
  for (int t = blockIdx.x / C::CLUSTER; t < tiles.total; t += gridDim.x / C::CLUSTER, mine ^= 1) {
    if (C::PINGPONG && mine != wg) {
      skip(k_steps);
      continue;
    }
    int m, n;
    tiles.locate(t, C::GROUP, &m, &n);
    const int64_t row0 = (int64_t)(m * C::CLUSTER + rank) * C::BM + (C::PINGPONG ? 0 : wg * C::WM) + warp % 4 * 16;
    if (C::RESIDUAL && args.residual_bulk) gemm_fetch_residual<C>(args, map_r, boxes, residual_bar, row0, n * C::BN);
    const uint32_t bias = biases + wg * C::BIAS_BYTES + turn * (C::BIAS_BYTES / 2);
    turn ^= 1;
#pragma unroll
    for (int i = thread; i < C::BN; i += 128) { // early: its latency would stand in the epilogue
      const float b = epilogue_fetch_bias<T>(args.epilogue, n * C::BN + i, args.n);
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(bias + i * 4), "f"(b) : "memory");
    }
    float d[C::HALVES][C::BN / 2];
    if (C::PINGPONG) bar_sync(2 + wg, 256);
    int before = -1;
    for (int k = 0; k < k_steps; k++) {
      mbar_wait(full + 8 * stage, parity);
      const uint32_t a = stages + stage * C::STAGE_BYTES + (C::PINGPONG ? 0 : wg * C::WM * 128);
      const uint64_t desc_a = tile_descriptor(a, 16, 1024), desc_b = tile_descriptor(stages + stage * C::STAGE_BYTES + C::A_BYTES, 16, 1024);
#pragma unroll
      for (int h = 0; h < C::HALVES; h++) hold(d[h]);
      wgmma_fence();
#pragma unroll
      for (int kk = 0; kk < 4; kk++) {
#pragma unroll
        for (int h = 0; h < C::HALVES; h++) {
          wgmma<C::BN, T>::shared(d[h], desc_a + kk * 2 + h * (64 * 128 >> 4), desc_b + kk * 2, (k | kk) != 0);
        }
      }
      wgmma_commit();
#pragma unroll
      for (int h = 0; h < C::HALVES; h++) hold(d[h]);
      wgmma_wait<1>();
      if (before >= 0) release(before);
      before = stage;
      if (++stage == C::STAGES) stage = 0, parity ^= 1;
    }
    if (C::PINGPONG) bar_arrive(2 + (wg ^ 1), 256);
    wgmma_wait<0>();
#pragma unroll
    for (int h = 0; h < C::HALVES; h++) hold(d[h]);
    release(before);
    bar_sync(4 + wg, 128); // the bias is there
    if (C::RESIDUAL) {
      if (args.residual_bulk) {
        mbar_wait(residual_bar, residual_parity);
        residual_parity ^= 1;
      } else {
        if (threadIdx.x % 32 == 0) tma_store_wait_read<0>(); // of the tile before: long done
        __syncwarp();
      }
      box = 0;
    }
    // One copy of the epilogue's code, and the accumulators move past it: unrolled, it outgrows the instruction cache.
#pragma unroll 1
    for (int part = 0; part < C::PARTS; part++) {
      const int h = part / C::PARTS_N, c = part % C::PARTS_N, col0 = n * C::BN + c * 64;
      float v[32];
#pragma unroll
      for (int i = 0; i < 32; i++) v[i] = d[0][i];
#pragma unroll
      for (int i = 0; i < (C::PARTS - 1) * 32; i++) d[i / (C::BN / 2)][i % (C::BN / 2)] = d[(i + 32) / (C::BN / 2)][(i + 32) % (C::BN / 2)];
      if (row0 - warp % 4 * 16 + h * 64 < args.m && col0 < args.n) {
        if (!C::RESIDUAL) { // two boxes in turn: the store before the last has left this one
          if (threadIdx.x % 32 == 0) tma_store_wait_read<1>();
          __syncwarp();
        }
        gemm_write<C, ACT>(v, args, map_y, bias + (c * 64 + thread % 4 * 2) * 4, boxes + box * 2048, row0 + h * 64, col0);
      }
      box = C::RESIDUAL ? box + 1 : box ^ 1;
    }
  }
  if (threadIdx.x % 32 == 0) tma_store_wait_read<0>();
}

template <class C, int ACT>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(C::THREADS, 1)
    gemm_sm90(const __grid_constant__ CUtensorMap map_x, const __grid_constant__ CUtensorMap map_w, const __grid_constant__ CUtensorMap map_y,
              const __grid_constant__ CUtensorMap map_r, const __grid_constant__ gemm_args args) {
  extern __shared__ __align__(1024) uint8_t raw[];
  const uint32_t stages = smem_address(raw), out = stages + C::STAGES * C::STAGE_BYTES, biases = out + C::OUT_BYTES;
  const uint32_t full = biases + 2 * C::BIAS_BYTES, empty = full + 8 * C::STAGES;
  const int wg = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0), k_steps = (args.k + C::BK - 1) / C::BK;
  if (threadIdx.x == 0) {
    tma_prefetch_map(&map_x);
    tma_prefetch_map(&map_w);
    if (args.y_bulk) tma_prefetch_map(&map_y);
    for (int w = 0; w < 8; w++) mbar_init(empty + 8 * (C::STAGES + w), 1);
    for (int s = 0; s < C::STAGES; s++) {
      mbar_init(full + 8 * s, 1);
      mbar_init(empty + 8 * s, C::CLUSTER * (C::PINGPONG ? 1 : 2));
    }
    mbar_init_fence();
  }
  cluster_sync();
  gemm_tiles tiles;
  tiles.clusters_m = (int)((args.m + C::CLUSTER * C::BM - 1) / (C::CLUSTER * C::BM));
  tiles.tiles_n = (args.n + C::BN - 1) / C::BN;
  tiles.total = tiles.clusters_m * tiles.tiles_n;
  if (wg == 2) {
    registers_shrink<40>();
    if (threadIdx.x == 256) gemm_produce<C>(&map_x, &map_w, tiles, k_steps, stages, full, empty);
  } else {
    registers_grow<232>();
    gemm_consume<C, ACT>(args, &map_y, &map_r, tiles, k_steps, stages, full, empty, out, biases, wg);
  }
  __syncwarp();
  cluster_sync(); // nobody leaves while the other block may still write here
}

#endif
