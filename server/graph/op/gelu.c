// gelu: y = x * Phi(x), by erf or by the tanh approximation; which of the two is part of the op
// (attrs.approximate_tanh).
#include "graph/op/op.h"

static enum activation kind_of(const struct node *node) {
  return node->attrs.approximate_tanh ? ACT_GELU_TANH : ACT_GELU_ERF;
}

static void lower(struct row_builder *builder, const struct node *node) {
  op_lower_activation(builder, node, kind_of(node));
}

static bool fold(const struct graph *graph, const struct node *node, int32_t product,
                 struct op_fold *out) {
  (void)graph, (void)product;
  return op_fold_activation(kind_of(node), out);
}

const struct op_def op_def_gelu = {.cls = OPC_ROW,
                                   .min_in = 1,
                                   .max_in = 1,
                                   .infer = op_infer_unary,
                                   .lower = lower,
                                   .fold = fold};
