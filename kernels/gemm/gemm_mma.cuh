// y = epilogue(x W^T) by the products of a warp (mma.sync), on every tensor-core GPU from sm_80 on:
// x [m, k], W [n, k], 16-bit, row-major; fp32 accumulation. Hopper has a kernel of its own.
//
// A block computes BM x BN results; its warps stand in a grid of WARPS_M x WARPS_N over them. A
// ring of stages, BM x 64 of x and BN x 64 of W, is filled by asynchronous copies two steps ahead:
//
//   step k:  wait for stage k | all warps meet | ask for stage k + STAGES - 1 | products of stage k
//
// Rows of a stage are 128 bytes, their 16-byte parts permuted by row & 7, so that neither the
// copies nor the matrix loads collide on banks. What lies outside m, n, k is filled with zeros.
// Each sum runs over k in steps of 16 in both tiles, so a row has the same bits whichever computes
// it.
//
// Shared memory: STAGES x (BM + BN) x 128 bytes: 96 KiB (128 x 128), 64 KiB (64 x 64).
// Bound: the tensor cores; few rows: latency. Not measured on an sm_80 card.
#ifndef GEMM_GEMM_MMA_CUH
#define GEMM_GEMM_MMA_CUH

#include "kernels/gemm/epilogue_fill.cuh"
#include "kernels/ptx/sm80.cuh"

template <class T_, int BM_, int BN_, int WARPS_M_, int WARPS_N_, int STAGES_> struct mma_config {
  using T = T_;
  static constexpr int BM = BM_, BN = BN_, WARPS_M = WARPS_M_, WARPS_N = WARPS_N_, STAGES = STAGES_;
  static constexpr int BK = 64, THREADS = WARPS_M * WARPS_N * 32;
  static constexpr int WM = BM / WARPS_M, WN = BN / WARPS_N; // a warp's part of the tile
  static constexpr int MB = WM / 16, NB = WN / 8;
  static constexpr int DEGREE = GELU_DEGREE<T>;
  static constexpr int A_BYTES = BM * 128, STAGE_BYTES = A_BYTES + BN * 128,
                       SHARED_BYTES = STAGES * STAGE_BYTES;
};

struct mma_args {
  const void *x, *w;
  int64_t m, x_stride, w_stride;
  int32_t n, k;
  struct gemm_output y;
  struct gemm_epilogue epilogue;
};

// Address of 16 bytes: part `part` (of 8) of row `row`.
static __device__ __forceinline__ uint32_t mma_at(uint32_t tile, int row, int part) {
  return tile + row * 128 + ((part ^ (row & 7)) << 4);
}

// ROWS rows of 64 columns from `k`, as far as they exist.
template <class C, int ROWS>
static __device__ __forceinline__ void mma_fetch(uint32_t tile, const void *from, int64_t stride,
                                                 int64_t row0, int64_t rows, int k, int cols) {
  using T = typename C::T;
#pragma unroll
  for (int i = threadIdx.x; i < ROWS * 8; i += C::THREADS) {
    const int64_t row = row0 + i / 8;
    const int col = k + i % 8 * 8;
    const int left = row < rows && col < cols ? cols - col : 0;
    const T *at = (const T *)from + (left > 0 ? row * stride + col : 0);
    copy_16_part(mma_at(tile, i / 8, i % 8), at, left < 8 ? left * 2 : 16);
  }
}

template <class C>
static __device__ __forceinline__ void mma_multiply(float (&d)[C::MB][C::NB * 4], uint32_t stage,
                                                    int row, int col) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int kk = 0; kk < 4; kk++) {
    uint32_t b[C::NB / 2][4];
#pragma unroll
    for (int j = 0; j < C::NB / 2;
         j++) // 16 columns: matrices (n 0-7, k 0-7), (0-7, 8-15), (8-15, ..
      ldmatrix_x4(mma_at(stage + C::A_BYTES, col + j * 16 + lane / 16 * 8 + lane % 8,
                         kk * 2 + lane / 8 % 2),
                  b[j]);
#pragma unroll
    for (int i = 0; i < C::MB; i++) {
      uint32_t a[4];
      ldmatrix_x4(mma_at(stage, row + i * 16 + lane % 16, kk * 2 + lane / 16), a);
#pragma unroll
      for (int j = 0; j < C::NB; j++)
        mma_16816<typename C::T>(&d[i][4 * j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }
}

template <class C>
static __device__ __forceinline__ void mma_finish(const mma_args &args, float (&v)[C::NB * 4],
                                                  int64_t row, int col) {
#pragma unroll 1
  for (int o = 0; o < args.epilogue.n; o++)
    epilogue_op_apply<typename C::T, C::DEGREE>(args.epilogue.op[o], v, row, col, args.m, args.n);
#pragma unroll
  for (int i = 0; i < C::NB * 2; i++) {
    const int64_t r = row + (i & 1) * 8;
    const int c = col + i / 2 * 8;
    if (r < args.m && c < args.n) store_pair(args.y, v[2 * i], v[2 * i + 1], r, c);
  }
}

template <class C>
__global__ void __launch_bounds__(C::THREADS) gemm_mma(const __grid_constant__ mma_args args) {
  extern __shared__ __align__(1024) uint8_t raw[];
  const uint32_t ring = smem_address(raw);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = warp / C::WARPS_N * C::WM, col = warp % C::WARPS_N * C::WN;
  const int64_t row0 = (int64_t)blockIdx.x * C::BM;
  const int col0 = blockIdx.y * C::BN, steps = (args.k + C::BK - 1) / C::BK;
  auto fetch = [&](int k) { // an empty group where there is no such step: the count stays right
    const uint32_t stage = ring + k % C::STAGES * C::STAGE_BYTES;
    if (k < steps) {
      mma_fetch<C, C::BM>(stage, args.x, args.x_stride, row0, args.m, k * C::BK, args.k);
      mma_fetch<C, C::BN>(stage + C::A_BYTES, args.w, args.w_stride, col0, args.n, k * C::BK,
                          args.k);
    }
    copy_commit();
  };
  float d[C::MB][C::NB * 4] = {};
#pragma unroll
  for (int k = 0; k < C::STAGES - 1; k++)
    fetch(k);
  for (int k = 0; k < steps; k++) {
    copy_wait<C::STAGES - 2>();
    __syncthreads();
    fetch(k + C::STAGES - 1);
    mma_multiply<C>(d, ring + k % C::STAGES * C::STAGE_BYTES, row, col);
  }
#pragma unroll
  for (int i = 0; i < C::MB; i++)
    mma_finish<C>(args, d[i], row0 + row + i * 16 + lane / 4, col0 + col + lane % 4 * 2);
}

template <class C> static int mma_run(const struct kernel_call *call, cudaStream_t stream) {
  const struct linear_problem *p = call->linear;
  const struct view *in = call->in, *y = call->out;
  int act;
  const int64_t rows = (call->m + C::BM - 1) / C::BM, cols = ((int64_t)p->n + C::BN - 1) / C::BN;
  if (rows > INT32_MAX || cols > 65535) return CUDA_UNSUPPORTED;
  mma_args a = {};
  a.x = in[0].data, a.w = in[1].data, a.m = call->m, a.n = p->n, a.k = p->k;
  a.x_stride = in[0].stride, a.w_stride = in[1].stride;
  a.y = gemm_output{y->data, y->stride, p->n, p->y_dtype,
                    p->n % 2 == 0 && y->stride % 2 == 0 && (uintptr_t)y->data % 4 == 0};
  gemm_fill_epilogue(call, &a.epilogue, &act, false);
  cudaError_t rc = cudaFuncSetAttribute(gemm_mma<C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        C::SHARED_BYTES);
  if (rc != cudaSuccess) return rc;
  gemm_mma<C><<<dim3((unsigned)rows, (unsigned)cols), C::THREADS, C::SHARED_BYTES, stream>>>(a);
  return cudaGetLastError();
}

// The small tile where large ones would leave multiprocessors idle.
template <class T>
static int mma_run_tile(const struct kernel_call *call, bool large, cudaStream_t stream) {
  if (call->m == 0) return 0;
  return large ? mma_run<mma_config<T, 128, 128, 2, 4, 3>>(call, stream)
               : mma_run<mma_config<T, 64, 64, 2, 2, 4>>(call, stream);
}

#endif
