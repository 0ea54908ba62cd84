// What both schedules of the Hopper product are made of (gemm_sm90.cuh): configuration, the
// producer, the boxes in which results become rows, a consumer's place in the ring, the products of
// a stage.
#ifndef GEMM_GEMM_SM90_TILE_CUH
#define GEMM_GEMM_SM90_TILE_CUH

#include "kernels/gemm/epilogue.cuh"
#include "kernels/ptx/wgmma.cuh"

// Where tile t lies; worked out on the host, so that the kernel reads it from its parameters.
struct gemm_tiles {
  int clusters_m, tiles_n, total, k_steps;
  __device__ __forceinline__ void locate(int t, int group, int *m, int *n) const {
    const int per_group = group * tiles_n, g = t / per_group, first = g * group;
    const int rows = clusters_m - first < group ? clusters_m - first : group, r = t - g * per_group;
    *m = first + r % rows;
    *n = r / rows;
  }
};

struct gemm_args {
  int64_t m;
  int32_t n, k;
  enum dtype y_dtype;
  bool y_bulk;        // y can be written by the copy engine
  bool residual_bulk; // the residual can be read by it
  bool y_pairs;       // else: two neighbours may be stored at once
  void *y;
  int64_t y_stride;
  struct gemm_tiles tiles;
  struct gemm_epilogue epilogue;
};

template <class T_, int BM_, int BN_, int STAGES_, int BOXES_, bool PINGPONG_> struct gemm_config {
  using T = T_;
  static constexpr int BM = BM_, BN = BN_, STAGES = STAGES_, BOXES = BOXES_;
  static constexpr bool PINGPONG = PINGPONG_;
  static constexpr bool DIRECT = BOXES == 0; // results go from registers straight to memory
  static constexpr int BK = 64, CLUSTER = 2, THREADS = 384;
  // A block of 384 threads starts with 168 registers a thread; a warpgroup that asks for more than
  // the others have given back waits for ever.
  static constexpr int PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240;
  static_assert(PRODUCER_REGISTERS + 2 * CONSUMER_REGISTERS <= 3 * (65536 / THREADS / 8 * 8));
  static constexpr int WM = PINGPONG ? BM : BM / 2; // rows of a warpgroup's part of a tile
  static constexpr int HALVES = WM / 64;
  static constexpr int A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2,
                       STAGE_BYTES = A_BYTES + B_BYTES;
  static constexpr int PARTS_N = BN / 64,
                       PARTS = HALVES * PARTS_N; // boxes of a warp's part of a tile
  static constexpr int PIECES = BN / 16; // in which a cooperative warpgroup's part is finished
  static_assert(DIRECT || BOXES == PARTS, "the residual needs a box a part");
  static constexpr int OUT_BYTES = 8 * BOXES * 2048; // 8 warps
  static constexpr int BIAS_BYTES = 2 * BN * 4;      // of a warpgroup: this tile's and the next's
  static constexpr int OUT_AT = STAGES * STAGE_BYTES, BIAS_AT = OUT_AT + OUT_BYTES,
                       FULL_AT = BIAS_AT + 2 * BIAS_BYTES;
  static constexpr int EMPTY_AT = FULL_AT + STAGES * 8, RESIDUAL_AT = EMPTY_AT + STAGES * 8,
                       SHARED_BYTES = RESIDUAL_AT + 8 * 8;
  static_assert(SHARED_BYTES <= 232448, "a block has 227 KiB");
  static constexpr int GROUP = 8; // clusters along m that walk n together: their x and W stay in L2
};

// `base` of shared memory alone: its registers are few.
template <class C>
static __device__ __forceinline__ void gemm_produce(const CUtensorMap *map_x,
                                                    const CUtensorMap *map_w,
                                                    const gemm_tiles &tiles, uint32_t base) {
  int stage = 0;
  uint32_t parity = 1; // a fresh ring is empty
#pragma unroll 1
  for (int t = blockIdx.x / C::CLUSTER; t < tiles.total; t += gridDim.x / C::CLUSTER) {
    int m, n;
    tiles.locate(t, C::GROUP, &m, &n);
    const int row = (m * C::CLUSTER + cluster_rank()) * C::BM,
              col = n * C::BN + cluster_rank() * (C::BN / 2);
#pragma unroll 1
    for (int k = 0; k < tiles.k_steps; k++) {
      const uint32_t a = base + stage * C::STAGE_BYTES, bar = base + C::FULL_AT + 8 * stage;
      mbar_wait(base + C::EMPTY_AT + 8 * stage, parity);
      mbar_expect(bar, C::STAGE_BYTES);
      tma_load_2d(a, map_x, bar, k * C::BK, row);
      const uint32_t b = a + C::A_BYTES + cluster_rank() * (C::B_BYTES / 2);
      if (!C::DIRECT)
        tma_multicast_2d(b, map_w, bar, k * C::BK, col, 3);
      else
        tma_multicast_5d(b, map_w, bar, k * C::BK, 0, 0, 0, col / 32, 3);
      if (++stage == C::STAGES) stage = 0, parity ^= 1;
    }
  }
}

// Where a lane finds its row of a box for stmatrix and ldmatrix: lanes 16 and up serve the next
// block of 8 columns.
static __device__ __forceinline__ uint32_t gemm_box_at(uint32_t box, int block) {
  const int lane = threadIdx.x % 32, r = lane % 16;
  return box + r * 128 + (((block + lane / 16) ^ (r & 7)) << 4);
}

template <class T, int N>
static __device__ __forceinline__ void gemm_add_box(float (&v)[N], uint32_t box, bool gate) {
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
  __syncwarp(); // the result, or the next residual, is about to take its place
}

// 64 columns of a warp's 16 rows into their box, or to memory where the copy engine cannot write.
template <class C>
static __device__ __forceinline__ void gemm_put(const float (&v)[32], const gemm_args &args,
                                                uint32_t box, int64_t row0, int col0) {
  using T = typename C::T;
  if (args.y_bulk) {
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float lo = v[4 * j + 2 * i], hi = v[4 * j + 2 * i + 1];
        if (__is_same(T, __nv_bfloat16))
          asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w[i]) : "f"(hi), "f"(lo));
        else
          asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w[i]) : "f"(hi), "f"(lo));
      }
      stmatrix_x4(gemm_box_at(box, j), w[0], w[1], w[2], w[3]);
    }
    return;
  }
  const gemm_output y = {args.y, args.y_stride, args.n, args.y_dtype, args.y_pairs};
  store_fragment(y, v, row0 + threadIdx.x % 32 / 4, col0 + threadIdx.x % 4 * 2, args.m);
}

// The same with their epilogue before it.
template <class C, int ACT>
static __device__ __forceinline__ void gemm_write(float (&v)[32], const gemm_args &args,
                                                  const float2 (&bias)[8], uint32_t box,
                                                  int64_t row0, int col0) {
  using T = typename C::T;
  const int64_t row = row0 + threadIdx.x % 32 / 4;
  const int col = col0 + threadIdx.x % 4 * 2;
  if (ACT == ACT_NONE && args.residual_bulk) gemm_add_box<T>(v, box, false); // as epilogue_apply
  epilogue_apply<T, ACT, GELU_DEGREE<T>, true>(args.epilogue, v, bias, row, col, args.m, args.n);
  if (ACT != ACT_NONE && args.residual_bulk)
    gemm_add_box<T>(v, box, args.epilogue.op[0].kind == EPI_MUL);
  gemm_put<C>(v, args, box, row0, col0);
}

// A warp asks for its part of the residual: into boxes whose last results have left.
template <class C>
static __device__ __forceinline__ void gemm_fetch_residual(const gemm_args &args,
                                                           const CUtensorMap *map_r, uint32_t boxes,
                                                           uint32_t bar, int64_t row0, int col0) {
  if (threadIdx.x % 32 != 0) return;
  tma_store_wait_read<0>();
  mbar_expect(bar, C::PARTS * 2048); // what lies outside is filled with zeros, and counts
  for (int i = 0; i < C::PARTS; i++)
    tma_load_2d(boxes + i * 2048, map_r, bar, col0 + i % C::PARTS_N * 64,
                (int)row0 + i / C::PARTS_N * 64);
}

// What both kinds of consumer need to know about where they are.
template <class C> struct gemm_place {
  uint32_t base; // of shared memory; the rest are offsets, computed where needed: registers are
                 // dear here
  int wg, stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ uint32_t ring() const {
    return base + stage * C::STAGE_BYTES;
  }
  __device__ __forceinline__ uint32_t full() const {
    return base + C::FULL_AT + 8 * stage;
  }
  __device__ __forceinline__ uint32_t boxes() const {
    return base + C::OUT_AT + threadIdx.x / 32 * (C::BOXES * 2048);
  }
  __device__ __forceinline__ uint32_t bias(int place) const {
    return base + C::BIAS_AT + wg * C::BIAS_BYTES + place * (C::BN * 4);
  }
  __device__ __forceinline__ uint32_t residual_bar() const {
    return base + C::RESIDUAL_AT + threadIdx.x / 32 * 8;
  }
  __device__ __forceinline__ void next() {
    if (++stage == C::STAGES) stage = 0, parity ^= 1;
  }
  __device__ __forceinline__ void skip(int steps) {
    stage += steps;
    parity ^= stage / C::STAGES & 1;
    stage %= C::STAGES;
  }
  // To both blocks' producers, since both write this stage.
  __device__ __forceinline__ void release(int s) const {
    if (threadIdx.x % 128 < C::CLUSTER)
      mbar_arrive_at(base + C::EMPTY_AT + 8 * s, threadIdx.x % 128);
  }
  // The bias of a tile is asked for a tile ahead, waits in a register under the products, and lies
  // in one of two places in shared memory, so that no reader of the last tile's is in the way.
  static constexpr int BIAS_VALUES = (C::BN + 127) / 128; // of a thread
  __device__ __forceinline__ void ask_bias(const gemm_epilogue &e, float (&b)[BIAS_VALUES],
                                           int col0, int cols) const {
#pragma unroll
    for (int i = 0; i < BIAS_VALUES; i++) {
      const int col = threadIdx.x % 128 + i * 128;
      b[i] = epilogue_fetch_bias<typename C::T>(e, col0 + col, col < C::BN ? cols : 0);
    }
  }
  __device__ __forceinline__ void put_bias(const float (&b)[BIAS_VALUES], int place) const {
#pragma unroll
    for (int i = 0; i < BIAS_VALUES; i++) {
      const int col = threadIdx.x % 128 + i * 128;
      if (col < C::BN)
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(bias(place) + col * 4), "f"(b[i]) : "memory");
    }
  }
};

// The products of one stage; committed, not waited for.
template <class C>
static __device__ __forceinline__ void gemm_multiply(float (&d)[C::HALVES][C::BN / 2],
                                                     uint32_t stage, int row_bytes, int k) {
  const uint64_t desc_a = tile_descriptor(stage + row_bytes, 16, 1024),
                 desc_b = tile_descriptor(stage + C::A_BYTES, 16, 1024);
#pragma unroll
  for (int h = 0; h < C::HALVES; h++)
    hold(d[h]);
  wgmma_fence();
#pragma unroll
  for (int kk = 0; kk < 4; kk++) {
#pragma unroll
    for (int h = 0; h < C::HALVES; h++)
      wgmma<C::BN, typename C::T>::shared(d[h], desc_a + kk * 2 + h * (64 * 128 >> 4),
                                          desc_b + kk * 2, (k | kk) != 0);
  }
  wgmma_commit();
#pragma unroll
  for (int h = 0; h < C::HALVES; h++)
    hold(d[h]);
}

#endif
