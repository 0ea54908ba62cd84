// One op: a row of the op table. `server/graph/op/<word>.c` defines `op_def_<word>`;
// kernels/ops.def lists the words. Everything here is pure, load time only.
#ifndef GRAPH_OP_OP_H
#define GRAPH_OP_OP_H

#include "graph/graph.h"

enum op_class {
  OPC_ROW,    // lowers into a row program
  OPC_LINEAR, // matrix product
  OPC_ATTENTION,
  OPC_VIEW, // no work: the output is the input
};

// What an infer function sees. It checks inputs (never NULL) and sets out->rows, cols and, if the
// op dictates it, dtype; out->dtype comes in as the caller's wish, or DTYPE_INVALID.
struct op_check {
  const struct node *node;
  const struct tensor *in[NODE_MAX_INPUTS];
  struct tensor *out;
  struct error *err;
};

// How an op continues a product: see op_def.fold.
struct op_fold {
  bool has_epilogue; // false: only the output dtype changes (cast)
  struct epilogue_op epilogue;
  int32_t operand;     // tensor of EPI_BIAS, EPI_ADD, EPI_MUL, else -1
  bool ends;           // rounding to a narrower dtype: nothing may follow in fp32
  const char *refused; // why not, when fold returned false
};

struct row_builder; // graph/row_builder.h

struct op_def {
  enum op_class cls;
  uint8_t min_in, max_in;
  bool whole_row; // row ops: the iteration space must have exactly the op's columns (reductions,
                  // gathers, pools)
  enum status (*infer)(struct op_check *check);
  // OPC_ROW: append instructions for `node`; failures are kept by the builder.
  void (*lower)(struct row_builder *builder, const struct node *node);
  // Can the node follow a product whose result is tensor `product` (one of its inputs) in that
  // product's epilogue? NULL: never.
  bool (*fold)(const struct graph *graph, const struct node *node, int32_t product,
               struct op_fold *out);
};

const struct op_def *op_def_get(enum op op); // NULL for OP_INVALID and values outside the enum

#define OP_ROW(upper, word) extern const struct op_def op_def_##word;
#include "kernels/ops.def"
#undef OP_ROW

// ---- checks that ops share; each fills check->err and names the op, the operand, what was found
// and expected ----------
MUST_USE enum status op_refuse(struct op_check *check, const char *format, ...) PRINTF_LIKE(2, 3);
MUST_USE enum status op_want_activation(struct op_check *check, int input,
                                        const char *operand); // floating, rows not fixed
MUST_USE enum status op_want_weight(struct op_check *check, int input, const char *operand,
                                    int64_t rows, int64_t cols);
MUST_USE enum status op_want_eps(struct op_check *check); // attrs.eps >= 0; NaN is refused
// Output of the shape of in[0]; in[0] is an activation.
MUST_USE enum status op_infer_unary(struct op_check *check);
// add, mul: in[1] may be [rows, 1] or a weight [1, cols] or [1, 1].
MUST_USE enum status op_infer_binary(struct op_check *check);

// ---- folds and lowerings that ops share ----
bool op_fold_activation(enum activation act, struct op_fold *out);
bool op_fold_binary(const struct graph *graph, const struct node *node, int32_t product,
                    enum epilogue_kind kind, struct op_fold *out);
void op_lower_activation(struct row_builder *builder, const struct node *node, enum activation act);
void op_lower_binary(struct row_builder *builder, const struct node *node, enum row_opcode opcode);

#endif
