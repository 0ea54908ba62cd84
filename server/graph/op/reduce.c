// reduce: y[rows, 1] = sum, mean or maximum over the columns of a row.
#include "graph/op/op.h"
#include "graph/row_builder.h"

static enum status infer(struct op_check *check) {
  enum status status = op_infer_unary(check);
  check->out->cols = 1;
  if ((unsigned)check->node->attrs.reduce > REDUCE_MAX)
    return op_refuse(check, "unknown kind of reduction");
  return status;
}

static void lower(struct row_builder *builder, const struct node *node) {
  static const enum row_opcode opcodes[] = {
      [REDUCE_SUM] = RI_SUM, [REDUCE_MEAN] = RI_MEAN, [REDUCE_MAX] = RI_MAX_ROW};
  int x = row_builder_value(builder, node->in[0]);
  row_builder_define(
      builder, node->out,
      row_builder_emit(builder, opcodes[node->attrs.reduce], x, ROW_NO_VALUE, ROW_NO_VALUE, 0, 0));
}

const struct op_def op_def_reduce = {
    .cls = OPC_ROW, .min_in = 1, .max_in = 1, .whole_row = true, .infer = infer, .lower = lower};
