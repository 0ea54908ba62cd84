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

// One line of the listing: `a`, `b`, `c` stand for the operands' names, `i` for the number.
static const char *form_of(uint8_t kind) {
  static const char *const forms[] = {
      [IR_STORE] = "a",
      [IR_ADD] = "a + b",
      [IR_SUB] = "a - b",
      [IR_MUL] = "a * b",
      [IR_DIV] = "a / b",
      [IR_MAX] = "max(a, b)",
      [IR_SCALE] = "a * i",
      [IR_ADD_IMM] = "a + i",
      [IR_CENTER] = "(a - b) * c",
      [IR_SOFTMAX] = "exp(a - b) / c",
      [IR_RSQRT] = "1 / sqrt(a + i)",
      [IR_INVERSE] = "1 / max(sqrt(a), i)",
      [IR_FINITE] = "a, or 0 for -inf",
      [IR_SUM] = "sum over the row: a",
      [IR_MEAN] = "mean over the row: a",
      [IR_MAX_ROW] = "maximum over the row: a",
      [IR_SUM_SQ] = "sum over the row: a * a",
      [IR_MEAN_SQ] = "mean over the row: a * a",
      [IR_MEAN_SQ_DEV] = "mean over the row: square of a - b",
      [IR_SUM_EXP] = "sum over the row: exp(a - b)",
  };
  return kind < sizeof forms / sizeof *forms && forms[kind] ? forms[kind] : "";
}

// A letter of a form is an operand where no other letter stands beside it.
static bool is_letter(char c) {
  return c >= 'a' && c <= 'z';
}

static void put_operation(struct text *t, int v, const char *const names[3]) {
  const struct ir_op *op = &t->ir->op[v];
  if (op->kind == IR_LOAD)
    text_put(t, "in %d, %s, %s", t->ir->first_input + op->index,
             text_made(t, v) ? "made here" : dtype_name(t->ir->prog->inputs[op->index].dtype),
             shape_of(t->ir, v));
  if (op->kind == IR_ACT)
    text_put(t, "%s(%s)", activation_name((enum activation)op->aux), names[0]);
  if (op->kind == IR_CAST)
    text_put(t, "%s rounded to %s", names[0], dtype_name((enum dtype)op->aux));
  const char *form = form_of(op->kind);
  for (const char *at = form; *at; at++) {
    bool alone = is_letter(*at) && !is_letter(at[1]) && (at == form || !is_letter(at[-1]));
    if (alone && *at >= 'a' && *at <= 'c')
      text_put(t, "%s", names[*at - 'a']);
    else if (alone && *at == 'i')
      text_put(t, "%g", (double)op->imm);
    else
      text_put(t, "%c", *at);
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

static void put_operations(struct text *t) {
  const struct row_ir *ir = t->ir;
  for (int v = 0; v < ir->n; v++) {
    const struct ir_op *op = &ir->op[v];
    char own[24], a[24] = "", b[24] = "", c[24] = "";
    const char *const names[3] = {a, b, c};
    if (op->kind == IR_STORE)
      snprintf(own, sizeof own, t->fold ? "what is pooled" : "out %d", op->index);
    else
      name_of(ir, v, own);
    if (op->a != IR_NONE) name_of(ir, op->a, a);
    if (op->b != IR_NONE) name_of(ir, op->b, b);
    if (op->c != IR_NONE) name_of(ir, op->c, c);
    text_put(t, "//   %s = ", own);
    put_operation(t, v, names);
    text_put(t, "\n");
  }
}

void text_listing(struct text *t, const char *name) {
  const struct row_ir *ir = t->ir;
  text_put(t, "// %s: rows of %d columns; ", name, ir->prog->cols);
  put_spread(t);
  text_put(t, "\n");
  if (ir->before) {
    t->ir = ir->before, t->fold = text_pool_kind(ir->prog->inputs[ir->made].cls);
    text_put(t, "// of each token:\n");
    put_operations(t);
    t->ir = ir, t->fold = NULL;
    text_put(t, "// of each sequence:\n");
  }
  put_operations(t);
}
