// Attention on the CUDA cores: any dtype, any alignment, head sizes up to 256. The fp32 path and
// the fallback.
//
// A block takes 8 queries of one head, one a warp; keys and values pass through shared memory in
// tiles of 32. Scores: a lane a key; values: a lane a column (of 32). Online softmax in fp32. Bound
// by shared-memory reads; not meant to be fast.
#include "kernels/attention/attention.h"
#include "kernels/common/act.cuh"
#include "kernels/gemm/epilogue.cuh"

#define QUERIES 8
#define KEYS 32
#define DIM_MAX 256

struct simple_args {
  const void *q, *k, *v;
  void *o;
  int64_t q_stride, k_stride, v_stride, o_stride;
  const int32_t *cu_seqlens;
  int32_t dim, group;
  bool causal;
  float scale;
  enum dtype dtype;
};

static __device__ float warp_max(float x) {
  for (int step = 16; step > 0; step /= 2)
    x = fw_max(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}
static __device__ float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2)
    x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

static __device__ void load_tile(float *to, const void *from, int64_t token, int count,
                                 int64_t stride, int col, const simple_args &a) {
  for (int i = threadIdx.x; i < KEYS * a.dim; i += QUERIES * 32) {
    const int r = i / a.dim, c = i % a.dim; // rows behind the sequence are zero: they are another's
    to[r * (a.dim + 1) + c] =
        r < count ? load_one(from, (token + r) * stride + col + c, a.dtype) : 0.0f;
  }
}

__global__ void __launch_bounds__(QUERIES * 32)
    attention_simple_kernel(const __grid_constant__ simple_args a) {
  extern __shared__ float shared[];
  const int tile = KEYS * (a.dim + 1), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float *ks = shared, *vs = shared + tile, *qs = shared + 2 * tile + warp * a.dim;
  const int64_t token0 = a.cu_seqlens[blockIdx.z];
  const int length = (int)(a.cu_seqlens[blockIdx.z + 1] - token0), q0 = blockIdx.x * QUERIES,
            query = q0 + warp, head = blockIdx.y;
  if (q0 >= length) return;
  const int q_row = query < length ? query : length - 1;
  for (int c = lane; c < a.dim; c += 32)
    qs[c] = load_one(a.q, (token0 + q_row) * a.q_stride + head * a.dim + c, a.dtype);
  float o[DIM_MAX / 32] = {}, top = -INFINITY, sum = 0.0f;
  const int last = a.causal && q0 + QUERIES < length ? q0 + QUERIES : length;
  for (int k0 = 0; k0 < last; k0 += KEYS) {
    const int count = length - k0 < KEYS ? length - k0 : KEYS, kv_col = head / a.group * a.dim;
    __syncthreads();
    load_tile(ks, a.k, token0 + k0, count, a.k_stride, kv_col, a);
    load_tile(vs, a.v, token0 + k0, count, a.v_stride, kv_col, a);
    __syncthreads();
    float s = 0.0f;
    for (int c = 0; c < a.dim; c++)
      s = fmaf(qs[c], ks[lane * (a.dim + 1) + c], s);
    s = lane < count && (!a.causal || k0 + lane <= q_row) ? s * a.scale : -INFINITY;
    const float m = fw_max(top, warp_max(s)), base = m == -INFINITY ? 0.0f : m;
    const float scale = expf(top - base), p = expf(s - base);
    top = m;
    sum = sum * scale + warp_sum(p);
#pragma unroll
    for (int i = 0; i < DIM_MAX / 32; i++) {
      const int c = lane + i * 32;
      if (i * 32 >= a.dim) break;
      float x = o[i] * scale;
      for (int j = 0; j < KEYS; j++)
        x = fmaf(__shfl_sync(0xffffffffu, p, j), c < a.dim ? vs[j * (a.dim + 1) + c] : 0.0f, x);
      o[i] = x;
    }
  }
  if (query >= length) return;
#pragma unroll
  for (int i = 0; i < DIM_MAX / 32; i++) {
    const int c = lane + i * 32;
    if (c >= a.dim) break;
    const float x = sum == 0.0f ? 0.0f : o[i] / sum;
    const int64_t at = (token0 + query) * a.o_stride + head * a.dim + c;
    if (a.dtype == DTYPE_F32)
      ((float *)a.o)[at] = x;
    else if (a.dtype == DTYPE_BF16)
      ((__nv_bfloat16 *)a.o)[at] = __float2bfloat16(x);
    else
      ((__half *)a.o)[at] = __float2half(x);
  }
}

int attention_simple(const struct attention_problem *p, const struct view *in,
                     const struct view *out, const struct batch_geometry *g,
                     struct CUstream_st *stream) {
  const int64_t tiles = ((int64_t)g->max_seqlen + QUERIES - 1) / QUERIES;
  if (p->head_dim < 1 || p->head_dim > DIM_MAX || p->heads > 65535 || g->n_seqs > 65535)
    return CUDA_UNSUPPORTED;
  if (p->dtype != DTYPE_F32 && p->dtype != DTYPE_F16 && p->dtype != DTYPE_BF16)
    return CUDA_UNSUPPORTED;
  simple_args a = {};
  a.q = in[0].data, a.k = in[1].data, a.v = in[2].data, a.o = out->data;
  a.q_stride = in[0].stride, a.k_stride = in[1].stride, a.v_stride = in[2].stride,
  a.o_stride = out->stride;
  a.cu_seqlens = g->cu_seqlens, a.dim = p->head_dim, a.group = p->heads / p->kv_heads;
  a.causal = p->causal, a.scale = p->scale, a.dtype = p->dtype;
  const int bytes = (2 * KEYS * (p->head_dim + 1) + QUERIES * p->head_dim) * (int)sizeof(float);
  cudaError_t rc = cudaFuncSetAttribute(attention_simple_kernel,
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (rc != cudaSuccess) return rc;
  attention_simple_kernel<<<dim3((unsigned)tiles, (unsigned)p->heads, (unsigned)g->n_seqs),
                            QUERIES * 32, bytes, stream>>>(a);
  return cudaGetLastError();
}
