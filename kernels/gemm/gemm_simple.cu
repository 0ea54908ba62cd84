// y = epilogue(x W^T) on the CUDA cores: any shape, alignment and mix of dtypes, fp32 arithmetic.
//
// 64 x 64 tiles, 16 of k at a time through shared memory (8.5 KiB), 256 threads of 4 x 4 results.
// The fallback, and the fp32 path: bound by fp32 arithmetic, not meant to be fast at 16 bits.
#include "kernels/gemm/epilogue.cuh"
#include "kernels/gemm/gemm.h"

#define TILE 64
#define DEPTH 16

struct simple_args {
  const void *x, *w;
  void *y;
  int64_t m, x_stride, w_stride, y_stride;
  int32_t n, k;
  enum dtype x_dtype, w_dtype, y_dtype;
  int n_ops;
  gemm_op op[EPILOGUE_MAX];
};

static __device__ float act_exact(int act, float x) {
  switch (act) {
  case ACT_GELU_ERF:
    return fw_gelu_erf_exact(x);
  case ACT_GELU_TANH:
    return fw_gelu_tanh_exact(x);
  case ACT_RELU:
    return fw_max(x, 0.0f);
  case ACT_SILU:
    return fw_silu_exact(x);
  case ACT_TANH:
    return tanhf(x);
  case ACT_SIGMOID:
    return fw_sigmoid_exact(x);
  default:
    return x;
  }
}

static __device__ float finish(const simple_args &a, float v, int64_t row, int col) {
  for (int o = 0; o < a.n_ops; o++) {
    const gemm_op &op = a.op[o];
    if (op.kind == EPI_BIAS)
      v += load_one(op.operand, col, op.dtype);
    else if (op.kind == EPI_ACT)
      v = act_exact(op.act, v);
    else if (op.kind == EPI_SCALE)
      v *= op.imm;
    else if (op.kind == EPI_ADD)
      v += load_one(op.operand, row * op.stride + col, op.dtype);
    else
      v *= load_one(op.operand, row * op.stride + col, op.dtype);
  }
  return v;
}

static __device__ void store_one(void *p, int64_t i, float v, enum dtype dtype) {
  if (dtype == DTYPE_F32)
    ((float *)p)[i] = v;
  else if (dtype == DTYPE_BF16)
    ((__nv_bfloat16 *)p)[i] = __float2bfloat16(v);
  else
    ((__half *)p)[i] = __float2half(v);
}

__global__ void __launch_bounds__(256) gemm_simple_kernel(const __grid_constant__ simple_args a) {
  __shared__ float xs[DEPTH][TILE + 4], ws[DEPTH][TILE + 4];
  const int64_t row0 = (int64_t)blockIdx.x * TILE;
  const int col0 = blockIdx.y * TILE, tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  float d[4][4] = {};
  for (int k0 = 0; k0 < a.k; k0 += DEPTH) {
#pragma unroll
    for (int i = 0; i < 4; i++) { // 16 threads walk k, which is contiguous in both
      const int r = ty + i * 16, k = k0 + tx;
      const bool kin = k < a.k;
      xs[tx][r] =
          kin && row0 + r < a.m ? load_one(a.x, (row0 + r) * a.x_stride + k, a.x_dtype) : 0.0f;
      ws[tx][r] = kin && col0 + r < a.n
                      ? load_one(a.w, (int64_t)(col0 + r) * a.w_stride + k, a.w_dtype)
                      : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
      const float4 x = *(const float4 *)&xs[k][ty * 4], w = *(const float4 *)&ws[k][tx * 4];
      const float xv[4] = {x.x, x.y, x.z, x.w}, wv[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
          d[i][j] = fmaf(xv[i], wv[j], d[i][j]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int64_t row = row0 + ty * 4 + i;
      const int col = col0 + tx * 4 + j;
      if (row < a.m && col < a.n)
        store_one(a.y, row * a.y_stride + col, finish(a, d[i][j], row, col), a.y_dtype);
    }
}

int gemm_simple(const struct kernel_call *call, struct CUstream_st *stream) {
  const struct linear_problem *p = call->linear;
  const struct view *in = call->in, *y = call->out;
  const int64_t m = call->m;
  simple_args a = {};
  if (m == 0) return 0;
  a.x = in[0].data, a.w = in[1].data, a.y = y->data;
  a.m = m, a.n = p->n, a.k = p->k;
  a.x_stride = in[0].stride, a.w_stride = in[1].stride, a.y_stride = y->stride;
  a.x_dtype = p->x_dtype, a.w_dtype = p->w_dtype, a.y_dtype = p->y_dtype;
  a.n_ops = p->n_epilogue;
  for (int i = 0; i < a.n_ops; i++) {
    const struct epilogue_op *from = &p->epilogue[i];
    a.op[i] = gemm_op{from->kind, from->act, from->imm, DTYPE_F32, nullptr, 0};
    if (from->kind == EPI_ACT || from->kind == EPI_SCALE) continue;
    const struct view *v = &in[from->operand];
    a.op[i].dtype = v->dtype, a.op[i].operand = v->data, a.op[i].stride = v->stride;
  }
  const int64_t rows = (m + TILE - 1) / TILE, cols = ((int64_t)p->n + TILE - 1) / TILE;
  if (rows > INT32_MAX || cols > 65535) return CUDA_UNSUPPORTED;
  gemm_simple_kernel<<<dim3((unsigned)rows, (unsigned)cols), 256, 0, stream>>>(a);
  return cudaGetLastError();
}
