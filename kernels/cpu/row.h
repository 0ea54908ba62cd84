// Row programs on the CPU: a blocked interpreter, in two speeds.
//
// Whole-row functions, reductions, gathers, pools and arithmetic on row scalars run one instruction
// at a time over a block of rows that stays in the first-level cache, so that the price of
// interpreting is a few nanoseconds per thousands of elements.
//
// Element-wise instructions between them are gathered into passes when the program is made ready.
// A pass takes a tile of one row, some vectors that stay in registers, through all of its
// instructions before it goes on to the next tile: a chain of sixteen steps reads its input once
// and writes its result once, and nothing in between touches memory. Rows that lie together
// wherever the pass reads and writes are one row to it. Each instruction rounds as it would alone.
#ifndef KERNELS_CPU_ROW_H
#define KERNELS_CPU_ROW_H

#include "kernels/types.h"

enum row_shape {
  SHAPE_FULL, // [rows, cols]
  SHAPE_COL,  // one row, the same for all rows
  SHAPE_ROW,  // one value per row
};

// What a pass does to the tile in the registers, the accumulator. Operations that do not commute
// have a form with the operands swapped (of MAX: for the sign of zeros); each is there with an
// operand in memory and with one that is the same for the whole row.
#define PASS_CODES(F)                                                                              \
  F(LOAD)      /* accumulator <- floats */                                                         \
  F(LOAD_BF16) /* accumulator <- bf16 */                                                           \
  F(FETCH)     /* stash `aux` <- floats of any dtype; the accumulator stays */                     \
  F(SAVE)      /* floats <- accumulator */                                                         \
  F(SAVE_BF16) /* bf16 <- accumulator */                                                           \
  F(STORE)     /* any dtype <- accumulator */                                                      \
  F(ADD)       /* accumulator <- accumulator + operand */                                          \
  F(SUB)                                                                                           \
  F(MUL)                                                                                           \
  F(DIV)                                                                                           \
  F(MAX)                                                                                           \
  F(SUB_FROM) /* accumulator <- operand - accumulator */                                           \
  F(DIV_INTO)                                                                                      \
  F(MAX_WITH)                                                                                      \
  F(ADD_ONE)                                                                                       \
  F(SUB_ONE)                                                                                       \
  F(MUL_ONE)                                                                                       \
  F(DIV_ONE)                                                                                       \
  F(MAX_ONE)                                                                                       \
  F(SUB_FROM_ONE)                                                                                  \
  F(DIV_INTO_ONE)                                                                                  \
  F(MAX_WITH_ONE)                                                                                  \
  F(RELU)                                                                                          \
  F(ACT) /* `aux`: enum activation */                                                              \
  F(ROUND_BF16)                                                                                    \
  F(ROUND) /* `aux`: enum dtype */
enum pass_code {
#define PASS_CODE(name) PASS_##name,
  PASS_CODES(PASS_CODE)
#undef PASS_CODE
      PASS_END,
};
#define PASS_ONE (PASS_ADD_ONE - PASS_ADD) // from the form with memory to the one with a scalar
enum pass_where {
  AT_NOTHING,
  AT_IMMEDIATE, // `imm`
  AT_STASH,     // a tile of its own for each register, only as long as the tile is worked on
  AT_REGISTER,  // what the block's register holds when the pass begins
  AT_RESULT,    // where instruction `index` of this pass leaves its result: register or output
  AT_INPUT,
  AT_OUTPUT,
};
struct pass_op {
  uint8_t code, where, index, aux;
  float imm;
};
#define PASS_OPS_MAX (5 * ROW_MAX_INSTS) // two fetches, a load, the operation, a save for each
struct row_pass {
  uint16_t first, n; // of row_kernel.pass_ops
  uint64_t kept;     // instructions whose registers are read after the pass
};
struct row_step {
  bool is_pass;
  uint8_t index; // of the pass or the instruction
};

// A row program made ready: what each register holds, which loads need no copy, which stores are
// already done.
struct row_kernel {
  struct row_program program;
  uint8_t shape[ROW_MAX_INSTS];  // enum row_shape of the register that instruction i writes
  uint8_t direct[ROW_MAX_INSTS]; // output that instruction i writes in place of its register, or
                                 // ROW_NONE
  bool done[ROW_MAX_INSTS];      // a store whose value was written directly
  bool borrow[ROW_MAX_INPUTS];   // the register may point into the input
  bool registers;                // some step leaves something in the block's registers
  uint8_t n_steps, n_passes;
  struct row_step steps[ROW_MAX_INSTS];
  struct row_pass passes[ROW_MAX_INSTS];
  struct pass_op pass_ops[PASS_OPS_MAX];
  int32_t block_rows; // rows of one block
  int32_t block_cols; // columns of one block: all, unless the program is pointwise and very wide
};

// `overlap`: some output's memory overlaps some input's (in-place steps): then nothing is borrowed
// or written directly, and there are no passes. False when the program is not well formed (register
// or operand out of range, use before definition, a result in the register of an operand of another
// shape).
bool row_prepare(struct row_kernel *out, const struct row_program *program, bool overlap);
size_t row_scratch_bytes(const struct row_kernel *kernel); // of one call

// A program over token rows whose one output, fp32, is pooled as it is made.
struct row_before {
  const struct row_kernel *kernel;
  const struct view *inputs; // at token 0; index operands too
  int n_inputs;              // with index operands
  const int64_t *table_rows; // [n_inputs]
  float *rows;               // row_before_floats
  float *scratch;            // row_scratch_bytes
};
size_t row_before_floats(const struct row_kernel *kernel);

struct row_call {
  // IN_FULL, IN_PER_ROW: data of row `row0`; index operands of gathers likewise; tables, pooled
  // inputs, IN_PER_COL and IN_SCALAR: their first row.
  const struct view *inputs;
  const struct view *outputs; // data of row `row0`
  const int64_t *table_rows;  // [inputs]: rows of the table of an IN_GATHER, else unused
  int64_t row0, n_rows;
  const struct batch_geometry *geometry; // pools and positions
  float *scratch;                        // row_scratch_bytes, 64-byte aligned
  int32_t n_cols;                        // of an element-wise program: the first so many; 0: all
  const struct row_before *before;       // makes the rows of the pooled input whose data is NULL
};

#endif
