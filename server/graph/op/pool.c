// pool: y[b] = mean, first or maximum of the token rows of sequence b. Its program runs over
// sequences.
#include "graph/op/op.h"
#include "graph/row_builder.h"

static enum status infer(struct op_check *check) {
  enum status status = op_want_activation(check, 0, "x");
  if (status != STATUS_OK) return status;
  if (check->in[0]->rows != ROWS_TOKENS)
    return op_refuse(check, "x \"%s\" has no token rows to pool", check->in[0]->name);
  if ((unsigned)check->node->attrs.pool > POOL_MAX)
    return op_refuse(check, "unknown kind of pooling");
  check->out->rows = ROWS_SEQS;
  check->out->cols = check->in[0]->cols;
  return STATUS_OK;
}

static void lower(struct row_builder *builder, const struct node *node) {
  static const enum row_input_class classes[] = {
      [POOL_MEAN] = IN_POOL_MEAN, [POOL_CLS] = IN_POOL_CLS, [POOL_MAX] = IN_POOL_MAX};
  row_builder_define(builder, node->out,
                     row_builder_load(builder, node->in[0], classes[node->attrs.pool], -1));
}

const struct op_def op_def_pool = {
    .cls = OPC_ROW, .min_in = 1, .max_in = 1, .whole_row = true, .infer = infer, .lower = lower};
