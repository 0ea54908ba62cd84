// embedding: y[r] = table[ids[r]]; ids are an integer input [rows, 1] or the positions of the
// batch.
#include "graph/op/op.h"
#include "graph/row_builder.h"

static enum status infer(struct op_check *check) {
  const struct tensor *ids = check->in[0];
  if (ids->kind == TENSOR_WEIGHT || (ids->dtype != DTYPE_I64 && ids->dtype != DTYPE_I32) ||
      ids->cols != 1 || (ids->rows != ROWS_TOKENS && ids->rows != ROWS_SEQS))
    return op_refuse(check,
                     "ids \"%s\" is %s with %d columns, expected an int64 or int32 input with 1",
                     ids->name, dtype_name(ids->dtype), ids->cols);
  enum status status = op_want_weight(check, 1, "table", 0, 0);
  check->out->rows = ids->rows;
  check->out->cols = check->in[1]->cols;
  return status;
}

static void lower(struct row_builder *builder, const struct node *node) {
  row_builder_define(builder, node->out,
                     row_builder_load(builder, node->in[1], IN_GATHER, node->in[0]));
}

const struct op_def op_def_embedding = {
    .cls = OPC_ROW, .min_in = 2, .max_in = 2, .whole_row = true, .infer = infer, .lower = lower};
