// cast: y = x rounded to attrs.to. Widening to fp32 changes no value.
#include "graph/op/op.h"
#include "graph/row_builder.h"

static enum status infer(struct op_check *check) {
  enum dtype to = check->node->attrs.to;
  if (to != DTYPE_F32 && to != DTYPE_F16 && to != DTYPE_BF16)
    return op_refuse(check, "`to` is %s, expected fp32, fp16 or bf16", dtype_name(to));
  check->out->dtype = to;
  return op_infer_unary(check);
}

static void lower(struct row_builder *builder, const struct node *node) {
  int x = row_builder_value(builder, node->in[0]);
  if (node->attrs.to != DTYPE_F32)
    x = row_builder_emit(builder, RI_CAST, x, ROW_NO_VALUE, ROW_NO_VALUE, (uint8_t)node->attrs.to,
                         0);
  row_builder_define(builder, node->out, x);
}

// The product is stored in the new dtype. After a rounding nothing may follow on the unrounded
// accumulator.
static bool fold(const struct graph *graph, const struct node *node, int32_t product,
                 struct op_fold *out) {
  (void)graph, (void)product;
  *out = (struct op_fold){.operand = -1, .ends = node->attrs.to != DTYPE_F32};
  return true;
}

const struct op_def op_def_cast = {
    .cls = OPC_ROW, .min_in = 1, .max_in = 1, .infer = infer, .lower = lower, .fold = fold};
