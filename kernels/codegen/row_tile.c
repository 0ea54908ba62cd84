// How a row program is spread over threads: pure arithmetic on the program's shape.
#include "kernels/codegen/codegen.h"

const char *const row_variant_name[ROW_VARIANTS] = {"fw_row_vector", "fw_row_scalar",
                                                    "fw_row_flat"};

// The most floats of one row that a thread keeps (all live vectors together): above it the kernel
// would spill.
#define RESIDENT_FLOATS 96
// Columns of a row that one block takes before others share it (measured on an H200: clusters pay
// from twice that on), and the most blocks that any device with clusters runs as one.
#define BLOCK_COLS(vector) ((vector) == 8 ? 16384 : 8192)
#define CLUSTER_MAX 8
// A block that folds sequences: its threads, and the floats of shared memory for the folded row and
// for the parts it is made from.
#define POOL_THREADS 1024
#define POOL_COLS 8192
#define POOL_PARTS 8192
#define POOL_FLOATS 32 // of a thread: 1024 threads leave each 64 registers
// A block that makes the rows it pools, while a warp holds a row, and how many share a sequence.
#define BEFORE_THREADS 256
#define BEFORE_BLOCKS 8

static bool has_reduction(const struct row_ir *ir) {
  return ir->n_segments > 1;
}

// 8 elements as soon as anything is 16 bits wide (16 bytes of those, two accesses of fp32), else 4.
static int32_t vector_width(const struct row_ir *ir) {
  const struct row_program *prog = ir->prog;
  int32_t width = ir->before ? vector_width(ir->before) : 4; // one width for both
  for (int i = 0; i < ir->n; i++) {
    const struct ir_op *op = &ir->op[i];
    if (op->kind == IR_LOAD && !op->scalar && dtype_bytes(prog->inputs[op->index].dtype) == 2)
      width = 8;
    if (op->kind == IR_STORE && !op->scalar && dtype_bytes(prog->output_dtype[op->index]) == 2)
      width = 8;
  }
  return width;
}

static bool can_be_flat(const struct row_ir *ir) {
  if (has_reduction(ir)) return false;
  for (int i = 0; i < ir->n; i++) {
    const struct ir_op *op = &ir->op[i];
    if (op->kind == IR_LOAD) {
      enum row_input_class cls = ir->prog->inputs[op->index].cls;
      if (cls != IN_FULL && cls != IN_SCALAR) return false;
    }
    if (op->kind == IR_STORE && ir->prog->output_is_scalar[op->index]) return false;
  }
  return true;
}

// Registers (in floats per element of a row) that stay live across reductions; 16-bit loads are
// kept packed.
static double live_floats(const struct row_ir *ir) {
  double live = 0;
  for (int i = 0; i < ir->n; i++) {
    const struct ir_op *op = &ir->op[i];
    if (op->scalar || op->kind == IR_STORE) continue;
    if (op->kind == IR_LOAD) {
      const struct row_input *in = &ir->prog->inputs[op->index];
      if (in->cls == IN_FULL || in->cls == IN_GATHER)
        live += dtype_bytes(in->dtype) / 4.0;
      else if (in->cls >= IN_POOL_MEAN)
        live += 1;
    } else if (op->crosses) {
      live += 1;
    }
  }
  return live < 0.5 ? 0.5 : live;
}

static int32_t ceil_div(int32_t a, int32_t b) {
  return a / b + (a % b != 0);
}

// Up to a warp's worth of vectors: the smallest power of two of threads that holds a row with few
// idle lanes.
static void group_small(struct row_tile *t, int32_t vectors) {
  t->group = 1;
  while (t->group < 32 && t->group < vectors)
    t->group *= 2;
  t->depth = ceil_div(vectors, t->group);
}

static bool folds_sequences(const struct row_ir *ir) {
  for (int i = 0; i < ir->n; i++) {
    if (ir->op[i].kind != IR_LOAD) continue;
    enum row_input_class cls = ir->prog->inputs[ir->op[i].index].cls;
    if (cls == IN_POOL_MEAN || cls == IN_POOL_MAX) return true;
  }
  return false;
}

// A block a sequence: slices of its threads take every slices-th token. The slices are added in
// order, so that a row depends on its own sequence only.
static bool choose_pool(const struct row_ir *ir, struct row_tile *t) {
  int32_t vectors = ceil_div(ir->prog->cols, t->vector);
  if (!folds_sequences(ir) || vectors * t->vector > POOL_COLS) return false;
  int32_t slices = vectors < POOL_THREADS ? POOL_THREADS / vectors : 1,
          room = POOL_PARTS / (vectors * t->vector);
  if (slices > room) slices = room;
  if (slices > 32) slices = 32;
  t->style = ROW_GROUP;
  t->slices = slices;
  t->threads = ceil_div(slices * vectors < POOL_THREADS ? slices * vectors : POOL_THREADS, 32) * 32;
  if (t->threads < 64) t->threads = 64; // more than a warp: then the group is the block
  t->group = t->threads;
  t->depth = ceil_div(vectors, t->group);
  return t->depth * live_floats(ir) * t->vector <= POOL_FLOATS;
}

// A warp, or less, makes a row while that leaves room for the sums and the parts they are added
// from; else the block does. The same blocks for every sequence, so that its sums do not depend on
// others.
static void choose_before(const struct row_ir *ir, struct row_tile *t) {
  int32_t vectors = ceil_div(ir->prog->cols, t->vector);
  bool first_rows = ir->prog->inputs[ir->made].cls == IN_POOL_CLS;
  double floats = (live_floats(ir->before) + 1) * t->vector;
  t->style = ROW_GROUP;
  t->before_blocks = ir->clusters && !first_rows ? BEFORE_BLOCKS : 1;
  if (!first_rows && ceil_div(vectors, 32) * floats <= RESIDENT_FLOATS &&
      BEFORE_THREADS / 32 * ir->prog->cols <= POOL_PARTS) {
    group_small(t, vectors);
    t->before_group = t->group, t->before_depth = t->depth;
    t->threads = BEFORE_THREADS;
  } else {
    int32_t depth = 1;
    while (ceil_div(vectors, depth) > BEFORE_THREADS && (depth + 1) * floats <= RESIDENT_FLOATS)
      depth++;
    t->threads = ceil_div(ceil_div(vectors, depth), 32) * 32;
    if (t->threads < 64) t->threads = 64; // more than a warp: then the group is the block
    if (t->threads > 1024) t->threads = 1024;
    t->before_group = t->threads;
    t->before_depth = ceil_div(vectors, t->threads);
  }
  t->group = t->threads;
  t->depth = ceil_div(vectors, t->group);
}

static void choose_group(const struct row_ir *ir, struct row_tile *t) {
  int32_t vectors = ceil_div(ir->prog->cols, t->vector);
  if (ir->before) {
    choose_before(ir, t);
    return;
  }
  if (choose_pool(ir, t)) return;
  t->slices = 0;
  while (ir->clusters && !ir->pools && t->cluster < CLUSTER_MAX &&
         ceil_div(ir->prog->cols, t->cluster) > BLOCK_COLS(t->vector))
    t->cluster *= 2;
  vectors = ceil_div(vectors, t->cluster);     // of a block
  double floats = live_floats(ir) * t->vector; // a vector of a row costs so many registers
  t->style = ROW_GROUP;
  t->rows = 1;
  int32_t warp_depth = ceil_div(vectors, 32);
  if (warp_depth <= 3 && warp_depth * floats <= 64) {
    group_small(t, vectors);
    t->threads = 128;
    return;
  }
  int32_t most = (int32_t)(RESIDENT_FLOATS / floats);
  // measured on an H200 (bench/results): two vectors a thread up to 2048 columns of 16 bits, four
  // beyond, and never more than 256 threads while registers last
  int32_t depth = vectors <= 256 ? 2 : 4;
  while (depth < most && ceil_div(vectors, depth) > 256)
    depth++;
  if (depth > most && most > 0) depth = most;
  int32_t group = ceil_div(ceil_div(vectors, depth), 32) * 32;
  if (most < 1 || group > 1024) {
    *t = (struct row_tile){.style = ROW_STREAM,
                           .vector = t->vector,
                           .threads = 512,
                           .group = 512,
                           .depth = 1,
                           .rows = 1,
                           .cluster = 1};
    return;
  }
  t->group = t->threads = group;
  t->depth = ceil_div(vectors, group);
}

bool row_tile_choose(const struct row_ir *ir, enum row_variant variant, struct row_tile *out) {
  struct row_tile t = {.style = ROW_TILE,
                       .vector = vector_width(ir),
                       .threads = 256,
                       .group = 1,
                       .rows = 1,
                       .cluster = 1};
  if (variant == ROW_VARIANT_SCALAR) t.vector = 1;
  if (variant == ROW_VARIANT_FLAT && !can_be_flat(ir)) return false;
  if (variant == ROW_VARIANT_VECTOR && ir->prog->cols % t.vector != 0) return false;
  if (has_reduction(ir) || ir->pools) {
    choose_group(ir, &t);
  } else {
    if (variant == ROW_VARIANT_FLAT) t.style = ROW_FLAT;
    // measured: blocks of 128 threads with one vector each come to 1.00x a copy, deeper ones
    // to 1.04x; scalars need several to have as many bytes in flight
    t.threads = 128;
    t.depth = t.vector == 1 ? 4 : 1;
  }
  *out = t;
  return true;
}

uint32_t row_tile_blocks(const struct row_tile *tile, int32_t cols, int64_t rows) {
  int64_t per_block, work;
  if (rows <= 0 || cols <= 0) return 0;
  if (tile->style == ROW_GROUP || tile->style == ROW_STREAM) {
    per_block = (int64_t)(tile->threads / tile->group) * tile->rows;
    if (rows > INT32_MAX) return 0;
    work = rows * (tile->cluster > 1 ? tile->cluster : 1) *
           (tile->before_blocks > 1 ? tile->before_blocks : 1);
  } else {
    per_block = (int64_t)tile->threads * tile->depth;
    if (rows > INT64_MAX / cols) return 0;
    work = tile->style == ROW_FLAT ? (rows * cols + tile->vector - 1) / tile->vector
                                   : rows * (cols / tile->vector);
  }
  int64_t blocks = (work + per_block - 1) / per_block;
  return blocks > INT32_MAX ? 0 : (uint32_t)blocks;
}
