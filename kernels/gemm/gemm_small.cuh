// y = epilogue(x W^T) for few rows, on Hopper: the weights stream past once, and latency is what
// counts.
//
// Tiles of 64 x BN, one warpgroup and one producer warp, a deep ring of bulk copies (rows of x that
// do not exist cost no traffic: the copy engine fills them with zeros). Several blocks share a
// multiprocessor. With SPLIT > 1 the blocks of a cluster share a tile's k between them, leave their
// partial sums in shared memory, and each finishes its part of the rows by reading the others' in
// rank order: deterministic, but not the order of the unsplit kernels, so that a row then no longer
// gives the same bits in every batch. Off unless asked for.
//
// Shared memory: STAGES x (64 + BN) x 128 bytes, 64 x (BN + 4) floats of partial sums (over the
// ring, when it has drained).
// Bound: the weights' bytes when they are many (4096 -> 16384, one row: 36.6 us measured on an
// H200, 31.2 us of bytes, cuBLASLt 34.5), else the latency of a launch and one pass through the
// ring (768 -> 3072: 4.8 us, cuBLASLt 3.6).
#ifndef GEMM_GEMM_SMALL_CUH
#define GEMM_GEMM_SMALL_CUH

#include "kernels/gemm/gemm_sm90.cuh"

template <class T_, int BN_, int STAGES_, int SPLIT_> struct small_config {
  using T = T_;
  static constexpr int BM = 64, BN = BN_, STAGES = STAGES_, SPLIT = SPLIT_, BK = 64, THREADS = 160,
                       PITCH = BN + 4;
  static constexpr int DEGREE = __is_same(T, __nv_bfloat16) ? 7 : 9;
  static constexpr int PAIRS = BM / SPLIT * BN / 2 / 128; // that a thread finishes, when k is split
  static constexpr int A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2,
                       STAGE_BYTES = A_BYTES + B_BYTES;
  static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES + 2 * STAGES * 8;
  static_assert(STAGES * STAGE_BYTES >= BM * PITCH * 4, "partial sums lie over the ring");
};

static __device__ __forceinline__ float2 load_cluster_pair(uint32_t at, uint32_t rank) {
  float2 v;
  asm volatile("{\n.reg .b32 remote;\n"
               "mapa.shared::cluster.u32 remote, %2, %3;\n"
               "ld.shared::cluster.v2.f32 {%0, %1}, [remote];\n}"
               : "=f"(v.x), "=f"(v.y)
               : "r"(at), "r"(rank)
               : "memory");
  return v;
}

template <class T>
static __device__ __forceinline__ void small_store(const gemm_args &a, float x, float y,
                                                   int64_t row, int col) {
  const int64_t at = row * a.y_stride + col;
  const bool both = col + 1 < a.n;
  if (a.y_dtype == DTYPE_F32) {
    ((float *)a.y)[at] = x;
    if (both) ((float *)a.y)[at + 1] = y;
  } else if (a.y_dtype == DTYPE_BF16) {
    if (a.y_bulk) {
      *(__nv_bfloat162 *)((__nv_bfloat16 *)a.y + at) = __floats2bfloat162_rn(x, y);
    } else {
      ((__nv_bfloat16 *)a.y)[at] = __float2bfloat16(x);
      if (both) ((__nv_bfloat16 *)a.y)[at + 1] = __float2bfloat16(y);
    }
  } else {
    if (a.y_bulk) {
      *(__half2 *)((__half *)a.y + at) = __floats2half2_rn(x, y);
    } else {
      ((__half *)a.y)[at] = __float2half(x);
      if (both) ((__half *)a.y)[at + 1] = __float2half(y);
    }
  }
}

// This block's share of the tile's rows, from the partial sums of every block of the cluster.
template <class C>
static __device__ __forceinline__ void small_finish_split(const gemm_args &args, uint32_t partial,
                                                          int64_t row0, int col0, int rank) {
  using T = typename C::T;
  float v[2 * C::PAIRS];
  const int first = rank * (C::BM / C::SPLIT) * (C::BN / 2) + threadIdx.x;
  auto row_of = [&](int p) { return (first + p * 128) / (C::BN / 2); };
  auto col_of = [&](int p) { return (first + p * 128) % (C::BN / 2) * 2; };
#pragma unroll
  for (int p = 0; p < C::PAIRS; p++) {
    v[2 * p] = v[2 * p + 1] = 0.0f;
#pragma unroll
    for (int s = 0; s < C::SPLIT; s++) {
      const float2 x = load_cluster_pair(partial + (row_of(p) * C::PITCH + col_of(p)) * 4, s);
      v[2 * p] += x.x, v[2 * p + 1] += x.y;
    }
  }
#pragma unroll 1
  for (int o = 0; o < args.epilogue.n; o++) {
    const gemm_op &op = args.epilogue.op[o];
    if (op.kind == EPI_ACT) {
      activate_any<C::DEGREE>(op.act, v);
      continue;
    }
#pragma unroll
    for (int p = 0; p < C::PAIRS; p++) {
      const int64_t row = row0 + row_of(p);
      const int col = col0 + col_of(p);
      float2 b = make_float2(op.imm, op.imm);
      if (op.kind != EPI_SCALE) {
        if (row >= args.m || col >= args.n) continue;
        const int64_t at = (op.kind == EPI_BIAS ? 0 : row * op.stride) + col;
        b = op.dtype == DTYPE_F32 ? load_pair<float>(op.operand, at) : load_pair<T>(op.operand, at);
      }
      const bool times = op.kind == EPI_MUL || op.kind == EPI_SCALE;
      v[2 * p] = times ? v[2 * p] * b.x : v[2 * p] + b.x;
      v[2 * p + 1] = times ? v[2 * p + 1] * b.y : v[2 * p + 1] + b.y;
    }
  }
#pragma unroll
  for (int p = 0; p < C::PAIRS; p++) {
    if (row0 + row_of(p) < args.m && col0 + col_of(p) < args.n)
      small_store<T>(args, v[2 * p], v[2 * p + 1], row0 + row_of(p), col0 + col_of(p));
  }
}

// The whole k was here: straight from the accumulators.
template <class C>
static __device__ __forceinline__ void small_finish(const gemm_args &args, float (&d)[C::BN / 2],
                                                    int64_t row0, int col0) {
  using T = typename C::T;
  const int lane = threadIdx.x % 32;
  const int64_t row = row0 + threadIdx.x / 32 * 16 + lane / 4;
  const int col = col0 + lane % 4 * 2;
  if (row0 + threadIdx.x / 32 * 16 >= args.m) return; // none of this warp's rows exists
#pragma unroll 1
  for (int o = 0; o < args.epilogue.n; o++)
    epilogue_op_apply<T, C::DEGREE>(args.epilogue.op[o], d, row, col, args.m, args.n);
#pragma unroll
  for (int i = 0; i < C::BN / 4; i++) {
    const int64_t r = row + (i & 1) * 8;
    const int c = col + i / 2 * 8;
    if (r < args.m && c < args.n) small_store<T>(args, d[2 * i], d[2 * i + 1], r, c);
  }
}

template <class C>
static __device__ __forceinline__ void small_consume(float (&d)[C::BN / 2], uint32_t stages,
                                                     uint32_t full, uint32_t empty, int steps) {
  int stage = 0, before = -1;
  uint32_t parity = 0;
#pragma unroll
  for (int i = 0; i < C::BN / 2; i++)
    d[i] = 0.0f;
  for (int k = 0; k < steps; k++) {
    mbar_wait(full + 8 * stage, parity);
    const uint32_t a = stages + stage * C::STAGE_BYTES;
    const uint64_t desc_a = tile_descriptor(a, 16, 1024),
                   desc_b = tile_descriptor(a + C::A_BYTES, 16, 1024);
    hold(d);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < 4; kk++)
      wgmma<C::BN, typename C::T>::shared(d, desc_a + kk * 2, desc_b + kk * 2, 1);
    wgmma_commit();
    hold(d);
    wgmma_wait<1>();
    if (before >= 0 && threadIdx.x == 0) mbar_arrive(empty + 8 * before);
    before = stage;
    if (++stage == C::STAGES) stage = 0, parity ^= 1;
  }
  wgmma_wait<0>();
  hold(d);
}

template <class C>
static __device__ __forceinline__ void
small_fetch(const CUtensorMap *map_x, const CUtensorMap *map_w, uint32_t stages, uint32_t full,
            int stage, int bytes, int k, int row0, int col0) {
  mbar_expect(full + 8 * stage, bytes);
  tma_load_2d(stages + stage * C::STAGE_BYTES + C::A_BYTES, map_w, full + 8 * stage, k, col0);
  tma_load_2d(stages + stage * C::STAGE_BYTES, map_x, full + 8 * stage, k, row0);
}

// x_rows: rows of x in a box, a multiple of 8 up to 64; what a tile has beyond them is never looked
// at.
template <class C>
__global__ void __launch_bounds__(C::THREADS)
    gemm_small(const __grid_constant__ CUtensorMap map_x, const __grid_constant__ CUtensorMap map_w,
               const __grid_constant__ gemm_args args, const int x_rows) {
  extern __shared__ __align__(1024) uint8_t raw[];
  const uint32_t stages = smem_address(raw), full = stages + C::STAGES * C::STAGE_BYTES,
                 empty = full + 8 * C::STAGES;
  const int rank = C::SPLIT > 1 ? (int)cluster_rank() : 0, k_steps = (args.k + C::BK - 1) / C::BK;
  const int share = (k_steps + C::SPLIT - 1) / C::SPLIT, first = rank * share,
            left = k_steps - first;
  const int steps = left < 0 ? 0 : left < share ? left : share, bytes = x_rows * 128 + C::B_BYTES;
  const int row0 = blockIdx.y * C::BM, col0 = (int)(blockIdx.x / C::SPLIT) * C::BN,
            warp = threadIdx.x / 32;
  if (threadIdx.x == 128) { // the first round needs nobody's leave
    for (int s = 0; s < C::STAGES; s++)
      mbar_init(full + 8 * s, 1), mbar_init(empty + 8 * s, 1);
    mbar_init_fence();
    fence_async_proxy();
    for (int k = 0; k < steps && k < C::STAGES; k++)
      small_fetch<C>(&map_x, &map_w, stages, full, k, bytes, (first + k) * C::BK, row0, col0);
  }
  __syncthreads();
  float d[C::BN / 2];
  if (warp == 4) {
    if (threadIdx.x == 128) {
      for (int k = C::STAGES; k < steps; k++) {
        const int stage = k % C::STAGES;
        mbar_wait(empty + 8 * stage, k / C::STAGES - 1 & 1);
        small_fetch<C>(&map_x, &map_w, stages, full, stage, bytes, (first + k) * C::BK, row0, col0);
      }
    }
    __syncwarp();
  } else {
    small_consume<C>(d, stages, full, empty, steps);
    if constexpr (C::SPLIT == 1) small_finish<C>(args, d, row0, col0);
  }
  if constexpr (C::SPLIT > 1) {
    if (warp < 4) {
      bar_sync(1, 128); // the ring has drained: partial sums may lie over it
      const int row = warp * 16 + threadIdx.x % 32 / 4, col = threadIdx.x % 4 * 2;
#pragma unroll
      for (int i = 0; i < C::BN / 4; i++)
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(
                         stages + ((row + (i & 1) * 8) * C::PITCH + col + i / 2 * 8) * 4),
                     "f"(d[2 * i]), "f"(d[2 * i + 1])
                     : "memory");
    }
    cluster_sync();
    if (warp < 4) small_finish_split<C>(args, stages, row0, col0, rank);
    cluster_sync(); // the others may still be reading here
  }
}

#endif
