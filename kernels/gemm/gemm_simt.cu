// y = epilogue(x W^T) on the CUDA cores, fp32 arithmetic: the fallback for any shape, alignment and
// mix of dtypes.
//
// k is cut into SLICES equal parts. Each part's sum is one chain of fused multiply-adds in the
// order of k, and the parts are added in order: so the bits of a result depend on k alone, while
// few rows can have their parts computed side by side. Two ways to do that:
//
//   GROUPS 4  64 threads a part, each group with tiles of its own in shared memory; their sums meet
//             there at the end. Tiles of 32 x 32 (few rows) and 64 x 64.
//   GROUPS 1  256 threads, 128 x 128 results, one part after another, a second set of accumulators.
//
// A thread computes TM x TN results, as (TM / 4) x (TN / 4) squares of 4 x 4 that lie apart, so
// that its reads of shared memory are 16 bytes and do not collide. Tiles are double-buffered: the
// next one waits in registers while this one is multiplied.
//
// Shared memory: 2 x GROUPS x BK x (BM + BN + 8) x 4 bytes, or the partial sums over them.
// Bound: fp32 arithmetic where there are many rows, the latency of a part where there are few.
#include "kernels/gemm/epilogue_fill.cuh"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/walk.cuh"

#define SLICES 4

struct simt_args {
  const void *x, *w;
  struct gemm_output y;
  int64_t m, x_stride, w_stride;
  int32_t n, k, slice; // slice: of k, a multiple of BK
  enum dtype x_dtype, w_dtype;
  int n_ops;
  gemm_op op[EPILOGUE_MAX];
};

template <int BM_, int BN_, int TM_, int TN_, int GROUPS_> struct simt_config {
  static constexpr int BM = BM_, BN = BN_, TM = TM_, TN = TN_, GROUPS = GROUPS_;
  static constexpr int BK = 16, THREADS = 256, TEAM = THREADS / GROUPS; // of one part
  static_assert(BM / TM * (BN / TN) == TEAM, "a team covers the tile");
  static constexpr int X_PITCH = BM + 4, W_PITCH = BN + 4; // floats, k by k
  static constexpr int TILE = BK * (X_PITCH + W_PITCH);
  static constexpr int PARTIAL = BM * (BN + 4);
  static constexpr int FLOATS =
      2 * GROUPS * TILE > GROUPS *PARTIAL || GROUPS == 1 ? 2 * GROUPS *TILE : GROUPS *PARTIAL;
  static constexpr int SHARED_BYTES = FLOATS * 4;
};

static __device__ __noinline__ float act_exact(int act, float x) {
  float v[1] = {x};
  activate_any<GELU_EXACT>(act, v);
  return v[0];
}

static __device__ __forceinline__ void finish(const simt_args &a, float v, int64_t row, int col) {
  if (row >= a.m || col >= a.n) return;
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
    else if (op.kind == EPI_SAVE)
      store_one((void *)op.operand, row * op.stride + col, v, op.dtype);
    else if (op.kind == EPI_ROUND)
      v = epilogue_round(v, op.act);
    else if (op.kind > EPI_MUL)
      v = epilogue_combine(op, v, load_one(op.operand, epilogue_spread_at(op, row, col), op.dtype));
    else
      v *= load_one(op.operand, row * op.stride + col, op.dtype);
  }
  store_one(a.y.y, row * a.y.stride + col, v, a.y.dtype);
}

// ROWS x BK of a matrix on its way into shared memory: in registers, then transposed, k by k.
// VECTOR: fp32, rows and parts of 16 bytes.
template <class C, int ROWS, bool VECTOR> struct simt_tile {
  static constexpr int QUADS = ROWS * C::BK / 4 / C::TEAM; // of a thread
  float4 q[QUADS];
  __device__ __forceinline__ void fetch(const void *p, enum dtype dtype, int64_t stride,
                                        int64_t row0, int64_t rows, int k, int end, int thread) {
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
      const int quad = thread + i * C::TEAM;
      const int64_t row = row0 + quad / (C::BK / 4);
      const int col = k + quad % (C::BK / 4) * 4;
      q[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (row >= rows || col >= end) continue;
      if (VECTOR) {
        q[i] = *(const float4 *)((const float *)p + row * stride + col);
      } else {
        const int64_t at = row * stride + col;
        q[i].x = load_one(p, at, dtype);
        if (col + 1 < end) q[i].y = load_one(p, at + 1, dtype);
        if (col + 2 < end) q[i].z = load_one(p, at + 2, dtype);
        if (col + 3 < end) q[i].w = load_one(p, at + 3, dtype);
      }
    }
  }
  __device__ __forceinline__ void store(float *tile, int thread) const {
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
      const int quad = thread + i * C::TEAM;
      float *at = tile + quad % (C::BK / 4) * 4 * (ROWS + 4) + quad / (C::BK / 4);
      at[0] = q[i].x, at[ROWS + 4] = q[i].y, at[2 * (ROWS + 4)] = q[i].z,
      at[3 * (ROWS + 4)] = q[i].w;
    }
  }
};

template <class C>
static __device__ __forceinline__ void simt_multiply(float (&d)[C::TM][C::TN], const float *xs,
                                                     const float *ws, int tx, int ty) {
#pragma unroll
  for (int k = 0; k < C::BK; k++) {
    float x[C::TM], w[C::TN];
#pragma unroll
    for (int i = 0; i < C::TM; i += 4)
      *(float4 *)&x[i] =
          *(const float4 *)&xs[k * C::X_PITCH + ty * 4 + i / 4 * (C::BM / C::TM * 4)];
#pragma unroll
    for (int j = 0; j < C::TN; j += 4)
      *(float4 *)&w[j] =
          *(const float4 *)&ws[k * C::W_PITCH + tx * 4 + j / 4 * (C::BN / C::TN * 4)];
#pragma unroll
    for (int i = 0; i < C::TM; i++)
#pragma unroll
      for (int j = 0; j < C::TN; j++)
        d[i][j] = fmaf(x[i], w[j], d[i][j]);
  }
}

// A team waits for its own threads alone.
template <class C> static __device__ __forceinline__ void simt_meet(int group) {
  if (C::GROUPS == 1)
    __syncthreads();
  else
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(C::TEAM) : "memory");
}

// The sum of one part of k.
template <class C, bool VECTOR>
static __device__ __forceinline__ void simt_slice(float (&d)[C::TM][C::TN], const simt_args &a,
                                                  float *tiles, int64_t row0, int col0, int slice,
                                                  int group) {
  const int thread = threadIdx.x % C::TEAM, tx = thread % (C::BN / C::TN),
            ty = thread / (C::BN / C::TN);
  const int first = slice * a.slice, end = first + a.slice < a.k ? first + a.slice : a.k;
  simt_tile<C, C::BM, VECTOR> x;
  simt_tile<C, C::BN, VECTOR> w;
#pragma unroll
  for (int i = 0; i < C::TM; i++)
#pragma unroll
    for (int j = 0; j < C::TN; j++)
      d[i][j] = 0.0f;
  int buffer = 0;
  x.fetch(a.x, a.x_dtype, a.x_stride, row0, a.m, first, end, thread);
  w.fetch(a.w, a.w_dtype, a.w_stride, col0, a.n, first, end, thread);
  int k = first;
  for (; k < end; k += C::BK, buffer ^= 1) {
    float *xs = tiles + buffer * C::TILE, *ws = xs + C::BK * C::X_PITCH;
    x.store(xs, thread);
    w.store(ws, thread);
    simt_meet<C>(group); // and nobody reads the buffer before it any more
    x.fetch(a.x, a.x_dtype, a.x_stride, row0, a.m, k + C::BK, end, thread);
    w.fetch(a.w, a.w_dtype, a.w_stride, col0, a.n, k + C::BK, end, thread);
    simt_multiply<C>(d, xs, ws, tx, ty);
  }
  if (C::GROUPS > 1) { // teams meet equally often, or racecheck loses count of the barriers
#pragma unroll 1
    for (; k < (slice + 1) * a.slice; k += C::BK)
      simt_meet<C>(group);
  }
  simt_meet<C>(group); // the next part begins with the first buffer again
}

template <class C, bool VECTOR>
__global__ void __launch_bounds__(C::THREADS) gemm_simt(const __grid_constant__ simt_args a) {
  extern __shared__ __align__(16) float shared[];
  const int group = threadIdx.x / C::TEAM, thread = threadIdx.x % C::TEAM;
  const int tx = thread % (C::BN / C::TN), ty = thread / (C::BN / C::TN);
  const walk_place at = walk_tile<C::BM, C::BN>(blockIdx.x, a.m, a.n);
  const int64_t row0 = at.row;
  const int col0 = at.col;
  float d[C::TM][C::TN];
  auto row_of = [&](int i) { return ty * 4 + i / 4 * (C::BM / C::TM * 4) + i % 4; };
  auto col_of = [&](int j) { return tx * 4 + j / 4 * (C::BN / C::TN * 4) + j % 4; };
  simt_slice<C, VECTOR>(d, a, shared + group * 2 * C::TILE, row0, col0, group, group);
  if constexpr (C::GROUPS == 1) {
#pragma unroll 1
    for (int s = 1; s < SLICES; s++) {
      float part[C::TM][C::TN];
      simt_slice<C, VECTOR>(part, a, shared, row0, col0, s, 0);
#pragma unroll
      for (int i = 0; i < C::TM; i++)
#pragma unroll
        for (int j = 0; j < C::TN; j++)
          d[i][j] += part[i][j];
    }
#pragma unroll
    for (int i = 0; i < C::TM; i++)
#pragma unroll
      for (int j = 0; j < C::TN; j++)
        finish(a, d[i][j], row0 + row_of(i), col0 + col_of(j));
  } else {
    __syncthreads(); // every team has done with its tiles
    float *mine = shared + group * C::PARTIAL;
#pragma unroll
    for (int i = 0; i < C::TM; i++)
#pragma unroll
      for (int j = 0; j < C::TN; j += 4)
        *(float4 *)&mine[row_of(i) * (C::BN + 4) + col_of(j)] = *(const float4 *)&d[i][j];
    __syncthreads();
    for (int i = threadIdx.x; i < C::BM * C::BN; i += C::THREADS) {
      const int row = i / C::BN, col = i % C::BN;
      float v = shared[row * (C::BN + 4) + col];
#pragma unroll
      for (int s = 1; s < SLICES; s++)
        v += shared[s * C::PARTIAL + row * (C::BN + 4) + col];
      finish(a, v, row0 + row, col0 + col);
    }
  }
}

template <class C, bool VECTOR> static int simt_launch(const simt_args &a, cudaStream_t stream) {
  const unsigned blocks = walk_blocks<C::BM, C::BN>(a.m, a.n);
  if (blocks == 0) return CUDA_UNSUPPORTED;
  cudaError_t rc = cudaFuncSetAttribute(
      gemm_simt<C, VECTOR>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::SHARED_BYTES);
  if (rc != cudaSuccess) return rc;
  gemm_simt<C, VECTOR><<<blocks, C::THREADS, C::SHARED_BYTES, stream>>>(a);
  return cudaGetLastError();
}

template <bool VECTOR>
static int simt_launch_tile(const simt_args &a, enum simt_tile_size tile, cudaStream_t stream) {
  if (tile == SIMT_32x32) return simt_launch<simt_config<32, 32, 4, 4, 4>, VECTOR>(a, stream);
  if (tile == SIMT_64x64) return simt_launch<simt_config<64, 64, 8, 8, 4>, VECTOR>(a, stream);
  return simt_launch<simt_config<128, 128, 8, 8, 1>, VECTOR>(a, stream);
}

static bool quads(const struct view *v) {
  return v->dtype == DTYPE_F32 && (uintptr_t)v->data % 16 == 0 && v->stride % 4 == 0;
}

int gemm_simt_tile(const struct kernel_call *call, enum simt_tile_size tile,
                   struct CUstream_st *stream) {
  const struct linear_problem *p = call->linear;
  const struct view *in = call->in, *y = call->out;
  simt_args a = {};
  if (call->m == 0) return 0;
  a.x = in[0].data, a.w = in[1].data, a.m = call->m, a.n = p->n, a.k = p->k;
  a.x_stride = in[0].stride, a.w_stride = in[1].stride;
  a.x_dtype = p->x_dtype, a.w_dtype = p->w_dtype;
  a.y = gemm_output{y->data, y->stride, p->n, p->y_dtype, false};
  const int steps = (p->k + 15) / 16;
  a.slice = (steps + SLICES - 1) / SLICES * 16;
  a.n_ops = p->n_epilogue;
  for (int i = 0; i < a.n_ops; i++)
    a.op[i] = gemm_op_of(call, &p->epilogue[i]);
  const bool vector = p->k % 4 == 0 && p->x_dtype == DTYPE_F32 && p->w_dtype == DTYPE_F32 &&
                      quads(&in[0]) && quads(&in[1]);
  return vector ? simt_launch_tile<true>(a, tile, stream)
                : simt_launch_tile<false>(a, tile, stream);
}
