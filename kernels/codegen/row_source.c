// Row program -> CUDA C text: the shapes of a kernel, and the segments inside. The text is meant to
// be read: one comment a segment, names by operation number (row_text.c).
#include "kernels/codegen/row_text.h"

#include <stdio.h>
#include <string.h>

// ---- bodies ------------------------------------------------------------------------------------

static bool is_reduction(const struct ir_op *op) {
  return op->kind >= IR_FIRST_REDUCTION;
}

static void put_accumulate(struct text *t, int v, const char *pad) {
  const struct ir_op *op = &t->ir->op[v];
  char a[48], b[48];
  text_ref(t, op->a, a);
  if (op->b != IR_NONE) text_ref(t, op->b, b);
  switch ((enum ir_kind)op->kind) {
  case IR_MAX_ROW:
    text_put(t, "%sx%d[q] = fw_max(x%d[q], %s);\n", pad, v, v, a);
    break;
  case IR_SUM_SQ:
  case IR_MEAN_SQ:
    text_put(t, "%sx%d[q] = fmaf(%s, %s, x%d[q]);\n", pad, v, a, a, v);
    break;
  case IR_SUM_EXP:
    text_put(t, "%sx%d[q] += %s(%s - %s);\n", pad, v, text_exp(t), a, b);
    break;
  case IR_MEAN: // of parts, so that no sum of large values overflows
    text_put(t, "%sx%d[q] = fmaf(%s, %af, x%d[q]);\n", pad, v, a, 1.0 / t->ir->prog->cols, v);
    break;
  case IR_MEAN_SQ_DEV:
    text_put(t, "%sconst float e%d = %s - %s;\n", pad, v, a, b);
    text_put(t, "%sx%d[q] = fmaf(e%d, e%d, x%d[q]);\n%sd%d[q] += e%d;\n", pad, v, v, v, v, pad, v,
             v);
    break;
  default:
    text_put(t, "%sx%d[q] += %s;\n", pad, v, a);
  }
}

static void put_store(struct text *t, int v, const char *pad) {
  const struct ir_op *op = &t->ir->op[v];
  int index = op->index;
  if (t->fold) {
    text_put(t, "%sif (live[q])\n#pragma unroll\n%s  for (int j = 0; j < %d; j++) ", pad, pad,
             t->tile.vector);
    text_put(t, "folded[i][j] = fw_fold<%s>(folded[i][j], s%d[j]);\n", t->fold, v);
    return;
  }
  text_put(t, "%s", pad);
  if (t->tile.style != ROW_STREAM && !t->tail && text_by_row(t)) text_put(t, "if (live[q]) ");
  text_put(t, "fw_writer<%s, %d>::store(a.out[%d], ", text_type(t->ir->prog->output_dtype[index]),
           t->tail ? 1 : t->tile.vector, index);
  if (t->tile.style == ROW_FLAT)
    text_put(t, "at, s%d);\n", v);
  else
    text_put(t, "row%s * a.out_stride[%d] + col, s%d);\n", text_slot(t), index, v);
}

// The vector operations that `wanted` marks, for the vector at (row, col): loads, one loop over
// elements, stores.
static void put_vector(struct text *t, const bool *wanted, const char *pad) {
  const struct row_ir *ir = t->ir;
  int width = t->tail ? 1 : t->tile.vector;
  char inner[32];
  snprintf(inner, sizeof inner, "%s  ", pad);
  for (int v = 0; v < ir->n; v++) {
    if (!wanted[v] || ir->op[v].kind != IR_LOAD || ir->op[v].scalar || text_hoisted(t, v)) continue;
    char name[16];
    snprintf(name, sizeof name, "v%d", v);
    if (text_pooled(t, v)) {
      text_put(t, "%sfloat v%d[%d];\n", pad, v, width);
      text_pool(t, v, name, pad);
      continue;
    }
    text_put(t, "%sfw_pack<%s, %d> p%d;\n", pad, text_type(text_input(t, v)->dtype), width, v);
    text_load(t, v, "", pad);
  }
  for (int v = 0; v < ir->n; v++) {
    if (wanted[v] && ir->op[v].kind == IR_STORE) text_put(t, "%sfloat s%d[%d];\n", pad, v, width);
  }
  text_put(t, "#pragma unroll\n%sfor (int j = 0; j < %d; j++) {\n", pad, width);
  for (int v = 0; v < ir->n; v++) {
    const struct ir_op *op = &ir->op[v];
    char buffer[48];
    if (!wanted[v] || op->kind == IR_LOAD) continue;
    if (is_reduction(op))
      put_accumulate(t, v, inner);
    else if (op->kind == IR_STORE)
      text_put(t, "%ss%d[j] = %s;\n", inner, v, text_ref(t, op->a, buffer));
    else {
      text_put(t, text_array(t, v) ? "%s%s = " : "%sconst float %s = ", inner,
               text_ref(t, v, buffer));
      text_expression(t, v);
      text_put(t, ";\n");
    }
  }
  text_put(t, "%s}\n", pad);
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
    // weights are read again in each segment that uses them: they come from L1, and registers are
    // dearer
    wanted[v] = false;
    for (int k = v + 1; k < ir->n; k++) {
      const struct ir_op *user = &ir->op[k];
      wanted[v] |= user->segment == segment && (user->a == v || user->b == v || user->c == v);
    }
  }
}

// What a streamed pass over the row needs: everything its reduction (or, in the last pass, the
// stores) is made from.
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
      text_put(t,
               "%s  if (%s) fw_writer<%s, 1>::store(a.out[%d], row%s * a.out_stride[%d], &%s);\n",
               loop, text_by_row(t) ? "lane == 0 && live[q]" : "live[u] && col_of[u] == 0",
               text_type(ir->prog->output_dtype[op->index]), op->index, text_slot(t), op->index,
               text_ref(t, op->a, buffer));
      continue;
    }
    text_put(t, "  float x%d%s;\n%s", v, count, loop);
    if (op->kind == IR_LOAD) {
      text_scalar_load(t, v, "  ");
      continue;
    }
    text_put(t, "  x%d%s = ", v, text_slot(t));
    text_expression(t, v);
    text_put(t, ";\n");
  }
}

// ---- the three shapes of a kernel --------------------------------------------------------------

static int cluster_of(const struct row_tile *tile) {
  return tile->cluster > 1 ? tile->cluster : 1;
}

// Blocks that are launched as one.
static int blocks_together(const struct row_tile *tile) {
  return tile->before_blocks > 1 ? tile->before_blocks : cluster_of(tile);
}

static void put_head(struct text *t, const char *name) {
  const struct row_tile *tile = &t->tile;
  text_put(t, "extern \"C\" __global__ void __launch_bounds__(%d", tile->threads);
  if (tile->blocks_per_sm) text_put(t, ", %d", tile->blocks_per_sm);
  text_put(t, ")");
  if (blocks_together(tile) > 1) text_put(t, " __cluster_dims__(%d, 1, 1)", blocks_together(tile));
  text_put(t, "\n%s(const __grid_constant__ fw_row_args a) {\n", name);
}

static void put_reduce(struct text *t, int segment) {
  const struct row_ir *ir = t->ir;
  int rows = t->tile.rows, v = 0;
  while (!(is_reduction(&ir->op[v]) && ir->op[v].segment == segment))
    v++;
  const struct ir_op *op = &ir->op[v];
  bool dev = op->kind == IR_MEAN_SQ_DEV;
  const char *how = op->kind == IR_MAX_ROW ? "fw_maximum" : "fw_add";
  const char *buffer =
      t->tile.group > 32 ? (segment & 1 ? "shared[1]" : "shared[0]") : "(float *)0";
  text_put(t, "  fw_row_reduce<%d, %d, %s>(r%d, %s);\n", t->tile.group, dev ? 2 * rows : rows, how,
           v, buffer);
  if (cluster_of(&t->tile) > 1)
    text_put(t, "%s  fw_cluster_reduce<%d, %d, %s>(r%d, across[%d]);\n",
             segment == 0 ? "  fw_cluster_wait();\n" : "", t->tile.cluster, dev ? 2 * rows : rows,
             how, v, segment & 1);
  if (op->kind == IR_SUM || op->kind == IR_SUM_SQ || op->kind == IR_SUM_EXP ||
      op->kind == IR_MAX_ROW || op->kind == IR_MEAN)
    return;
  text_put(t, "#pragma unroll\n  for (int q = 0; q < %d; q++) {\n", rows);
  text_put(t, "    x%d[q] /= %d.0f;\n", v, ir->prog->cols);
  if (dev) {
    text_put(t, "    d%d[q] /= %d.0f;\n", v, ir->prog->cols);
    text_put(t, "    x%d[q] = fw_max(x%d[q] - fminf(d%d[q] * d%d[q], 0x1.fffffep127f), 0.0f);\n", v,
             v, v, v);
  }
  text_put(t, "  }\n");
}

static void put_accumulators(struct text *t, int segment) {
  const struct row_ir *ir = t->ir;
  int rows = t->tile.rows;
  for (int v = 0; v < ir->n; v++) {
    const struct ir_op *op = &ir->op[v];
    if (!is_reduction(op) || op->segment != segment) continue;
    bool dev = op->kind == IR_MEAN_SQ_DEV;
    text_put(t, "  float r%d[%d], *x%d = r%d", v, dev ? 2 * rows : rows, v, v);
    if (dev) text_put(t, ", *d%d = r%d + %d", v, v, rows);
    text_put(t, ";\n#pragma unroll\n  for (int q = 0; q < %d; q++) r%d[q] = %s;\n",
             dev ? 2 * rows : rows, v, op->kind == IR_MAX_ROW ? "-INFINITY" : "0.0f");
  }
}

static void put_rows(struct text *t) {
  const struct row_tile *tile = &t->tile;
  if (cluster_of(tile) > 1) {
    text_put(t, "  const int lane = blockIdx.x %% %d * %d + threadIdx.x;\n", tile->cluster,
             tile->group);
    text_put(t, "  const long long first = (long long)(blockIdx.x / %d) * %d;\n", tile->cluster,
             tile->rows);
    text_put(t, "  fw_cluster_arrive();\n");
  } else if (tile->before_blocks > 1) {
    text_put(t, "  const int lane = threadIdx.x;\n  const long long first = blockIdx.x / %d;\n",
             tile->before_blocks);
  } else {
    text_put(t, "  const int lane = threadIdx.x %% %d;\n", tile->group);
    text_put(t, "  const long long first = ((long long)blockIdx.x * %d + threadIdx.x / %d) * %d;\n",
             tile->threads / tile->group, tile->group, tile->rows);
  }
  text_put(t, "  long long row[%d];\n  bool live[%d];\n#pragma unroll\n", tile->rows, tile->rows);
  text_put(
      t,
      "  for (int q = 0; q < %d; q++) live[q] = first + q < a.rows, row[q] = live[q] ? first + q : "
      "a.rows - 1;\n",
      tile->rows);
  if (tile->group > 32) text_put(t, "  __shared__ float shared[2][%d];\n", 2 * tile->rows * 32);
  if (cluster_of(tile) > 1)
    text_put(t, "  __shared__ float across[2][%d];\n", 2 * tile->rows * tile->cluster);
}

// The loops over a group's rows and vectors; `pad` of the body is six blanks.
void text_group_loops(struct text *t) {
  const struct row_tile *tile = &t->tile;
  int vectors = t->ir->prog->cols / tile->vector;
  text_put(t, "#pragma unroll\n  for (int q = 0; q < %d; q++)\n#pragma unroll\n", tile->rows);
  text_put(t, "    for (int i = 0; i < %d; i++) {\n", tile->depth);
  const int threads = tile->group * cluster_of(tile);
  text_put(t, "      const int col = (lane + i * %d) * %d;\n", threads, tile->vector);
  if (threads * tile->depth != vectors)
    text_put(t, "      if (col >= %d) continue;\n", t->ir->prog->cols);
}

// Sequences folded by the whole block, each picked up from shared memory before the next one comes.
static void put_pools(struct text *t) {
  const struct row_tile *tile = &t->tile;
  int cols = t->ir->prog->cols;
  text_put(t, "  // a block a sequence: slices of its tokens, added in order\n");
  text_put(t, "  __shared__ float pooled[%d];\n  __shared__ __align__(16) float parts[%d];\n", cols,
           tile->slices > 1 ? tile->slices * cols : 4);
  for (int v = 0; v < t->ir->n; v++) {
    if (!text_pooled(t, v)) continue;
    text_pool_block(t, v);
    text_group_loops(t);
    text_put(t, "      for (int j = 0; j < %d; j++) v%d[q][i][j] = pooled[col + j];\n",
             tile->vector, v);
    text_put(t, "    }\n");
  }
}

static bool is_folded_by_block(const struct text *t, int v) {
  return text_made(t, v) || (text_pooled(t, v) && t->tile.slices > 0);
}

static void put_group_arrays(struct text *t) {
  const struct row_ir *ir = t->ir;
  const struct row_tile *tile = &t->tile;
  bool any = false;
  for (int v = 0; v < ir->n; v++) {
    if (text_pooled(t, v) || text_array(t, v)) {
      text_put(t, "  float v%d[%d][%d][%d];\n", v, tile->rows, tile->depth, tile->vector);
    } else if (text_hoisted(t, v)) {
      text_put(t, "  fw_pack<%s, %d> p%d[%d][%d];\n", text_type(text_input(t, v)->dtype),
               tile->vector, v, tile->rows, tile->depth);
    }
    any |= text_hoisted(t, v) && !is_folded_by_block(t, v);
  }
  if (tile->slices > 0) put_pools(t);
  if (ir->before) text_before(t);
  if (!any) return;
  text_put(t, "  // everything is read before anything is written\n");
  text_group_loops(t);
  for (int v = 0; v < ir->n; v++) {
    if (!text_hoisted(t, v) || is_folded_by_block(t, v)) continue;
    char name[32];
    snprintf(name, sizeof name, "v%d[q][i]", v);
    if (text_pooled(t, v))
      text_pool(t, v, name, "      ");
    else
      text_load(t, v, "[q][i]", "      ");
  }
  text_put(t, "    }\n");
}

// Segment by segment, on the rows at hand.
void text_program(struct text *t) {
  const struct row_ir *ir = t->ir;
  bool wanted[ROW_IR_MAX] = {false}, stream = t->tile.style == ROW_STREAM;
  char loop[64], count[16];
  snprintf(loop, sizeof loop, "#pragma unroll\n  for (int q = 0; q < %d; q++)\n  ", t->tile.rows);
  snprintf(count, sizeof count, "[%d]", t->tile.rows);
  if (!stream) put_group_arrays(t);
  for (int segment = 0; segment < ir->n_segments; segment++) {
    text_put(t, "  // segment %d\n", segment);
    put_scalars(t, segment, loop, count);
    put_accumulators(t, segment);
    if (stream)
      mark_slice(ir, segment, wanted);
    else
      mark_segment(ir, segment, wanted);
    if (has_vector_work(ir, wanted)) {
      if (stream) {
        text_put(t, "  for (int q = 0, col = lane * %d; col < %d; col += %d) {\n", t->tile.vector,
                 ir->prog->cols, t->tile.group * t->tile.vector);
      } else {
        text_group_loops(t);
      }
      put_vector(t, wanted, stream ? "    " : "      ");
      text_put(t, stream ? "  }\n" : "    }\n");
    }
    if (segment < ir->n_segments - 1) put_reduce(t, segment);
  }
}

static void put_by_rows(struct text *t) {
  put_rows(t);
  text_program(t);
}

static void put_tile_index(struct text *t) {
  const struct row_tile *tile = &t->tile;
  int vectors = t->ir->prog->cols / tile->vector;
  text_put(t, "  const long long start = (long long)blockIdx.x * %d;\n",
           tile->threads * tile->depth);
  if (tile->style == ROW_FLAT) {
    text_put(t, "  const long long elements = a.rows * %d, vectors = elements / %d;\n",
             t->ir->prog->cols, tile->vector);
    return;
  }
  text_put(t, "  const long long start_row = start / %d;\n", vectors);
  text_put(t, "  const unsigned start_vector = (unsigned)(start - start_row * %d);\n", vectors);
  text_put(t, "  long long row[%d];\n  int col_of[%d];\n  bool live[%d];\n", tile->depth,
           tile->depth, tile->depth);
  text_put(t, "#pragma unroll\n  for (int u = 0; u < %d; u++) {\n", tile->depth);
  text_put(t, "    const unsigned n = start_vector + threadIdx.x + u * %d;\n", tile->threads);
  text_put(t, "    row[u] = start_row + n / %du;\n    col_of[u] = (int)(n %% %du) * %d;\n", vectors,
           vectors, tile->vector);
  text_put(t, "    live[u] = row[u] < a.rows;\n    if (!live[u]) row[u] = a.rows - 1;\n  }\n");
}

static void put_tile_position(struct text *t) {
  const struct row_tile *tile = &t->tile;
  text_put(t, "#pragma unroll\n  for (int u = 0; u < %d; u++) {\n", tile->depth);
  if (tile->style == ROW_TILE) {
    text_put(t, "    const int col = col_of[u];\n    if (!live[u]) continue;\n");
  } else {
    text_put(
        t,
        "    const long long n = start + threadIdx.x + u * %d, at = n * %d;\n    if (n >= vectors) "
        "continue;\n",
        tile->threads, tile->vector);
  }
}

static void put_by_tiles(struct text *t) {
  const struct row_ir *ir = t->ir;
  bool wanted[ROW_IR_MAX] = {false}, flat = t->tile.style == ROW_FLAT;
  char count[16], loop[64];
  snprintf(count, sizeof count, "[%d]", t->tile.depth);
  snprintf(loop, sizeof loop, "#pragma unroll\n  for (int u = 0; u < %d; u++)\n  ", t->tile.depth);
  put_tile_index(t);
  for (int v = 0; v < ir->n; v++) {
    if (text_hoisted(t, v)) {
      text_put(t, "  fw_pack<%s, %d> p%d[%d];\n", text_type(text_input(t, v)->dtype),
               t->tile.vector, v, t->tile.depth);
    }
  }
  put_tile_position(t);
  for (int v = 0; v < ir->n; v++) {
    if (text_hoisted(t, v)) text_load(t, v, "[u]", "    ");
  }
  text_put(t, "  }\n");
  put_scalars(t, 0, flat ? "" : loop, flat ? "" : count);
  mark_segment(ir, 0, wanted);
  put_tile_position(t);
  put_vector(t, wanted, "    ");
  text_put(t, "  }\n");
  if (!flat || t->tile.vector == 1) return;
  text_put(t, "  // the elements behind the last whole vector\n");
  text_put(
      t,
      "  if (const long long at = vectors * %d + threadIdx.x; blockIdx.x == 0 && at < elements) "
      "{\n",
      t->tile.vector);
  t->tail = true;
  put_vector(t, wanted, "    ");
  t->tail = false;
  text_put(t, "  }\n");
}

size_t row_source(const struct row_ir *ir, const struct row_tile *tile, const char *name, char *out,
                  size_t out_bytes) {
  struct text t = {.out = out, .size = out_bytes, .ir = ir, .tile = *tile};
  if (out_bytes > 0) out[0] = '\0';
  text_listing(&t, name);
  put_head(&t, name);
  if (text_by_row(&t))
    put_by_rows(&t);
  else
    put_by_tiles(&t);
  text_put(&t, "}\n");
  return t.used;
}

size_t row_source_all(const struct row_ir *ir, struct row_tile tiles[ROW_VARIANTS], char *out,
                      size_t out_bytes) {
  size_t used = 0;
  for (int v = 0; v < ROW_VARIANTS; v++) {
    tiles[v] = (struct row_tile){0};
    if (!row_tile_choose(ir, (enum row_variant)v, &tiles[v])) continue;
    size_t room = used < out_bytes ? out_bytes - used : 0;
    used += row_source(ir, &tiles[v], row_variant_name[v], room ? out + used : NULL, room);
  }
  return used;
}
