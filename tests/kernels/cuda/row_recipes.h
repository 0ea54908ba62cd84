// The row programs that test_row.c runs on a GPU, and emulated/ on a CPU: every opcode, input class
// and kind of output at least once.
#ifndef CUDA_ROW_RECIPES_H
#define CUDA_ROW_RECIPES_H

#include "kernels/types.h"

#include <string.h>

struct recipe {
  const char *name;
  int n_inputs, n_outputs, n_insts;
  enum row_input_class cls[6];
  uint8_t index_operand[6];
  bool scalar_out[2];
  struct row_inst insts[12];
};
#define I(op_, dst_, a_, ...)                                                                      \
  { .op = op_, .dst = dst_, .a = a_, __VA_ARGS__ }

static const struct recipe recipes[] = {
    {"add, erf gelu",
     2,
     1,
     5,
     {IN_FULL, IN_FULL},
     {0},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_ADD, 0, 0, .b = 1),
      I(RI_ACT, 0, 0, .aux = ACT_GELU_ERF), I(RI_STORE, 0, 0)}},
    {"chain",
     1,
     1,
     6,
     {IN_FULL},
     {0},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_SCALE, 0, 0, .imm = 1.001f), I(RI_ADD_IMM, 0, 0, .imm = 0.001f),
      I(RI_SCALE, 0, 0, .imm = 1.001f), I(RI_ADD_IMM, 0, 0, .imm = 0.001f), I(RI_STORE, 0, 0)}},
    {"broadcasts",
     4,
     2,
     10,
     {IN_FULL, IN_PER_COL, IN_PER_ROW, IN_SCALAR},
     {0},
     {false, true},
     {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_LOAD, 2, 2), I(RI_LOAD, 3, 3),
      I(RI_MUL, 0, 0, .b = 1), I(RI_ADD, 0, 0, .b = 2), I(RI_SUB, 0, 0, .b = 3),
      I(RI_MUL, 2, 2, .b = 3), I(RI_STORE, 0, 0), I(RI_STORE, 1, 2)}},
    {"silu gate",
     2,
     1,
     5,
     {IN_FULL, IN_FULL},
     {0},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_ACT, 0, 0, .aux = ACT_SILU), I(RI_MUL, 0, 0, .b = 1),
      I(RI_STORE, 0, 0)}},
    {"layer norm",
     3,
     1,
     5,
     {IN_FULL, IN_PER_COL, IN_PER_COL},
     {0},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_LOAD, 2, 2),
      I(RI_LAYER_NORM, 3, 0, .b = 1, .c = 2, .imm = 1e-5f), I(RI_STORE, 0, 3)}},
    {"add, layer norm, sum written",
     4,
     2,
     8,
     {IN_FULL, IN_FULL, IN_PER_COL, IN_PER_COL},
     {0},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_ADD, 0, 0, .b = 1), I(RI_STORE, 0, 0),
      I(RI_LOAD, 2, 2), I(RI_LOAD, 3, 3), I(RI_LAYER_NORM, 4, 0, .b = 2, .c = 3, .imm = 1e-12f),
      I(RI_STORE, 1, 4)}},
    {"rms norm",
     2,
     1,
     4,
     {IN_FULL, IN_PER_COL},
     {0},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_RMS_NORM, 0, 0, .b = 1, .imm = 1e-6f),
      I(RI_STORE, 0, 0)}},
    {"softmax",
     1,
     1,
     3,
     {IN_FULL},
     {0},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_SOFTMAX, 0, 0), I(RI_STORE, 0, 0)}},
    {"normalize",
     1,
     1,
     3,
     {IN_FULL},
     {0},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_NORMALIZE, 0, 0, .imm = 1e-12f), I(RI_STORE, 0, 0)}},
    {"mean of gelu, max off",
     1,
     2,
     7,
     {IN_FULL},
     {0},
     {true, false},
     {I(RI_LOAD, 0, 0), I(RI_ACT, 1, 0, .aux = ACT_GELU_TANH), I(RI_MEAN, 1, 1),
      I(RI_MAX_ROW, 2, 0), I(RI_SUB, 0, 0, .b = 2), I(RI_STORE, 0, 1), I(RI_STORE, 1, 0)}},
    {"embedding, layer norm",
     5,
     1,
     9,
     {IN_GATHER, IN_GATHER, IN_PER_COL, IN_PER_COL, IN_PER_ROW},
     {4, 255},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_ADD, 0, 0, .b = 1), I(RI_LOAD, 2, 2),
      I(RI_LOAD, 3, 3), I(RI_LAYER_NORM, 0, 0, .b = 2, .c = 3, .imm = 1e-12f),
      I(RI_CAST, 0, 0, .aux = DTYPE_BF16), I(RI_CAST, 0, 0, .aux = DTYPE_F16), I(RI_STORE, 0, 0)}},
    {"mean pool, normalize",
     1,
     1,
     3,
     {IN_POOL_MEAN},
     {0},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_NORMALIZE, 0, 0, .imm = 1e-12f), I(RI_STORE, 0, 0)}},
    {"max pool", 1, 1, 2, {IN_POOL_MAX}, {0}, {0}, {I(RI_LOAD, 0, 0), I(RI_STORE, 0, 0)}},
    {"cls pool, tanh",
     1,
     1,
     3,
     {IN_POOL_CLS},
     {0},
     {0},
     {I(RI_LOAD, 0, 0), I(RI_ACT, 0, 0, .aux = ACT_TANH), I(RI_STORE, 0, 0)}},
};

static inline bool recipe_is_table(const struct recipe *r, int i) {
  return r->cls[i] == IN_GATHER;
}

static inline void recipe_program(const struct recipe *r, enum dtype dtype, int32_t cols,
                                  struct row_program *p) {
  memset(p, 0, sizeof *p);
  p->cols = cols, p->n_inputs = (uint8_t)r->n_inputs, p->n_outputs = (uint8_t)r->n_outputs;
  p->n_insts = (uint8_t)r->n_insts, p->n_regs = 6;
  memcpy(p->insts, r->insts, sizeof r->insts);
  for (int i = 0; i < r->n_insts; i++) { // "no register" where a recipe left the field out
    struct row_inst *in = &p->insts[i];
    if (in->op == RI_LAYER_NORM || in->op == RI_RMS_NORM) {
      if (in->b == 0) in->b = ROW_NONE;
      if (in->c == 0) in->c = ROW_NONE;
    }
  }
  for (int i = 0; i < r->n_inputs; i++)
    p->inputs[i] = (struct row_input){r->cls[i], dtype, r->index_operand[i]};
  if (recipe_is_table(r, 0)) p->inputs[4].dtype = DTYPE_I64;
  for (int i = 0; i < r->n_outputs; i++)
    p->output_dtype[i] = dtype, p->output_is_scalar[i] = r->scalar_out[i];
}

#endif
