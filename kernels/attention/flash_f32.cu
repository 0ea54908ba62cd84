// Attention forward in fp32 on the CUDA cores, without the score matrix in memory. Order of tiles
// and masking as in flash_common.cuh; online softmax in fp32.
//
// A block takes 64 queries of one head, or 32 where those would leave multiprocessors idle, 128
// threads; a thread holds 8 (4) queries by KEYS / 16 keys of S, and by D / 16 columns of O. A row's
// bits are the same either way. Q and K lie transposed in shared memory, P too (its blocks of four
// rows under an exclusive-or of the key, so that neither its writes nor its reads meet a bank
// twice). Head sizes up to 128, rounded up to the next D with zeros; any alignment. At most 94 KiB
// of shared memory, so that every card from sm_80 on runs it. Bound by the fp32 rate.
#include "kernels/attention/attention.h"
#include "kernels/attention/flash_common.cuh"

#define THREADS 128

struct f32_args {
  flash_args a;
  const float *q, *k, *v;
  int64_t q_stride, k_stride, v_stride;
  int32_t dim;
};

// MINE: query rows of a thread.
template <int D_, int KEYS_, int MINE_, bool CAUSAL_> struct f32_config {
  static constexpr int D = D_, KEYS = KEYS_, MINE = MINE_, ROWS = THREADS / 16 * MINE,
                       NK = KEYS / 16;
  static constexpr bool CAUSAL = CAUSAL_, PAIRS = false;
  static constexpr int W = D % 64 == 0 ? 4 : 2, CHUNKS = D / (16 * W); // columns of a thread
  static constexpr int Q_AT = 0, K_AT = D * (ROWS + 4), V_AT = K_AT + D * (KEYS + 4),
                       P_AT = V_AT + KEYS * (D + 4), FLOATS = P_AT + KEYS * ROWS;
};

// ROWS rows of `dim` columns as [D][ROWS + 4]: a warp takes 4 rows by 8 columns at a time, whole
// sectors on one side and 32 banks on the other. What is not there is zero.
template <int D, int ROWS>
static __device__ __forceinline__ void load_transposed(float *to, const float *from, int64_t stride,
                                                       int valid, int dim) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 4
  for (int i = warp; i < ROWS / 4 * (D / 8); i += THREADS / 32) {
    const int r = i / (D / 8) * 4 + lane / 8, c = i % (D / 8) * 8 + lane % 8;
    to[c * (ROWS + 4) + r] = r < valid && c < dim ? from[r * stride + c] : 0.0f;
  }
}
template <int D, int ROWS>
static __device__ __forceinline__ void load_straight(float *to, const float *from, int64_t stride,
                                                     int valid, int dim) {
#pragma unroll 4
  for (int i = threadIdx.x; i < ROWS * D; i += THREADS) {
    const int r = i / D, c = i % D;
    to[r * (D + 4) + c] = r < valid && c < dim ? from[r * stride + c] : 0.0f;
  }
}

template <int N> static __device__ __forceinline__ void read_floats(float *x, const float *from) {
  if constexpr (N == 4)
    *(float4 *)x = *(const float4 *)from;
  else
    *(float2 *)x = *(const float2 *)from;
}

template <class C>
static __device__ __forceinline__ void f32_scores(float (&s)[C::MINE][C::NK], const float *q,
                                                  const float *k) {
  const int row = threadIdx.x / 16 * C::MINE, key = threadIdx.x % 16 * C::NK;
#pragma unroll
  for (int i = 0; i < C::MINE; i++)
#pragma unroll
    for (int j = 0; j < C::NK; j++)
      s[i][j] = 0.0f;
#pragma unroll 4
  for (int d = 0; d < C::D; d++) {
    float x[C::MINE], y[C::NK];
#pragma unroll
    for (int i = 0; i < C::MINE; i += 4)
      read_floats<4>(x + i, q + d * (C::ROWS + 4) + row + i);
    read_floats<C::NK>(y, k + d * (C::KEYS + 4) + key);
#pragma unroll
    for (int i = 0; i < C::MINE; i++)
#pragma unroll
      for (int j = 0; j < C::NK; j++)
        s[i][j] = fmaf(x[i], y[j], s[i][j]);
  }
}

// Where four rows of P, block `block` of ROWS / 4, lie at `key`.
template <class C> static __device__ __forceinline__ int p_at(int key, int block) {
  return key * C::ROWS + (block ^ (key / C::NK & 7)) * 4;
}

template <class C>
static __device__ __forceinline__ void f32_values(float (&o)[C::MINE][C::CHUNKS * C::W],
                                                  const float *p, const float *v) {
  const int block = threadIdx.x / 16 * (C::MINE / 4), col = threadIdx.x % 16 * C::W;
#pragma unroll 4
  for (int key = 0; key < C::KEYS; key++) {
    float x[C::MINE], y[C::CHUNKS * C::W];
#pragma unroll
    for (int i = 0; i < C::MINE; i += 4)
      read_floats<4>(x + i, p + p_at<C>(key, block + i / 4));
#pragma unroll
    for (int c = 0; c < C::CHUNKS; c++)
      read_floats<C::W>(y + c * C::W, v + key * (C::D + 4) + col + c * 16 * C::W);
#pragma unroll
    for (int i = 0; i < C::MINE; i++)
#pragma unroll
      for (int j = 0; j < C::CHUNKS * C::W; j++)
        o[i][j] = fmaf(x[i], y[j], o[i][j]);
  }
}

// Over the 16 threads that share rows.
static __device__ __forceinline__ float rows_max(float x) {
#pragma unroll
  for (int step = 1; step < 16; step *= 2)
    x = fw_max(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

// Probabilities relative to the new maximum into `p`; O and the sums so far are brought to it.
template <class C>
static __device__ __forceinline__ void
f32_softmax(float (&s)[C::MINE][C::NK], float (&o)[C::MINE][C::CHUNKS * C::W],
            float (&top)[C::MINE], float (&sum)[C::MINE], float *p, float c) {
#pragma unroll
  for (int i = 0; i < C::MINE; i++) {
    float m = top[i], total = 0.0f;
#pragma unroll
    for (int j = 0; j < C::NK; j++)
      m = fw_max(m, s[i][j]);
    m = rows_max(m);
    const float base = m == -INFINITY ? 0.0f : m * c, scale = fw_ex2(fmaf(top[i], c, -base));
    top[i] = m;
#pragma unroll
    for (int j = 0; j < C::NK; j++) {
      s[i][j] = fw_ex2(fmaf(s[i][j], c, -base));
      total += s[i][j];
    }
    sum[i] = fmaf(sum[i], scale, total);
#pragma unroll
    for (int j = 0; j < C::CHUNKS * C::W; j++)
      o[i][j] *= scale;
  }
  const int block = threadIdx.x / 16 * (C::MINE / 4), key = threadIdx.x % 16 * C::NK;
#pragma unroll
  for (int j = 0; j < C::NK; j++)
#pragma unroll
    for (int b = 0; b < C::MINE / 4; b++)
      *(float4 *)(p + p_at<C>(key + j, block + b)) =
          make_float4(s[4 * b][j], s[4 * b + 1][j], s[4 * b + 2][j], s[4 * b + 3][j]);
}

template <class C>
__global__ void __launch_bounds__(THREADS, 2)
    flash_f32_kernel(const __grid_constant__ f32_args args) {
  extern __shared__ __align__(16) float shared[];
  const flash_args &a = args.a;
  const flash_tile tile = flash_order<C>(a).at((int)blockIdx.x);
  if (tile.head < 0) return;
  // A row passes over the same keys whatever block it is in: those that only its neighbours of 64
  // see change its bits, too, if not its value.
  const int until = (tile.q0 / 64 + 1) * 64,
            last = C::CAUSAL && until < tile.length ? until : tile.length;
  const int row0 = tile.q0 + threadIdx.x / 16 * C::MINE, blocks = (last + C::KEYS - 1) / C::KEYS;
  const int64_t kv_col = (int64_t)(tile.head / a.group) * args.dim;
  float o[C::MINE][C::CHUNKS * C::W] = {}, top[C::MINE], sum[C::MINE] = {};
#pragma unroll
  for (int i = 0; i < C::MINE; i++)
    top[i] = -INFINITY;
  load_transposed<C::D, C::ROWS>(shared + C::Q_AT,
                                 args.q + (int64_t)(tile.token0 + tile.q0) * args.q_stride +
                                     (int64_t)tile.head * args.dim,
                                 args.q_stride, tile.length - tile.q0, args.dim);
  for (int j = 0; j < blocks; j++) {
    const int first = j * C::KEYS, valid = tile.length - first;
    const int64_t token = tile.token0 + first;
    float s[C::MINE][C::NK];
    __syncthreads(); // the last block's K, V and P have been read
    load_transposed<C::D, C::KEYS>(shared + C::K_AT, args.k + token * args.k_stride + kv_col,
                                   args.k_stride, valid, args.dim);
    load_straight<C::D, C::KEYS>(shared + C::V_AT, args.v + token * args.v_stride + kv_col,
                                 args.v_stride, valid, args.dim);
    __syncthreads();
    f32_scores<C>(s, shared + C::Q_AT, shared + C::K_AT);
    if (valid < C::KEYS || (C::CAUSAL && first + C::KEYS > tile.q0 + 1)) {
#pragma unroll
      for (int i = 0; i < C::MINE; i++)
#pragma unroll
        for (int n = 0; n < C::NK; n++) {
          const int key = first + threadIdx.x % 16 * C::NK + n;
          if (key >= tile.length || (C::CAUSAL && key > row0 + i)) s[i][n] = -INFINITY;
        }
    }
    f32_softmax<C>(s, o, top, sum, shared + C::P_AT, a.scale_log2);
    __syncthreads();
    f32_values<C>(o, shared + C::P_AT, shared + C::V_AT);
  }
#pragma unroll
  for (int i = 0; i < C::MINE; i++) {
    float total = sum[i];
#pragma unroll
    for (int step = 1; step < 16; step *= 2)
      total += __shfl_xor_sync(0xffffffffu, total, step);
    const float inverse = total == 0.0f ? 0.0f : 1.0f / total;
    if (row0 + i >= tile.length) continue;
    float *to = (float *)a.o + (int64_t)(tile.token0 + row0 + i) * a.o_stride +
                (int64_t)tile.head * args.dim;
#pragma unroll
    for (int j = 0; j < C::CHUNKS * C::W; j++) {
      const int col = threadIdx.x % 16 * C::W + j / C::W * 16 * C::W + j % C::W;
      if (col < args.dim) to[col] = o[i][j] * inverse;
    }
  }
}

template <class C>
static int f32_launch(const f32_args *args, const struct batch_geometry *g, cudaStream_t stream) {
  const int bytes = C::FLOATS * (int)sizeof(float);
  const int64_t tiles = row_tile_bound(g, C::ROWS) * args->a.heads;
  if (tiles > INT32_MAX) return CUDA_UNSUPPORTED;
  cudaError_t rc =
      cudaFuncSetAttribute(flash_f32_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (rc != cudaSuccess) return rc;
  flash_f32_kernel<C><<<(unsigned)tiles, THREADS, bytes, stream>>>(*args);
  return cudaGetLastError();
}

template <int D, int KEYS, int MINE>
static int f32_run(const f32_args *args, bool causal, const struct batch_geometry *g,
                   cudaStream_t stream) {
  if (causal) return f32_launch<f32_config<D, KEYS, MINE, true>>(args, g, stream);
  return f32_launch<f32_config<D, KEYS, MINE, false>>(args, g, stream);
}

template <int MINE>
static int f32_run_dim(const f32_args *args, bool causal, const struct batch_geometry *g,
                       cudaStream_t stream) {
  if (args->dim <= 32) return f32_run<32, 64, MINE>(args, causal, g, stream);
  if (args->dim <= 64) return f32_run<64, 64, MINE>(args, causal, g, stream);
  if (args->dim <= 96) return f32_run<96, 64, MINE>(args, causal, g, stream);
  return f32_run<128, 32, MINE>(args, causal, g, stream);
}

int flash_f32(const struct attention_problem *p, const struct view *in, const struct view *out,
              const struct batch_geometry *g, int rows, struct CUstream_st *stream) {
  f32_args args = {};
  flash_args *a = &args.a;
  if (p->dtype != DTYPE_F32 || p->head_dim < 1 || p->head_dim > 128 || !(p->scale > 0.0f))
    return CUDA_UNSUPPORTED;
  args.q = (const float *)in[0].data, args.q_stride = in[0].stride;
  args.k = (const float *)in[1].data, args.k_stride = in[1].stride;
  args.v = (const float *)in[2].data, args.v_stride = in[2].stride;
  args.dim = p->head_dim;
  a->o = out->data, a->o_stride = out->stride, a->cu_seqlens = g->cu_seqlens;
  a->n_seqs = g->n_seqs, a->heads = p->heads, a->group = p->heads / p->kv_heads;
  a->scale_log2 = p->scale * FW_LOG2E;
  return rows == 32 ? f32_run_dim<4>(&args, p->causal, g, stream)
                    : f32_run_dim<8>(&args, p->causal, g, stream);
}
