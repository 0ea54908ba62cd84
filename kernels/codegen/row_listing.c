// What a generated kernel computes, as comments above it: one line an operation, by the names that
// the code below uses.
#include "kernels/codegen/row_text.h"

#include <stdio.h>

static const char *name_of(const struct row_ir *ir, int v, char buffer[24]) {
  const struct ir_op *op = &ir->op[v];
  const char *kind = op->scalar ? "x" : op->kind == IR_LOAD ? "p" : "v";
  if (op->kind == IR_LOAD && !op->scalar && ir->prog->inputs[op->index].cls >= IN_POOL_MEAN)
    kind = "v"; // what a pooling makes
  snprintf(buffer, 24, "%s%d", kind, v);
  return buffer;
}

static const char *shape_of(const struct row_ir *ir, int v) {
  static const char *const shapes[] = {"of the row",
                                       "of every row alike",
                                       "one value of the row",
                                       "one value",
                                       "of the table's row that the index names",
                                       "mean over the sequence",
                                       "first of the sequence",
                                       "maximum over the sequence"};
  unsigned cls = ir->prog->inputs[ir->op[v].index].cls;
  return cls < sizeof shapes / sizeof *shapes ? shapes[cls] : "";
}

// With a, b, c the operands' names.
static void put_operation(struct text *t, int v, const char *a, const char *b, const char *c) {
  const struct ir_op *op = &t->ir->op[v];
  double imm = (double)op->imm;
  switch ((enum ir_kind)op->kind) {
  case IR_LOAD:
    text_put(t, "in %d, %s, %s", op->index, dtype_name(t->ir->prog->inputs[op->index].dtype),
             shape_of(t->ir, v));
    break;
  case IR_STORE:
    text_put(t, "%s", a);
    break;
  case IR_ADD:
    text_put(t, "%s + %s", a, b);
    break;
  case IR_SUB:
    text_put(t, "%s - %s", a, b);
    break;
  case IR_MUL:
    text_put(t, "%s * %s", a, b);
    break;
  case IR_DIV:
    text_put(t, "%s / %s", a, b);
    break;
  case IR_MAX:
    text_put(t, "max(%s, %s)", a, b);
    break;
  case IR_SCALE:
    text_put(t, "%s * %g", a, imm);
    break;
  case IR_ADD_IMM:
    text_put(t, "%s + %g", a, imm);
    break;
  case IR_ACT:
    text_put(t, "%s(%s)", activation_name((enum activation)op->aux), a);
    break;
  case IR_CAST:
    text_put(t, "%s rounded to %s", a, dtype_name((enum dtype)op->aux));
    break;
  case IR_CENTER:
    text_put(t, "(%s - %s) * %s", a, b, c);
    break;
  case IR_SOFTMAX:
    text_put(t, "exp(%s - %s) / %s", a, b, c);
    break;
  case IR_RSQRT:
    text_put(t, "1 / sqrt(%s + %g)", a, imm);
    break;
  case IR_INVERSE:
    text_put(t, "1 / max(sqrt(%s), %g)", a, imm);
    break;
  case IR_FINITE:
    text_put(t, "%s, 0 for -inf", a);
    break;
  case IR_SUM:
    text_put(t, "sum over the row of %s", a);
    break;
  case IR_MEAN:
    text_put(t, "mean over the row of %s", a);
    break;
  case IR_MAX_ROW:
    text_put(t, "maximum over the row of %s", a);
    break;
  case IR_SUM_SQ:
    text_put(t, "sum over the row of %s squared", a);
    break;
  case IR_MEAN_SQ:
    text_put(t, "mean over the row of %s squared", a);
    break;
  case IR_MEAN_SQ_DEV:
    text_put(t, "mean over the row of (%s - %s) squared", a, b);
    break;
  case IR_SUM_EXP:
    text_put(t, "sum over the row of exp(%s - %s)", a, b);
    break;
  }
}

static void put_spread(struct text *t) {
  const struct row_tile *tile = &t->tile;
  switch (tile->style) {
  case ROW_FLAT:
    text_put(t, "all rows as one, %d elements at a time, %d times a thread", tile->vector,
             tile->depth);
    break;
  case ROW_TILE:
    text_put(t, "%d elements at a time, %d times a thread", tile->vector, tile->depth);
    break;
  case ROW_GROUP:
    text_put(t, "%d threads", tile->group);
    if (tile->cluster > 1) text_put(t, " of each of %d blocks", tile->cluster);
    text_put(t, " hold a row in registers, %d elements at a time", tile->vector);
    break;
  case ROW_STREAM:
    text_put(t, "%d threads read a row again for each reduction, %d elements at a time",
             tile->group, tile->vector);
    break;
  }
}

void text_listing(struct text *t, const char *name) {
  const struct row_ir *ir = t->ir;
  text_put(t, "// %s: rows of %d columns; ", name, ir->prog->cols);
  put_spread(t);
  text_put(t, "\n");
  for (int v = 0; v < ir->n; v++) {
    const struct ir_op *op = &ir->op[v];
    char own[24], a[24] = "", b[24] = "", c[24] = "";
    if (op->kind == IR_STORE)
      snprintf(own, sizeof own, "out %d", op->index);
    else
      name_of(ir, v, own);
    if (op->a != IR_NONE) name_of(ir, op->a, a);
    if (op->b != IR_NONE) name_of(ir, op->b, b);
    if (op->c != IR_NONE) name_of(ir, op->c, c);
    text_put(t, "//   %s = ", own);
    put_operation(t, v, a, b, c);
    text_put(t, "\n");
  }
}
