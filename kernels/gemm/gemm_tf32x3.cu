// y = epilogue(x W^T) in fp32 on the tensor cores, with fp32's accuracy, from sm_80 on.
//
// A tensor core takes fp32 operands as tf32: 11 bits. So each is split in registers, v = hi + lo,
// hi its upper bits (truncated, so that nothing becomes infinite) and lo the exact rest, and
//
//   x w  ~  lo hi + hi lo + hi hi      (what is left out: 2^-22 of x w on average, 2^-20 at most)
//
// by mma.sync m16n8k8, the small products first. Tensor cores cut off what they add, they do not
// round it: over a long k of one sign that would be seen. So k is cut into chunks of 32; a chunk's
// sum begins at zero, and is added to the total by an ordinary fp32 addition.
//
// The bits of a result depend on its row, its column and k alone: in every tile a chunk's products
// come in the same order, and the chunks are added in order. With TEAMS > 1 (few rows) groups of
// warps compute chunks side by side, and leave them in shared memory to be added in order.
//
//   step s:  products of stage s | before the last of them: wait for stage s + 1, all warps meet,
//            ask for stage s + STAGES, load the first operands of stage s + 1 | add to the totals
//
// A warp's operands are in registers before it is done with those before them. Stages are laid out
// as gemm_mma.cuh's: rows of 128 bytes, 32 floats, permuted.
//
// Not finite, or tiny. lo of an infinity is NaN, and what lies below 2^-136 of an operand is lost.
// Either shows in the result: it is not finite, or below 2^-64. Threads look at their sums once,
// two instructions each; a block that finds such a one passes over k again with fp32
// multiply-adds, and takes those sums from there, and no others. So infinities and NaN are where
// IEEE arithmetic has them. (A result that is not tiny of operands below 2^-113 beside others above
// 2^40 keeps an absolute error of 2^-136 of the latter.)
//
// Shared memory: STAGES x TEAMS x (BM + BN) x 128 bytes, and the chunks' sums of teams: 96 KiB
// (128 x 64), 64 KiB (64 x 64), 80 KiB (32 x 32, four teams).
// Bound: the tensor cores at a third of their tf32 rate; few rows: latency. Measured on an H200,
// where mma.sync in tf32 alone reaches 317 TFLOP/s, so 106 here: 69 TFLOP/s (65 %) at 4096 x 3072 x
// 768 and 4096 x 768 x 3072 (m, n, k); in another run cuBLASLt without TF32 49 and 47, the CUDA
// cores (gemm_simt.cu) 32. In us, and the CUDA cores in that run: one row, 3072, 768: 10.0 (11.0);
// one row, 768, 3072: 26.9 (37.6); 64 rows, 768, 768: 9.6 (11.5); 128 rows, 3072, 768: 19.4 (28.2;
// cuBLASLt 22.0). Tried: 128 x 128 by eight warps (66), operands that are loaded when they are
// needed (68), a ring of three stages (the same).
#include "kernels/gemm/gemm_mma.cuh"

// TEAM_M x TEAM_N warps are a team, and cover the tile. BLOCKS: that share a multiprocessor.
template <int BM_, int BN_, int TEAM_M_, int TEAM_N_, int TEAMS_, int STAGES_, int BLOCKS_>
struct x3_config {
  using T = float;
  static constexpr int BM = BM_, BN = BN_, TEAM_N = TEAM_N_, TEAMS = TEAMS_, STAGES = STAGES_,
                       BLOCKS = BLOCKS_;
  static constexpr int BK = 32, TEAM = TEAM_M_ * TEAM_N_, THREADS = TEAM * TEAMS * 32;
  static constexpr int WM = BM / TEAM_M_, WN = BN / TEAM_N; // a warp's part of the tile
  static constexpr int MB = WM / 16, NB = WN / 8;
  static constexpr int DEGREE = GELU_DEGREE<T>;
  static constexpr int A_BYTES = BM * 128, CHUNK_BYTES = A_BYTES + BN * 128,
                       STAGE_BYTES = TEAMS * CHUNK_BYTES, PARTIAL_AT = STAGES * STAGE_BYTES,
                       SHARED_BYTES = PARTIAL_AT + (TEAMS > 1 ? TEAMS * BM * BN * 4 : 0);
  // Squares of 16 x 8 results of which a thread has four values: all of the tile, and of them those
  // whose totals a thread keeps, OM below each other and ON side by side.
  static constexpr int SQUARES = BM / 16 * (BN / 8), OM = TEAMS == 1 ? MB : 1,
                       ON = SQUARES * 32 / THREADS / OM;
  static_assert(BN / 8 % ON == 0 && MB % 2 == 0 && NB % 2 == 0, "squares in whole rows");
  static_assert(SQUARES * 512 <= (STAGES - 1) * STAGE_BYTES, "totals fit beside a stage");
};

// The first row and column, in the tile, of the totals that this thread keeps.
template <class C> static __device__ __forceinline__ void x3_place(int *row, int *col) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int square = C::TEAMS == 1 ? 0 : warp * C::ON;
  *row = C::TEAMS == 1 ? warp / C::TEAM_N * C::WM : square / (C::BN / 8) * 16;
  *col = C::TEAMS == 1 ? warp % C::TEAM_N * C::WN : square % (C::BN / 8) * 8;
  *row += lane / 4, *col += lane % 4 * 2;
}

template <int N>
static __device__ __forceinline__ void x3_split(const uint32_t (&v)[N], uint32_t (&hi)[N],
                                                uint32_t (&lo)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) {
    hi[i] = v[i] & 0xffffe000u;
    lo[i] = __float_as_uint(__uint_as_float(v[i]) - __uint_as_float(hi[i]));
  }
}

// What a warp multiplies next, on its way into registers: 32 rows of x by 8 of k, and its columns.
template <class C> struct x3_next {
  static constexpr int PAIRS = C::MB / 2, UNITS = 4 * PAIRS; // of a chunk: k in 8s, rows in 32s
  uint32_t a[2][4], b[C::NB / 2][4];
  // Unit `u` of a chunk; the columns with the first of its 32s.
  __device__ __forceinline__ void load(uint32_t chunk, int u, int row, int col) {
    const int lane = threadIdx.x % 32, kk = u / PAIRS, i = u % PAIRS * 2;
    if (i == 0) {
#pragma unroll
      for (int j = 0; j < C::NB / 2; j++)
        ldmatrix_x4(mma_at(chunk + C::A_BYTES, col + j * 16 + lane / 16 * 8 + lane % 8,
                           kk * 2 + lane / 8 % 2),
                    b[j]);
    }
#pragma unroll
    for (int h = 0; h < 2; h++)
      ldmatrix_x4(mma_at(chunk, row + (i + h) * 16 + lane % 16, kk * 2 + lane / 16), a[h]);
  }
};

// A chunk's products, of this warp's part of the tile, while the next operands are on their way.
// `next` is called before the last of them, and says where the chunk after this one lies.
template <class C, class NEXT>
static __device__ __forceinline__ void x3_multiply(float (&d)[C::MB][C::NB * 4], x3_next<C> &raw,
                                                   uint32_t chunk, int row, int col, NEXT next) {
  uint32_t b_hi[C::NB / 2][4], b_lo[C::NB / 2][4];
#pragma unroll
  for (int u = 0; u < x3_next<C>::UNITS; u++) {
    const int i = u % x3_next<C>::PAIRS * 2;
    uint32_t a_hi[2][4], a_lo[2][4];
    if (i == 0) {
#pragma unroll
      for (int j = 0; j < C::NB / 2; j++)
        x3_split(raw.b[j], b_hi[j], b_lo[j]);
    }
#pragma unroll
    for (int h = 0; h < 2; h++)
      x3_split(raw.a[h], a_hi[h], a_lo[h]);
    if (u + 1 < x3_next<C>::UNITS)
      raw.load(chunk, u + 1, row, col);
    else
      raw.load(next(), 0, row, col);
#pragma unroll
    for (int term = 0; term < 3; term++) {
#pragma unroll
      for (int h = 0; h < 2; h++) { // by turns: products that do not wait for each other
#pragma unroll
        for (int j = 0; j < C::NB; j++) {
          float *v = &d[i + h][4 * j];
          const uint32_t *b = (term == 1 ? b_lo : b_hi)[j / 2] + j % 2 * 2;
          const bool first = u < x3_next<C>::PAIRS && term == 0;
          mma_1688_tf32(v, term == 0 ? a_lo[h] : a_hi[h], b[0], b[1], first ? 0.0f : v[0],
                        first ? 0.0f : v[1], first ? 0.0f : v[2], first ? 0.0f : v[3]);
        }
      }
    }
  }
}

static __device__ __forceinline__ void x3_put(uint32_t to, const float *v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v[0]), "f"(v[1]),
               "f"(v[2]), "f"(v[3])
               : "memory");
}
static __device__ __forceinline__ void x3_get(uint32_t from, float *v) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "r"(from)
               : "memory");
}
static __device__ __forceinline__ float x3_float(uint32_t tile, int row, int k) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];"
               : "=f"(v)
               : "r"(mma_at(tile, row, k / 4) + k % 4 * 4)
               : "memory");
  return v;
}

// The sums of a chunk of every team, in order. A square's 32 threads have 16 bytes each.
template <class C>
static __device__ __forceinline__ void x3_add_teams(float (&total)[C::OM][C::ON * 4],
                                                    const float (&d)[C::MB][C::NB * 4],
                                                    uint32_t partial) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, in_team = warp % C::TEAM;
  const int square = in_team / C::TEAM_N * C::MB * (C::BN / 8) + in_team % C::TEAM_N * C::NB;
  const uint32_t mine = partial + (warp / C::TEAM * C::SQUARES + square) * 512 + lane * 16;
#pragma unroll
  for (int i = 0; i < C::MB; i++)
#pragma unroll
    for (int j = 0; j < C::NB; j++)
      x3_put(mine + (i * (C::BN / 8) + j) * 512, &d[i][4 * j]);
  __syncthreads(); // and before they are written again all meet for the next stage
#pragma unroll
  for (int t = 0; t < C::TEAMS; t++) {
#pragma unroll
    for (int j = 0; j < C::ON; j++) {
      float v[4];
      x3_get(partial + (t * C::SQUARES + warp * C::ON + j) * 512 + lane * 16, v);
#pragma unroll
      for (int e = 0; e < 4; e++)
        total[0][4 * j + e] += v[e];
    }
  }
}

// The tile's operands.
template <class C> struct x3_operands {
  mma_source<C, C::BM> x;
  mma_source<C, C::BN> w;
  int steps; // of stages
  __device__ __forceinline__ x3_operands(const mma_args &a, const walk_place &at)
      : x(a.x, a.x_stride, at.row, a.m, a.k), w(a.w, a.w_stride, at.col, a.n, a.k),
        steps((a.k + C::TEAMS * C::BK - 1) / (C::TEAMS * C::BK)) {}
  // A stage: a chunk for each team; zeros beyond k. An empty group where there is no such step.
  __device__ __forceinline__ void fetch(uint32_t stage, int step) const {
    if (step < steps) {
#pragma unroll
      for (int t = 0; t < C::TEAMS; t++) {
        x.fetch(stage + t * C::CHUNK_BYTES, (step * C::TEAMS + t) * C::BK);
        w.fetch(stage + t * C::CHUNK_BYTES + C::A_BYTES, (step * C::TEAMS + t) * C::BK);
      }
    }
    copy_commit();
  }
};

// This thread's totals by multiply-adds in the order of k, through the last stage alone.
template <class C>
static __device__ __forceinline__ void x3_again(float (&v)[C::OM][C::ON * 4], uint32_t base,
                                                const x3_operands<C> &operands) {
  const uint32_t stage = base + (C::STAGES - 1) * C::STAGE_BYTES;
  int row, col;
  x3_place<C>(&row, &col);
#pragma unroll
  for (int i = 0; i < C::OM; i++)
#pragma unroll
    for (int j = 0; j < C::ON * 4; j++)
      v[i][j] = 0.0f;
#pragma unroll 1
  for (int s = 0; s < operands.steps; s++) {
    __syncthreads();
    operands.fetch(stage, s);
    copy_wait<0>();
    __syncthreads();
#pragma unroll 1
    for (int k = 0; k < C::TEAMS * C::BK; k++) {
      const uint32_t chunk = stage + k / C::BK * C::CHUNK_BYTES;
      float x[2 * C::OM], w[2 * C::ON];
#pragma unroll
      for (int i = 0; i < 2 * C::OM; i++)
        x[i] = x3_float(chunk, row + i * 8, k % C::BK);
#pragma unroll
      for (int j = 0; j < 2 * C::ON; j++)
        w[j] = x3_float(chunk + C::A_BYTES, col + j / 2 * 8 + j % 2, k % C::BK);
#pragma unroll
      for (int i = 0; i < C::OM; i++)
#pragma unroll
        for (int j = 0; j < C::ON * 4; j++)
          v[i][j] = fmaf(x[2 * i + j / 2 % 2], w[j / 4 * 2 + j % 2], v[i][j]);
    }
  }
}

// Not finite, or so small that what was cut off an operand may count.
#define X3_TINY 0x1p-64f
static __device__ __forceinline__ bool x3_wrong(float v) {
  return !(fabsf(v) < INFINITY) || (v != 0.0f && fabsf(v) < X3_TINY);
}

// The totals into shared memory, this thread's own 16 bytes of each square, right in any case.
template <class C>
static __device__ __forceinline__ void x3_park(float (&total)[C::OM][C::ON * 4], uint32_t base,
                                               const x3_operands<C> &operands) {
  const uint32_t mine = base + threadIdx.x * 16;
  float odd = 0.0f, least = INFINITY; // odd: NaN if one of them is not finite
#pragma unroll
  for (int i = 0; i < C::OM; i++)
#pragma unroll
    for (int j = 0; j < C::ON * 4; j++)
      odd = fmaf(total[i][j], 0.0f, odd), least = fminf(least, fabsf(total[i][j]));
  bool wrong = false;
  if (odd != 0.0f || least < X3_TINY) {
#pragma unroll
    for (int i = 0; i < C::OM; i++)
#pragma unroll
      for (int j = 0; j < C::ON * 4; j++)
        wrong |= x3_wrong(total[i][j]);
  }
  copy_wait<0>();
  wrong = __syncthreads_or(wrong); // and the ring is done with
#pragma unroll
  for (int i = 0; i < C::OM; i++)
#pragma unroll
    for (int j = 0; j < C::ON; j++)
      x3_put(mine + (i * C::ON + j) * C::THREADS * 16, &total[i][4 * j]);
  if (!wrong) return;
  x3_again<C>(total, base, operands);
#pragma unroll
  for (int i = 0; i < C::OM; i++)
#pragma unroll
    for (int j = 0; j < C::ON; j++) {
      float v[4];
      x3_get(mine + (i * C::ON + j) * C::THREADS * 16, v);
#pragma unroll
      for (int e = 0; e < 4; e++)
        v[e] = x3_wrong(v[e]) ? total[i][4 * j + e] : v[e];
      x3_put(mine + (i * C::ON + j) * C::THREADS * 16, v);
    }
}

// From shared memory a row of squares at a time: one copy of the code, which is long where
// activations are exact. Without activations all at once, so that memory is waited for once.
template <class C>
static __device__ __forceinline__ void x3_finish(const mma_args &a, uint32_t base,
                                                 const walk_place &at) {
  const uint32_t mine = base + threadIdx.x * 16;
  int row, col;
  x3_place<C>(&row, &col);
  if (a.plain) {
    float v[C::OM][C::ON * 4];
#pragma unroll
    for (int i = 0; i < C::OM; i++)
#pragma unroll
      for (int j = 0; j < C::ON; j++)
        x3_get(mine + (i * C::ON + j) * C::THREADS * 16, &v[i][4 * j]);
#pragma unroll 1
    for (int o = 0; o < a.epilogue.n; o++)
#pragma unroll
      for (int i = 0; i < C::OM; i++)
        epilogue_op_plain<float>(a.epilogue.op[o], v[i], at.row + row + i * 16, at.col + col, a.m,
                                 a.n);
#pragma unroll
    for (int i = 0; i < C::OM; i++)
      mma_store<C::ON>(a, v[i], at.row + row + i * 16, at.col + col);
    return;
  }
#pragma unroll 1
  for (int i = 0; i < C::OM; i++) {
    float v[C::ON * 4];
#pragma unroll
    for (int j = 0; j < C::ON; j++)
      x3_get(mine + (i * C::ON + j) * C::THREADS * 16, &v[4 * j]);
    mma_finish<C, C::ON>(a, v, at.row + row + i * 16, at.col + col);
  }
}

template <class C>
__global__ void __launch_bounds__(C::THREADS, C::BLOCKS)
    gemm_tf32x3(const __grid_constant__ mma_args args) {
  extern __shared__ __align__(1024) uint8_t raw[];
  const int warp = threadIdx.x / 32, team = warp / C::TEAM, in_team = warp % C::TEAM;
  const int row = in_team / C::TEAM_N * C::WM, col = in_team % C::TEAM_N * C::WN;
  const uint32_t base = smem_address(raw);
  const walk_place at = walk_tile<C::BM, C::BN>(blockIdx.x, args.m, args.n);
#pragma unroll 1
  for (int o = 0; o < args.epilogue.n && threadIdx.x < C::BM; o++)
    epilogue_prefetch<float>(args.epilogue.op[o], at.row + threadIdx.x, at.col, C::BN, args.m,
                             args.n);
  const x3_operands<C> operands(args, at);
  float total[C::OM][C::ON * 4] = {};
  x3_next<C> coming;
  auto chunk = [&](int s) { return base + s % C::STAGES * C::STAGE_BYTES + team * C::CHUNK_BYTES; };
#pragma unroll
  for (int s = 0; s < C::STAGES; s++)
    operands.fetch(base + s * C::STAGE_BYTES, s);
  copy_wait<C::STAGES - 1>();
  __syncthreads();
  coming.load(chunk(0), 0, row, col);
#pragma unroll 1
  for (int s = 0; s < operands.steps; s++) {
    float d[C::MB][C::NB * 4];
    x3_multiply<C>(d, coming, chunk(s), row, col, [&] {
      copy_wait<C::STAGES - 2>();
      __syncthreads(); // stage s + 1 is there, and everyone has what it needs of stage s
      operands.fetch(base + s % C::STAGES * C::STAGE_BYTES, s + C::STAGES);
      return chunk(s + 1); // behind the last: what is left there, and nobody looks at
    });
    if constexpr (C::TEAMS == 1) {
#pragma unroll
      for (int i = 0; i < C::MB; i++)
#pragma unroll
        for (int j = 0; j < C::NB * 4; j++)
          total[i][j] += d[i][j];
    } else {
      x3_add_teams<C>(total, d, base + C::PARTIAL_AT);
    }
  }
  x3_park<C>(total, base, operands);
  x3_finish<C>(args, base, at);
}

template <class C> static int x3_run(const struct kernel_call *call, cudaStream_t stream) {
  const unsigned blocks = walk_blocks<C::BM, C::BN>(call->m, call->linear->n);
  if (blocks == 0) return CUDA_UNSUPPORTED;
  const mma_args a = mma_fill(call);
  cudaError_t rc = cudaFuncSetAttribute(gemm_tf32x3<C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        C::SHARED_BYTES);
  if (rc != cudaSuccess) return rc;
  gemm_tf32x3<C><<<blocks, C::THREADS, C::SHARED_BYTES, stream>>>(a);
  return cudaGetLastError();
}

int gemm_tf32x3(const struct kernel_call *call, enum x3_tile_size tile,
                struct CUstream_st *stream) {
  if (call->m == 0) return 0;
  if (tile == X3_32x32) return x3_run<x3_config<32, 32, 1, 1, 4, 2, 2>>(call, stream);
  if (tile == X3_64x64) return x3_run<x3_config<64, 64, 2, 2, 1, 4, 3>>(call, stream);
  return x3_run<x3_config<128, 64, 2, 2, 1, 4, 2>>(call, stream);
}
