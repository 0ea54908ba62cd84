// silu: y = x * sigmoid(x), element by element.
#include "graph/op/op.h"

static void lower(struct row_builder *builder, const struct node *node) {
  op_lower_activation(builder, node, ACT_SILU);
}

static bool fold(const struct graph *graph, const struct node *node, int32_t product,
                 struct op_fold *out) {
  (void)graph, (void)node, (void)product;
  return op_fold_activation(ACT_SILU, out);
}

const struct op_def op_def_silu = {.cls = OPC_ROW,
                                   .min_in = 1,
                                   .max_in = 1,
                                   .infer = op_infer_unary,
                                   .lower = lower,
                                   .fold = fold};
