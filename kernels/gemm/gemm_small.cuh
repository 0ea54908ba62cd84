// y = epilogue(x W^T) for few rows, on Hopper: the weights stream past once, and latency is what
// counts.
//
// Tiles of 64 x BN, one warpgroup and one producer warp, a deep ring of bulk copies (rows of x that
// do not exist cost no traffic: the copy engine fills them with zeros). Several blocks share a
// multiprocessor. With SPLIT > 1 the blocks of a cluster share a tile's k between them, leave their
// partial sums in shared memory, and each finishes its part of the rows by reading the others' in
// rank order: deterministic, but not the order of the unsplit kernels, so that a row then no longer
// gives the same bits in every batch. Off unless asked for (linear_run_fastest).
//
// Shared memory: STAGES x (64 + BN) x 128 bytes, bias, barriers; SPLIT: 64 x (BN + 4) floats of
// partial sums over the ring, when it has drained.
// Bound: the weights' bytes when they are many, else the latency of a launch and of k / 16 matrix
// instructions that wait for one another: that order is what keeps a row's bits. Measured on an
// H200, bf16, weights cold, bias + erf GELU beside cuBLASLt's product with bias, in a run that was
// not recorded: 768 -> 3072, one row 4.4 us (4.5), 128 rows 5.0 (4.9); with bias alone 3072 -> 768,
// 128 rows 7.7 us (cuBLASLt with k whole 17; split by 4: 5.9). 4096 -> 16384, one row 36.1 (34.4;
// the bytes: 31.2). Recorded (bench/results): an older form 4.8, 5.5 and 36.6
// (gpu-kernels-2026-11-30); 3072 -> 768, 128 rows 8.1 inside BERT-base's graph
// (gpu-tune-2026-11-30-3). Clusters that share x and W by multicast were tried: 0.5 to 1 us slower
// in every shape.
#ifndef GEMM_GEMM_SMALL_CUH
#define GEMM_GEMM_SMALL_CUH

#include "kernels/gemm/gemm_sm90_tile.cuh"

template <class T_, int BN_, int STAGES_, int SPLIT_> struct small_config {
  using T = T_;
  static constexpr int BM = 64, BN = BN_, STAGES = STAGES_, SPLIT = SPLIT_, BK = 64, THREADS = 160,
                       PITCH = BN + 4;
  static constexpr int DEGREE = GELU_DEGREE<T>;
  static constexpr int PAIRS = BM / SPLIT * BN / 2 / 128; // that a thread finishes, when k is split
  static constexpr int A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2,
                       STAGE_BYTES = A_BYTES + B_BYTES;
  static constexpr int BIAS_AT = STAGES * STAGE_BYTES, FULL_AT = BIAS_AT + BN * 4,
                       EMPTY_AT = FULL_AT + STAGES * 8, SHARED_BYTES = EMPTY_AT + STAGES * 8;
  static_assert(STAGES * STAGE_BYTES >= BM * PITCH * 4, "partial sums lie over the ring");
};

// What the producer and the consumers need to know about where they are.
template <class C> struct small_place {
  uint32_t base;                // of shared memory
  int row0, col0, first, steps; // first: of this block's steps of k
  int bytes;                    // that arrive in a stage
  __device__ __forceinline__ uint32_t stage(int s) const {
    return base + s * C::STAGE_BYTES;
  }
  __device__ __forceinline__ uint32_t full(int s) const {
    return base + C::FULL_AT + 8 * s;
  }
  __device__ __forceinline__ uint32_t empty(int s) const {
    return base + C::EMPTY_AT + 8 * s;
  }
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

static __device__ __forceinline__ gemm_output small_output(const gemm_args &a) {
  return gemm_output{a.y, a.y_stride, a.n, a.y_dtype, a.y_pairs};
}

template <class T>
static __device__ __forceinline__ void small_op_rare(const gemm_op &op, float &x, float &y,
                                                     int64_t row, int col, int cols) {
  if (op.kind == EPI_SAVE) {
    store_pair(epilogue_saved(op, cols), x, y, row, col);
  } else if (op.kind == EPI_ROUND) {
    x = epilogue_round(x, op.act), y = epilogue_round(y, op.act);
  } else {
    const float2 b = epilogue_spread_pair<T>(op, row, col);
    x = epilogue_combine(op, x, b.x), y = epilogue_combine(op, y, b.y);
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
      if (op.kind > EPI_MUL) {
        if (row < args.m && col < args.n)
          small_op_rare<T>(op, v[2 * p], v[2 * p + 1], row, col, args.n);
        continue;
      }
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
      store_pair(small_output(args), v[2 * p], v[2 * p + 1], row0 + row_of(p), col0 + col_of(p));
  }
}

// The whole k was here: straight from the accumulators. A bias that comes first lies in shared
// memory already: its latency stood under the products.
template <class C>
static __device__ __forceinline__ void small_finish(const gemm_args &args, float (&d)[C::BN / 2],
                                                    const small_place<C> &at) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t row = at.row0 + warp * 16 + lane / 4;
  const int col = at.col0 + lane % 4 * 2;
  if (at.row0 + warp * 16 >= args.m) return; // none of this warp's rows exists
  int o = 0;
  if (args.epilogue.n > 0 && args.epilogue.op[0].kind == EPI_BIAS) {
    float2 bias[C::BN / 8];
    o = 1;
    epilogue_load_bias(bias, at.base + C::BIAS_AT + lane % 4 * 8);
    epilogue_add_bias(d, bias);
  }
#pragma unroll 1
  for (; o < args.epilogue.n; o++)
    epilogue_op_apply<typename C::T, C::DEGREE>(args.epilogue.op[o], d, row, col, args.m, args.n);
  store_fragment(small_output(args), d, row, col, args.m);
}

template <class C>
static __device__ __forceinline__ void small_consume(float (&d)[C::BN / 2],
                                                     const small_place<C> &at) {
  int stage = 0, before = -1;
  uint32_t parity = 0;
#pragma unroll
  for (int i = 0; i < C::BN / 2; i++)
    d[i] = 0.0f;
  for (int k = 0; k < at.steps; k++) {
    mbar_wait(at.full(stage), parity);
    const uint32_t a = at.stage(stage);
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
    if (before >= 0 && threadIdx.x == 0) mbar_arrive(at.empty(before));
    before = stage;
    if (++stage == C::STAGES) stage = 0, parity ^= 1;
  }
  wgmma_wait<0>();
  hold(d);
}

template <class C>
static __device__ __forceinline__ void
small_fetch(const CUtensorMap *map_x, const CUtensorMap *map_w, const small_place<C> &at, int k) {
  const int s = k % C::STAGES, column = (at.first + k) * C::BK;
  mbar_expect(at.full(s), at.bytes);
  tma_load_2d(at.stage(s) + C::A_BYTES, map_w, at.full(s), column, at.col0);
  tma_load_2d(at.stage(s), map_x, at.full(s), column, at.row0);
}

template <class C>
static __device__ __forceinline__ void small_begin(const CUtensorMap *map_x,
                                                   const CUtensorMap *map_w, const gemm_args &args,
                                                   const small_place<C> &at) {
  if (threadIdx.x == 128) { // the first round needs nobody's leave
    for (int s = 0; s < C::STAGES; s++)
      mbar_init(at.full(s), 1), mbar_init(at.empty(s), 1);
    mbar_init_fence();
    fence_async_proxy();
    for (int k = 0; k < at.steps && k < C::STAGES; k++)
      small_fetch<C>(map_x, map_w, at, k);
  }
  if (C::SPLIT == 1 && args.epilogue.n > 0 && args.epilogue.op[0].kind == EPI_BIAS) {
    const gemm_op &op = args.epilogue.op[0];
    for (int i = threadIdx.x; i < C::BN; i += C::THREADS) {
      const int col = at.col0 + i;
      const float b = col < args.n ? load_one(op.operand, col, op.dtype) : 0.0f;
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(at.base + C::BIAS_AT + i * 4), "f"(b)
                   : "memory");
    }
  }
  __syncthreads();
}

// x_rows: rows of x in a box, a multiple of 8 up to 64; what a tile has beyond them is never looked
// at.
template <class C>
__global__ void __launch_bounds__(C::THREADS)
    gemm_small(const __grid_constant__ CUtensorMap map_x, const __grid_constant__ CUtensorMap map_w,
               const __grid_constant__ gemm_args args, const int x_rows) {
  extern __shared__ __align__(1024) uint8_t raw[];
  const int rank = C::SPLIT > 1 ? (int)cluster_rank() : 0, k_steps = (args.k + C::BK - 1) / C::BK;
  const int share = (k_steps + C::SPLIT - 1) / C::SPLIT, left = k_steps - rank * share,
            warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); // uniform, for the compiler too
  small_place<C> at;
  at.base = smem_address(raw);
  at.row0 = blockIdx.y * C::BM, at.col0 = (int)(blockIdx.x / C::SPLIT) * C::BN;
  at.first = rank * share, at.steps = left < 0 ? 0 : left < share ? left : share;
  at.bytes = x_rows * 128 + C::B_BYTES;
  small_begin<C>(&map_x, &map_w, args, at);
  float d[C::BN / 2];
  if (warp == 4) {
    if (threadIdx.x == 128) {
      for (int k = C::STAGES; k < at.steps; k++) {
        mbar_wait(at.empty(k % C::STAGES), k / C::STAGES - 1 & 1);
        small_fetch<C>(&map_x, &map_w, at, k);
      }
    }
    __syncwarp();
  } else {
    small_consume<C>(d, at);
  }
  if constexpr (C::SPLIT == 1) {
    if (warp < 4) small_finish<C>(args, d, at);
  } else {
    if (warp < 4) {
      bar_sync(1, 128); // the ring has drained: partial sums may lie over it
      const int row = warp * 16 + threadIdx.x % 32 / 4, col = threadIdx.x % 4 * 2;
#pragma unroll
      for (int i = 0; i < C::BN / 4; i++)
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(
                         at.base + ((row + (i & 1) * 8) * C::PITCH + col + i / 2 * 8) * 4),
                     "f"(d[2 * i]), "f"(d[2 * i + 1])
                     : "memory");
    }
    cluster_sync();
    if (warp < 4) small_finish_split<C>(args, at.base, at.row0, at.col0, rank);
    cluster_sync(); // the others may still be reading here
  }
}

#endif
