// identity: y is x under another name. No work in either mode: the planner resolves it.
#include "graph/op/op.h"

static enum status infer(struct op_check *check) {
  const struct tensor *x = check->in[0];
  if (x->kind == TENSOR_WEIGHT || x->kind == TENSOR_POSITIONS ||
      (x->rows != ROWS_TOKENS && x->rows != ROWS_SEQS))
    return op_refuse(check, "x \"%s\" is no activation or input", x->name);
  if (x->cols < 1 || x->cols > LIMIT_DIM)
    return op_refuse(check, "x \"%s\" has %d columns, expected 1..%d", x->name, x->cols, LIMIT_DIM);
  check->out->rows = x->rows;
  check->out->cols = x->cols;
  check->out->dtype = x->dtype;
  return STATUS_OK;
}

const struct op_def op_def_identity = {.cls = OPC_VIEW, .min_in = 1, .max_in = 1, .infer = infer};
