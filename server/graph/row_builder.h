// Builds one row program from the nodes of a group: values in single assignment first, registers at
// the end. A builder is plain data on the caller's stack; a limit that is hit is kept in `refused`
// and makes every later call harmless, so that op lowerings need no error paths.
#ifndef GRAPH_ROW_BUILDER_H
#define GRAPH_ROW_BUILDER_H

#include "graph/graph.h"

#define ROW_NO_VALUE (-1)
#define ROW_MAX_VALUES ROW_MAX_INSTS

struct row_value_inst { // an instruction over values; dst is its own index
  uint8_t op, aux;
  int16_t a, b, c; // values, or for RI_LOAD a = input, for RI_STORE a = value and b = output
  float imm;
  bool scalar;
};

struct row_builder_input {
  int32_t tensor, index_tensor; // index_tensor: of a gather; -1 otherwise
  enum row_input_class cls;
};

struct row_builder {
  const struct graph *graph;
  enum row_kind rows;
  int32_t cols;
  struct row_value_inst insts[ROW_MAX_INSTS];
  struct row_builder_input inputs[ROW_MAX_INPUTS];
  int32_t outputs[ROW_MAX_OUTPUTS]; // tensor ids
  int32_t defined[ROW_MAX_VALUES];  // value -> tensor that it holds, or -1
  int32_t n_insts, n_inputs, n_outputs;
  const char *refused; // static text, NULL while all is well
};

void row_builder_init(struct row_builder *builder, const struct graph *graph, enum row_kind rows,
                      int32_t cols);
// The value that holds `tensor`: computed before in this program, or loaded by the class its shape
// has here.
int row_builder_value(struct row_builder *builder, int32_t tensor);
// Load through a class that the op dictates (gathers, pools). `index_tensor` -1 when there is none.
int row_builder_load(struct row_builder *builder, int32_t tensor, enum row_input_class cls,
                     int32_t index_tensor);
// Append one instruction; returns its value. Operands that the opcode has not: ROW_NO_VALUE.
int row_builder_emit(struct row_builder *builder, enum row_opcode op, int a, int b, int c,
                     uint8_t aux, float imm);
// Is the result of `op`, which is no load, one value a row (kernels/types.h)? `a`, `b`: are its
// operands; of an operand that it has not, either.
bool row_result_is_scalar(enum row_opcode op, bool a, bool b);
// Say that `value` is `tensor`.
void row_builder_define(struct row_builder *builder, int32_t tensor, int value);
// Write `tensor`, which has been defined, to memory.
void row_builder_store(struct row_builder *builder, int32_t tensor);
// Lower one node and define its output.
void row_builder_node(struct row_builder *builder, const struct node *node);
// Allocate registers and fill `out`. `index_tensors` gets the tensors of the index operands, which
// follow the program's inputs among the step's. False with builder->refused set when a limit does
// not allow it.
bool row_builder_finish(struct row_builder *builder, struct row_program *out,
                        int32_t index_tensors[ROW_MAX_INPUTS], int *n_index);

#endif
