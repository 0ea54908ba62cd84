// Unfused attention between its two products: scale and mask, softmax. In place, fp32, bound by
// memory.
//
// Rows of the score matrix are as long as their sequence, so they begin at any multiple of four
// bytes: a warp reads one in words, 128 bytes an access. A row of up to 1024 scores is a warp's, in
// registers; longer ones are a block's, up to 8192 in registers, beyond that read twice. Which of
// these a row gets depends on its own length only, so its bits do not depend on its batch.
#include "kernels/attention/attention.h"
#include "kernels/attention/seq_walk.cuh"
#include "kernels/common/act.cuh"

#include <math.h>

#define WARPS 8
#define WARP_MAX 1024   // scores of a row that one warp holds
#define BLOCK_FLOATS 32 // of a long row, in a thread's registers
#define BLOCK_MAX (WARPS * 32 * BLOCK_FLOATS)

struct rows_args {
  float *scores;
  const int32_t *cu_seqlens;
  const int64_t *scores_offset;
  int32_t n_seqs, heads;
  float scale;
};
struct score_row {
  float *at;
  int length, query;
};

// Row `row` of all heads * tokens; false beyond the last. Warp-collective.
static __device__ __forceinline__ bool row_locate(const rows_args &a, int64_t row, score_row *out) {
  const int64_t token = row / a.heads;
  if (token >= a.cu_seqlens[a.n_seqs]) return false;
  const int seq = seq_of_token(a.cu_seqlens, a.n_seqs, (int)token), start = a.cu_seqlens[seq];
  out->length = a.cu_seqlens[seq + 1] - start;
  const int64_t local = row - (int64_t)a.heads * start; // head * length + query
  out->query = (int)(local % out->length);
  out->at = a.scores + a.heads * a.scores_offset[seq] + local * out->length;
  return true;
}

// ---- scale, mask -------------------------------------------------------------------------------

#define SCALE_DEPTH 4
template <int V>
__global__ void __launch_bounds__(256) scores_scale_kernel(const __grid_constant__ rows_args a) {
  const int64_t total = a.heads * a.scores_offset[a.n_seqs], vectors = total / V,
                first = (int64_t)blockIdx.x * 256 * SCALE_DEPTH + threadIdx.x;
  if constexpr (V == 4) {
    float4 x[SCALE_DEPTH];
    for (int i = 0; i < SCALE_DEPTH; i++)
      if (first + i * 256 < vectors) x[i] = ((const float4 *)a.scores)[first + i * 256];
    for (int i = 0; i < SCALE_DEPTH; i++) {
      x[i].x *= a.scale, x[i].y *= a.scale, x[i].z *= a.scale, x[i].w *= a.scale;
      if (first + i * 256 < vectors) ((float4 *)a.scores)[first + i * 256] = x[i];
    }
    if (first < total - vectors * V) a.scores[vectors * V + first] *= a.scale;
  } else {
    for (int i = 0; i < SCALE_DEPTH; i++)
      if (first + i * 256 < total) a.scores[first + i * 256] *= a.scale;
  }
}

__global__ void __launch_bounds__(WARPS * 32)
    scores_causal_kernel(const __grid_constant__ rows_args a) {
  const int lane = threadIdx.x % 32;
  score_row row;
  if (!row_locate(a, (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, &row)) return;
  for (int j0 = lane; j0 < row.length; j0 += 4 * 32) {
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
      x[i] = j0 + i * 32 <= row.query ? row.at[j0 + i * 32] * a.scale : -INFINITY;
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (j0 + i * 32 < row.length) row.at[j0 + i * 32] = x[i];
  }
}

// ---- softmax -----------------------------------------------------------------------------------

struct take_max {
  static __device__ __forceinline__ float apply(float x, float y) {
    return fw_max(x, y);
  }
};
struct take_sum {
  static __device__ __forceinline__ float apply(float x, float y) {
    return x + y;
  }
};
template <class OP> static __device__ __forceinline__ float warp_reduce(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    x = OP::apply(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}
template <class OP> static __device__ float block_reduce(float x, float *shared) {
  x = warp_reduce<OP>(x);
  __syncthreads(); // the last reduction's values have been read
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = shared[0];
  for (int i = 1; i < WARPS; i++)
    x = OP::apply(x, shared[i]);
  return x;
}

// N floats of a row, every THREADS-th, as probabilities. A row of -inf gives zeros.
template <int N, int THREADS>
static __device__ __forceinline__ void softmax_resident(const score_row &row, int lane,
                                                        float *shared) {
  float x[N], top = -INFINITY, sum = 0.0f;
#pragma unroll
  for (int i = 0; i < N; i++)
    x[i] = lane + i * THREADS < row.length ? row.at[lane + i * THREADS] : -INFINITY;
#pragma unroll
  for (int i = 0; i < N; i++)
    top = fw_max(top, x[i]);
  top = THREADS == 32 ? warp_reduce<take_max>(top) : block_reduce<take_max>(top, shared);
  const float base = top == -INFINITY ? 0.0f : top;
#pragma unroll
  for (int i = 0; i < N; i++) {
    if (i * THREADS >= row.length) break; // the same for all threads
    x[i] = expf(x[i] - base);
    sum += x[i];
  }
  sum = THREADS == 32 ? warp_reduce<take_sum>(sum) : block_reduce<take_sum>(sum, shared);
  const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
  for (int i = 0; i < N; i++)
    if (lane + i * THREADS < row.length) row.at[lane + i * THREADS] = x[i] * factor;
}

static __device__ __forceinline__ void softmax_streamed(const score_row &row, float *shared) {
  float top = -INFINITY, sum = 0.0f;
  for (int j = threadIdx.x; j < row.length; j += WARPS * 32)
    top = fw_max(top, row.at[j]);
  top = block_reduce<take_max>(top, shared);
  const float base = top == -INFINITY ? 0.0f : top;
  for (int j = threadIdx.x; j < row.length; j += WARPS * 32)
    sum += expf(row.at[j] - base);
  sum = block_reduce<take_sum>(sum, shared);
  const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
  for (int j = threadIdx.x; j < row.length; j += WARPS * 32)
    row.at[j] = expf(row.at[j] - base) * factor;
}

// A warp a row; N covers the longest short row there may be.
template <int N>
__global__ void __launch_bounds__(WARPS * 32)
    scores_softmax_short(const __grid_constant__ rows_args a) {
  score_row row;
  if (!row_locate(a, (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, &row)) return;
  if (row.length <= WARP_MAX) softmax_resident<N, 32>(row, threadIdx.x % 32, nullptr);
}

// A block takes its WARPS rows one after another, the short ones left out.
__global__ void __launch_bounds__(WARPS * 32)
    scores_softmax_long(const __grid_constant__ rows_args a) {
  __shared__ float shared[WARPS];
  for (int i = 0; i < WARPS; i++) {
    score_row row;
    if (!row_locate(a, (int64_t)blockIdx.x * WARPS + i, &row)) return;
    if (row.length <= WARP_MAX) continue;
    if (row.length <= BLOCK_MAX)
      softmax_resident<BLOCK_FLOATS, WARPS * 32>(row, threadIdx.x, shared);
    else
      softmax_streamed(row, shared);
  }
}

// ---- launchers ---------------------------------------------------------------------------------

static bool rows_args_make(const struct attention_problem *p, float *scores,
                           const struct batch_geometry *g, rows_args *a, unsigned *blocks) {
  const int64_t rows = (int64_t)p->heads * g->n_tokens, n = (rows + WARPS - 1) / WARPS;
  if (p->heads < 1 || n > INT32_MAX) return false;
  *a = {scores, g->cu_seqlens, g->scores_offset, g->n_seqs, p->heads, p->scale};
  *blocks = (unsigned)n;
  return true;
}

int attention_scores_scale(const struct attention_problem *p, float *scores,
                           const struct batch_geometry *g, struct CUstream_st *stream) {
  rows_args a;
  unsigned blocks;
  if (g->n_tokens == 0 || g->n_seqs == 0) return 0;
  if (!rows_args_make(p, scores, g, &a, &blocks)) return CUDA_UNSUPPORTED;
  if (p->causal) {
    scores_causal_kernel<<<blocks, WARPS * 32, 0, stream>>>(a);
    return cudaGetLastError();
  }
  const bool aligned = (uintptr_t)scores % 16 == 0;
  const int64_t per_block = 256 * SCALE_DEPTH * (aligned ? 4 : 1);
  const int64_t n = (g->sum_sq * p->heads + per_block - 1) / per_block;
  if (n < 1 || n > INT32_MAX) return CUDA_UNSUPPORTED;
  if (aligned)
    scores_scale_kernel<4><<<(unsigned)n, 256, 0, stream>>>(a);
  else
    scores_scale_kernel<1><<<(unsigned)n, 256, 0, stream>>>(a);
  return cudaGetLastError();
}

int attention_scores_softmax(const struct attention_problem *p, float *scores,
                             const struct batch_geometry *g, struct CUstream_st *stream) {
  rows_args a;
  unsigned blocks;
  if (g->n_tokens == 0 || g->n_seqs == 0) return 0;
  if (!rows_args_make(p, scores, g, &a, &blocks)) return CUDA_UNSUPPORTED;
  if (g->max_seqlen <= 128)
    scores_softmax_short<4><<<blocks, WARPS * 32, 0, stream>>>(a);
  else if (g->max_seqlen <= 256)
    scores_softmax_short<8><<<blocks, WARPS * 32, 0, stream>>>(a);
  else if (g->max_seqlen <= 512)
    scores_softmax_short<16><<<blocks, WARPS * 32, 0, stream>>>(a);
  else
    scores_softmax_short<WARP_MAX / 32><<<blocks, WARPS * 32, 0, stream>>>(a);
  cudaError_t rc = cudaGetLastError();
  if (rc != cudaSuccess || g->max_seqlen <= WARP_MAX) return rc;
  scores_softmax_long<<<blocks, WARPS * 32, 0, stream>>>(a);
  return cudaGetLastError();
}
