// Unfused attention's two products on the CUDA cores: the fp32 path, and the fallback for any
// dtype, head size and alignment. Sums run in ascending order.
//
// A block takes 64 x COLS of one head's product, 128 threads of 8 x COLS / 16; slabs of 16 along
// the inner dimension pass through shared memory, the next one already on its way in registers.
// Bound by the fp32 rate.
#include "kernels/attention/attention.h"
#include "kernels/attention/products.h"
#include "kernels/attention/products_args.cuh"
#include "kernels/gemm/epilogue.cuh"

#define ROWS 64
#define SLAB 16
#define THREADS 128
#define PAD 4

template <class T> static __device__ __forceinline__ float read(const void *p, int64_t i) {
  if constexpr (sizeof(T) == 4)
    return ((const float *)p)[i];
  else if constexpr (__is_same(T, __nv_bfloat16))
    return __bfloat162float(((const __nv_bfloat16 *)p)[i]);
  else
    return __half2float(((const __half *)p)[i]);
}

// A [ROWS, SLAB] or B [COLS, SLAB] operand that is contiguous along the slab: thread t takes column
// t % SLAB. Out of bounds is zero.
template <class T, int N>
static __device__ __forceinline__ void fetch_rows(float (&x)[N], const void *p, int64_t at,
                                                  int64_t stride, int rows, int cols) {
  const int r = threadIdx.x / SLAB, c = threadIdx.x % SLAB;
#pragma unroll
  for (int i = 0; i < N; i++) {
    const int row = r + i * (THREADS / SLAB);
    x[i] = row < rows && c < cols ? read<T>(p, at + row * stride + c) : 0.0f;
  }
}
template <int N, int WIDTH>
static __device__ __forceinline__ void keep_rows(const float (&x)[N], float (*to)[WIDTH]) {
#pragma unroll
  for (int i = 0; i < N; i++)
    to[threadIdx.x % SLAB][threadIdx.x / SLAB + i * (THREADS / SLAB)] = x[i];
}

// A [SLAB, COLS] operand that is contiguous along the columns.
template <class T, int COLS, int N>
static __device__ __forceinline__ void fetch_cols(float (&x)[N], const void *p, int64_t at,
                                                  int64_t stride, int rows, int cols) {
  const int r = threadIdx.x / COLS, c = threadIdx.x % COLS;
#pragma unroll
  for (int i = 0; i < N; i++) {
    const int row = r + i * (THREADS / COLS);
    x[i] = row < rows && c < cols ? read<T>(p, at + row * stride + c) : 0.0f;
  }
}
template <int COLS, int N, int WIDTH>
static __device__ __forceinline__ void keep_cols(const float (&x)[N], float (*to)[WIDTH]) {
#pragma unroll
  for (int i = 0; i < N; i++)
    to[threadIdx.x / COLS + i * (THREADS / COLS)][threadIdx.x % COLS] = x[i];
}

template <int COLS> struct slabs { float a[SLAB][ROWS + PAD], b[SLAB][COLS + PAD]; };

template <int COLS>
static __device__ __forceinline__ void multiply(float (&d)[8][COLS / 16], const slabs<COLS> &s) {
  constexpr int N = COLS / 16;
  const int row = threadIdx.x / 16 * 8, col = threadIdx.x % 16 * N;
#pragma unroll
  for (int k = 0; k < SLAB; k++) {
    float x[8], y[N];
    *(float4 *)x = *(const float4 *)&s.a[k][row];
    *(float4 *)(x + 4) = *(const float4 *)&s.a[k][row + 4];
#pragma unroll
    for (int j = 0; j < N; j++)
      y[j] = s.b[k][col + j];
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
      for (int j = 0; j < N; j++)
        d[i][j] = fmaf(x[i], y[j], d[i][j]);
  }
}

struct simple_score_tiles {
  __host__ __device__ int operator()(int length) const {
    const int n = (length + ROWS - 1) / ROWS;
    return n * n;
  }
};
struct simple_context_tiles {
  __host__ __device__ int operator()(int length) const {
    return (length + ROWS - 1) / ROWS;
  }
};

template <class T>
__global__ void __launch_bounds__(THREADS)
    scores_simple_kernel(const __grid_constant__ products_args a) {
  constexpr int N = ROWS * SLAB / THREADS;
  __shared__ slabs<ROWS> s;
  seq_walk<simple_score_tiles> walk(a.cu_seqlens, a.n_seqs, {});
  seq_tile tile;
  if (!walk.find((int)blockIdx.x, &tile)) return;
  const int across = (tile.length + ROWS - 1) / ROWS, i0 = tile.index / across * ROWS,
            j0 = tile.index % across * ROWS, head = blockIdx.y;
  const int64_t q = (tile.start + i0) * a.stride[0] + (int64_t)head * a.dim,
                k = (tile.start + j0) * a.stride[1] + (int64_t)(head / a.group) * a.dim;
  float d[8][ROWS / 16] = {}, x[N], y[N];
  fetch_rows<T>(x, a.in[0], q, a.stride[0], tile.length - i0, a.dim);
  fetch_rows<T>(y, a.in[1], k, a.stride[1], tile.length - j0, a.dim);
  for (int c = 0; c < a.dim; c += SLAB) {
    keep_rows(x, s.a);
    keep_rows(y, s.b);
    __syncthreads();
    fetch_rows<T>(x, a.in[0], q + c + SLAB, a.stride[0], tile.length - i0, a.dim - c - SLAB);
    fetch_rows<T>(y, a.in[1], k + c + SLAB, a.stride[1], tile.length - j0, a.dim - c - SLAB);
    multiply<ROWS>(d, s);
    __syncthreads();
  }
  float *at = head_scores(a, tile, head);
  const int row = i0 + threadIdx.x / 16 * 8, col = j0 + threadIdx.x % 16 * (ROWS / 16);
  for (int i = 0; i < 8; i++)
    for (int j = 0; j < ROWS / 16; j++)
      if (row + i < tile.length && col + j < tile.length)
        at[(int64_t)(row + i) * tile.length + col + j] = d[i][j];
}

template <class T, int COLS>
__global__ void __launch_bounds__(THREADS)
    context_simple_kernel(const __grid_constant__ products_args a) {
  constexpr int NA = ROWS * SLAB / THREADS, NB = COLS * SLAB / THREADS;
  __shared__ slabs<COLS> s;
  seq_walk<simple_context_tiles> walk(a.cu_seqlens, a.n_seqs, {});
  seq_tile tile;
  if (!walk.find((int)blockIdx.x, &tile)) return;
  const int i0 = tile.index * ROWS, head = blockIdx.y, c0 = blockIdx.z * COLS;
  const float *p = head_scores(a, tile, head) + (int64_t)i0 * tile.length;
  const int64_t v = tile.start * a.stride[0] + (int64_t)(head / a.group) * a.dim + c0;
  const int rows = tile.length - i0, cols = a.dim - c0;
  float d[8][COLS / 16] = {}, x[NA], y[NB];
  fetch_rows<float>(x, p, 0, tile.length, rows, tile.length);
  fetch_cols<T, COLS>(y, a.in[0], v, a.stride[0], tile.length, cols);
  for (int j = 0; j < tile.length; j += SLAB) {
    keep_rows(x, s.a);
    keep_cols<COLS>(y, s.b);
    __syncthreads();
    const int left = tile.length - j - SLAB;
    fetch_rows<float>(x, p, j + SLAB, tile.length, rows, left);
    fetch_cols<T, COLS>(y, a.in[0], v + (j + SLAB) * a.stride[0], a.stride[0], left, cols);
    multiply<COLS>(d, s);
    __syncthreads();
  }
  const int row = threadIdx.x / 16 * 8, col = threadIdx.x % 16 * (COLS / 16);
  for (int i = 0; i < 8; i++)
    for (int j = 0; j < COLS / 16; j++)
      if (row + i < rows && col + j < cols)
        ((T *)a.out)[(tile.start + i0 + row + i) * a.out_stride + (int64_t)head * a.dim + c0 + col +
                     j] = (T)d[i][j];
}

static bool args_make(const struct attention_problem *p, const struct batch_geometry *g,
                      int64_t tiles, products_args *a) {
  if (p->head_dim < 1 || p->heads > 65535 || tiles > INT32_MAX) return false;
  *a = products_args_of(p, g);
  return true;
}

int scores_simple(const struct attention_problem *p, const struct view *q, const struct view *k,
                  float *scores, const struct batch_geometry *g, struct CUstream_st *stream) {
  products_args a;
  const int64_t tiles = scores_tile_bound(g, ROWS);
  if (!args_make(p, g, tiles, &a)) return CUDA_UNSUPPORTED;
  a.in[0] = q->data, a.stride[0] = q->stride, a.in[1] = k->data, a.stride[1] = k->stride;
  a.scores = scores;
  const dim3 grid((unsigned)tiles, (unsigned)p->heads);
  if (p->dtype == DTYPE_F32)
    scores_simple_kernel<float><<<grid, THREADS, 0, stream>>>(a);
  else if (p->dtype == DTYPE_BF16)
    scores_simple_kernel<__nv_bfloat16><<<grid, THREADS, 0, stream>>>(a);
  else if (p->dtype == DTYPE_F16)
    scores_simple_kernel<__half><<<grid, THREADS, 0, stream>>>(a);
  else
    return CUDA_UNSUPPORTED;
  return cudaGetLastError();
}

template <class T>
static int context_launch(const products_args *a, int64_t tiles, cudaStream_t stream) {
  const int cols = a->dim <= 32 ? 32 : 64;
  const dim3 grid((unsigned)tiles, (unsigned)a->heads, (unsigned)((a->dim + cols - 1) / cols));
  if (cols == 32)
    context_simple_kernel<T, 32><<<grid, THREADS, 0, stream>>>(*a);
  else
    context_simple_kernel<T, 64><<<grid, THREADS, 0, stream>>>(*a);
  return cudaGetLastError();
}

int context_simple(const struct attention_problem *p, const float *scores, const struct view *v,
                   const struct view *out, const struct batch_geometry *g,
                   struct CUstream_st *stream) {
  products_args a;
  const int64_t tiles = row_tile_bound(g, ROWS);
  if (!args_make(p, g, tiles, &a) || p->head_dim > 65535) return CUDA_UNSUPPORTED;
  a.in[0] = v->data, a.stride[0] = v->stride, a.out = out->data, a.out_stride = out->stride;
  a.scores = (float *)(uintptr_t)scores;
  if (p->dtype == DTYPE_F32) return context_launch<float>(&a, tiles, stream);
  if (p->dtype == DTYPE_BF16) return context_launch<__nv_bfloat16>(&a, tiles, stream);
  if (p->dtype == DTYPE_F16) return context_launch<__half>(&a, tiles, stream);
  return CUDA_UNSUPPORTED;
}
