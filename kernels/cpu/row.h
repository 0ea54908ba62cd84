// Row programs on the CPU: a blocked interpreter. One instruction at a time works on a block of
// rows that stays in the first-level cache, so that the price of interpreting is a few nanoseconds
// per thousands of elements.
#ifndef KERNELS_CPU_ROW_H
#define KERNELS_CPU_ROW_H

#include "kernels/types.h"

enum row_shape {
  SHAPE_FULL, // [rows, cols]
  SHAPE_COL,  // one row, the same for all rows
  SHAPE_ROW,  // one value per row
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
  int32_t block_rows;            // rows of one block
  int32_t block_cols; // columns of one block: all, unless the program is pointwise and very wide
};

// `overlap`: some output's memory overlaps some input's (in-place steps): then nothing is borrowed
// or written directly. False when the program is not well formed (register or operand out of range,
// use before definition).
bool row_prepare(struct row_kernel *out, const struct row_program *program, bool overlap);
size_t row_scratch_bytes(const struct row_kernel *kernel); // of one call

struct row_call {
  // IN_FULL, IN_PER_ROW: data of row `row0`; index operands of gathers likewise; tables, pooled
  // inputs, IN_PER_COL and IN_SCALAR: their first row.
  const struct view *inputs;
  const struct view *outputs; // data of row `row0`
  const int64_t *table_rows;  // [inputs]: rows of the table of an IN_GATHER, else unused
  int64_t row0, n_rows;
  const struct batch_geometry *geometry; // pools and positions
  float *scratch;                        // row_scratch_bytes, 64-byte aligned
};

#endif
