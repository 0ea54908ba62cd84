// Names, expressions and loads of generated kernels.
//
// Names: pN packs (elements as loaded), vN vectors of floats, xN row scalars, sN elements on their
// way to a store. Subscripts by style: a group holds rows q and vectors i of each; a tile holds
// vectors u, each with its own row.
#include "kernels/codegen/row_text.h"

#include <stdarg.h>
#include <stdio.h>

void text_put(struct text *t, const char *format, ...) {
  va_list args;
  va_start(args, format);
  size_t room = t->used < t->size ? t->size - t->used : 0;
  int n = vsnprintf(room ? t->out + t->used : NULL, room, format, args);
  va_end(args);
  if (n > 0) t->used += (size_t)n;
}

bool text_by_row(const struct text *t) {
  return t->tile.style == ROW_GROUP || t->tile.style == ROW_STREAM;
}

const char *text_type(enum dtype dtype) {
  return dtype == DTYPE_BF16 ? "fw_bf16" : dtype == DTYPE_F16 ? "fw_f16" : "float";
}

const struct row_input *text_input(const struct text *t, int value) {
  return &t->ir->prog->inputs[t->ir->op[value].index];
}

// Loaded before anything is computed, all at once: the bytes in flight that hide the memory's
// latency.
bool text_hoisted(const struct text *t, int value) {
  const struct ir_op *op = &t->ir->op[value];
  if (op->kind != IR_LOAD || op->scalar || t->tail || t->tile.style == ROW_STREAM) return false;
  enum row_input_class cls = text_input(t, value)->cls;
  return cls == IN_FULL || cls == IN_GATHER || cls >= IN_POOL_MEAN;
}

const char *text_slot(const struct text *t) {
  return text_by_row(t) ? "[q]" : t->tile.style == ROW_TILE ? "[u]" : "";
}

static const char *pack_slot(const struct text *t) {
  return text_by_row(t) ? "[q][i]" : "[u]";
}

bool text_array(const struct text *t, int value) {
  const struct ir_op *op = &t->ir->op[value];
  return t->tile.style == ROW_GROUP && op->crosses && op->kind != IR_LOAD;
}

bool text_pooled(const struct text *t, int value) {
  return t->ir->op[value].kind == IR_LOAD && !t->ir->op[value].scalar &&
         text_input(t, value)->cls >= IN_POOL_MEAN;
}

bool text_made(const struct text *t, int value) {
  return t->ir->before && text_pooled(t, value) && t->ir->op[value].index == t->ir->made;
}

// The text that reads value `v` for element j of the vector at hand.
const char *text_ref(const struct text *t, int v, char buffer[48]) {
  const struct ir_op *op = &t->ir->op[v];
  if (op->scalar)
    snprintf(buffer, 48, "x%d%s", v, text_slot(t));
  else if (text_pooled(t, v))
    snprintf(buffer, 48, t->tile.style == ROW_STREAM ? "v%d[j]" : "v%d[q][i][j]", v);
  else if (op->kind == IR_LOAD)
    snprintf(buffer, 48, "p%d%s.get(j)", v, text_hoisted(t, v) ? pack_slot(t) : "");
  else if (text_array(t, v))
    snprintf(buffer, 48, "v%d[q][i][j]", v);
  else
    snprintf(buffer, 48, "v%d", v);
  return buffer;
}

static const char *activation_call(const struct text *t, uint8_t act) {
  static const char *const exact[ACT_COUNT] = {
      "",      "fw_gelu_erf_exact", "fw_gelu_tanh_exact", "fw_max(0.0f, ", "fw_silu_exact",
      "tanhf", "fw_sigmoid_exact"};
  static const char *const fast[ACT_COUNT] = {
      "",      "fw_gelu_erf_fast<9>", "fw_gelu_tanh_fast", "fw_max(0.0f, ", "fw_silu_fast",
      "tanhf", "fw_sigmoid_fast"};
  return t->ir->exact ? exact[act] : fast[act];
}

const char *text_exp(const struct text *t) {
  return t->ir->exact ? "expf" : "fw_exp_fast";
}

void text_expression(struct text *t, int v) {
  const struct ir_op *op = &t->ir->op[v];
  char a[48], b[48], c[48];
  text_ref(t, op->a, a);
  if (op->b != IR_NONE) text_ref(t, op->b, b);
  if (op->c != IR_NONE) text_ref(t, op->c, c);
  switch ((enum ir_kind)op->kind) {
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
    text_put(t, "fw_max(%s, %s)", a, b);
    break;
  case IR_SCALE:
    text_put(t, "%s * %af", a, (double)op->imm);
    break;
  case IR_ADD_IMM:
    text_put(t, "%s + %af", a, (double)op->imm);
    break;
  case IR_ACT:
    text_put(t, op->aux == ACT_RELU ? "%s%s)" : "%s(%s)", activation_call(t, op->aux), a);
    break;
  case IR_CAST:
    text_put(t, "fw_round<%s>(%s)", text_type((enum dtype)op->aux), a);
    break;
  case IR_CENTER: // the mean in two parts: x - mean is exact where it matters, its own mean is then
                  // taken off
    text_put(t, "(%s - %s - d%d%s) * %s", a, b, t->ir->op[op->c].a, text_slot(t), c);
    break;
  case IR_SOFTMAX:
    text_put(t, "%s > 0.0f || %s != %s ? %s(%s - %s) / %s : 0.0f", c, c, c, text_exp(t), a, b, c);
    break;
  case IR_RSQRT:
    text_put(t, "1.0f / sqrtf(%s + %af)", a, (double)op->imm);
    break;
  case IR_INVERSE:
    text_put(t, "1.0f / fw_max(sqrtf(%s), %af)", a, (double)op->imm);
    break;
  case IR_FINITE:
    text_put(t, "%s == -INFINITY ? 0.0f : %s", a, a);
    break;
  default:
    text_put(t, "%s", a);
  }
}

// ---- loads -------------------------------------------------------------------------------------

static void put_address(struct text *t, const struct row_input *in, int index) {
  if (in->cls == IN_PER_COL)
    text_put(t, "a.in[%d], col", index);
  else if (t->tile.style == ROW_FLAT)
    text_put(t, "a.in[%d], at", index);
  else
    text_put(t, "a.in[%d], row%s * a.in_stride[%d] + col", index, text_slot(t), index);
}

static void put_memory(struct text *t, const struct row_input *in, const char *verb) {
  text_put(t, "fw_memory<%s, %d>::%s", text_type(in->dtype), t->tail ? 1 : t->tile.vector, verb);
}

// The place of an operation's input among the kernel's arguments.
static int argument_of(const struct text *t, int v) {
  return t->ir->first_input + t->ir->op[v].index;
}

// One vector of input `v` into pN (with subscripts `at`); the statement's indentation is the
// caller's.
void text_load(struct text *t, int v, const char *at, const char *pad) {
  const struct row_input *in = text_input(t, v);
  int index = argument_of(t, v);
  if (in->cls != IN_GATHER) {
    text_put(t, "%s", pad);
    put_memory(t, in, "load");
    text_put(t, "(&p%d%s, ", v, at);
    put_address(t, in, index);
    text_put(t, ");\n");
    return;
  }
  bool positions = in->index_operand == ROW_NONE;
  text_put(t, "%sif (const long long n = fw_index(a, %d, %d, row%s); n >= 0) ", pad, index,
           positions ? ROW_NONE : t->ir->first_input + in->index_operand, text_slot(t));
  put_memory(t, in, "load");
  text_put(t, "(&p%d%s, a.in[%d], n * a.in_stride[%d] + col);\n%selse ", v, at, index, index, pad);
  put_memory(t, in, "zero");
  text_put(t, "(&p%d%s);\n", v, at);
}

const char *text_pool_kind(enum row_input_class cls) {
  return cls == IN_POOL_MEAN ? "FW_POOL_MEAN" : cls == IN_POOL_MAX ? "FW_POOL_MAX" : "FW_POOL_CLS";
}

// A sequence's tokens folded by the whole block into `pooled`, in shared memory (prelude.cuh).
void text_pool_block(struct text *t, int v) {
  const struct row_input *in = text_input(t, v);
  int index = t->ir->op[v].index, vectors = t->ir->prog->cols / t->tile.vector;
  text_put(t, "  fw_pool<%s, %d, %s, %d, %d, %d>(pooled, parts, a.in[%d], a.in_stride[%d],\n",
           text_type(in->dtype), t->tile.vector, text_pool_kind(in->cls), vectors, t->tile.slices,
           t->tile.threads, index, index);
  text_put(t, "    a.cu_seqlens[row[0]], a.cu_seqlens[row[0] + 1]);\n");
}

// A sequence's tokens folded into floats. Eight rows are asked for before the first is used.
void text_pool(struct text *t, int v, const char *name, const char *pad) {
  const struct row_input *in = text_input(t, v);
  int index = t->ir->op[v].index, width = t->tile.vector;
  bool most = in->cls == IN_POOL_MAX;
  text_put(t,
           "%sconst long long first%d = a.cu_seqlens[row[q]], end%d = a.cu_seqlens[row[q] + 1];\n",
           pad, v, v);
  text_put(t, "%sfor (int j = 0; j < %d; j++) %s[j] = first%d < end%d ? %s : 0.0f;\n", pad, width,
           name, v, v, most ? "-INFINITY" : "0.0f");
  text_put(t, "#pragma unroll 8\n%sfor (long long token = first%d; token < end%d", pad, v, v);
  if (in->cls == IN_POOL_CLS) text_put(t, " && token == first%d", v);
  text_put(t, "; token++) {\n");
  text_put(t, "%s  fw_pack<%s, %d> p;\n%s  ", pad, text_type(in->dtype), width, pad);
  put_memory(t, in, "load");
  text_put(t, "(&p, a.in[%d], token * a.in_stride[%d] + col);\n", index, index);
  text_put(t, "%s  for (int j = 0; j < %d; j++) %s[j] = ", pad, width, name);
  text_put(t, most ? "fw_max(%s[j], p.get(j));\n" : "%s[j] + p.get(j);\n", name);
  text_put(t, "%s}\n", pad);
  if (in->cls == IN_POOL_MEAN) {
    text_put(t,
             "%sif (first%d < end%d)\n%s  for (int j = 0; j < %d; j++) %s[j] /= (float)(end%d - "
             "first%d);\n",
             pad, v, v, pad, width, name, v, v);
  }
}

void text_scalar_load(struct text *t, int v, const char *pad) {
  const struct row_input *in = text_input(t, v);
  int index = argument_of(t, v);
  text_put(t, "%sx%d%s = fw_widen(((const %s *)a.in[%d])[", pad, v, text_slot(t),
           text_type(in->dtype), index);
  if (in->cls == IN_PER_ROW)
    text_put(t, "row%s * a.in_stride[%d]", text_slot(t), index);
  else
    text_put(t, "0");
  text_put(t, "]);\n");
}
