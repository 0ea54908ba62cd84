// Row programs (kernels/types.h) as CUDA C source text: pure functions of the program, no CUDA
// needed to run them.
//
// row_ir_build breaks a program into single-assignment operations and the reductions between them;
// row_tile_choose decides how a row is spread over threads; row_source writes the text. The text is
// one translation unit together with kernels/common/act.cuh and kernels/codegen/prelude.cuh. Load
// time only; any thread; nothing allocates.
#ifndef CODEGEN_CODEGEN_H
#define CODEGEN_CODEGEN_H

#include "kernels/types.h"

// ---- operations --------------------------------------------------------------------------------
// A program's instruction becomes one to four of these. An operation's result is named by its place
// in the array, so every name is assigned once.
enum ir_kind {
  IR_LOAD,  // input `index`
  IR_STORE, // output `index` <- a
  IR_ADD,
  IR_SUB,
  IR_MUL,
  IR_DIV,
  IR_MAX,
  IR_SCALE,
  IR_ADD_IMM,
  IR_ACT,
  IR_CAST,
  IR_CENTER,  // (a - b) * c
  IR_SOFTMAX, // exp(a - b) / c, zero where c is zero; b is the row's maximum, 0 in place of -inf
  // row scalars from row scalars
  IR_RSQRT,   // 1 / sqrt(a + imm)
  IR_INVERSE, // 1 / max(sqrt(a), imm)
  IR_FINITE,  // a, or 0 where a is -inf
  // reductions over the columns
  IR_SUM,
  IR_MEAN,
  IR_MAX_ROW,
  IR_SUM_SQ,
  IR_MEAN_SQ,
  IR_MEAN_SQ_DEV, // mean((a - b)^2)
  IR_SUM_EXP,     // sum(exp(a - b))
};
#define IR_FIRST_REDUCTION IR_SUM
#define IR_NONE (-1)
struct ir_op {
  uint8_t kind, index, aux;
  int16_t a, b, c;
  float imm;
  bool scalar;     // one value a row
  uint8_t segment; // reductions before it
  bool crosses;    // a vector that a later segment reads
};
#define ROW_IR_MAX (4 * ROW_MAX_INSTS)
struct row_ir {
  const struct row_program *prog;
  int n, n_segments; // segments: reductions + 1
  bool exact;        // some output is fp32: activations in full precision
  bool pools;
  bool clusters; // set by the caller after the build: the device has clusters of blocks (sm_90)
  // What input `made` pools is made inside the kernel, by this program of token rows; NULL: nothing
  // is. Of such a program: place of its inputs among the kernel's.
  const struct row_ir *before;
  uint8_t made, first_input;
  struct ir_op op[ROW_IR_MAX];
};
// False: the program is malformed, or uses something the generator does not have (64-bit arithmetic
// inputs).
bool row_ir_build(const struct row_program *prog, struct row_ir *out);
// Work before a pooling: after `ir` was built, what its input `made` pools comes from `before`,
// whose one output is in fp32 and whose inputs and index operands are the kernel's from
// `first_input` on. `before_ir` stays the caller's, as long as `ir` is used. False as above.
bool row_ir_build_before(const struct row_program *before, uint8_t first_input, uint8_t made,
                         struct row_ir *before_ir, struct row_ir *ir);

// ---- how a row is spread over threads ----------------------------------------------------------
enum row_style {
  ROW_FLAT,  // no row structure at all: contiguous operands as one long row
  ROW_TILE,  // pointwise: a block takes `threads * depth` vectors of a matrix
  ROW_GROUP, // `group` threads of each of `cluster` blocks hold a row (or `rows` rows at a time) in
             // registers: one read, one write
  ROW_STREAM, // a row too long for that: one block a row, read again after each reduction
};
struct row_tile {
  enum row_style style;
  int32_t vector;  // elements of one access; 1: any alignment
  int32_t threads; // of a block
  int32_t depth;   // vectors in flight a thread (ROW_GROUP: of one row)
  int32_t group;   // threads of a row (ROW_GROUP, ROW_STREAM)
  int32_t rows;    // rows at a time of a group (ROW_GROUP)
  int32_t cluster; // blocks that share a row (ROW_GROUP); 0 and 1: one
  int32_t slices;  // pools: parts of a sequence that a block folds at once; 0: a thread folds all
  int32_t blocks_per_sm; // launch bound; 0: none
  // Work before a pooling: threads that hold a token's row, vectors of it that each has, and blocks
  // that share a sequence's tokens (a cluster). The groups of all of them take turns at the tokens.
  int32_t before_group, before_depth, before_blocks;
};
#define ROW_VARIANTS 3
extern const char *const
    row_variant_name[ROW_VARIANTS]; // kernel names: "fw_row_vector", "fw_row_scalar", "fw_row_flat"
enum row_variant { ROW_VARIANT_VECTOR, ROW_VARIANT_SCALAR, ROW_VARIANT_FLAT };
// False: this variant does not exist for the program (no vectors in an odd row, no flat form of a
// row reduction).
bool row_tile_choose(const struct row_ir *ir, enum row_variant variant, struct row_tile *out);
// Blocks for `rows` rows; 0 when they do not fit a grid.
uint32_t row_tile_blocks(const struct row_tile *tile, int32_t cols, int64_t rows);

// ---- text --------------------------------------------------------------------------------------
// Kernel `name` for this tile, NUL-terminated. Returns the bytes needed without the NUL; nothing is
// complete unless that is below out_bytes.
size_t row_source(const struct row_ir *ir, const struct row_tile *tile, const char *name, char *out,
                  size_t out_bytes);
// All variants that the program has, one after another; `tiles[v].threads` is 0 for those it has
// not.
size_t row_source_all(const struct row_ir *ir, struct row_tile tiles[ROW_VARIANTS], char *out,
                      size_t out_bytes);

#endif
