// The epilogue functor: a list of operations (kernels/types.h) on fp32 accumulators, in order,
// before the one rounding.
//
// The common lists, [bias] [activation] [residual], are straight code with the activation fixed at
// compile time; any other list runs through a loop. Values come as pairs of neighbouring columns.
#ifndef GEMM_EPILOGUE_CUH
#define GEMM_EPILOGUE_CUH

#include "kernels/common/act.cuh"
#include "kernels/types.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define GEMM_ACT_ANY (-1)

struct gemm_op {
  int kind, act;
  float imm; // of what adds an operand: times which; 1 in most
  enum dtype dtype;
  const void *operand; // EPI_BIAS: [n]; EPI_ADD, EPI_MUL: [m, n]; EPI_SAVE: written
  int64_t stride;
};
struct gemm_epilogue {
  int n;
  struct gemm_op op[EPILOGUE_MAX];
  // A bias that comes first, taken out of the list; and the common form, of which nothing is in the
  // list but what residual says: [bias] [activation] [residual in op[0]]
  const void *bias;
  bool bias_wide, residual;
};

static __device__ __forceinline__ float load_one(const void *p, int64_t i, enum dtype dtype) {
  if (dtype == DTYPE_F32) return ((const float *)p)[i];
  if (dtype == DTYPE_BF16) return __bfloat162float(((const __nv_bfloat16 *)p)[i]);
  return __half2float(((const __half *)p)[i]);
}

static __device__ __forceinline__ void store_one(void *p, int64_t i, float v, enum dtype dtype) {
  if (dtype == DTYPE_F32)
    ((float *)p)[i] = v;
  else if (dtype == DTYPE_BF16)
    ((__nv_bfloat16 *)p)[i] = __float2bfloat16(v);
  else
    ((__half *)p)[i] = __float2half(v);
}

// Where results go when they are stored straight from registers.
struct gemm_output {
  void *y;
  int64_t stride;
  int32_t n;
  enum dtype dtype;
  bool pairs; // an even column and its neighbour may be stored as one word (gemm_pairs)
};

// Columns `col` and, where it exists, the next.
static __device__ __forceinline__ void store_pair(const gemm_output &o, float x, float y,
                                                  int64_t row, int col) {
  const int64_t at = row * o.stride + col;
  if (o.pairs && o.dtype == DTYPE_BF16) {
    *(__nv_bfloat162 *)((__nv_bfloat16 *)o.y + at) = __floats2bfloat162_rn(x, y);
  } else if (o.pairs && o.dtype == DTYPE_F16) {
    *(__half2 *)((__half *)o.y + at) = __floats2half2_rn(x, y);
  } else if (o.pairs) {
    *(float2 *)((float *)o.y + at) = make_float2(x, y);
  } else {
    store_one(o.y, at, x, o.dtype);
    if (col + 1 < o.n) store_one(o.y, at + 1, y, o.dtype);
  }
}

// A thread's part of a tile, in the layout of the matrix instructions' accumulators: v[4j .. 4j+3]
// are columns (col + 8j, +1) at `row` and at `row + 8`. What dtype it is is asked once, not for
// every pair.
template <class D, int N>
static __device__ __forceinline__ void store_fragment_as(const gemm_output &o, const float (&v)[N],
                                                         int64_t row, int col, int64_t rows) {
#pragma unroll
  for (int i = 0; i < N / 2; i++) {
    const int64_t r = row + (i & 1) * 8;
    const int c = col + i / 2 * 8;
    if (r >= rows || c >= o.n) continue;
    const int64_t at = r * o.stride + c;
    if constexpr (sizeof(D) == 4)
      *(float2 *)((float *)o.y + at) = make_float2(v[2 * i], v[2 * i + 1]);
    else if constexpr (__is_same(D, __nv_bfloat16))
      *(__nv_bfloat162 *)((__nv_bfloat16 *)o.y + at) =
          __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
    else
      *(__half2 *)((__half *)o.y + at) = __floats2half2_rn(v[2 * i], v[2 * i + 1]);
  }
}

template <int N>
static __device__ __forceinline__ void store_fragment(const gemm_output &o, const float (&v)[N],
                                                      int64_t row, int col, int64_t rows) {
  if (o.pairs && o.dtype == DTYPE_BF16) {
    store_fragment_as<__nv_bfloat16>(o, v, row, col, rows);
  } else if (o.pairs && o.dtype == DTYPE_F16) {
    store_fragment_as<__half>(o, v, row, col, rows);
  } else if (o.pairs) {
    store_fragment_as<float>(o, v, row, col, rows);
  } else {
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
      const int64_t r = row + (i & 1) * 8;
      const int c = col + i / 2 * 8;
      if (r < rows && c < o.n) store_pair(o, v[2 * i], v[2 * i + 1], r, c);
    }
  }
}

template <class D> static __device__ __forceinline__ float2 load_pair(const void *p, int64_t i) {
  if constexpr (sizeof(D) == 4)
    return *(const float2 *)((const float *)p + i);
  else if constexpr (__is_same(D, __nv_bfloat16))
    return __bfloat1622float2(*(const __nv_bfloat162 *)((const __nv_bfloat16 *)p + i));
  else
    return __half22float2(*(const __half2 *)((const __half *)p + i));
}

// Of the polynomial in GELU, by how fine the output is: one number for all kernels of a dtype,
// whose rows are the same bits. Products in fp32 take every activation in its exact form.
#define GELU_EXACT 0
template <class T>
constexpr int GELU_DEGREE = __is_same(T, float)           ? GELU_EXACT
                            : __is_same(T, __nv_bfloat16) ? 5
                                                          : 6;

template <int ACT> static __device__ __forceinline__ float activate_exact(float x) {
  if (ACT == ACT_GELU_ERF) return fw_gelu_erf_exact(x);
  if (ACT == ACT_GELU_TANH) return fw_gelu_tanh_exact(x);
  if (ACT == ACT_RELU) return fw_max(x, 0.0f);
  if (ACT == ACT_SILU) return fw_silu_exact(x);
  if (ACT == ACT_TANH) return tanhf(x);
  if (ACT == ACT_SIGMOID) return fw_sigmoid_exact(x);
  return x;
}

template <int ACT, int DEGREE> static __device__ __forceinline__ float activate(float x) {
  if (DEGREE == GELU_EXACT) return activate_exact<ACT>(x);
  if (ACT == ACT_GELU_ERF) return fw_gelu_erf_fast<DEGREE>(x);
  if (ACT == ACT_GELU_TANH) return fw_gelu_tanh_fast(x);
  if (ACT == ACT_RELU) return fw_max(x, 0.0f);
  if (ACT == ACT_SILU) return fw_silu_fast(x);
  if (ACT == ACT_TANH) return tanhf(x);
  if (ACT == ACT_SIGMOID) return fw_sigmoid_fast(x);
  return x;
}

template <int ACT, int DEGREE, int N>
static __device__ __forceinline__ void activate_all(float (&v)[N]) {
#pragma unroll
  for (int j = 0; j < N; j++)
    v[j] = activate<ACT, DEGREE>(v[j]);
}

template <int DEGREE, int N>
static __device__ __forceinline__ void activate_any(int act, float (&v)[N]) {
  switch (act) {
  case ACT_GELU_ERF:
    activate_all<ACT_GELU_ERF, DEGREE>(v);
    break;
  case ACT_GELU_TANH:
    activate_all<ACT_GELU_TANH, DEGREE>(v);
    break;
  case ACT_RELU:
    activate_all<ACT_RELU, DEGREE>(v);
    break;
  case ACT_SILU:
    activate_all<ACT_SILU, DEGREE>(v);
    break;
  case ACT_TANH:
    activate_all<ACT_TANH, DEGREE>(v);
    break;
  case ACT_SIGMOID:
    activate_all<ACT_SIGMOID, DEGREE>(v);
    break;
  default:
    break;
  }
}

template <class T> static __device__ __forceinline__ float2 unpack_pair(uint32_t w) {
  if (__is_same(T, __nv_bfloat16))
    return make_float2(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u));
  return __half22float2(*(const __half2 *)&w);
}

// This thread's column of a tile's bias, as the epilogue wants it.
template <class T>
static __device__ __forceinline__ float epilogue_fetch_bias(const gemm_epilogue &e, int col,
                                                            int cols) {
  if (!e.bias || col >= cols) return 0.0f;
  return e.bias_wide ? ((const float *)e.bias)[col] : (float)((const T *)e.bias)[col];
}

// A pair of neighbouring values as it is in memory. Kept so until all of a thread's have come: what
// is converted at once is waited for one by one.
template <class D> struct raw_pair {
  uint32_t word;
  __device__ __forceinline__ void load(const D *p, bool exists) {
    word = 0;
    if (exists) word = *(const uint32_t *)p;
  }
  __device__ __forceinline__ float2 values() const {
    return unpack_pair<D>(word);
  }
};
template <> struct raw_pair<float> {
  float2 word;
  __device__ __forceinline__ void load(const float *p, bool exists) {
    word = make_float2(0.0f, 0.0f);
    if (exists) word = *(const float2 *)p;
  }
  __device__ __forceinline__ float2 values() const {
    return word;
  }
};

// The results with what an operand has for each: times it, or plus op.imm times it with one
// rounding.
static __device__ __forceinline__ bool epilogue_is_factor(const gemm_op &op) {
  return op.kind == EPI_MUL || op.kind == EPI_MUL_SPREAD;
}

static __device__ __forceinline__ float epilogue_combine(const gemm_op &op, float v, float b) {
  return epilogue_is_factor(op) ? v * b : __fmaf_rn(op.imm, b, v);
}

// One value a column, the same for every row. What lies outside is 0, and its result is never
// stored.
template <class D, int N>
static __device__ __forceinline__ void epilogue_columns(const gemm_op &op, float (&v)[N], int col,
                                                        int cols) {
  raw_pair<D> b[N / 4];
  const bool factor = epilogue_is_factor(op);
#pragma unroll
  for (int j = 0; j < N / 4; j++)
    b[j].load((const D *)op.operand + col + 8 * j, col + 8 * j < cols);
#pragma unroll
  for (int i = 0; i < N; i++) {
    const float2 x = b[i / 4].values();
    const float y = i % 2 ? x.y : x.x;
    v[i] = factor ? v[i] * y : __fmaf_rn(op.imm, y, v[i]);
  }
}

// One value an element: residual or gate. Both rows at once, unless they would be too many
// registers.
template <class D, int N>
static __device__ __forceinline__ void
epilogue_element(const gemm_op &op, float (&v)[N], int64_t row, int col, int64_t rows, int cols) {
  constexpr int AT_ONCE = N * sizeof(D) > 128 ? 1 : 2;
  const bool factor = epilogue_is_factor(op);
#pragma unroll
  for (int first = 0; first < 2; first += AT_ONCE) {
    raw_pair<D> b[AT_ONCE][N / 4];
#pragma unroll
    for (int half = 0; half < AT_ONCE; half++) {
      const int64_t r = row + 8 * (first + half);
      const D *from = (const D *)op.operand + r * op.stride + col;
#pragma unroll
      for (int j = 0; j < N / 4; j++)
        b[half][j].load(from + 8 * j, r < rows && col + 8 * j < cols);
    }
#pragma unroll
    for (int i = 0; i < N / 2 * AT_ONCE; i++) {
      const int half = i / 2 % AT_ONCE, j = i / 2 / AT_ONCE;
      const float2 x = b[half][j].values();
      float &to = v[4 * j + 2 * (first + half) + i % 2];
      const float y = i % 2 ? x.y : x.x;
      to = factor ? to * y : __fmaf_rn(op.imm, y, to);
    }
  }
}

// One value a row, or for all, in fp32 or T.
template <class T, int N>
static __device__ __forceinline__ void epilogue_rows(const gemm_op &op, float (&v)[N], int64_t row,
                                                     int64_t rows) {
  const int64_t stride = op.act == SPREAD_ALL ? 0 : op.stride;
  const bool first = row < rows, second = row + 8 < rows;
  float x = 0.0f, y = 0.0f;
  if (sizeof(T) == 4 || op.dtype == DTYPE_F32) {
    const float *from = (const float *)op.operand + row * stride;
    if (first) x = from[0];
    if (second) y = from[8 * stride];
  } else { // both words are asked for before either is looked at
    const uint16_t *from = (const uint16_t *)op.operand + row * stride;
    uint16_t low = 0, high = 0;
    if (first) low = from[0];
    if (second) high = from[8 * stride];
    x = unpack_pair<T>(low).x, y = unpack_pair<T>(high).x;
  }
#pragma unroll
  for (int i = 0; i < N; i++)
    v[i] = epilogue_combine(op, v[i], i / 2 % 2 ? y : x);
}

// ---- what the common lists have not ----
static __device__ __forceinline__ float epilogue_round(float v, int dtype) {
  return dtype == DTYPE_BF16 ? __bfloat162float(__float2bfloat16(v))
                             : __half2float(__float2half(v));
}

// Where the operand's value for an element lies, and the values of a pair: for kernels that go
// element by element.
static __device__ __forceinline__ int64_t epilogue_spread_at(const gemm_op &op, int64_t row,
                                                             int col) {
  return (op.act == SPREAD_NONE || op.act == SPREAD_COLUMNS ? row * op.stride : 0) +
         (op.act <= SPREAD_ROWS ? col : 0);
}

template <class T>
static __device__ __forceinline__ float2 epilogue_spread_pair(const gemm_op &op, int64_t row,
                                                              int col) {
  const int64_t at = epilogue_spread_at(op, row, col);
  if (op.act <= SPREAD_ROWS)
    return op.dtype == DTYPE_F32 ? load_pair<float>(op.operand, at) : load_pair<T>(op.operand, at);
  const float b = load_one(op.operand, at, op.dtype);
  return make_float2(b, b);
}

// The values as they stand into a result of their own.
static __device__ __forceinline__ gemm_output epilogue_saved(const gemm_op &op, int cols) {
  return gemm_output{(void *)op.operand, op.stride, cols, op.dtype, true};
}

// What has no value for each column.
template <class T, int N>
static __device__ __forceinline__ void epilogue_op_value(const gemm_op &op, float (&v)[N],
                                                         int64_t row, int64_t rows) {
  if (op.kind == EPI_SCALE) {
#pragma unroll
    for (int j = 0; j < N; j++)
      v[j] *= op.imm;
  } else if (op.kind == EPI_ROUND) {
#pragma unroll
    for (int j = 0; j < N; j++)
      v[j] = epilogue_round(v[j], op.act);
  } else {
    epilogue_rows<T>(op, v, row, rows);
  }
}

// Any but an activation.
template <class T, int N>
static __device__ __forceinline__ void
epilogue_op_plain(const gemm_op &op, float (&v)[N], int64_t row, int col, int64_t rows, int cols) {
  const bool wide = op.dtype == DTYPE_F32,
             spread = op.kind == EPI_ADD_SPREAD || op.kind == EPI_MUL_SPREAD;
  if (op.kind == EPI_SAVE) {
    store_fragment(epilogue_saved(op, cols), v, row, col, rows);
  } else if (op.kind == EPI_SCALE || op.kind == EPI_ROUND || (spread && op.act >= SPREAD_COLUMNS)) {
    epilogue_op_value<T>(op, v, row, rows);
  } else if (op.kind == EPI_BIAS || (spread && op.act == SPREAD_ROWS)) {
    if (wide)
      epilogue_columns<float>(op, v, col, cols);
    else
      epilogue_columns<T>(op, v, col, cols);
  } else if (wide) {
    epilogue_element<float>(op, v, row, col, rows, cols);
  } else {
    epilogue_element<T>(op, v, row, col, rows, cols);
  }
}

template <class T, int DEGREE, int N>
static __device__ __forceinline__ void
epilogue_op_apply(const gemm_op &op, float (&v)[N], int64_t row, int col, int64_t rows, int cols) {
  if (op.kind == EPI_ACT)
    activate_any<DEGREE>(op.act, v);
  else
    epilogue_op_plain<T>(op, v, row, col, rows, cols);
}

// Asks for a residual or a gate of a tile, long before it is wanted, so that it is in the L2 by
// then: row `row` of it, `width` columns from col on, as far as they exist. Does nothing where it
// is not aligned for that, or before sm_90.
template <class T>
static __device__ __forceinline__ void epilogue_prefetch(const gemm_op &op, int64_t row, int col,
                                                         int width, int64_t rows, int cols) {
#if __CUDA_ARCH__ >= 900
  const bool elements = op.kind == EPI_ADD || op.kind == EPI_MUL ||
                        (op.kind == EPI_ADD_SPREAD && op.act == SPREAD_NONE);
  if (!elements || row >= rows || col >= cols) return;
  const int size = op.dtype == DTYPE_F32 ? 4 : (int)sizeof(T);
  const char *from = (const char *)op.operand + (row * op.stride + col) * size;
  const int bytes = (cols - col < width ? cols - col : width) * size / 16 * 16;
  if ((uintptr_t)from % 16 != 0 || bytes == 0) return;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#else
  (void)op, (void)row, (void)col, (void)width, (void)rows, (void)cols;
#endif
}

template <class T, int N>
static __device__ __forceinline__ void epilogue_residual(const gemm_epilogue &e, float (&v)[N],
                                                         int64_t row, int col, int64_t rows,
                                                         int cols) {
  if (e.op[0].dtype == DTYPE_F32)
    epilogue_element<float>(e.op[0], v, row, col, rows, cols);
  else
    epilogue_element<T>(e.op[0], v, row, col, rows, cols);
}

// N/4 pairs of the tile's bias from shared memory: `bias` is the address of this thread's first
// column.
template <int N>
static __device__ __forceinline__ void epilogue_load_bias(float2 (&b)[N], uint32_t bias) {
#pragma unroll
  for (int j = 0; j < N; j++)
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(b[j].x), "=f"(b[j].y)
                 : "r"(bias + 32 * j));
}

template <int N>
static __device__ __forceinline__ void epilogue_add_bias(float (&v)[N], const float2 *bias) {
#pragma unroll
  for (int j = 0; j < N / 4; j++) {
    v[4 * j] += bias[j].x, v[4 * j + 1] += bias[j].y;
    v[4 * j + 2] += bias[j].x, v[4 * j + 3] += bias[j].y;
  }
}

// v[4j .. 4j+3]: columns (col + 8j, +1) at `row` and at `row + 8`: the layout of the matrix
// instructions' accumulators. cols is even, and operands are aligned to pairs (the table of kernels
// sees to it). `bias`: that of columns col + 8j, used in the common form.
template <class T, int ACT, int DEGREE, bool RESIDUAL, int N>
static __device__ __forceinline__ void epilogue_apply(const gemm_epilogue &e, float (&v)[N],
                                                      const float2 *bias, int64_t row, int col,
                                                      int64_t rows, int cols) {
  // [bias] [activation] [residual or gate]; without an activation the residual, then the bias
  if (RESIDUAL && ACT == ACT_NONE && e.residual) epilogue_residual<T>(e, v, row, col, rows, cols);
  epilogue_add_bias(v, bias);
  activate_all<ACT, DEGREE>(v);
  if (RESIDUAL && ACT != ACT_NONE && e.residual) epilogue_residual<T>(e, v, row, col, rows, cols);
}

#endif
