// y = norm(x W^T + bias + residual) on Hopper, in one kernel: x [m, k], W [n, k], 16-bit,
// row-major.
//
// A group of n / BN blocks covers whole rows: each block has a tile of 128 x BN. The tile's sums
// stay in the registers of two warpgroups (64 rows each), residual and bias are added there, and
// what the blocks must tell each other is two numbers a row and chunk of columns:
//
//   producer thread        two warpgroups, 64 rows each
//   ring [ 0 | 1 | .. ] -> products -> + residual, bias -> rounded to 16 bits [-> sum, if wanted]
//                          -> sum and squared deviations of each chunk of a row (gemm_norm.cuh)
//                          -> to the same warp of every block of the group
//                          -> mean, 1 / sqrt(variance + eps), gamma, beta -> y
//
// The sum is rounded to the 16-bit type before the norm, as it is where it goes through memory
// between two kernels. So a row has the same bits whether this kernel computes it or a product and
// gemm_norm_rows, and which one does may depend on m.
//
// Ring: a stage holds 128 x 64 of x and BN x 64 of W. Two blocks of a group that are a cluster have
// the same rows: each fetches half of x's tile and the copy engine delivers it to both. W's rows
// come in the order of gemm_sm90_direct.cuh, so that a thread has 8 neighbouring columns of each
// 32: it reads the residual (asked for before the products begin) and writes y 16 bytes at a time,
// without shared memory.
//
// Exchange: 16 bytes (two rows, 8 apart) a chunk from each quad, by warp and of two turns; a warp
// waits for the same 16 rows of the other blocks and for nothing else: no barrier of a block or a
// cluster is met between tiles. The two turns suffice: who sends for tile t + 2 has received t + 1
// from everybody, who had read t. Where the group is one cluster, through its shared memory
// (st.async). Larger groups go through the L2: clusters of 4 would leave a tenth of an H200's
// multiprocessors unused (30 at a time, counted on one), and with 32 tiles of rows to compute every
// one counts. There a warp counts up a word for its rows; the last warp to leave sets it back to 0.
//
// A group waits for its own blocks alone, which are neighbours in the grid: with a few
// multiprocessors free for longer than a launch takes, some group is complete, and ends.
//
// Persistent: a group takes every so-many-th tile of rows; the ring fills for the next one while
// this one's rows are normalised. The tensor cores wait meanwhile, which is the price: two sets of
// accumulators (gemm_sm90_deferred.cuh) would leave no registers for residual and norm.
//
// Shared memory: STAGES x (128 + BN) x 128 bytes, bias, gamma and beta, 16 KiB of exchange,
// barriers.
// Bound: the tensor cores, and for few rows the loading of BN rows of W by each block. Measured on
// an H200, bf16 (bench/results, gpu-norm-2026-11-30): a step of k takes 0.25 us at 96 columns a
// block and 0.43 at 192, which is the tensor cores' rate at 1.75 GHz; start, finish and exchange of
// a tile are 6 and 6.6 to 8 us in all. 16384 x 384 -> 384 17.0 us, the product and a norm after it
// 23.6; 4096 x 768 -> 768 14.3 and 14.8; 512 x 768 -> 768 9.4 and 7.2.
#ifndef GEMM_GEMM_NORM_SM90_CUH
#define GEMM_GEMM_NORM_SM90_CUH

#include "kernels/gemm/gemm_norm.cuh"
#include "kernels/gemm/gemm_sm90_direct.cuh"

struct gemm_norm_args {
  int64_t m;
  int32_t tiles, k_steps;                     // tiles of rows; steps of k of a tile
  int32_t blocks;                             // of a group: n / BN
  int32_t cluster;                            // of these, neighbours that share x: 1 or 2
  float eps, inverse;                         // inverse: 1 / n
  bool rms, bias_wide, gamma_wide, beta_wide; // wide: fp32
  const void *bias, *gamma, *beta;            // [n]; NULL: none
  const void *residual;                       // NULL: none; may be y
  void *sum;                                  // NULL: not wanted
  void *y;
  int64_t residual_stride, sum_stride, y_stride;
  // Of groups larger than a cluster: 2 x TURN_BYTES a group, and 16 words, which are 0 before and
  // after.
  void *exchange;
  uint32_t *arrived;
};

template <class T_, int BN_, int CHUNK_, int STAGES_> struct gemm_norm_config {
  using T = T_;
  static constexpr int BM = 128, BN = BN_, BK = 64, STAGES = STAGES_, CHUNK = CHUNK_,
                       CHUNKS = BN / CHUNK, HALVES = 1, THREADS = 384;
  static constexpr int PRODUCER_REGISTERS = 24, CONSUMER_REGISTERS = 240;
  static constexpr int A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2,
                       STAGE_BYTES = A_BYTES + B_BYTES;
  static constexpr int WARP_BYTES = NORM_CHUNKS_MAX * 128; // a chunk: 8 pairs of rows
  static constexpr int TURN_BYTES = 8 * WARP_BYTES;
  static constexpr int WEIGHTS_AT = STAGES * STAGE_BYTES, EXCHANGE_AT = WEIGHTS_AT + 3 * BN * 4,
                       FULL_AT = EXCHANGE_AT + 2 * TURN_BYTES, EMPTY_AT = FULL_AT + STAGES * 8,
                       TURN_AT = EMPTY_AT + STAGES * 8, SHARED_BYTES = TURN_AT + 2 * 8 * 8;
  static_assert(SHARED_BYTES <= 232448, "a block has 227 KiB");
  static_assert(BN % CHUNK == 0 && CHUNK % 32 == 0);
};

// Where a block stands in its group.
static __device__ __forceinline__ int gemm_norm_rank(const gemm_norm_args &args) {
  return (int)(blockIdx.x % args.blocks);
}

static __device__ __forceinline__ uint4 gemm_norm_load_16(const void *from) {
  uint4 v;
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

// ---- exchange ----
// 16 bytes to the same place of block `rank` of the cluster, whose barrier at `bar` counts them.
static __device__ __forceinline__ void gemm_norm_send(uint32_t to, uint32_t bar, uint32_t rank,
                                                      const float (&v)[4]) {
  asm volatile("{\n.reg .b32 there, counter;\n"
               "mapa.shared::cluster.u32 there, %0, %2;\n"
               "mapa.shared::cluster.u32 counter, %1, %2;\n"
               "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], "
               "{%3, %4, %5, %6}, [counter];\n}" ::"r"(to),
               "r"(bar), "r"(rank), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
               : "memory");
}

static __device__ __forceinline__ void gemm_norm_receive(uint32_t at, float (&v)[4]) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "r"(at)
               : "memory");
}

static __device__ __forceinline__ void gemm_norm_put(char *to, const float (&v)[4]) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v[0]), "f"(v[1]),
               "f"(v[2]), "f"(v[3])
               : "memory");
}

// From the L2: what the first-level cache has may be of an earlier tile.
static __device__ __forceinline__ void gemm_norm_get(const char *at, float (&v)[4]) {
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "l"(at)
               : "memory");
}

// One more warp has put its part; until `all` have.
static __device__ __forceinline__ void gemm_norm_meet(uint32_t *arrived, uint32_t all) {
  uint32_t n;
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived) : "memory");
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(n) : "l"(arrived) : "memory");
  } while (n < all);
}

// What a warp has of the exchange.
struct gemm_norm_exchange {
  char *put;         // of groups larger than a cluster: its rows' place in memory, of turn 0
  uint32_t *arrived; // two words: warps of the group that have put their part; that have left
};

// `mine`: of each of this block's chunks, what this thread's quad has of its two rows. `all`: of
// all chunks of the row, zeros beyond.
template <class C>
static __device__ __forceinline__ void
gemm_norm_swap(const gemm_norm_args &args, const gemm_norm_exchange &x, uint32_t base,
               uint32_t turn, const float (&mine)[C::CHUNKS][4], float (&all)[NORM_CHUNKS_MAX][4]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32,
            first = gemm_norm_rank(args) * C::CHUNKS, chunks = args.blocks * C::CHUNKS;
  const int at = first * 128 + lane / 4 * 16;
  if (args.blocks == 1) { // the whole row is here
#pragma unroll
    for (int c = 0; c < NORM_CHUNKS_MAX; c++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        all[c][i] = c < C::CHUNKS ? mine[c % C::CHUNKS][i] : 0.0f;
    return;
  }
  if (args.blocks == args.cluster) {
    const uint32_t bar = base + C::TURN_AT + (turn % 2 * 8 + warp) * 8,
                   box = base + C::EXCHANGE_AT + turn % 2 * C::TURN_BYTES + warp * C::WARP_BYTES;
#pragma unroll
    for (int c = 0; c < C::CHUNKS; c++)
      if (lane % 4 < args.cluster) gemm_norm_send(box + at + c * 128, bar, lane % 4, mine[c]);
    __syncwarp();
    mbar_wait(bar, turn / 2 & 1);
#pragma unroll
    for (int c = 0; c < NORM_CHUNKS_MAX; c++) {
      all[c][0] = all[c][1] = all[c][2] = all[c][3] = 0.0f;
      if (c < chunks) gemm_norm_receive(box + c * 128 + lane / 4 * 16, all[c]);
    }
    return;
  }
  char *put = x.put + turn % 2 * C::TURN_BYTES;
#pragma unroll
  for (int c = 0; c < C::CHUNKS; c++)
    if (lane % 4 == c) gemm_norm_put(put + at + c * 128, mine[c]);
  __syncwarp();
  if (lane == 0) gemm_norm_meet(x.arrived, (turn + 1) * args.blocks);
  __syncwarp();
#pragma unroll
  for (int c = 0; c < NORM_CHUNKS_MAX; c++) {
    all[c][0] = all[c][1] = all[c][2] = all[c][3] = 0.0f;
    if (c < chunks) gemm_norm_get(put + c * 128 + lane / 4 * 16, all[c]);
  }
}

// ---- producer ----
template <class C>
static __device__ __forceinline__ void
gemm_norm_produce(const CUtensorMap *map_x, const CUtensorMap *map_w, const gemm_norm_args &args,
                  uint32_t base) {
  const int rows = C::BM / args.cluster, row = (int)cluster_rank() * rows,
            col = gemm_norm_rank(args) * (C::BN / 32);
  const uint16_t everybody = (uint16_t)((1u << args.cluster) - 1);
  int stage = 0;
  uint32_t parity = 1; // a fresh ring is empty
#pragma unroll 1
  for (int t = blockIdx.x / args.blocks; t < args.tiles; t += gridDim.x / args.blocks) {
#pragma unroll 1
    for (int k = 0; k < args.k_steps; k++) {
      const uint32_t a = base + stage * C::STAGE_BYTES, bar = base + C::FULL_AT + 8 * stage;
      mbar_wait(base + C::EMPTY_AT + 8 * stage, parity);
      mbar_expect(bar, C::STAGE_BYTES);
      tma_load_5d(a + C::A_BYTES, map_w, bar, k * C::BK, 0, 0, 0, col);
      tma_multicast_2d(a + row * 128, map_x, bar, k * C::BK, t * C::BM + row, everybody);
      if (++stage == C::STAGES) stage = 0, parity ^= 1;
    }
  }
}

// ---- consumers ----
// A thread's part of a tile: two rows, 8 apart, 8 columns of each 32.
struct gemm_norm_place {
  int64_t row;
  int col; // of all of n
  bool live[2];
};

// Residual and bias onto the products, rounded to 16 bits; of each chunk of the two rows, the
// columns over 1024 summed up.
template <class C>
static __device__ __forceinline__ void gemm_norm_add(float (&d)[C::BN / 2],
                                                     const uint4 (&residual)[2][C::BN / 32],
                                                     uint32_t weights, float (&sum)[2][C::CHUNKS]) {
  using T = typename C::T;
  float parts[2][C::CHUNKS][2] = {};
#pragma unroll
  for (int block = 0; block < C::BN / 32; block++) {
    const int c = block / (C::CHUNK / 32);
    float bias[8];
    load_shared_8(bias, weights + block * 128);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const uint4 r = residual[h][block];
      const uint32_t from[4] = {r.x, r.y, r.z, r.w};
#pragma unroll
      for (int j = 0; j < 4; j++) {
        float &x = d[block * 16 + j * 4 + h * 2], &y = d[block * 16 + j * 4 + h * 2 + 1];
        const float2 add = unpack_pair<T>(from[j]);
        const float2 v =
            unpack_pair<T>(pack_pair<T>(__fadd_rn(__fadd_rn(x, add.x), bias[2 * j]),
                                        __fadd_rn(__fadd_rn(y, add.y), bias[2 * j + 1])));
        x = v.x, y = v.y;
        norm_add_pair(v, parts[h][c]);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < C::CHUNKS; c++) {
#pragma unroll
    for (int h = 0; h < 2; h++)
      sum[h][c] = norm_quad_sum(__fadd_rn(parts[h][c][0], parts[h][c][1]));
  }
}

template <class C>
static __device__ __forceinline__ void gemm_norm_write_sum(const float (&d)[C::BN / 2],
                                                           const gemm_norm_args &args,
                                                           const gemm_norm_place &at) {
  using T = typename C::T;
#pragma unroll
  for (int block = 0; block < C::BN / 32; block++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      uint32_t w[4];
#pragma unroll
      for (int j = 0; j < 4; j++)
        w[j] = pack_pair<T>(d[block * 16 + j * 4 + h * 2], d[block * 16 + j * 4 + h * 2 + 1]);
      if (at.live[h])
        store_global_16((T *)args.sum + (at.row + 8 * h) * args.sum_stride + at.col + block * 32,
                        w);
    }
  }
}

// Deviations from the chunks' means in place of the values; their squares summed up.
template <class C>
static __device__ __forceinline__ void gemm_norm_center(float (&d)[C::BN / 2],
                                                        const float (&mean)[2][C::CHUNKS],
                                                        float (&squares)[2][C::CHUNKS]) {
  float parts[2][C::CHUNKS][2] = {};
#pragma unroll
  for (int block = 0; block < C::BN / 32; block++) {
    const int c = block / (C::CHUNK / 32);
#pragma unroll
    for (int i = 0; i < 16; i++) {
      const int h = i / 2 % 2;
      float &x = d[block * 16 + i];
      x = __fsub_rn(x, mean[h][c]);
      parts[h][c][i % 2] = fmaf(x, x, parts[h][c][i % 2]);
    }
  }
#pragma unroll
  for (int c = 0; c < C::CHUNKS; c++) {
#pragma unroll
    for (int h = 0; h < 2; h++)
      squares[h][c] = norm_quad_sum(__fadd_rn(parts[h][c][0], parts[h][c][1]));
  }
}

template <class C>
static __device__ __forceinline__ void
gemm_norm_write(const float (&d)[C::BN / 2], const gemm_norm_args &args, const gemm_norm_place &at,
                uint32_t weights, const norm_of_row (&of)[2], const float (&shift)[2][C::CHUNKS]) {
  using T = typename C::T;
#pragma unroll
  for (int block = 0; block < C::BN / 32; block++) {
    const int c = block / (C::CHUNK / 32);
    float gamma[8], beta[8];
    load_shared_8(gamma, weights + C::BN * 4 + block * 128);
    load_shared_8(beta, weights + C::BN * 8 + block * 128);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      uint32_t w[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float x = d[block * 16 + j * 4 + h * 2], y = d[block * 16 + j * 4 + h * 2 + 1];
        w[j] = pack_pair<T>(
            norm_value(x, of[h].scale, shift[h][c], gamma[2 * j], beta[2 * j]),
            norm_value(y, of[h].scale, shift[h][c], gamma[2 * j + 1], beta[2 * j + 1]));
      }
      if (at.live[h])
        store_global_16((T *)args.y + (at.row + 8 * h) * args.y_stride + at.col + block * 32, w);
    }
  }
}

// The whole of a tile after its products. `turn`: how many tiles came before.
template <class C>
static __device__ __forceinline__ void
gemm_norm_finish(float (&d)[C::BN / 2], const uint4 (&residual)[2][C::BN / 32],
                 const gemm_norm_args &args, const gemm_norm_place &at,
                 const gemm_norm_exchange &exchange, uint32_t base, uint32_t turn) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, chunks = args.blocks * C::CHUNKS;
  const uint32_t weights = base + C::WEIGHTS_AT + lane % 4 * 32;
  float mean[2][C::CHUNKS], sum[2][C::CHUNKS], squares[2][C::CHUNKS];
  if (args.blocks == args.cluster && args.blocks > 1 && lane == 0)
    mbar_expect(base + C::TURN_AT + (turn % 2 * 8 + warp) * 8, (uint32_t)chunks * 128);
  gemm_norm_add<C>(d, residual, weights, sum);
  if (args.sum) gemm_norm_write_sum<C>(d, args, at);
#pragma unroll
  for (int c = 0; c < C::CHUNKS; c++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      if (args.rms) sum[h][c] = 0.0f;
      mean[h][c] = norm_chunk_mean<C::CHUNK>(sum[h][c]);
    }
  }
  gemm_norm_center<C>(d, mean, squares);
  float mine[C::CHUNKS][4], all[NORM_CHUNKS_MAX][4];
#pragma unroll
  for (int c = 0; c < C::CHUNKS; c++) {
    mine[c][0] = sum[0][c], mine[c][1] = squares[0][c];
    mine[c][2] = sum[1][c], mine[c][3] = squares[1][c];
  }
  gemm_norm_swap<C>(args, exchange, base, turn, mine, all);
  norm_of_row of[2];
  float shift[2][C::CHUNKS];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float sums[NORM_CHUNKS_MAX], rest[NORM_CHUNKS_MAX], apart[NORM_CHUNKS_MAX];
#pragma unroll
    for (int c = 0; c < NORM_CHUNKS_MAX; c++)
      sums[c] = all[c][2 * h], rest[c] = all[c][2 * h + 1];
    norm_set_mean(of[h], norm_chunk_sum(sums), chunks * C::CHUNK, args.inverse);
#pragma unroll
    for (int c = 0; c < NORM_CHUNKS_MAX; c++) {
      const float off = norm_off(norm_chunk_mean<C::CHUNK>(sums[c]), of[h]);
      apart[c] = c < chunks ? __fmul_rn(off, off) : 0.0f;
    }
    norm_set_scale(of[h], norm_chunk_sum(rest), norm_chunk_sum(apart), C::CHUNK, args.inverse,
                   args.eps);
#pragma unroll
    for (int c = 0; c < C::CHUNKS; c++)
      shift[h][c] = __fmul_rn(norm_off(mean[h][c], of[h]), of[h].scale);
  }
  gemm_norm_write<C>(d, args, at, weights, of, shift);
}

template <class C>
static __device__ __forceinline__ void gemm_norm_consume(const gemm_norm_args &args, uint32_t base,
                                                         int wg) {
  using T = typename C::T;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = blockIdx.x / args.blocks;
  int stage = 0;
  uint32_t parity = 0, turn = 0;
  gemm_norm_place at;
  at.col = gemm_norm_rank(args) * C::BN + lane % 4 * 8;
  gemm_norm_exchange exchange;
  exchange.put =
      (char *)args.exchange + (int64_t)group * (2 * C::TURN_BYTES) + warp * C::WARP_BYTES;
  exchange.arrived = args.arrived + group * 16 + warp * 2;
  // A stage goes back to the producers of both blocks of a cluster, since both write it.
  const auto release = [&](int s) {
    if (threadIdx.x % 128 < args.cluster)
      mbar_arrive_at(base + C::EMPTY_AT + 8 * s, threadIdx.x % 128);
  };
#pragma unroll 1
  for (int t = group; t < args.tiles; t += gridDim.x / args.blocks, turn++) {
    uint4 residual[2][C::BN / 32];
    at.row = (int64_t)t * C::BM + warp * 16 + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      at.live[h] = at.row + 8 * h < args.m;
#pragma unroll
      for (int block = 0; block < C::BN / 32; block++) {
        residual[h][block] = make_uint4(0, 0, 0, 0);
        if (args.residual && at.live[h])
          residual[h][block] =
              gemm_norm_load_16((const T *)args.residual + (at.row + 8 * h) * args.residual_stride +
                                at.col + block * 32);
      }
    }
    float d[1][C::BN / 2];
    int before = -1;
    wgmma_wait<0>(); // none are left; the compiler wants to see it here
    hold(d[0]);
    stage = __shfl_sync(0xffffffffu, stage, 0);   // all lanes agree: told so, the compiler keeps
    parity = __shfl_sync(0xffffffffu, parity, 0); // addresses in uniform registers
#pragma unroll 1
    for (int k = 0; k < args.k_steps; k++) {
      mbar_wait(base + C::FULL_AT + 8 * stage, parity);
      gemm_multiply<C>(d, base + stage * C::STAGE_BYTES, wg * 64 * 128, k);
      wgmma_wait<1>();
      if (before >= 0) release(before);
      before = stage;
      if (++stage == C::STAGES) stage = 0, parity ^= 1;
    }
    wgmma_wait<0>();
    hold(d[0]);
    release(before);
    gemm_norm_finish<C>(d[0], residual, args, at, exchange, base, turn);
  }
  if (args.blocks > args.cluster && lane == 0 &&
      atomicAdd(exchange.arrived + 1, 1) == (uint32_t)args.blocks - 1)
    exchange.arrived[0] = exchange.arrived[1] = 0; // nobody waits any more
}

template <class C>
__global__ void __launch_bounds__(C::THREADS, 1)
    gemm_norm_sm90(const __grid_constant__ CUtensorMap map_x,
                   const __grid_constant__ CUtensorMap map_w,
                   const __grid_constant__ gemm_norm_args args) {
  extern __shared__ __align__(1024) uint8_t raw[];
  const uint32_t base = smem_address(raw);
  const int wg = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  if (threadIdx.x == 0) {
    tma_prefetch_map(&map_x);
    tma_prefetch_map(&map_w);
    for (int s = 0; s < C::STAGES; s++) {
      mbar_init(base + C::FULL_AT + 8 * s, 1);
      mbar_init(base + C::EMPTY_AT + 8 * s, 2 * args.cluster);
    }
    for (int i = 0; i < 16; i++)
      mbar_init(base + C::TURN_AT + 8 * i, 1);
    mbar_init_fence();
  }
  cluster_sync();
  if (wg == 2) {
    registers_shrink<C::PRODUCER_REGISTERS>();
    if (threadIdx.x == 256) gemm_norm_produce<C>(&map_x, &map_w, args, base);
  } else {
    registers_grow<C::CONSUMER_REGISTERS>();
    // bias, gamma and beta of the block's columns, while the ring fills
    for (int i = threadIdx.x; i < 3 * C::BN; i += 256) {
      const int which = i / C::BN, col = gemm_norm_rank(args) * C::BN + i % C::BN;
      const void *from = which == 0 ? args.bias : which == 1 ? args.gamma : args.beta;
      const bool wide = which == 0 ? args.bias_wide : which == 1 ? args.gamma_wide : args.beta_wide;
      float v = which == 1 ? 1.0f : 0.0f;
      if (from) v = wide ? ((const float *)from)[col] : (float)((const typename C::T *)from)[col];
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(base + C::WEIGHTS_AT + i * 4), "f"(v)
                   : "memory");
    }
    bar_sync(1, 256);
    gemm_norm_consume<C>(args, __shfl_sync(0xffffffffu, base, 0), wg);
  }
  __syncwarp();
  cluster_sync(); // nobody leaves while another block may still write here
}

#endif
