// linear: y[rows, n] = x[rows, k] * W^T (+ bias), W [n, k] as PyTorch's Linear stores it.
#include "graph/op/op.h"

static enum status infer(struct op_check *check) {
  enum status status = op_want_activation(check, 0, "x");
  if (status == STATUS_OK) status = op_want_weight(check, 1, "weight", 0, check->in[0]->cols);
  if (status != STATUS_OK) return status;
  const struct tensor *x = check->in[0], *weight = check->in[1];
  if (x->dtype != weight->dtype)
    return op_refuse(check,
                     "x \"%s\" is %s and weight \"%s\" is %s, expected one dtype (add a cast)",
                     x->name, dtype_name(x->dtype), weight->name, dtype_name(weight->dtype));
  check->out->rows = x->rows;
  check->out->cols = weight->n_rows;
  return check->node->n_in > 2 ? op_want_weight(check, 2, "bias", 1, weight->n_rows) : STATUS_OK;
}

const struct op_def op_def_linear = {.cls = OPC_LINEAR, .min_in = 2, .max_in = 3, .infer = infer};
