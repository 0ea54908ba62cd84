// Programs of token rows and programs that pool what they make, for test_row.c and emulated/: every
// number of reductions in the first, every kind of pooling and of company in the second.
#ifndef CUDA_BEFORE_RECIPES_H
#define CUDA_BEFORE_RECIPES_H

#include "row_recipes.h"

#define BEFORE_MAX_IN 8

// Of tokens; one output, in fp32. (Gathers: in 0 by ids, in 1 by position.)
static const struct recipe token_recipes[] = {
    {"layer norm",
     3,
     1,
     5,
     {IN_FULL, IN_PER_COL, IN_PER_COL},
     {0},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_LOAD, 2, 2),
      I(RI_LAYER_NORM, 3, 0, .b = 1, .c = 2, .imm = 1e-5f), I(RI_STORE, 0, 3)}},
    {"add, rms norm",
     3,
     1,
     6,
     {IN_FULL, IN_FULL, IN_PER_COL},
     {0},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_ADD, 0, 0, .b = 1), I(RI_LOAD, 2, 2),
      I(RI_RMS_NORM, 0, 0, .b = 2, .imm = 1e-6f), I(RI_STORE, 0, 0)}},
    {"softmax",
     1,
     1,
     3,
     {IN_FULL},
     {0},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_SOFTMAX, 0, 0), I(RI_STORE, 0, 0)}},
    {"tanh by row and for all",
     3,
     1,
     7,
     {IN_FULL, IN_PER_ROW, IN_SCALAR},
     {0},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_LOAD, 2, 2), I(RI_MUL, 0, 0, .b = 1),
      I(RI_ADD, 0, 0, .b = 2), I(RI_ACT, 0, 0, .aux = ACT_TANH), I(RI_STORE, 0, 0)}},
    {"embedding, layer norm",
     5,
     1,
     7,
     {IN_GATHER, IN_GATHER, IN_PER_COL, IN_PER_COL, IN_PER_ROW},
     {4, 255},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_ADD, 0, 0, .b = 1), I(RI_LOAD, 2, 2),
      I(RI_LOAD, 3, 3), I(RI_LAYER_NORM, 0, 0, .b = 2, .c = 3, .imm = 1e-12f), I(RI_STORE, 0, 0)}},
};
#define TOKEN_RECIPES ((int)(sizeof token_recipes / sizeof *token_recipes))

// Of sequences; input 0 is what is pooled, mean, first or maximum as the case says.
static const struct recipe pool_recipes[] = {
    {"pool", 1, 1, 2, {IN_POOL_MEAN}, {0}, {0}, {I(RI_LOAD, 0, 0), I(RI_STORE, 0, 0)}},
    {"pool, normalize",
     1,
     1,
     3,
     {IN_POOL_MEAN},
     {0},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_NORMALIZE, 0, 0, .imm = 1e-12f), I(RI_STORE, 0, 0)}},
    {"pool, two results",
     2,
     2,
     6,
     {IN_POOL_MEAN, IN_FULL},
     {0},
     {false, true},
     {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_ADD, 0, 0, .b = 1), I(RI_STORE, 0, 0),
      I(RI_MEAN, 1, 0), I(RI_STORE, 1, 1)}},
    {"pool beside a pool of memory",
     2,
     1,
     4,
     {IN_POOL_MEAN, IN_POOL_MAX},
     {0},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_ADD, 0, 0, .b = 1), I(RI_STORE, 0, 0)}},
};
#define POOL_RECIPES ((int)(sizeof pool_recipes / sizeof *pool_recipes))

// The two as a kernel takes them: the token program's inputs are behind the other's.
static inline void before_programs(int tokens, int pool, enum row_input_class cls, enum dtype dtype,
                                   int32_t cols, struct row_program *before,
                                   struct row_program *row) {
  recipe_program(&token_recipes[tokens], dtype, cols, before);
  recipe_program(&pool_recipes[pool], dtype, cols, row);
  before->output_dtype[0] = row->inputs[0].dtype = DTYPE_F32;
  row->inputs[0].cls = cls;
}

#endif
