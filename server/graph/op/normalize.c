// normalize: y = x / max(||x||_2, eps) over the columns of a row.
#include "graph/op/op.h"
#include "graph/row_builder.h"

static enum status infer(struct op_check *check) {
  enum status status = op_want_eps(check);
  return status != STATUS_OK ? status : op_infer_unary(check);
}

static void lower(struct row_builder *builder, const struct node *node) {
  int x = row_builder_value(builder, node->in[0]);
  row_builder_define(
      builder, node->out,
      row_builder_emit(builder, RI_NORMALIZE, x, ROW_NO_VALUE, ROW_NO_VALUE, 0, node->attrs.eps));
}

const struct op_def op_def_normalize = {
    .cls = OPC_ROW, .min_in = 1, .max_in = 1, .whole_row = true, .infer = infer, .lower = lower};
