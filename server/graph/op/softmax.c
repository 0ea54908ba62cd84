// softmax: over the columns of a row; a row of -inf gives zeros.
#include "graph/op/op.h"
#include "graph/row_builder.h"

static void lower(struct row_builder *builder, const struct node *node) {
  int x = row_builder_value(builder, node->in[0]);
  row_builder_define(builder, node->out,
                     row_builder_emit(builder, RI_SOFTMAX, x, ROW_NO_VALUE, ROW_NO_VALUE, 0, 0));
}

const struct op_def op_def_softmax = {.cls = OPC_ROW,
                                      .min_in = 1,
                                      .max_in = 1,
                                      .whole_row = true,
                                      .infer = op_infer_unary,
                                      .lower = lower};
