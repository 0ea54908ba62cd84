// y = epilogue(x W^T) for few rows, on Hopper: the weights stream past once, and latency is what counts.
//
// Tiles of 64 x BN, one warpgroup and one producer warp, a deep ring of bulk copies (rows of x that do not exist cost no
// traffic: the copy engine fills them with zeros). Several blocks share a multiprocessor. With SPLIT > 1 the blocks of a
// cluster share a tile's k between them, leave their partial sums in shared memory, and each finishes its part of the rows by
// reading the others' in rank order: deterministic, but not the order of the unsplit kernels, so that a row then no longer
// gives the same bits in every batch. Off unless asked for.
//
// Shared memory: STAGES x (64 + BN) x 128 bytes, 64 x (BN + 4) floats of partial sums (over the ring, when it has drained).
#ifndef GEMM_GEMM_SMALL_CUH
#define GEMM_GEMM_SMALL_CUH

#include "kernels/gemm/gemm_sm90.cuh"

template <class T_, int BN_, int STAGES_> struct small_config {
  using T = T_;
  static constexpr int BM = 64, BN = BN_, STAGES = STAGES_, BK = 64, THREADS = 160, PITCH = BN + 4;
  static constexpr int A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2, STAGE_BYTES = A_BYTES + B_BYTES;
  static constexpr int SHARED_BYTES = 1024 + STAGES * STAGE_BYTES + 2 * STAGES * 8;
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

// The whole list on two neighbouring columns. cols is even where there are operands (gemm_fill_epilogue).
template <class T> static __device__ __forceinline__ void epilogue_pair(const gemm_epilogue &e, float &x, float &y, int64_t row, int col) {
  constexpr int DEGREE = __is_same(T, __nv_bfloat16) ? 7 : 9;
  for (int o = 0; o < e.n; o++) {
    const gemm_op &op = e.op[o];
    if (op.kind == EPI_SCALE) {
      x *= op.imm, y *= op.imm;
    } else if (op.kind == EPI_ACT) {
      float v[2] = {x, y};
      activate_any<DEGREE>(op.act, v);
      x = v[0], y = v[1];
    } else {
      const int64_t at = (op.kind == EPI_BIAS ? 0 : row * op.stride) + col;
      const float2 b = op.dtype == DTYPE_F32 ? load_pair<float>(op.operand, at) : load_pair<T>(op.operand, at);
      x = op.kind == EPI_MUL ? x * b.x : x + b.x;
      y = op.kind == EPI_MUL ? y * b.y : y + b.y;
    }
  }
}

template <class T> static __device__ __forceinline__ void small_store(const gemm_args &a, float x, float y, int64_t row, int col) {
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
static __device__ __forceinline__ void small_finish(const gemm_args &args, uint32_t partial, int64_t row0, int col0, int rank, int split) {
  constexpr int PAIRS = C::BN / 2;
  const int rows = C::BM / split;
  for (int i = threadIdx.x; i < rows * PAIRS; i += 128) {
    const int r = rank * rows + i / PAIRS, c = i % PAIRS * 2;
    if (row0 + r >= args.m || col0 + c >= args.n) continue;
    const uint32_t at = partial + (r * C::PITCH + c) * 4;
    float x = 0.0f, y = 0.0f;
    for (int s = 0; s < split; s++) {
      const float2 v = load_cluster_pair(at, s);
      x += v.x, y += v.y;
    }
    epilogue_pair<typename C::T>(args.epilogue, x, y, row0 + r, col0 + c);
    small_store<typename C::T>(args, x, y, row0 + r, col0 + c);
  }
}

template <class C>
static __device__ __forceinline__ void small_consume(float (&d)[C::BN / 2], uint32_t stages, uint32_t full, uint32_t empty, int steps) {
  int stage = 0, before = -1;
  uint32_t parity = 0;
#pragma unroll
  for (int i = 0; i < C::BN / 2; i++) d[i] = 0.0f;
  for (int k = 0; k < steps; k++) {
    mbar_wait(full + 8 * stage, parity);
    const uint32_t a = stages + stage * C::STAGE_BYTES;
    const uint64_t desc_a = tile_descriptor(a, 16, 1024), desc_b = tile_descriptor(a + C::A_BYTES, 16, 1024);
    hold(d);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < 4; kk++) wgmma<C::BN, typename C::T>::shared(d, desc_a + kk * 2, desc_b + kk * 2, 1);
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
__global__ void __launch_bounds__(C::THREADS)
    gemm_small(const __grid_constant__ CUtensorMap map_x, const __grid_constant__ CUtensorMap map_w, const __grid_constant__ gemm_args args,
               const int split) {
  extern __shared__ uint8_t raw[];
  const uint32_t stages = (smem_address(raw) + 1023) & ~1023u, full = stages + C::STAGES * C::STAGE_BYTES, empty = full + 8 * C::STAGES;
  const int rank = split > 1 ? (int)cluster_rank() : 0, k_steps = (args.k + C::BK - 1) / C::BK;
  const int share = (k_steps + split - 1) / split, first = rank * share;
  const int steps = first + share < k_steps ? share : k_steps > first ? k_steps - first : 0;
  const int64_t row0 = (int64_t)blockIdx.y * C::BM;
  const int col0 = (int)(blockIdx.x / split) * C::BN;
  if (threadIdx.x == 128) {
    for (int s = 0; s < C::STAGES; s++) mbar_init(full + 8 * s, 1), mbar_init(empty + 8 * s, 1);
    mbar_init_fence();
    fence_async_proxy();
    int stage = 0;
    uint32_t parity = 1;
    for (int k = 0; k < steps; k++) { // the barriers are this thread's own until the block meets below
      if (k == C::STAGES) break;
      mbar_expect(full + 8 * stage, C::STAGE_BYTES);
      tma_load_2d(stages + stage * C::STAGE_BYTES + C::A_BYTES, &map_w, full + 8 * stage, (first + k) * C::BK, col0);
      tma_load_2d(stages + stage * C::STAGE_BYTES, &map_x, full + 8 * stage, (first + k) * C::BK, (int)row0);
      if (++stage == C::STAGES) stage = 0, parity ^= 1;
    }
  }
  __syncthreads();
  if (threadIdx.x >= 128) {
    if (threadIdx.x == 128) {
      int stage = 0;
      uint32_t parity = 0;
      for (int k = C::STAGES; k < steps; k++) {
        mbar_wait(empty + 8 * stage, parity);
        mbar_expect(full + 8 * stage, C::STAGE_BYTES);
        tma_load_2d(stages + stage * C::STAGE_BYTES + C::A_BYTES, &map_w, full + 8 * stage, (first + k) * C::BK, col0);
        tma_load_2d(stages + stage * C::STAGE_BYTES, &map_x, full + 8 * stage, (first + k) * C::BK, (int)row0);
        if (++stage == C::STAGES) stage = 0, parity ^= 1;
      }
    }
    __syncwarp();
  }
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float d[C::BN / 2];
  if (warp < 4) {
    small_consume<C>(d, stages, full, empty, steps);
    bar_sync(1, 128); // the ring has drained: partial sums may lie over it
    const int row = warp * 16 + lane / 4, col = lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < C::BN / 8; j++) {
#pragma unroll
      for (int h = 0; h < 2; h++)
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(stages + ((row + 8 * h) * C::PITCH + col + 8 * j) * 4), "f"(d[4 * j + 2 * h]),
                     "f"(d[4 * j + 2 * h + 1])
                     : "memory");
    }
  }
  if (split > 1) cluster_sync();
  else __syncthreads();
  if (warp < 4) small_finish<C>(args, stages, row0, col0, rank, split);
  if (split > 1) cluster_sync(); // the others may still be reading here
}

#endif
