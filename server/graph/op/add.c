// add: y = a + b; b may be one value a row, or a weight: one value a column, or one value.
#include "graph/op/op.h"

static void lower(struct row_builder *builder, const struct node *node) {
  op_lower_binary(builder, node, RI_ADD);
}

static bool fold(const struct graph *graph, const struct node *node, int32_t product,
                 struct op_fold *out) {
  return op_fold_binary(graph, node, product, EPI_ADD, out);
}

const struct op_def op_def_add = {.cls = OPC_ROW,
                                  .min_in = 2,
                                  .max_in = 2,
                                  .infer = op_infer_binary,
                                  .lower = lower,
                                  .fold = fold};
