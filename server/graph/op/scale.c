// scale: y = x * factor, a number of the model file.
#include "graph/op/op.h"
#include "graph/row_builder.h"

static void lower(struct row_builder *builder, const struct node *node) {
  int x = row_builder_value(builder, node->in[0]);
  row_builder_define(
      builder, node->out,
      row_builder_emit(builder, RI_SCALE, x, ROW_NO_VALUE, ROW_NO_VALUE, 0, node->attrs.factor));
}

static bool fold(const struct graph *graph, const struct node *node, int32_t product,
                 struct op_fold *out) {
  (void)graph, (void)product;
  *out = (struct op_fold){.has_epilogue = true,
                          .epilogue = {.kind = EPI_SCALE, .imm = node->attrs.factor},
                          .operand = -1};
  return true;
}

const struct op_def op_def_scale = {.cls = OPC_ROW,
                                    .min_in = 1,
                                    .max_in = 1,
                                    .infer = op_infer_unary,
                                    .lower = lower,
                                    .fold = fold};
