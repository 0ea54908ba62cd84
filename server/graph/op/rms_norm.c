// rms_norm: y = x / sqrt(mean(x^2) + eps) * gamma over the columns of a row.
#include "graph/op/op.h"
#include "graph/row_builder.h"

static enum status infer(struct op_check *check) {
  enum status status = op_infer_unary(check);
  if (status == STATUS_OK) status = op_want_weight(check, 1, "gamma", 1, check->in[0]->cols);
  return status != STATUS_OK ? status : op_want_eps(check);
}

static void lower(struct row_builder *builder, const struct node *node) {
  int x = row_builder_value(builder, node->in[0]);
  int gamma = row_builder_value(builder, node->in[1]);
  row_builder_define(
      builder, node->out,
      row_builder_emit(builder, RI_RMS_NORM, x, gamma, ROW_NO_VALUE, 0, node->attrs.eps));
}

const struct op_def op_def_rms_norm = {
    .cls = OPC_ROW, .min_in = 2, .max_in = 2, .whole_row = true, .infer = infer, .lower = lower};
