// Work before a pooling: the part of a kernel that makes the rows it pools.
#include "kernels/codegen/row_text.h"

// Token rows, made by groups that take turns, and folded as they come: by each group for itself,
// then by the block, then by its cluster, always in order. The names inside are their own.
void text_before(struct text *t) {
  const struct row_ir *ir = t->ir;
  const struct row_tile *tile = &t->tile;
  int cols = ir->prog->cols, groups = tile->threads / tile->before_group, v = 0;
  enum row_input_class cls = ir->prog->inputs[ir->made].cls;
  const char *kind = text_pool_kind(cls);
  struct text row = {.out = t->used < t->size ? t->out + t->used : NULL,
                     .size = t->used < t->size ? t->size - t->used : 0,
                     .ir = ir->before,
                     .tile = {.style = ROW_GROUP,
                              .vector = tile->vector,
                              .threads = tile->threads,
                              .group = tile->before_group,
                              .depth = tile->before_depth,
                              .rows = 1},
                     .fold = kind};
  text_put(&row, "  // what in %d pools: rows of a sequence, made by %d groups of %d threads",
           ir->made, groups * tile->before_blocks, tile->before_group);
  if (tile->before_blocks > 1) text_put(&row, " in %d blocks", tile->before_blocks);
  text_put(&row, "\n  __shared__ float made[%d];\n", cols);
  if (groups > 1) text_put(&row, "  __shared__ float parts[%d];\n", groups * cols);
  text_put(&row,
           "  const int begin = a.cu_seqlens[row[0]], end = a.cu_seqlens[row[0] + 1];\n  {\n");
  text_put(&row, "  const int lane = threadIdx.x %% %d, group = ", tile->before_group);
  if (tile->before_blocks > 1)
    text_put(&row, "blockIdx.x %% %d * %d + ", tile->before_blocks, groups);
  text_put(&row, "threadIdx.x / %d;\n  float folded[%d][%d];\n", tile->before_group,
           tile->before_depth, tile->vector);
  text_put(&row, "#pragma unroll\n  for (int i = 0; i < %d; i++)\n#pragma unroll\n",
           tile->before_depth);
  text_put(&row, "    for (int j = 0; j < %d; j++) folded[i][j] = %s;\n", tile->vector,
           cls == IN_POOL_MAX ? "begin < end ? -INFINITY : 0.0f" : "0.0f");
  text_put(&row, "  for (int from = begin; from < end%s; from += %d) {\n",
           cls == IN_POOL_CLS ? " && from == begin" : "", groups * tile->before_blocks);
  text_put(&row, "  const bool live[1] = {from + group < end};\n");
  text_put(&row, "  const long long row[1] = {live[0] ? from + group : end - 1};\n");
  if (tile->before_group > 32)
    text_put(&row, "  __syncthreads(); // the last row's sums have been picked up\n");
  text_program(&row);
  text_put(&row, "  }\n");
  text_group_loops(&row);
  text_put(&row, "      for (int j = 0; j < %d; j++) ", tile->vector);
  if (groups > 1)
    text_put(&row, "parts[threadIdx.x / %d * %d + col + j] = folded[i][j];\n", tile->before_group,
             cols);
  else
    text_put(&row, "made[col + j] = folded[i][j];\n");
  text_put(&row, "    }\n  }\n  fw_made<%s, %d, %d, %d, %d>(made, %s, end - begin);\n", kind, cols,
           groups, tile->before_blocks, tile->threads, groups > 1 ? "parts" : "made");
  if (tile->before_blocks > 1)
    text_put(&row, "  if (blockIdx.x %% %d != 0) return;\n", tile->before_blocks);
  t->used += row.used;
  while (!text_made(t, v))
    v++;
  for (; v < ir->n; v++) {
    if (!text_made(t, v)) continue;
    text_group_loops(t);
    text_put(t, "      for (int j = 0; j < %d; j++) v%d[q][i][j] = made[col + j];\n    }\n",
             tile->vector, v);
  }
}
