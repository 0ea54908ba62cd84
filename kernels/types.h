// The words that host code and kernels share: dtypes, activations, row programs, problems, batch
// geometry. Plain C, no CUDA types, no server types. Everything here is plain data that may be
// copied.
#ifndef KERNELS_TYPES_H
#define KERNELS_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// ---- dtypes
// -------------------------------------------------------------------------------------------------------
enum dtype { DTYPE_INVALID, DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I64, DTYPE_I32, DTYPE_COUNT };
size_t dtype_bytes(enum dtype dtype); // 0 for DTYPE_INVALID
const char *
dtype_name(enum dtype dtype); // "fp32", "fp16", "bf16", "int64", "int32": the words of model files

// bf16 and fp16 are stored as uint16_t bit patterns. Conversions round to nearest even; NaN stays
// NaN.
float bf16_to_f32(uint16_t bits);
uint16_t f32_to_bf16(float value);
float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value);

// ---- activations
// --------------------------------------------------------------------------------------------------
// gelu_erf(x) = x/2 * erfc(-x/sqrt2); gelu_tanh(x) = x * sigmoid(2u), u = sqrt(2/pi)(x + 0.044715
// x^3) (the forms that do not cancel in the tails); silu(x) = x * sigmoid(x).
enum activation {
  ACT_NONE,
  ACT_GELU_ERF,
  ACT_GELU_TANH,
  ACT_RELU,
  ACT_SILU,
  ACT_TANH,
  ACT_SIGMOID,
  ACT_COUNT
};
const char *activation_name(enum activation act);

// ---- geometry of a packed batch
// ----------------------------------------------------------------------------------- Sequences of
// unlike length lie one after another as rows of [T, ...] tensors. Row counts of tensors are one of
// these.
enum row_kind {
  ROWS_TOKENS, // T = cu_seqlens[n_seqs]
  ROWS_SEQS,   // B = n_seqs
  ROWS_SCORES, // heads * sum(s_b^2) / ... : an unfused attention matrix; see `scores_offset`
  ROWS_FIXED,  // weights: the row count is in the tensor
};

struct batch_geometry {
  int32_t n_tokens; // T >= 1
  int32_t n_seqs;   // B >= 1; models without sequences have T rows and B = T, cu_seqlens = 0..T
  int32_t max_seqlen;
  int64_t sum_sq; // sum over sequences of s_b^2: the rows of an attention matrix, per head
  const int32_t *cu_seqlens;    // [B + 1], cu_seqlens[0] = 0, strictly growing unless a sequence is
                                // empty (then equal)
  const int32_t *positions;     // [T], index of each token in its own unpacked sequence
  const int64_t *scores_offset; // [B + 1] prefix sums of s_b^2; attention matrices are [sum_sq,
                                // heads] as blocks: sequence b, head h, query i, key j at
                                // heads*scores_offset[b] + (h*s_b + i)*s_b + j
};

// ---- operands
// -----------------------------------------------------------------------------------------------------
// A 2-D view of rows: element (r, c) at data + (r * stride + c) elements. `stride` is in elements,
// >= cols.
struct view {
  void *data;
  int64_t stride;
  int32_t cols;
  enum dtype dtype;
};

// ---- row programs: one description for pointwise, row, gather and pool groups
// -------------------------------------- A row program works on one row at a time (tiles of rows in
// practice). Registers hold a row of `cols` floats, or one float (a row scalar) for the results of
// reductions. Both back ends run it: the CPU as a blocked interpreter, CUDA by generated source.
// Arithmetic is fp32; RI_CAST rounds as a store to that dtype and a load back would. A register is
// a row scalar when its instruction says so (reductions, loads of IN_PER_ROW and IN_SCALAR,
// element-wise instructions whose operands are all scalars). `dst` may be the register `a` when
// both are of the same class (row scalar, per-column load, whole rows), never b or c.
enum row_input_class {
  IN_FULL,    // [rows, cols]
  IN_PER_COL, // [cols]: bias, gamma, beta (weights)
  IN_PER_ROW, // [rows, 1]
  IN_SCALAR,  // [1, 1]
  IN_GATHER,  // table [n, cols]; index operand [rows] (int32 or int64) picks the row; out of range
              // reads as zeros (indices are validated before a batch is admitted)
  IN_POOL_MEAN, // [T, cols] reduced over each sequence's tokens: the program's rows are sequences
  IN_POOL_CLS,  //   first token
  IN_POOL_MAX,  //   maximum per column
};
enum row_opcode {
  RI_LOAD,  // dst <- input[a]
  RI_STORE, // output[dst] <- register a (rounded to the output's dtype)
  RI_ADD,
  RI_SUB,
  RI_MUL,
  RI_DIV,
  RI_MAX,     // dst <- a op b; a row scalar is broadcast over the columns
  RI_SCALE,   // dst <- a * imm
  RI_ADD_IMM, // dst <- a + imm
  RI_ACT,     // dst <- act(a), act in `aux`
  RI_CAST,    // dst <- round a to dtype `aux`
  RI_SUM,
  RI_MEAN,
  RI_MAX_ROW,    // dst (row scalar) <- reduction of a over the columns
  RI_LAYER_NORM, // dst <- (a - mean)/sqrt(var + imm) * b + c; b, c registers (per-col) or ROW_NONE;
                 // centred variance
  RI_RMS_NORM,   // dst <- a / sqrt(mean(a^2) + imm) * b; b register or ROW_NONE
  RI_SOFTMAX,    // dst <- softmax over the columns; a fully -inf row gives zeros
  RI_NORMALIZE,  // dst <- a / max(||a||_2, imm)
};
#define ROW_NONE 255
#define ROW_MAX_INPUTS 16
#define ROW_MAX_OUTPUTS 8
#define ROW_MAX_INSTS 64
#define ROW_MAX_REGS 16
struct row_inst {
  uint8_t op, dst, a, b, c, aux;
  float imm;
};
struct row_input {
  enum row_input_class cls;
  enum dtype dtype;
  uint8_t index_operand; // IN_GATHER: position of the index operand among the step's inputs; 255 =
                         // geometry positions
};
struct row_program {
  int32_t cols;
  uint8_t n_inputs, n_outputs, n_insts, n_regs;
  struct row_input inputs[ROW_MAX_INPUTS];
  enum dtype output_dtype[ROW_MAX_OUTPUTS];
  uint8_t output_is_scalar[ROW_MAX_OUTPUTS]; // 1: the output is [rows, 1]
  struct row_inst insts[ROW_MAX_INSTS];
};

// ---- products
// -----------------------------------------------------------------------------------------------------
// y[M, N] = epilogue(x[M, K] * W^T), W [N, K] row-major as PyTorch's Linear stores it
// (out_features, in_features). Epilogue operations run in order on the fp32 accumulator, then one
// rounding to y's dtype.
enum epilogue_kind {
  EPI_BIAS,  // + bias[n]
  EPI_ACT,   // act(.)
  EPI_SCALE, // * imm
  EPI_ADD,   // + operand[m, n] (residual)
  EPI_MUL,   // * operand[m, n] (gate)
  // What a finish comes to where products run lists alone (graph/finish_list.h); never in a plan.
  EPI_ADD_SPREAD, // + imm * operand, with one rounding; the operand is spread as `act` says
  EPI_MUL_SPREAD, // * operand, likewise
  EPI_ROUND,      // to the dtype in `act` and back
  EPI_SAVE,       // the value as it stands is a result too: into out[operand], [m, n]
};
enum epilogue_spread {
  SPREAD_NONE,    // [m, n]
  SPREAD_ROWS,    // [n]: one value a column, the same for all rows
  SPREAD_COLUMNS, // [m, 1]: one value a row
  SPREAD_ALL,     // one value
};
#define EPILOGUE_MAX 8
struct epilogue_op {
  uint8_t kind, act; // act: enum activation, epilogue_spread or dtype, by kind
  // Position among the step's inputs (EPI_SAVE: outputs); of those without an operand not looked
  // at.
  uint8_t operand;
  float imm;
};
// Does the operation read an operand among the inputs?
static inline bool epilogue_reads(uint8_t kind) {
  return kind != EPI_ACT && kind != EPI_SCALE && kind != EPI_ROUND && kind != EPI_SAVE;
}
struct linear_problem {
  int32_t n, k;
  enum dtype x_dtype, w_dtype, y_dtype;
  uint8_t n_epilogue;
  struct epilogue_op epilogue[EPILOGUE_MAX];
};

// ---- a norm behind a product
// y[M, N] = norm(s) over the columns of a row, s by a linear_problem. s is rounded to y's dtype
// before the norm, as if it went through memory.
enum row_norm {
  ROW_NORM_NONE,
  ROW_NORM_LAYER, // (s - mean) / sqrt(variance + eps) * gamma + beta
  ROW_NORM_RMS,   // s / sqrt(mean(s^2) + eps) * gamma + beta
};
struct norm_problem {
  uint8_t kind;        // enum row_norm
  uint8_t gamma, beta; // [N]: positions among the step's inputs; ROW_NONE: 1, and 0
  bool sum;            // s is wanted as well
  float eps;
};

// ---- attention
// ----------------------------------------------------------------------------------------------------
// o_i = sum_j softmax_j(scale * q_i . k_j) v_j within one sequence; causal: j <= i. Head h reads kv
// head h / (heads / kv_heads). A query without any key gives zeros.
struct attention_problem {
  int32_t heads, kv_heads, head_dim;
  bool causal;
  float scale;
  enum dtype dtype;
};

#endif
