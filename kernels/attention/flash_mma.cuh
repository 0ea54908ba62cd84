// Attention forward on any GPU from sm_80 on: mma.sync and asynchronous copies. The mathematics,
// the masking and the order of tiles are those of flash_sm90.cuh (flash_common.cuh).
//
// A block is four warps and one tile of 64 M query rows, each warp 16 M of them and all columns; K
// and V come in two stages each. S and O stay in registers, P goes from one product to the other in
// place: the accumulators of the first lie as the second wants its operand. Rows behind a
// sequence's end are zero in shared memory and -inf in S. The result passes through the warp's own
// rows of Q.
//
// Shared memory: (64 M + 4 KEYS) x (2 D + 16) bytes: 54 KiB at head size 64, 68 KiB at 128, 99 KiB
// at 256, so that cards with 100 KiB a multiprocessor run all of them.
#ifndef ATTENTION_FLASH_MMA_CUH
#define ATTENTION_FLASH_MMA_CUH

#include "kernels/attention/flash_common.cuh"

struct mma_args {
  flash_args a;
  const void *q, *k, *v;
  int64_t q_stride, k_stride, v_stride;
};

template <class T_, int D_, int KEYS_, int M_, bool CAUSAL_> struct mma_config {
  using T = T_;
  static constexpr int D = D_, KEYS = KEYS_, M = M_, WARPS = 4, THREADS = 32 * WARPS,
                       ROWS = 16 * M * WARPS;
  static constexpr bool CAUSAL = CAUSAL_, PAIRS = false;
  static constexpr int ROW_BYTES = D * 2 + 16, KV_BYTES = KEYS * ROW_BYTES;
  static constexpr int SHARED_BYTES = ROWS * ROW_BYTES + 4 * KV_BYTES;
};

// S of the warp's rows and one block of keys.
template <class C>
static __device__ __forceinline__ void mma_scores(float (&s)[C::M][C::KEYS / 2], uint32_t q,
                                                  uint32_t k) {
  const int lane = threadIdx.x % 32;
  const uint32_t from_q = q + lane % 16 * C::ROW_BYTES + lane / 16 * 16,
                 from_k = k + (lane / 16 * 8 + lane % 8) * C::ROW_BYTES + lane / 8 % 2 * 16;
#pragma unroll
  for (int m = 0; m < C::M; m++)
#pragma unroll
    for (int i = 0; i < C::KEYS / 2; i++)
      s[m][i] = 0.0f;
#pragma unroll
  for (int kk = 0; kk < C::D / 16; kk++) {
    uint32_t x[C::M][4], y[4];
#pragma unroll
    for (int m = 0; m < C::M; m++)
      ldmatrix_x4(from_q + m * 16 * C::ROW_BYTES + kk * 32, x[m]);
#pragma unroll
    for (int n = 0; n < C::KEYS / 16; n++) {
      ldmatrix_x4(from_k + n * 16 * C::ROW_BYTES + kk * 32, y);
#pragma unroll
      for (int m = 0; m < C::M; m++) {
        mma_16816<typename C::T>(s[m] + 8 * n, x[m], y[0], y[1]);
        mma_16816<typename C::T>(s[m] + 8 * n + 4, x[m], y[2], y[3]);
      }
    }
  }
}

// O += P V.
template <class C>
static __device__ __forceinline__ void
mma_values(float (&o)[C::M][C::D / 2], const uint32_t (&p)[C::M][C::KEYS / 4], uint32_t v) {
  const int lane = threadIdx.x % 32;
  const uint32_t from_v = v + lane % 16 * C::ROW_BYTES + lane / 16 * 16;
#pragma unroll
  for (int kk = 0; kk < C::KEYS / 16; kk++) {
#pragma unroll
    for (int n = 0; n < C::D / 16; n++) { // rows of V run along the columns: transposed on the way
      uint32_t y[4];
      ldmatrix_x4_trans(from_v + kk * 16 * C::ROW_BYTES + n * 32, y);
#pragma unroll
      for (int m = 0; m < C::M; m++) {
        mma_16816<typename C::T>(o[m] + 8 * n, p[m] + 4 * kk, y[0], y[1]);
        mma_16816<typename C::T>(o[m] + 8 * n + 4, p[m] + 4 * kk, y[2], y[3]);
      }
    }
  }
}

// Normalise, turn into rows in the warp's own rows of Q, write rows that exist.
template <class C>
static __device__ __forceinline__ void mma_write(const float (&o)[C::D / 2], const float (&sum)[2],
                                                 const flash_args &a, const flash_tile &tile,
                                                 uint8_t *rows, int row0) {
  using T = typename C::T;
  const int lane = threadIdx.x % 32;
  float inverse[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const float total = quad_sum(sum[h]);
    inverse[h] = total == 0.0f ? 0.0f : 1.0f / total;
  }
  __syncwarp();
#pragma unroll
  for (int n = 0; n < C::D / 8; n++)
#pragma unroll
    for (int h = 0; h < 2; h++)
      *(uint32_t *)(rows + (lane / 4 + 8 * h) * C::ROW_BYTES + (n * 8 + lane % 4 * 2) * 2) =
          pack_pair<T>(o[4 * n + 2 * h] * inverse[h], o[4 * n + 2 * h + 1] * inverse[h]);
  __syncwarp();
  constexpr int CHUNKS = C::D / 8;
#pragma unroll
  for (int i = lane; i < 16 * CHUNKS; i += 32) {
    const int r = i / CHUNKS, c = i % CHUNKS, row = row0 + r;
    if (row < tile.length)
      *(uint4 *)((T *)a.o + (int64_t)(tile.token0 + row) * a.o_stride + tile.head * C::D + c * 8) =
          *(const uint4 *)(rows + r * C::ROW_BYTES + c * 16);
  }
}

template <class C>
__global__ void __launch_bounds__(C::THREADS, 2) flash_mma(const __grid_constant__ mma_args args) {
  using T = typename C::T;
  extern __shared__ __align__(16) uint8_t shared[];
  const flash_args &a = args.a;
  const flash_tile tile = flash_order<C>(a).at((int)blockIdx.x);
  if (tile.head < 0) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row0 = tile.q0 + warp * 16 * C::M,
            blocks = tile.blocks<C>();
  const uint32_t q = smem_address(shared), k = q + C::ROWS * C::ROW_BYTES, v = k + 2 * C::KV_BYTES,
                 my_q = q + warp * 16 * C::M * C::ROW_BYTES;
  const int64_t kv_col = (int64_t)(tile.head / a.group) * C::D;
  auto load = [&](uint32_t to, const void *from, int64_t stride, int j) {
    load_rows<T, C::KEYS, C::THREADS>(to + j % 2 * C::KV_BYTES,
                                      (const T *)from +
                                          (tile.token0 + (int64_t)j * C::KEYS) * stride + kv_col,
                                      stride, tile.length - j * C::KEYS, C::D, C::D);
  };
  load_rows<T, C::ROWS, C::THREADS>(
      q, (const T *)args.q + (int64_t)(tile.token0 + tile.q0) * args.q_stride + tile.head * C::D,
      args.q_stride, tile.length - tile.q0, C::D, C::D);
  load(k, args.k, args.k_stride, 0);
  copy_commit();
  load(v, args.v, args.v_stride, 0);
  copy_commit();
  float o[C::M][C::D / 2] = {}, top[C::M][2], sum[C::M][2] = {};
#pragma unroll
  for (int m = 0; m < C::M; m++)
    top[m][0] = top[m][1] = -INFINITY;
  for (int j = 0; j < blocks; j++) {
    float s[C::M][C::KEYS / 2], scale[2];
    uint32_t p[C::M][C::KEYS / 4];
    copy_wait<1>(); // this K is there, its V may be on its way
    __syncthreads();
    if (j + 1 < blocks) load(k, args.k, args.k_stride, j + 1);
    copy_commit(); // also when empty: the count of groups stays the same
    mma_scores<C>(s, my_q, k + j % 2 * C::KV_BYTES);
    const int end = (j + 1) * C::KEYS;
#pragma unroll
    for (int m = 0; m < C::M; m++) {
      if (end > tile.length || (C::CAUSAL && end > row0 + m * 16 + 1))
        flash_mask<C>(s[m], j * C::KEYS, row0 + m * 16 + lane / 4, tile.length);
      flash_softmax(s[m], top[m], sum[m], scale, a.scale_log2);
      flash_pack<T>(s[m], p[m]);
#pragma unroll
      for (int i = 0; i < C::D / 2; i++)
        o[m][i] *= scale[i / 2 % 2];
    }
    copy_wait<1>();
    __syncthreads();
    if (j + 1 < blocks) load(v, args.v, args.v_stride, j + 1);
    copy_commit();
    mma_values<C>(o, p, v + j % 2 * C::KV_BYTES);
  }
#pragma unroll
  for (int m = 0; m < C::M; m++)
    mma_write<C>(o[m], sum[m], a, tile, shared + (warp * C::M + m) * 16 * C::ROW_BYTES,
                 row0 + m * 16);
}

#endif
