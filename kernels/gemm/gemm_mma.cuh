// y = epilogue(x W^T) by the products of a warp (mma.sync), on every tensor-core GPU from sm_80 on:
// x [m, k], W [n, k], 16-bit, row-major; fp32 accumulation. Hopper has a kernel of its own. What
// does not depend on the dtype serves the kernel for fp32 (gemm_tf32x3.cu) too.
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
#include "kernels/gemm/walk.cuh"
#include "kernels/ptx/sm80.cuh"

template <class T_, int BM_, int BN_, int WARPS_M_, int WARPS_N_, int STAGES_> struct mma_config {
  using T = T_;
  static constexpr int BM = BM_, BN = BN_, WARPS_M = WARPS_M_, WARPS_N = WARPS_N_, STAGES = STAGES_;
  static constexpr int BK = 64, THREADS = WARPS_M * WARPS_N * 32; // BK: 128 bytes
  static constexpr int WM = BM / WARPS_M, WN = BN / WARPS_N;      // a warp's part of the tile
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
  bool plain; // no activation in the epilogue
  struct gemm_epilogue epilogue;
};

// Address of 16 bytes: part `part` (of 8) of row `row`.
static __device__ __forceinline__ uint32_t mma_at(uint32_t tile, int row, int part) {
  return tile + row * 128 + ((part ^ (row & 7)) << 4);
}

// ROWS rows of a matrix on their way into shared memory, 128 bytes of each at a time: which of the
// 16-byte parts this thread copies. It has the same part of every (THREADS / 8)th row.
template <class C, int ROWS> struct mma_source {
  using T = typename C::T;
  static constexpr int PART = 16 / (int)sizeof(T), EACH = C::THREADS / 8, COPIES = ROWS / EACH;
  static_assert(EACH % 8 == 0 && ROWS % EACH == 0,
                "a thread's parts lie at one place of their rows");
  const T *from, *at; // at: of the first row
  int64_t step;       // elements between its rows
  uint32_t exist;     // bit a copy: there is such a row
  int cols;
  __device__ __forceinline__ mma_source(const void *matrix, int64_t stride, int64_t row0,
                                        int64_t rows, int n_cols)
      : from((const T *)matrix), step(EACH * stride), exist(0), cols(n_cols) {
    const int64_t row = row0 + threadIdx.x / 8;
    at = from + row * stride + threadIdx.x % 8 * PART;
#pragma unroll
    for (int i = 0; i < COPIES; i++)
      exist |= (uint32_t)(row + i * EACH < rows) << i;
  }
  // From column k, as far as it exists; zeros beyond.
  __device__ __forceinline__ void fetch(uint32_t tile, int k) const {
    const uint32_t to = mma_at(tile, threadIdx.x / 8, threadIdx.x % 8);
    const T *p = at + k;
    if (exist == (uint32_t)((1ull << COPIES) - 1) && k + C::BK <= cols) {
#pragma unroll
      for (int i = 0; i < COPIES; i++, p += step)
        copy_16_all(to + i * EACH * 128, p);
      return;
    }
    const int left = cols - k - (int)threadIdx.x % 8 * PART, bytes = left <= 0 ? 0
                                                                     : left < PART
                                                                         ? left * (int)sizeof(T)
                                                                         : 16;
#pragma unroll
    for (int i = 0; i < COPIES; i++, p += step) {
      const int here = exist >> i & 1 ? bytes : 0;
      copy_16_part(to + i * EACH * 128, here ? p : from, here);
    }
  }
};

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

// v: squares of 16 x 8 results side by side, this thread's first value at (row, col).
template <int SQUARES>
static __device__ __forceinline__ void
mma_store(const mma_args &args, const float (&v)[SQUARES * 4], int64_t row, int col) {
  store_fragment(args.y, v, row, col, args.m);
}

template <class C, int SQUARES>
static __device__ __forceinline__ void mma_finish(const mma_args &args, float (&v)[SQUARES * 4],
                                                  int64_t row, int col) {
#pragma unroll 1
  for (int o = 0; o < args.epilogue.n; o++)
    epilogue_op_apply<typename C::T, C::DEGREE>(args.epilogue.op[o], v, row, col, args.m, args.n);
  mma_store<SQUARES>(args, v, row, col);
}

template <class C>
__global__ void __launch_bounds__(C::THREADS) gemm_mma(const __grid_constant__ mma_args args) {
  extern __shared__ __align__(1024) uint8_t raw[];
  const uint32_t ring = smem_address(raw);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = warp / C::WARPS_N * C::WM, col = warp % C::WARPS_N * C::WN;
  const walk_place at = walk_tile<C::BM, C::BN>(blockIdx.x, args.m, args.n);
  const int64_t row0 = at.row;
  const int col0 = at.col, steps = (args.k + C::BK - 1) / C::BK;
  const mma_source<C, C::BM> x(args.x, args.x_stride, row0, args.m, args.k);
  const mma_source<C, C::BN> w(args.w, args.w_stride, col0, args.n, args.k);
  auto fetch = [&](int k) { // an empty group where there is no such step: the count stays right
    const uint32_t stage = ring + k % C::STAGES * C::STAGE_BYTES;
    if (k < steps) x.fetch(stage, k * C::BK), w.fetch(stage + C::A_BYTES, k * C::BK);
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
    mma_finish<C, C::NB>(args, d[i], row0 + row + i * 16 + lane / 4, col0 + col + lane % 4 * 2);
}

static inline mma_args mma_fill(const struct kernel_call *call) {
  const struct linear_problem *p = call->linear;
  const struct view *in = call->in, *y = call->out;
  mma_args a = {};
  int act;
  a.x = in[0].data, a.w = in[1].data, a.m = call->m, a.n = p->n, a.k = p->k;
  a.x_stride = in[0].stride, a.w_stride = in[1].stride;
  a.y = gemm_output{y->data, y->stride, p->n, p->y_dtype, gemm_pairs(y, p)};
  gemm_fill_epilogue(call, &a.epilogue, &act, false);
  a.plain = true;
  for (int i = 0; i < p->n_epilogue; i++)
    a.plain &= p->epilogue[i].kind != EPI_ACT;
  return a;
}

template <class C> static int mma_run(const struct kernel_call *call, cudaStream_t stream) {
  const unsigned blocks = walk_blocks<C::BM, C::BN>(call->m, call->linear->n);
  if (blocks == 0) return CUDA_UNSUPPORTED;
  const mma_args a = mma_fill(call);
  cudaError_t rc = cudaFuncSetAttribute(gemm_mma<C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        C::SHARED_BYTES);
  if (rc != cudaSuccess) return rc;
  gemm_mma<C><<<blocks, C::THREADS, C::SHARED_BYTES, stream>>>(a);
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
