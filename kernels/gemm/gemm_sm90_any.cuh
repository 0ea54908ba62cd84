// Finished tiles of the Hopper product (gemm_sm90.cuh) by a list of operations, 64 rows at a time,
// the second half in the registers of the first: the code for any operation is long, and where it
// stands once for every part it does not stay in the instruction cache (measured: three times the
// tile's time). All columns at once, so that memory is waited for once an operation.
//
// Two forms: through boxes, as other results with a residual; and straight from registers in the
// order of columns of gemm_sm90_direct.cuh, where a thread has 8 neighbours of a row, 16 bytes of
// every operand that has a value for each.
#ifndef GEMM_GEMM_SM90_ANY_CUH
#define GEMM_GEMM_SM90_ANY_CUH

#include "kernels/gemm/gemm_sm90_direct.cuh"

// A finished tile by a list of operations, 64 rows at a time, the second half in the registers of
// the first: the code for any operation is long, and where it stands once for every part it does
// not stay in the instruction cache (measured: three times the tile's time). All columns at once,
// so that memory is waited for once an operation.
template <class C>
static __device__ __forceinline__ void gemm_finish_any(float (&d)[C::HALVES][C::BN / 2],
                                                       const gemm_args &args, uint32_t bias_at,
                                                       uint32_t boxes, int64_t row0, int col0) {
  using T = typename C::T;
  const int64_t row = row0 + threadIdx.x % 32 / 4;
  const int col = col0 + threadIdx.x % 4 * 2;
#pragma unroll 1
  for (int h = 0; h < C::HALVES; h++) {
    if (row0 - threadIdx.x / 32 % 4 * 16 + h * 64 < args.m) {
      if (args.epilogue.bias) {
        float2 bias[C::BN / 8];
        epilogue_load_bias(bias, bias_at);
        epilogue_add_bias(d[0], bias);
      }
#pragma unroll 1
      for (int o = 0; o < args.epilogue.n; o++)
        epilogue_op_apply<T, GELU_DEGREE<T>>(args.epilogue.op[o], d[0], row + h * 64, col, args.m,
                                             args.n);
#pragma unroll
      for (int c = 0; c < C::PARTS_N; c++) {
        float v[32];
#pragma unroll
        for (int j = 0; j < 32; j++)
          v[j] = d[0][c * 32 + j];
        if (col0 + c * 64 < args.n)
          gemm_put<C>(v, args, boxes + (h * C::PARTS_N + c) * 2048, row0 + h * 64, col0 + c * 64);
      }
    }
#pragma unroll
    for (int j = 0; j < C::BN / 2; j++)
      d[0][j] = d[C::HALVES - 1][j];
  }
}

// ---- straight from registers ----
// v[16 b + 4 j + 2 half + i]: columns col + 32 b + 2 j + i of row + 8 half; col is the thread's
// first.
static __device__ __forceinline__ int direct_place(int block, int half, int i) {
  return block * 16 + i / 2 * 4 + half * 2 + i % 2;
}

// 8 neighbouring values as they are in memory.
template <class D> struct raw_eight {
  uint32_t word[2 * sizeof(D)];
  __device__ __forceinline__ void load(const D *p, bool exist) {
#pragma unroll
    for (int i = 0; i < 2 * (int)sizeof(D); i += 4) {
      uint4 w = make_uint4(0, 0, 0, 0);
      if (exist) w = *(const uint4 *)((const char *)p + 4 * i);
      word[i] = w.x, word[i + 1] = w.y, word[i + 2] = w.z, word[i + 3] = w.w;
    }
  }
  __device__ __forceinline__ float value(int i) const {
    if constexpr (sizeof(D) == 4) return __uint_as_float(word[i]);
    const float2 pair = unpack_pair<D>(word[i / 2]);
    return i % 2 ? pair.y : pair.x;
  }
};

template <class D, int N>
static __device__ __forceinline__ void direct_columns(const gemm_op &op, float (&v)[N], int col,
                                                      int cols) {
  raw_eight<D> b[N / 16];
  const bool factor = epilogue_is_factor(op);
  const D *from = (const D *)op.operand + col;
#pragma unroll
  for (int block = 0; block < N / 16; block++)
    b[block].load(from + block * 32, col + block * 32 < cols);
#pragma unroll
  for (int at = 0; at < N; at++) {
    const int block = at / 16, half = at / 8 % 2, i = at % 8;
    float &to = v[direct_place(block, half, i)];
    const float x = b[block].value(i);
    to = factor ? to * x : __fmaf_rn(op.imm, x, to);
  }
}

// Both rows at once, unless they would be too many registers.
template <class D, int N>
static __device__ __forceinline__ void direct_element(const gemm_op &op, float (&v)[N], int64_t row,
                                                      int col, int64_t rows, int cols) {
  constexpr int AT_ONCE = sizeof(D) == 4 ? 1 : 2;
  const bool factor = epilogue_is_factor(op);
#pragma unroll
  for (int first = 0; first < 2; first += AT_ONCE) {
    raw_eight<D> b[AT_ONCE][N / 16];
#pragma unroll
    for (int half = 0; half < AT_ONCE; half++) {
      const int64_t r = row + 8 * (first + half);
      const D *from = (const D *)op.operand + r * op.stride + col;
#pragma unroll
      for (int block = 0; block < N / 16; block++)
        b[half][block].load(from + block * 32, r < rows && col + block * 32 < cols);
    }
#pragma unroll
    for (int at = 0; at < N / 2 * AT_ONCE; at++) {
      const int block = at / 8 / AT_ONCE, half = at / 8 % AT_ONCE, i = at % 8;
      float &to = v[direct_place(block, first + half, i)];
      const float x = b[half][block].value(i);
      to = factor ? to * x : __fmaf_rn(op.imm, x, to);
    }
  }
}

// Results as floats, never as words: the compiler would carry them as words through the products,
// and wait for each of those.
template <class D> static __device__ __forceinline__ void store_eight(D *to, const float (&v)[8]) {
  if constexpr (sizeof(D) == 4) {
#pragma unroll
    for (int i = 0; i < 8; i += 4)
      asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + i), "f"(v[i]),
                   "f"(v[i + 1]), "f"(v[i + 2]), "f"(v[i + 3])
                   : "memory");
  } else {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
      w[i] = pack_pair<D>(v[2 * i], v[2 * i + 1]);
    store_global_16(to, w);
  }
}

// Into a matrix of dtype D, `data` at column col of row 0.
template <class D, int N>
static __device__ __forceinline__ void direct_store(D *data, int64_t stride, const float (&v)[N],
                                                    int64_t row, int col, int64_t rows, int cols) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const int64_t r = row + 8 * half;
    D *to = data + r * stride;
#pragma unroll
    for (int block = 0; block < N / 16; block++) {
      if (r >= rows || col + block * 32 >= cols) continue;
      float w[8];
#pragma unroll
      for (int i = 0; i < 8; i++)
        w[i] = v[direct_place(block, half, i)];
      store_eight(to + block * 32, w);
    }
  }
}

template <class T, int N>
static __device__ __forceinline__ void
direct_store_any(void *data, enum dtype dtype, int64_t stride, const float (&v)[N], int64_t row,
                 int col, int64_t rows, int cols) {
  if (dtype == DTYPE_F32)
    direct_store((float *)data + col, stride, v, row, col, rows, cols);
  else
    direct_store((T *)data + col, stride, v, row, col, rows, cols);
}

template <class T, int DEGREE, int N>
static __device__ __forceinline__ void
direct_op_apply(const gemm_op &op, float (&v)[N], int64_t row, int col, int64_t rows, int cols) {
  const bool wide = op.dtype == DTYPE_F32,
             spread = op.kind == EPI_ADD_SPREAD || op.kind == EPI_MUL_SPREAD;
  if (op.kind == EPI_SAVE) {
    direct_store_any<T>((void *)op.operand, op.dtype, op.stride, v, row, col, rows, cols);
  } else if (op.kind == EPI_BIAS || (spread && op.act == SPREAD_ROWS)) {
    if (wide)
      direct_columns<float>(op, v, col, cols);
    else
      direct_columns<T>(op, v, col, cols);
  } else if (op.kind == EPI_ADD || op.kind == EPI_MUL || (spread && op.act == SPREAD_NONE)) {
    if (wide)
      direct_element<float>(op, v, row, col, rows, cols);
    else
      direct_element<T>(op, v, row, col, rows, cols);
  } else if (op.kind == EPI_ACT) {
    activate_any<DEGREE>(op.act, v);
  } else {
    epilogue_op_value<T>(op, v, row, rows); // which column is the same to these
  }
}

// `bias_at`: of the thread's first column.
template <class C>
static __device__ __forceinline__ void
gemm_finish_direct_any(float (&d)[C::HALVES][C::BN / 2], const gemm_args &args, uint32_t bias_at,
                       int64_t row0, int col0) {
  using T = typename C::T;
  const int64_t row = row0 + threadIdx.x % 32 / 4;
  const int col = col0 + threadIdx.x % 4 * 8;
#pragma unroll 1
  for (int h = 0; h < C::HALVES; h++) {
    if (row0 + h * 64 < args.m) {
      if (args.epilogue.bias) {
#pragma unroll
        for (int block = 0; block < C::BN / 32; block++) {
          float bias[8];
          load_shared_8(bias, bias_at + block * 128);
#pragma unroll
          for (int at = 0; at < 16; at++)
            d[0][direct_place(block, at / 8, at % 8)] += bias[at % 8];
        }
      }
#pragma unroll 1
      for (int o = 0; o < args.epilogue.n; o++)
        direct_op_apply<T, GELU_DEGREE<T>>(args.epilogue.op[o], d[0], row + h * 64, col, args.m,
                                           args.n);
      direct_store_any<T>(args.y, args.y_dtype, args.y_stride, d[0], row + h * 64, col, args.m,
                          args.n);
    }
#pragma unroll
    for (int j = 0; j < C::BN / 2; j++)
      d[0][j] = d[C::HALVES - 1][j];
  }
}

#endif
