// Row program -> CUDA C text. The text is meant to be read: one comment a segment, names by operation number.
//
// Names: pN packs (elements as loaded), vN vectors of floats, xN row scalars, sN elements on their way to a store.
// Subscripts by style: a group holds rows q and vectors i of each; a tile holds vectors u, each with its own row.
#include "kernels/codegen/codegen.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct text {
  char *out;
  size_t size, used;
  const struct row_ir *ir;
  struct row_tile tile;
  bool tail; // writing the scalar tail of a flat kernel
};

__attribute__((format(printf, 2, 3))) static void put(struct text *t, const char *format, ...) {
  va_list args;
  va_start(args, format);
  size_t room = t->used < t->size ? t->size - t->used : 0;
  int n = vsnprintf(room ? t->out + t->used : NULL, room, format, args);
  va_end(args);
  if (n > 0) t->used += (size_t)n;
}

static bool by_row(const struct text *t) {
  return t->tile.style == ROW_GROUP || t->tile.style == ROW_STREAM;
}

static const char *type_name(enum dtype dtype) {
  return dtype == DTYPE_BF16 ? "fw_bf16" : dtype == DTYPE_F16 ? "fw_f16" : "float";
}

static const struct row_input *input_of(const struct text *t, int value) {
  return &t->ir->prog->inputs[t->ir->op[value].index];
}

// Loaded before anything is computed, all at once: the bytes in flight that hide the memory's latency.
static bool is_hoisted(const struct text *t, int value) {
  const struct ir_op *op = &t->ir->op[value];
  if (op->kind != IR_LOAD || op->scalar || t->tail || t->tile.style == ROW_STREAM) return false;
  enum row_input_class cls = input_of(t, value)->cls;
  return cls == IN_FULL || cls == IN_GATHER || cls >= IN_POOL_MEAN;
}

static const char *slot(const struct text *t) {
  return by_row(t) ? "[q]" : t->tile.style == ROW_TILE ? "[u]" : "";
}

static const char *pack_slot(const struct text *t) {
  return by_row(t) ? "[q][i]" : "[u]";
}

static bool is_array(const struct text *t, int value) {
  const struct ir_op *op = &t->ir->op[value];
  return t->tile.style == ROW_GROUP && op->crosses && op->kind != IR_LOAD;
}

static bool is_pooled(const struct text *t, int value) {
  return t->ir->op[value].kind == IR_LOAD && !t->ir->op[value].scalar && input_of(t, value)->cls >= IN_POOL_MEAN;
}

// The text that reads value `v` for element j of the vector at hand.
static const char *ref(const struct text *t, int v, char buffer[48]) {
  const struct ir_op *op = &t->ir->op[v];
  if (op->scalar) snprintf(buffer, 48, "x%d%s", v, slot(t));
  else if (is_pooled(t, v)) snprintf(buffer, 48, t->tile.style == ROW_STREAM ? "v%d[j]" : "v%d[q][i][j]", v);
  else if (op->kind == IR_LOAD) snprintf(buffer, 48, "p%d%s.get(j)", v, is_hoisted(t, v) ? pack_slot(t) : "");
  else if (is_array(t, v)) snprintf(buffer, 48, "v%d[q][i][j]", v);
  else snprintf(buffer, 48, "v%d", v);
  return buffer;
}

static const char *activation_call(const struct text *t, uint8_t act) {
  static const char *const exact[ACT_COUNT] = {"", "fw_gelu_erf_exact", "fw_gelu_tanh_exact", "fw_max(0.0f, ",
                                               "fw_silu_exact", "tanhf", "fw_sigmoid_exact"};
  static const char *const fast[ACT_COUNT] = {"", "fw_gelu_erf_fast<9>", "fw_gelu_tanh_fast", "fw_max(0.0f, ",
                                              "fw_silu_fast", "tanhf", "fw_sigmoid_fast"};
  return t->ir->exact ? exact[act] : fast[act];
}

static const char *exponential(const struct text *t) {
  return t->ir->exact ? "expf" : "fw_exp_fast";
}

static void put_expression(struct text *t, int v) {
  const struct ir_op *op = &t->ir->op[v];
  char a[48], b[48], c[48];
  ref(t, op->a, a);
  if (op->b != IR_NONE) ref(t, op->b, b);
  if (op->c != IR_NONE) ref(t, op->c, c);
  switch ((enum ir_kind)op->kind) {
  case IR_ADD: put(t, "%s + %s", a, b); break;
  case IR_SUB: put(t, "%s - %s", a, b); break;
  case IR_MUL: put(t, "%s * %s", a, b); break;
  case IR_DIV: put(t, "%s / %s", a, b); break;
  case IR_MAX: put(t, "fw_max(%s, %s)", a, b); break;
  case IR_SCALE: put(t, "%s * %af", a, (double)op->imm); break;
  case IR_ADD_IMM: put(t, "%s + %af", a, (double)op->imm); break;
  case IR_ACT:
    put(t, op->aux == ACT_RELU ? "%s%s)" : "%s(%s)", activation_call(t, op->aux), a);
    break;
  case IR_CAST: put(t, "fw_round<%s>(%s)", type_name((enum dtype)op->aux), a); break;
  case IR_CENTER: // the mean in two parts: x - mean is exact where it matters, its own mean is then taken off
    put(t, "(%s - %s - d%d%s) * %s", a, b, t->ir->op[op->c].a, slot(t), c);
    break;
  case IR_SOFTMAX: put(t, "%s > 0.0f || %s != %s ? %s(%s - %s) / %s : 0.0f", c, c, c, exponential(t), a, b, c); break;
  case IR_RSQRT: put(t, "1.0f / sqrtf(%s + %af)", a, (double)op->imm); break;
  case IR_INVERSE: put(t, "1.0f / fw_max(sqrtf(%s), %af)", a, (double)op->imm); break;
  case IR_FINITE: put(t, "%s == -INFINITY ? 0.0f : %s", a, a); break;
  default: put(t, "%s", a);
  }
}

// ---- loads ----------------------------------------------------------------------------------------------------------

static void put_address(struct text *t, const struct row_input *in, int index) {
  if (in->cls == IN_PER_COL) put(t, "a.in[%d], col", index);
  else if (t->tile.style == ROW_FLAT) put(t, "a.in[%d], at", index);
  else put(t, "a.in[%d], row%s * a.in_stride[%d] + col", index, slot(t), index);
}

static void put_memory(struct text *t, const struct row_input *in, const char *verb) {
  put(t, "fw_memory<%s, %d>::%s", type_name(in->dtype), t->tail ? 1 : t->tile.vector, verb);
}

// One vector of input `v` into pN (with subscripts `at`); the statement's indentation is the caller's.
static void put_load(struct text *t, int v, const char *at, const char *pad) {
  const struct row_input *in = input_of(t, v);
  int index = t->ir->op[v].index;
  if (in->cls != IN_GATHER) {
    put(t, "%s", pad);
    put_memory(t, in, "load");
    put(t, "(&p%d%s, ", v, at);
    put_address(t, in, index);
    put(t, ");\n");
    return;
  }
  put(t, "%sif (const long long n = fw_index(a, %d, %d, row%s); n >= 0) ", pad, index, in->index_operand, slot(t));
  put_memory(t, in, "load");
  put(t, "(&p%d%s, a.in[%d], n * a.in_stride[%d] + col);\n%selse ", v, at, index, index, pad);
  put_memory(t, in, "zero");
  put(t, "(&p%d%s);\n", v, at);
}

// A sequence's tokens folded into floats. Eight rows are asked for before the first is used.
static void put_pool(struct text *t, int v, const char *name, const char *pad) {
  const struct row_input *in = input_of(t, v);
  int index = t->ir->op[v].index, width = t->tile.vector;
  bool most = in->cls == IN_POOL_MAX;
  put(t, "%sconst long long first%d = a.cu_seqlens[row[q]], end%d = a.cu_seqlens[row[q] + 1];\n", pad, v, v);
  put(t, "%sfor (int j = 0; j < %d; j++) %s[j] = first%d < end%d ? %s : 0.0f;\n", pad, width, name, v, v,
      most ? "-INFINITY" : "0.0f");
  put(t, "#pragma unroll 8\n%sfor (long long token = first%d; token < end%d", pad, v, v);
  if (in->cls == IN_POOL_CLS) put(t, " && token == first%d", v);
  put(t, "; token++) {\n");
  put(t, "%s  fw_pack<%s, %d> p;\n%s  ", pad, type_name(in->dtype), width, pad);
  put_memory(t, in, "load");
  put(t, "(&p, a.in[%d], token * a.in_stride[%d] + col);\n", index, index);
  put(t, "%s  for (int j = 0; j < %d; j++) %s[j] = ", pad, width, name);
  put(t, most ? "fw_max(%s[j], p.get(j));\n" : "%s[j] + p.get(j);\n", name);
  put(t, "%s}\n", pad);
  if (in->cls == IN_POOL_MEAN) {
    put(t, "%sif (first%d < end%d)\n%s  for (int j = 0; j < %d; j++) %s[j] /= (float)(end%d - first%d);\n", pad, v, v,
        pad, width, name, v, v);
  }
}

static void put_scalar_load(struct text *t, int v, const char *pad) {
  const struct row_input *in = input_of(t, v);
  int index = t->ir->op[v].index;
  put(t, "%sx%d%s = fw_widen(((const %s *)a.in[%d])[", pad, v, slot(t), type_name(in->dtype), index);
  if (in->cls == IN_PER_ROW) put(t, "row%s * a.in_stride[%d]", slot(t), index);
  else put(t, "0");
  put(t, "]);\n");
}

// ---- bodies -----------------------------------------------------------------------------------------------------------

static bool is_reduction(const struct ir_op *op) {
  return op->kind >= IR_FIRST_REDUCTION;
}

static void put_accumulate(struct text *t, int v, const char *pad) {
  const struct ir_op *op = &t->ir->op[v];
  char a[48], b[48];
  ref(t, op->a, a);
  if (op->b != IR_NONE) ref(t, op->b, b);
  switch ((enum ir_kind)op->kind) {
  case IR_MAX_ROW: put(t, "%sx%d[q] = fw_max(x%d[q], %s);\n", pad, v, v, a); break;
  case IR_SUM_SQ:
  case IR_MEAN_SQ: put(t, "%sx%d[q] = fmaf(%s, %s, x%d[q]);\n", pad, v, a, a, v); break;
  case IR_SUM_EXP: put(t, "%sx%d[q] += %s(%s - %s);\n", pad, v, exponential(t), a, b); break;
  case IR_MEAN_SQ_DEV:
    put(t, "%sconst float e%d = %s - %s;\n", pad, v, a, b);
    put(t, "%sx%d[q] = fmaf(e%d, e%d, x%d[q]);\n%sd%d[q] += e%d;\n", pad, v, v, v, v, pad, v, v);
    break;
  default: put(t, "%sx%d[q] += %s;\n", pad, v, a);
  }
}

static void put_store(struct text *t, int v, const char *pad) {
  const struct ir_op *op = &t->ir->op[v];
  int index = op->index;
  put(t, "%s", pad);
  if (t->tile.style != ROW_STREAM && !t->tail && by_row(t)) put(t, "if (live[q]) ");
  put(t, "fw_writer<%s, %d>::store(a.out[%d], ", type_name(t->ir->prog->output_dtype[index]),
      t->tail ? 1 : t->tile.vector, index);
  if (t->tile.style == ROW_FLAT) put(t, "at, s%d);\n", v);
  else put(t, "row%s * a.out_stride[%d] + col, s%d);\n", slot(t), index, v);
}

// The vector operations that `wanted` marks, for the vector at (row, col): loads, one loop over elements, stores.
static void put_vector(struct text *t, const bool *wanted, const char *pad) {
  const struct row_ir *ir = t->ir;
  int width = t->tail ? 1 : t->tile.vector;
  char inner[32];
  snprintf(inner, sizeof inner, "%s  ", pad);
  for (int v = 0; v < ir->n; v++) {
    if (!wanted[v] || ir->op[v].kind != IR_LOAD || ir->op[v].scalar || is_hoisted(t, v)) continue;
    char name[16];
    snprintf(name, sizeof name, "v%d", v);
    if (is_pooled(t, v)) {
      put(t, "%sfloat v%d[%d];\n", pad, v, width);
      put_pool(t, v, name, pad);
      continue;
    }
    put(t, "%sfw_pack<%s, %d> p%d;\n", pad, type_name(input_of(t, v)->dtype), width, v);
    put_load(t, v, "", pad);
  }
  for (int v = 0; v < ir->n; v++) {
    if (wanted[v] && ir->op[v].kind == IR_STORE) put(t, "%sfloat s%d[%d];\n", pad, v, width);
  }
  put(t, "#pragma unroll\n%sfor (int j = 0; j < %d; j++) {\n", pad, width);
  for (int v = 0; v < ir->n; v++) {
    const struct ir_op *op = &ir->op[v];
    char buffer[48];
    if (!wanted[v] || op->kind == IR_LOAD) continue;
    if (is_reduction(op)) put_accumulate(t, v, inner);
    else if (op->kind == IR_STORE) put(t, "%ss%d[j] = %s;\n", inner, v, ref(t, op->a, buffer));
    else {
      put(t, is_array(t, v) ? "%s%s = " : "%sconst float %s = ", inner, ref(t, v, buffer));
      put_expression(t, v);
      put(t, ";\n");
    }
  }
  put(t, "%s}\n", pad);
  for (int v = 0; v < ir->n; v++) {
    if (wanted[v] && ir->op[v].kind == IR_STORE) put_store(t, v, pad);
  }
}

static bool has_vector_work(const struct row_ir *ir, const bool *wanted) {
  for (int v = 0; v < ir->n; v++) {
    if (wanted[v] && ir->op[v].kind != IR_LOAD) return true;
  }
  return false;
}

static void mark_segment(const struct row_ir *ir, int segment, bool *wanted) {
  for (int v = 0; v < ir->n; v++) {
    const struct ir_op *op = &ir->op[v];
    wanted[v] = (!op->scalar || is_reduction(op)) && op->segment == segment;
    if (op->kind != IR_LOAD || op->scalar) continue;
    // weights are read again in each segment that uses them: they come from L1, and registers are dearer
    wanted[v] = false;
    for (int k = v + 1; k < ir->n; k++) {
      const struct ir_op *user = &ir->op[k];
      wanted[v] |= user->segment == segment && (user->a == v || user->b == v || user->c == v);
    }
  }
}

// What a streamed pass over the row needs: everything its reduction (or, in the last pass, the stores) is made from.
static void mark_slice(const struct row_ir *ir, int segment, bool *wanted) {
  memset(wanted, 0, ROW_IR_MAX * sizeof *wanted);
  for (int v = ir->n - 1; v >= 0; v--) {
    const struct ir_op *op = &ir->op[v];
    if (is_reduction(op) && op->segment == segment) wanted[v] = true;
    if (op->kind == IR_STORE && !op->scalar && segment == ir->n_segments - 1) wanted[v] = true;
    if (!wanted[v]) continue;
    const int16_t args[3] = {op->a, op->b, op->c};
    for (int k = 0; k < 3; k++) {
      if (args[k] != IR_NONE && !ir->op[args[k]].scalar) wanted[args[k]] = true;
    }
  }
}

// Row scalars of a segment: loads, and what is made of finished reductions.
static void put_scalars(struct text *t, int segment, const char *loop, const char *count) {
  const struct row_ir *ir = t->ir;
  for (int v = 0; v < ir->n; v++) {
    const struct ir_op *op = &ir->op[v];
    if (!op->scalar || is_reduction(op) || op->segment != segment) continue;
    if (op->kind == IR_STORE) {
      char buffer[48];
      put(t, "%s  if (%s) fw_writer<%s, 1>::store(a.out[%d], row%s * a.out_stride[%d], &%s);\n", loop,
          by_row(t) ? "lane == 0 && live[q]" : "live[u] && col_of[u] == 0", type_name(ir->prog->output_dtype[op->index]),
          op->index, slot(t), op->index, ref(t, op->a, buffer));
      continue;
    }
    put(t, "  float x%d%s;\n%s", v, count, loop);
    if (op->kind == IR_LOAD) {
      put_scalar_load(t, v, "  ");
      continue;
    }
    put(t, "  x%d%s = ", v, slot(t));
    put_expression(t, v);
    put(t, ";\n");
  }
}

// ---- the three shapes of a kernel ---------------------------------------------------------------------------------------

static void put_head(struct text *t, const char *name) {
  const struct row_tile *tile = &t->tile;
  put(t, "extern \"C\" __global__ void __launch_bounds__(%d", tile->threads);
  if (tile->blocks_per_sm) put(t, ", %d", tile->blocks_per_sm);
  put(t, ")\n%s(const __grid_constant__ fw_row_args a) {\n", name);
}

static void put_reduce(struct text *t, int segment) {
  const struct row_ir *ir = t->ir;
  int rows = t->tile.rows, v = 0;
  while (!(is_reduction(&ir->op[v]) && ir->op[v].segment == segment)) v++;
  const struct ir_op *op = &ir->op[v];
  bool dev = op->kind == IR_MEAN_SQ_DEV;
  const char *how = op->kind == IR_MAX_ROW ? "fw_maximum" : "fw_add";
  const char *buffer = t->tile.group > 32 ? (segment & 1 ? "shared[1]" : "shared[0]") : "(float *)0";
  put(t, "  fw_row_reduce<%d, %d, %s>(r%d, %s);\n", t->tile.group, dev ? 2 * rows : rows, how, v, buffer);
  if (op->kind == IR_SUM || op->kind == IR_SUM_SQ || op->kind == IR_SUM_EXP || op->kind == IR_MAX_ROW) return;
  put(t, "#pragma unroll\n  for (int q = 0; q < %d; q++) {\n", rows);
  put(t, "    x%d[q] /= %d.0f;\n", v, ir->prog->cols);
  if (dev) {
    put(t, "    d%d[q] /= %d.0f;\n", v, ir->prog->cols);
    put(t, "    x%d[q] = fw_max(x%d[q] - d%d[q] * d%d[q], 0.0f);\n", v, v, v, v);
  }
  put(t, "  }\n");
}

static void put_accumulators(struct text *t, int segment) {
  const struct row_ir *ir = t->ir;
  int rows = t->tile.rows;
  for (int v = 0; v < ir->n; v++) {
    const struct ir_op *op = &ir->op[v];
    if (!is_reduction(op) || op->segment != segment) continue;
    bool dev = op->kind == IR_MEAN_SQ_DEV;
    put(t, "  float r%d[%d], *x%d = r%d", v, dev ? 2 * rows : rows, v, v);
    if (dev) put(t, ", *d%d = r%d + %d", v, v, rows);
    put(t, ";\n#pragma unroll\n  for (int q = 0; q < %d; q++) r%d[q] = %s;\n", dev ? 2 * rows : rows, v,
        op->kind == IR_MAX_ROW ? "-INFINITY" : "0.0f");
  }
}

static void put_rows(struct text *t) {
  const struct row_tile *tile = &t->tile;
  put(t, "  const int lane = threadIdx.x %% %d;\n", tile->group);
  put(t, "  const long long first = ((long long)blockIdx.x * %d + threadIdx.x / %d) * %d;\n",
      tile->threads / tile->group, tile->group, tile->rows);
  put(t, "  long long row[%d];\n  bool live[%d];\n#pragma unroll\n", tile->rows, tile->rows);
  put(t, "  for (int q = 0; q < %d; q++) live[q] = first + q < a.rows, row[q] = live[q] ? first + q : a.rows - 1;\n",
      tile->rows);
  if (tile->group > 32) put(t, "  __shared__ float shared[2][%d];\n", 2 * tile->rows * 32);
}

// The loops over a group's rows and vectors; `pad` of the body is six blanks.
static void put_group_loops(struct text *t) {
  const struct row_tile *tile = &t->tile;
  int vectors = t->ir->prog->cols / tile->vector;
  put(t, "#pragma unroll\n  for (int q = 0; q < %d; q++)\n#pragma unroll\n", tile->rows);
  put(t, "    for (int i = 0; i < %d; i++) {\n", tile->depth);
  put(t, "      const int col = (lane + i * %d) * %d;\n", tile->group, tile->vector);
  if (tile->group * tile->depth != vectors) put(t, "      if (col >= %d) continue;\n", t->ir->prog->cols);
}

static void put_group_arrays(struct text *t) {
  const struct row_ir *ir = t->ir;
  const struct row_tile *tile = &t->tile;
  bool any = false;
  for (int v = 0; v < ir->n; v++) {
    if (is_pooled(t, v) || is_array(t, v)) {
      put(t, "  float v%d[%d][%d][%d];\n", v, tile->rows, tile->depth, tile->vector);
    } else if (is_hoisted(t, v)) {
      put(t, "  fw_pack<%s, %d> p%d[%d][%d];\n", type_name(input_of(t, v)->dtype), tile->vector, v, tile->rows,
          tile->depth);
    }
    any |= is_hoisted(t, v);
  }
  if (!any) return;
  put(t, "  // everything is read before anything is written\n");
  put_group_loops(t);
  for (int v = 0; v < ir->n; v++) {
    if (!is_hoisted(t, v)) continue;
    char name[32];
    snprintf(name, sizeof name, "v%d[q][i]", v);
    if (is_pooled(t, v)) put_pool(t, v, name, "      ");
    else put_load(t, v, "[q][i]", "      ");
  }
  put(t, "    }\n");
}

static void put_by_rows(struct text *t) {
  const struct row_ir *ir = t->ir;
  bool wanted[ROW_IR_MAX], stream = t->tile.style == ROW_STREAM;
  char loop[64], count[16];
  snprintf(loop, sizeof loop, "#pragma unroll\n  for (int q = 0; q < %d; q++)\n  ", t->tile.rows);
  snprintf(count, sizeof count, "[%d]", t->tile.rows);
  put_rows(t);
  if (!stream) put_group_arrays(t);
  for (int segment = 0; segment < ir->n_segments; segment++) {
    put(t, "  // segment %d\n", segment);
    put_scalars(t, segment, loop, count);
    put_accumulators(t, segment);
    if (stream) mark_slice(ir, segment, wanted);
    else mark_segment(ir, segment, wanted);
    if (has_vector_work(ir, wanted)) {
      if (stream) {
        put(t, "  for (int q = 0, col = lane * %d; col < %d; col += %d) {\n", t->tile.vector, ir->prog->cols,
            t->tile.group * t->tile.vector);
      } else {
        put_group_loops(t);
      }
      put_vector(t, wanted, stream ? "    " : "      ");
      put(t, stream ? "  }\n" : "    }\n");
    }
    if (segment < ir->n_segments - 1) put_reduce(t, segment);
  }
}

static void put_tile_index(struct text *t) {
  const struct row_tile *tile = &t->tile;
  int vectors = t->ir->prog->cols / tile->vector;
  put(t, "  const long long start = (long long)blockIdx.x * %d;\n", tile->threads * tile->depth);
  if (tile->style == ROW_FLAT) {
    put(t, "  const long long elements = a.rows * %d, vectors = elements / %d;\n", t->ir->prog->cols, tile->vector);
    return;
  }
  put(t, "  const long long start_row = start / %d;\n", vectors);
  put(t, "  const unsigned start_vector = (unsigned)(start - start_row * %d);\n", vectors);
  put(t, "  long long row[%d];\n  int col_of[%d];\n  bool live[%d];\n", tile->depth, tile->depth, tile->depth);
  put(t, "#pragma unroll\n  for (int u = 0; u < %d; u++) {\n", tile->depth);
  put(t, "    const unsigned n = start_vector + threadIdx.x + u * %d;\n", tile->threads);
  put(t, "    row[u] = start_row + n / %du;\n    col_of[u] = (int)(n %% %du) * %d;\n", vectors, vectors, tile->vector);
  put(t, "    live[u] = row[u] < a.rows;\n    if (!live[u]) row[u] = a.rows - 1;\n  }\n");
}

static void put_tile_position(struct text *t) {
  const struct row_tile *tile = &t->tile;
  put(t, "#pragma unroll\n  for (int u = 0; u < %d; u++) {\n", tile->depth);
  if (tile->style == ROW_TILE) {
    put(t, "    const int col = col_of[u];\n    if (!live[u]) continue;\n");
  } else {
    put(t, "    const long long n = start + threadIdx.x + u * %d, at = n * %d;\n    if (n >= vectors) continue;\n",
        tile->threads, tile->vector);
  }
}

static void put_by_tiles(struct text *t) {
  const struct row_ir *ir = t->ir;
  bool wanted[ROW_IR_MAX], flat = t->tile.style == ROW_FLAT;
  char count[16], loop[64];
  snprintf(count, sizeof count, "[%d]", t->tile.depth);
  snprintf(loop, sizeof loop, "#pragma unroll\n  for (int u = 0; u < %d; u++)\n  ", t->tile.depth);
  put_tile_index(t);
  for (int v = 0; v < ir->n; v++) {
    if (is_hoisted(t, v)) {
      put(t, "  fw_pack<%s, %d> p%d[%d];\n", type_name(input_of(t, v)->dtype), t->tile.vector, v, t->tile.depth);
    }
  }
  put_tile_position(t);
  for (int v = 0; v < ir->n; v++) {
    if (is_hoisted(t, v)) put_load(t, v, "[u]", "    ");
  }
  put(t, "  }\n");
  put_scalars(t, 0, flat ? "" : loop, flat ? "" : count);
  mark_segment(ir, 0, wanted);
  put_tile_position(t);
  put_vector(t, wanted, "    ");
  put(t, "  }\n");
  if (!flat || t->tile.vector == 1) return;
  put(t, "  // the elements behind the last whole vector\n");
  put(t, "  if (const long long at = vectors * %d + threadIdx.x; blockIdx.x == 0 && at < elements) {\n", t->tile.vector);
  t->tail = true;
  put_vector(t, wanted, "    ");
  t->tail = false;
  put(t, "  }\n");
}

size_t row_source(const struct row_ir *ir, const struct row_tile *tile, const char *name, char *out, size_t out_bytes) {
  struct text t = {.out = out, .size = out_bytes, .ir = ir, .tile = *tile};
  if (out_bytes > 0) out[0] = '\0';
  put_head(&t, name);
  if (by_row(&t)) put_by_rows(&t);
  else put_by_tiles(&t);
  put(&t, "}\n");
  return t.used;
}

size_t row_source_all(const struct row_ir *ir, struct row_tile tiles[ROW_VARIANTS], char *out, size_t out_bytes) {
  size_t used = 0;
  for (int v = 0; v < ROW_VARIANTS; v++) {
    tiles[v] = (struct row_tile){0};
    if (!row_tile_choose(ir, (enum row_variant)v, &tiles[v])) continue;
    size_t room = used < out_bytes ? out_bytes - used : 0;
    used += row_source(ir, &tiles[v], row_variant_name[v], room ? out + used : NULL, room);
  }
  return used;
}
