// Checks, folds and lowerings that several ops share.
#include "graph/op/op.h"
#include "graph/row_builder.h"

#include <stdio.h>

static bool is_float(enum dtype dtype) {
  return dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16;
}

static const char *rows_word(const struct tensor *tensor) {
  static const char *const words[] = {"tokens", "sequences", "scores", "fixed"};
  return words[tensor->rows];
}

enum status op_refuse(struct op_check *check, const char *format, ...) {
  char text[ERROR_MESSAGE_BYTES];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  return error_set(check->err, STATUS_INVALID_ARGUMENT, "%s: %s", op_name(check->node->op), text);
}

enum status op_want_activation(struct op_check *check, int input, const char *operand) {
  const struct tensor *tensor = check->in[input];
  if (tensor->kind == TENSOR_WEIGHT)
    return op_refuse(check, "%s \"%s\" is a weight, expected an activation or an input", operand,
                     tensor->name);
  if (!is_float(tensor->dtype))
    return op_refuse(check, "%s \"%s\" is %s, expected fp32, fp16 or bf16", operand, tensor->name,
                     dtype_name(tensor->dtype));
  if (tensor->rows != ROWS_TOKENS && tensor->rows != ROWS_SEQS)
    return op_refuse(check, "%s \"%s\" has %s rows, expected tokens or sequences", operand,
                     tensor->name, rows_word(tensor));
  if (tensor->cols < 1 || tensor->cols > LIMIT_DIM)
    return op_refuse(check, "%s \"%s\" has %d columns, expected 1..%d", operand, tensor->name,
                     tensor->cols, LIMIT_DIM);
  return STATUS_OK;
}

enum status op_want_eps(struct op_check *check) {
  if (check->node->attrs.eps >= 0) return STATUS_OK;
  return op_refuse(check, "eps is %g, expected >= 0", (double)check->node->attrs.eps);
}

enum status op_want_weight(struct op_check *check, int input, const char *operand, int64_t rows,
                           int64_t cols) {
  const struct tensor *tensor = check->in[input];
  if (tensor->kind != TENSOR_WEIGHT || tensor->rows != ROWS_FIXED)
    return op_refuse(check, "%s \"%s\" is no weight", operand, tensor->name);
  if (!is_float(tensor->dtype))
    return op_refuse(check, "%s \"%s\" is %s, expected fp32, fp16 or bf16", operand, tensor->name,
                     dtype_name(tensor->dtype));
  if ((rows > 0 && tensor->n_rows != rows) || (cols > 0 && tensor->cols != cols))
    return op_refuse(check, "%s \"%s\" is [%d, %d], expected [%lld, %lld]", operand, tensor->name,
                     tensor->n_rows, tensor->cols, (long long)(rows > 0 ? rows : tensor->n_rows),
                     (long long)(cols > 0 ? cols : tensor->cols));
  if (tensor->n_rows < 1 || tensor->n_rows > LIMIT_DIM || tensor->cols < 1 ||
      tensor->cols > LIMIT_DIM)
    return op_refuse(check, "%s \"%s\" is [%d, %d], expected sizes of 1..%d", operand, tensor->name,
                     tensor->n_rows, tensor->cols, LIMIT_DIM);
  return STATUS_OK;
}

enum status op_infer_unary(struct op_check *check) {
  enum status status = op_want_activation(check, 0, "x");
  if (status != STATUS_OK) return status;
  check->out->rows = check->in[0]->rows;
  check->out->cols = check->in[0]->cols;
  return STATUS_OK;
}

enum status op_infer_binary(struct op_check *check) {
  enum status status = op_infer_unary(check);
  if (status != STATUS_OK) return status;
  const struct tensor *a = check->in[0], *b = check->in[1];
  if (b->kind == TENSOR_WEIGHT) return op_want_weight(check, 1, "b", 1, b->cols == 1 ? 1 : a->cols);
  status = op_want_activation(check, 1, "b");
  if (status != STATUS_OK) return status;
  if (b->rows != a->rows || (b->cols != a->cols && b->cols != 1))
    return op_refuse(
        check, "b \"%s\" is [%s, %d], expected [%s, %d], [%s, 1] or a weight [1, %d] or [1, 1]",
        b->name, rows_word(b), b->cols, rows_word(a), a->cols, rows_word(a), a->cols);
  return STATUS_OK;
}

bool op_fold_activation(enum activation act, struct op_fold *out) {
  *out = (struct op_fold){
      .has_epilogue = true, .epilogue = {.kind = EPI_ACT, .act = (uint8_t)act}, .operand = -1};
  return true;
}

bool op_fold_binary(const struct graph *graph, const struct node *node, int32_t product,
                    enum epilogue_kind kind, struct op_fold *out) {
  *out = (struct op_fold){.has_epilogue = true, .epilogue = {.kind = (uint8_t)kind}, .operand = -1};
  int32_t other = node->in[0] == product ? node->in[1] : node->in[0];
  const struct tensor *a = &graph->tensors[product], *b = &graph->tensors[other];
  if (a->cols != graph->tensors[node->out].cols) { // the product is the operand that is broadcast
    out->refused = "the product is broadcast over the other operand's columns";
    return false;
  }
  out->operand = other;
  if (b->kind == TENSOR_WEIGHT && kind == EPI_ADD && b->cols == a->cols) {
    out->epilogue.kind = EPI_BIAS;
    return true;
  }
  if (b->kind == TENSOR_WEIGHT || b->cols != a->cols) {
    out->refused = "the other operand is broadcast, which a product's epilogue does not do";
    return false;
  }
  return true;
}

void op_lower_activation(struct row_builder *builder, const struct node *node,
                         enum activation act) {
  int x = row_builder_value(builder, node->in[0]);
  row_builder_define(
      builder, node->out,
      row_builder_emit(builder, RI_ACT, x, ROW_NO_VALUE, ROW_NO_VALUE, (uint8_t)act, 0));
}

void op_lower_binary(struct row_builder *builder, const struct node *node, enum row_opcode opcode) {
  int a = row_builder_value(builder, node->in[0]), b = row_builder_value(builder, node->in[1]);
  row_builder_define(builder, node->out,
                     row_builder_emit(builder, opcode, a, b, ROW_NO_VALUE, 0, 0));
}
