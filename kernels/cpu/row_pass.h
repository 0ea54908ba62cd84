// From a row program to steps: passes over tiles, and instructions that run alone. See row.h.
#ifndef KERNELS_CPU_ROW_PASS_H
#define KERNELS_CPU_ROW_PASS_H

#include "kernels/cpu/row.h"

// Which instruction made each operand of an instruction; -1 for none.
struct row_uses {
  int8_t a[ROW_MAX_INSTS], b[ROW_MAX_INSTS], c[ROW_MAX_INSTS];
};

// Fills steps, passes and pass_ops of a kernel whose shapes, direct and done are known. Returns
// whether anything lives in the block's registers. Without `gather` every instruction runs alone.
bool row_plan_steps(struct row_kernel *kernel, const struct row_uses *uses, bool gather);

#endif
