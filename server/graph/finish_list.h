// A finish (struct row_program: element-wise work on a product's result) as a list of epilogue
// operations, for kernels that run lists and no programs. Plain C; pure.
#ifndef GRAPH_FINISH_LIST_H
#define GRAPH_FINISH_LIST_H

#include "kernels/types.h"

// Appends the finish to problem->epilogue, so that the kernel's out[0] is the program's last
// result, of the dtype that problem->y_dtype becomes, and its out[1 + i] the program's result i
// before that. first_in: position of the program's input 1 among the kernel's inputs
// (step.finish_in).
//
// A program is a list where each instruction works on what the one before it made, and its other
// operand is an input as it is in memory, or that times a number. False, and the problem is half
// written, where it is none (a value of its own is read twice, an input goes through an activation
// or is rounded), or where the list would be longer than EPILOGUE_MAX. No NULLs.
bool finish_as_list(const struct row_program *finish, uint8_t first_in,
                    struct linear_problem *problem);

#endif
