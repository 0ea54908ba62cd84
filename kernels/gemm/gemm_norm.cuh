// The arithmetic of a norm of a row by chunks of its columns, and the kernel that does it on rows
// in memory. gemm_norm_sm90.cuh does the same on a product's accumulators; both give a row the same
// bits, so that either may compute it.
//
// A row has up to 8 chunks of CHUNK columns. Four threads share one: thread t has columns 8t .. 8t
// + 7 of each 32. Each sums its even and its odd columns in order, then these, the four threads and
// the chunks are added in pairs, whoever computes. Values are those of the 16-bit type: what a
// product leaves in memory.
//
// Of a chunk: the sum of its columns over 1024 (no sum of finite values overflows, and a sum of
// values of one size is exact), its mean, and the sum of squared deviations from that. Of the row:
// the mean in two parts, so that what it is off by does not show in rows that are all but equal,
// and
//
//   variance = (squares of all chunks + CHUNK x sum (mean of chunk - mean)^2) / columns
//
// RMSNorm is the same with means that are 0.
#ifndef GEMM_GEMM_NORM_CUH
#define GEMM_GEMM_NORM_CUH

#include "kernels/gemm/epilogue.cuh"
#include "kernels/ptx/sm90.cuh"

#define NORM_CHUNKS_MAX 8

// Sum over the four threads that share a chunk of a row; all of the warp take part.
static __device__ __forceinline__ float norm_quad_sum(float x) {
  x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

// The same over chunks, all of them at hand.
static __device__ __forceinline__ float norm_chunk_sum(const float (&v)[NORM_CHUNKS_MAX]) {
  return __fadd_rn(__fadd_rn(__fadd_rn(v[0], v[1]), __fadd_rn(v[2], v[3])),
                   __fadd_rn(__fadd_rn(v[4], v[5]), __fadd_rn(v[6], v[7])));
}

static __device__ __forceinline__ void norm_add_pair(float2 v, float (&sum)[2]) {
  sum[0] = fmaf(v.x, 0x1p-10f, sum[0]);
  sum[1] = fmaf(v.y, 0x1p-10f, sum[1]);
}

// x / by, rounded right (but for infinities, which become NaN). `inverse`: 1 / by.
static __device__ __forceinline__ float norm_divide(float x, float by, float inverse) {
  const float q = __fmul_rn(x, inverse);
  return fmaf(fmaf(-by, q, x), inverse, q);
}

// Of a chunk whose columns over 1024 sum up to `sum`. Exact where all columns are equal.
template <int CHUNK> static __device__ __forceinline__ float norm_chunk_mean(float sum) {
  return norm_divide(sum, CHUNK / 1024.0f, 1024.0f / CHUNK);
}

struct norm_of_row {
  float mean, rest; // the mean is their sum
  float scale;      // 1 / sqrt(variance + eps)
};

// `sum`: of all columns over 1024. `inverse`: 1 / columns.
static __device__ __forceinline__ void norm_set_mean(norm_of_row &row, float sum, int columns,
                                                     float inverse) {
  const float n = columns * 0x1p-10f;
  row.mean = norm_divide(sum, n, inverse * 1024.0f);
  row.rest = __fmul_rn(fmaf(-n, row.mean, sum), inverse * 1024.0f);
}

static __device__ __forceinline__ float norm_off(float chunk_mean, const norm_of_row &row) {
  return __fsub_rn(__fsub_rn(chunk_mean, row.mean), row.rest);
}

// `squares`: of all chunks; `apart`: sum of the squares of norm_off.
static __device__ __forceinline__ void norm_set_scale(norm_of_row &row, float squares, float apart,
                                                      int chunk, float inverse, float eps) {
  const float variance = __fmul_rn(fmaf(apart, (float)chunk, squares), inverse);
  row.scale = rsqrtf(__fadd_rn(variance, eps));
}

static __device__ __forceinline__ float norm_value(float off, float scale, float shift, float gamma,
                                                   float beta) {
  return fmaf(fmaf(off, scale, shift), gamma, beta);
}

struct norm_rows_args {
  int64_t m;
  int32_t chunks, threads_log2;    // threads of a row: 4 a chunk, up to a power of two
  float eps, inverse;              // inverse: 1 / columns
  bool rms, gamma_wide, beta_wide; // wide: fp32
  const void *x, *gamma, *beta;    // gamma, beta NULL: none
  void *y;                         // may be x
  int64_t x_stride, y_stride;
};

// 8 columns of a weight.
template <class T>
static __device__ __forceinline__ void norm_load_8(float (&v)[8], const void *p, bool wide, int col,
                                                   float none) {
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    float2 pair = make_float2(none, none);
    if (p) pair = wide ? load_pair<float>(p, col + i) : load_pair<T>(p, col + i);
    v[i] = pair.x, v[i + 1] = pair.y;
  }
}

template <class T, int CHUNK>
__global__ void __launch_bounds__(128) gemm_norm_rows(const __grid_constant__ norm_rows_args a) {
  constexpr int BLOCKS = CHUNK / 32;
  const int threads = 1 << a.threads_log2, at = threadIdx.x & (threads - 1), chunk = at / 4;
  const int64_t row =
      (int64_t)blockIdx.x * (128 >> a.threads_log2) + (threadIdx.x >> a.threads_log2);
  const bool live = row < a.m && chunk < a.chunks;
  const int col = chunk * CHUNK + at % 4 * 8;
  uint4 in[BLOCKS];
  float gamma[BLOCKS][8], beta[BLOCKS][8], v[BLOCKS][8];
#pragma unroll
  for (int i = 0; i < BLOCKS; i++) {
    norm_load_8<T>(gamma[i], live ? a.gamma : nullptr, a.gamma_wide, col + i * 32, 1.0f);
    norm_load_8<T>(beta[i], live ? a.beta : nullptr, a.beta_wide, col + i * 32, 0.0f);
  }
#pragma unroll
  for (int i = 0; i < BLOCKS; i++) {
    in[i] = make_uint4(0, 0, 0, 0);
    if (live) in[i] = *(const uint4 *)((const T *)a.x + row * a.x_stride + col + i * 32);
  }
  // Over the chunks of a row, which lie 4 lanes apart; other rows' lanes stay out of it.
  const auto row_sum = [&](float x) {
#pragma unroll
    for (int apart = 4; apart < 32; apart *= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, x, apart);
      if (apart < threads) x = __fadd_rn(x, other);
    }
    return x;
  };
  float parts[2] = {0.0f, 0.0f}, squares[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < BLOCKS; i++) {
    const uint32_t words[4] = {in[i].x, in[i].y, in[i].z, in[i].w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const float2 pair = unpack_pair<T>(words[j]);
      v[i][2 * j] = pair.x, v[i][2 * j + 1] = pair.y;
      norm_add_pair(pair, parts);
    }
  }
  float sum = norm_quad_sum(__fadd_rn(parts[0], parts[1]));
  if (a.rms) sum = 0.0f;
  const float mean = norm_chunk_mean<CHUNK>(sum);
  norm_of_row of;
  norm_set_mean(of, row_sum(sum), a.chunks * CHUNK, a.inverse);
#pragma unroll
  for (int i = 0; i < BLOCKS; i++) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
      v[i][j] = __fsub_rn(v[i][j], mean);
      squares[j % 2] = fmaf(v[i][j], v[i][j], squares[j % 2]);
    }
  }
  const float off = norm_off(mean, of);
  norm_set_scale(of, row_sum(norm_quad_sum(__fadd_rn(squares[0], squares[1]))),
                 row_sum(chunk < a.chunks ? __fmul_rn(off, off) : 0.0f), CHUNK, a.inverse, a.eps);
  const float shift = __fmul_rn(off, of.scale);
  if (!live) return;
#pragma unroll
  for (int i = 0; i < BLOCKS; i++) {
    uint32_t out[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
      out[j] = pack_pair<T>(
          norm_value(v[i][2 * j], of.scale, shift, gamma[i][2 * j], beta[i][2 * j]),
          norm_value(v[i][2 * j + 1], of.scale, shift, gamma[i][2 * j + 1], beta[i][2 * j + 1]));
    *(uint4 *)((T *)a.y + row * a.y_stride + col + i * 32) =
        make_uint4(out[0], out[1], out[2], out[3]);
  }
}

#endif
