// attention: o_i = sum_j softmax_j(scale * q_i . k_j) v_j within each sequence; kernels/types.h has
// the details.
#include "graph/op/op.h"

static enum status want_heads(struct op_check *check, int input, const char *operand, int32_t heads,
                              int32_t head_dim) {
  const struct tensor *tensor = check->in[input];
  enum status status = op_want_activation(check, input, operand);
  if (status != STATUS_OK) return status;
  if (tensor->rows != ROWS_TOKENS)
    return op_refuse(check, "%s \"%s\" has no token rows", operand, tensor->name);
  if (tensor->dtype != check->in[0]->dtype)
    return op_refuse(check, "%s \"%s\" is %s, expected %s as q", operand, tensor->name,
                     dtype_name(tensor->dtype), dtype_name(check->in[0]->dtype));
  if ((int64_t)heads * head_dim != tensor->cols)
    return op_refuse(check, "%s \"%s\" has %d columns, expected %lld: %d heads of %d", operand,
                     tensor->name, tensor->cols, (long long)heads * head_dim, heads, head_dim);
  return STATUS_OK;
}

static enum status infer(struct op_check *check) {
  const struct node_attrs *attrs = &check->node->attrs;
  int32_t heads = attrs->heads, kv_heads = attrs->kv_heads ? attrs->kv_heads : attrs->heads;
  if (heads < 1 || kv_heads < 1 || heads % kv_heads != 0)
    return op_refuse(check,
                     "%d heads and %d kv heads found, expected heads to be a multiple of kv heads",
                     heads, kv_heads);
  enum status status = op_want_activation(check, 0, "q");
  if (status != STATUS_OK) return status;
  if (check->in[0]->cols % heads != 0)
    return op_refuse(check, "q \"%s\" has %d columns, expected a multiple of %d heads",
                     check->in[0]->name, check->in[0]->cols, heads);
  int32_t head_dim = check->in[0]->cols / heads;
  status = want_heads(check, 0, "q", heads, head_dim);
  if (status == STATUS_OK) status = want_heads(check, 1, "k", kv_heads, head_dim);
  if (status == STATUS_OK) status = want_heads(check, 2, "v", kv_heads, head_dim);
  check->out->rows = ROWS_TOKENS;
  check->out->cols = check->in[0]->cols;
  check->out->dtype = check->in[0]->dtype; // one dtype throughout
  return status;
}

const struct op_def op_def_attention = {
    .cls = OPC_ATTENTION, .min_in = 3, .max_in = 3, .infer = infer};
