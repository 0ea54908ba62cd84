// Unfused attention's two products on the tensor cores (mma.sync, so from sm_80 on), 16-bit inputs:
// scores = q k^T, written in fp32, and o = p v, with p read in fp32 and rounded on its way in.
//
// Both are bound by the score matrix's bytes. Scores: a block takes 128 x 128 of one head, Q and K
// whole in shared memory (rows padded by 16 bytes, so that matrix loads meet no bank twice), eight
// warps of 32 x 64; the result passes through shared memory and leaves as whole lines, since rows
// of the score matrix begin at any multiple of four bytes. Context: a block takes 64 rows of one
// head, each warp 16 of them and every column; P goes straight into the warp's own registers and
// patch of shared memory, V comes in two stages by asynchronous copies. What lies behind a
// sequence's end is zero, not read.
#ifndef ATTENTION_PRODUCTS_MMA_CUH
#define ATTENTION_PRODUCTS_MMA_CUH

#include "kernels/attention/attention.h"
#include "kernels/attention/flash_common.cuh"
#include "kernels/attention/products_args.cuh"

// ---- scores ------------------------------------------------------------------------------------

#define SCORES_TILE 128
#define SCORES_THREADS 256
#define SCORES_PATCH (16 * 72 * 4) // of a warp: 16 rows of 64 floats, padded

struct scores_tiles { // how many tiles a sequence has
  __host__ __device__ int operator()(int length) const {
    const int n = (length + SCORES_TILE - 1) / SCORES_TILE;
    return n * n;
  }
};

// 32 x 64 of the tile, from (row0, col0) of it.
template <class T>
static __device__ __forceinline__ void scores_multiply(float (&d)[2][8][4], uint32_t q, uint32_t k,
                                                       int width) {
  const int lane = threadIdx.x % 32, row_bytes = width * 2 + 16;
  const uint32_t from_q = q + lane % 16 * row_bytes + lane / 16 * 16,
                 from_k = k + (lane / 16 * 8 + lane % 8) * row_bytes + lane / 8 % 2 * 16;
  for (int kk = 0; kk < width / 16; kk++) {
    uint32_t x[2][4], y[4];
    ldmatrix_x4(from_q + kk * 32, x[0]);
    ldmatrix_x4(from_q + kk * 32 + 16 * row_bytes, x[1]);
#pragma unroll
    for (int n = 0; n < 4; n++) {
      ldmatrix_x4(from_k + kk * 32 + n * 16 * row_bytes, y);
#pragma unroll
      for (int m = 0; m < 2; m++) {
        mma_16816<T>(d[m][2 * n], x[m], y[0], y[1]);
        mma_16816<T>(d[m][2 * n + 1], x[m], y[2], y[3]);
      }
    }
  }
}

// 16 rows of 64 through the warp's patch; `at` is the first row's first element.
static __device__ __forceinline__ void scores_write(const float (&d)[8][4], float *patch, float *at,
                                                    int length, int rows, int cols) {
  const int lane = threadIdx.x % 32;
  __syncwarp();
#pragma unroll
  for (int n = 0; n < 8; n++)
#pragma unroll
    for (int h = 0; h < 2; h++)
      *(float2 *)(patch + (lane / 4 + 8 * h) * 72 + n * 8 + lane % 4 * 2) =
          make_float2(d[n][2 * h], d[n][2 * h + 1]);
  __syncwarp();
#pragma unroll 4
  for (int r = 0; r < 16; r++) {
    if (r >= rows) return;
#pragma unroll
    for (int c = lane; c < 64; c += 32)
      if (c < cols) at[(int64_t)r * length + c] = patch[r * 72 + c];
  }
}

template <class T>
__global__ void __launch_bounds__(SCORES_THREADS, 2)
    scores_mma_kernel(const __grid_constant__ products_args a) {
  extern __shared__ __align__(16) uint8_t shared[];
  seq_walk<scores_tiles> walk(a.cu_seqlens, a.n_seqs, {});
  seq_tile tile;
  if (!walk.find((int)blockIdx.x, &tile)) return;
  const int across = (tile.length + SCORES_TILE - 1) / SCORES_TILE,
            i0 = tile.index / across * SCORES_TILE, j0 = tile.index % across * SCORES_TILE,
            head = blockIdx.y, width = (a.dim + 15) / 16 * 16, row_bytes = width * 2 + 16;
  const uint32_t q = smem_address(shared), k = q + SCORES_TILE * row_bytes;
  load_rows<T, SCORES_TILE, SCORES_THREADS>(
      q, (const T *)a.in[0] + (tile.start + i0) * a.stride[0] + (int64_t)head * a.dim, a.stride[0],
      tile.length - i0, a.dim, width);
  load_rows<T, SCORES_TILE, SCORES_THREADS>(
      k, (const T *)a.in[1] + (tile.start + j0) * a.stride[1] + (int64_t)(head / a.group) * a.dim,
      a.stride[1], tile.length - j0, a.dim, width);
  copy_commit();
  copy_wait<0>();
  __syncthreads();
  const int warp = threadIdx.x / 32, row0 = warp % 4 * 32, col0 = warp / 4 * 64;
  const bool live = i0 + row0 < tile.length && j0 + col0 < tile.length;
  float d[2][8][4] = {};
  if (live) scores_multiply<T>(d, q + row0 * row_bytes, k + col0 * row_bytes, width);
  __syncthreads(); // the patches lie over Q and K
  if (!live) return;
#pragma unroll
  for (int m = 0; m < 2; m++) {
    const int row = i0 + row0 + 16 * m, col = j0 + col0;
    scores_write(d[m], (float *)(shared + warp * SCORES_PATCH),
                 head_scores(a, tile, head) + (int64_t)row * tile.length + col, tile.length,
                 tile.length - row, tile.length - col);
  }
}

// ---- context -----------------------------------------------------------------------------------

#define CONTEXT_ROWS 64
#define CONTEXT_KEYS 64
#define CONTEXT_THREADS 128
#define CONTEXT_PATCH (16 * (CONTEXT_KEYS * 2 + 16)) // of a warp: its 16 rows of P, 16-bit, padded

struct context_tiles {
  __host__ __device__ int operator()(int length) const {
    return (length + CONTEXT_ROWS - 1) / CONTEXT_ROWS;
  }
};

// A warp's 16 rows of P at columns `key` and on: lane l gets columns l and l + 32.
static __device__ __forceinline__ void context_read(float (&p)[16][2], const float *rows,
                                                    int length, int n_rows, int key) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < 16; r++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int col = key + lane + 32 * h;
      p[r][h] = r < n_rows && col < length ? rows[(int64_t)r * length + col] : 0.0f;
    }
}

template <class T>
static __device__ __forceinline__ void context_stage(const float (&p)[16][2], uint8_t *patch) {
  const int lane = threadIdx.x % 32;
  __syncwarp();
#pragma unroll
  for (int r = 0; r < 16; r++)
#pragma unroll
    for (int h = 0; h < 2; h++)
      ((T *)(patch + r * (CONTEXT_KEYS * 2 + 16)))[lane + 32 * h] = (T)p[r][h];
  __syncwarp();
}

template <class T, int D>
static __device__ __forceinline__ void context_multiply(float (&o)[D / 8][4], uint32_t patch,
                                                        uint32_t v) {
  const int lane = threadIdx.x % 32;
  constexpr int ROW = D * 2 + 16;
#pragma unroll
  for (int kk = 0; kk < CONTEXT_KEYS / 16; kk++) {
    uint32_t x[4], y[4];
    ldmatrix_x4(patch + lane % 16 * (CONTEXT_KEYS * 2 + 16) + lane / 16 * 16 + kk * 32, x);
#pragma unroll
    for (int n = 0; n < D / 16; n++) { // rows of V run along the columns: transposed on the way
      ldmatrix_x4_trans(v + (kk * 16 + lane % 16) * ROW + (n * 16 + lane / 16 * 8) * 2, y);
      mma_16816<T>(o[2 * n], x, y[0], y[1]);
      mma_16816<T>(o[2 * n + 1], x, y[2], y[3]);
    }
  }
}

// D: the head size, or the next that there is a kernel for.
template <class T, int D>
__global__ void __launch_bounds__(CONTEXT_THREADS)
    context_mma_kernel(const __grid_constant__ products_args a) {
  extern __shared__ __align__(16) uint8_t shared[];
  constexpr int STAGE = CONTEXT_KEYS * (D * 2 + 16);
  seq_walk<context_tiles> walk(a.cu_seqlens, a.n_seqs, {});
  seq_tile tile;
  if (!walk.find((int)blockIdx.x, &tile)) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.y,
            row0 = tile.index * CONTEXT_ROWS + warp * 16;
  const uint32_t v = smem_address(shared);
  uint8_t *patch = shared + 2 * STAGE + warp * CONTEXT_PATCH;
  const T *from = (const T *)a.in[0] + tile.start * a.stride[0] + (int64_t)(head / a.group) * a.dim;
  const float *rows = head_scores(a, tile, head) + (int64_t)row0 * tile.length;
  float o[D / 8][4] = {}, p[16][2];
  auto load = [&](int key) {
    load_rows<T, CONTEXT_KEYS, CONTEXT_THREADS>(v + key / CONTEXT_KEYS % 2 * STAGE,
                                                from + key * a.stride[0], a.stride[0],
                                                tile.length - key, a.dim, D);
    copy_commit();
  };
  load(0);
  context_read(p, rows, tile.length, tile.length - row0, 0);
  for (int key = 0; key < tile.length; key += CONTEXT_KEYS) {
    context_stage<T>(p, patch);
    if (key + CONTEXT_KEYS < tile.length) {
      load(key + CONTEXT_KEYS);
      context_read(p, rows, tile.length, tile.length - row0, key + CONTEXT_KEYS);
      copy_wait<1>();
    } else {
      copy_wait<0>();
    }
    __syncthreads();
    if (row0 < tile.length)
      context_multiply<T, D>(o, smem_address(patch), v + key / CONTEXT_KEYS % 2 * STAGE);
    __syncthreads();
  }
#pragma unroll
  for (int n = 0; n < D / 8; n++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int row = row0 + lane / 4 + 8 * h, col = n * 8 + lane % 4 * 2;
      if (row < tile.length && col < a.dim)
        *(uint32_t *)((T *)a.out + (tile.start + row) * a.out_stride + (int64_t)head * a.dim +
                      col) = pack_pair<T>(o[n][2 * h], o[n][2 * h + 1]);
    }
}

#endif
