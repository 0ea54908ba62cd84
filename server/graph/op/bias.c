// bias: y = x + b, b a weight of one value a column.
#include "graph/op/op.h"

static enum status infer(struct op_check *check) {
  enum status status = op_infer_unary(check);
  return status != STATUS_OK ? status : op_want_weight(check, 1, "b", 1, check->in[0]->cols);
}

static void lower(struct row_builder *builder, const struct node *node) {
  op_lower_binary(builder, node, RI_ADD);
}

static bool fold(const struct graph *graph, const struct node *node, int32_t product,
                 struct op_fold *out) {
  (void)graph, (void)product;
  *out = (struct op_fold){
      .has_epilogue = true, .epilogue = {.kind = EPI_BIAS}, .operand = node->in[1]};
  return true;
}

const struct op_def op_def_bias = {
    .cls = OPC_ROW, .min_in = 2, .max_in = 2, .infer = infer, .lower = lower, .fold = fold};
