// The text of generated row kernels, compiled as C++ and run on a CPU, against kernels/ref: what
// threads, warps, blocks and clusters do to each other is right in whatever order they run, and a
// row's bits do not depend on who shares its batch. What a GPU adds (PTX, its rounding of special
// functions, its memory) is for tests/kernels/cuda/test_row.c on one.
#include "cases.h"
#include "harness/cmocka_all.h"
#include "kernels/cuda.h"
#include "kernels/ref/ref.h"

#include <math.h>
#include <stdlib.h>

void emulated_run(int kernel, const void *args, int blocks, int threads, int together, int order);

#define SEQS 7
#define TABLE 17 // rows
static const int32_t lengths[SEQS] = {3, 0, 1, 70, 9, 0, 20};
static uint64_t rng_state = 42;

static double uniform(void) {
  rng_state = rng_state * 6364136223846793005ull + 1442695040888963407ull;
  return (double)(rng_state >> 33) / 2147483648.0 * 2 - 1;
}

static void put(void *data, enum dtype dtype, int64_t i, double x) {
  if (dtype == DTYPE_F32) ((float *)data)[i] = (float)x;
  if (dtype == DTYPE_F16) ((uint16_t *)data)[i] = f32_to_f16((float)x);
  if (dtype == DTYPE_BF16) ((uint16_t *)data)[i] = f32_to_bf16((float)x);
  if (dtype == DTYPE_I64) ((int64_t *)data)[i] = (int64_t)x;
}

static double get(const void *data, enum dtype dtype, int64_t i) {
  if (dtype == DTYPE_F16) return f16_to_f32(((const uint16_t *)data)[i]);
  if (dtype == DTYPE_BF16) return bf16_to_f32(((const uint16_t *)data)[i]);
  return ((const float *)data)[i];
}

struct world { // of one case: operands of all its sequences
  struct emulated_case c;
  struct row_ir before_ir, ir;
  struct row_tile tile;
  int n, n_in;
  struct view in[ROW_MAX_INPUTS];
  bool by_token[ROW_MAX_INPUTS], by_row[ROW_MAX_INPUTS]; // operands whose rows are of the batch
  int32_t cu[SEQS + 1], *positions;
  int64_t rows, tokens;
};

static void *aligned(size_t bytes) {
  void *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
  assert_non_null(memory);
  memset(memory, 0xff, (bytes + 127) / 64 * 64); // NaN
  return memory;
}

static void make_operand(struct world *w, int at, const struct row_input *in, bool token_rows) {
  bool index = in->dtype == DTYPE_I64, one = in->cls == IN_PER_ROW || in->cls == IN_SCALAR;
  int32_t cols = one ? 1 : w->c.row.cols;
  bool pooled = in->cls >= IN_POOL_MEAN;
  int64_t rows = in->cls == IN_PER_COL || in->cls == IN_SCALAR ? 1
                 : in->cls == IN_GATHER                        ? TABLE
                 : token_rows || pooled                        ? w->tokens
                                                               : w->rows;
  int64_t stride = one ? 1 : cols + (w->c.variant == ROW_VARIANT_SCALAR ? 3 : 8);
  struct view *v = &w->in[at];
  *v = (struct view){aligned((size_t)(rows * stride) * dtype_bytes(in->dtype)), stride, cols,
                     in->dtype};
  w->by_token[at] = (token_rows || pooled) && rows == w->tokens && in->cls != IN_GATHER;
  w->by_row[at] = !token_rows && (in->cls == IN_FULL || in->cls == IN_PER_ROW);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < cols; c++)
      put(v->data, in->dtype, r * stride + c,
          index ? (double)((int64_t)((uniform() + 1) / 2 * (TABLE + 1)) - 1) : 2 * uniform());
}

static void world_make(struct world *w, int n) {
  memset(w, 0, sizeof *w);
  w->n = n;
  assert_true(emulated_case(n, &w->c, &w->before_ir, &w->ir, &w->tile));
  w->rows = SEQS;
  for (int i = 0; i < SEQS; i++)
    w->cu[i + 1] = w->cu[i] + lengths[i];
  w->tokens = w->cu[SEQS];
  w->positions = aligned((size_t)w->tokens * 4);
  for (int64_t t = 0; t < w->tokens; t++)
    w->positions[t] = (int32_t)(t % (TABLE + 1)) - 1; // -1: reads as zeros
  for (int i = 0; i < w->c.row.n_inputs; i++)
    if (i > 0 || !w->c.before_recipe) make_operand(w, i, &w->c.row.inputs[i], false);
  w->n_in = w->c.row.n_inputs;
  for (int i = 0; w->c.before_recipe && i < w->c.before.n_inputs; i++)
    make_operand(w, w->n_in++, &w->c.before.inputs[i], true);
}

static void world_free(struct world *w) {
  for (int i = 0; i < w->n_in; i++)
    free(w->in[i].data);
  free(w->positions);
}

// Sequences (or rows) [first, first + n) by the kernel.
static void run(const struct world *w, int64_t first, int64_t n, int order, void *out[2]) {
  struct row_args args = {.rows = n, .positions = w->positions};
  bool sequences = w->c.before_recipe || w->ir.pools;
  int32_t cu[SEQS + 1], from = sequences ? w->cu[first] : 0;
  for (int i = 0; i <= n; i++)
    cu[i] = w->cu[first + i] - from;
  args.cu_seqlens = cu;
  args.positions += w->c.before_recipe ? from : first;
  for (int i = 0; i < w->n_in; i++) {
    const struct view *v = &w->in[i];
    int64_t row = w->by_token[i] ? from : w->by_row[i] ? first : 0;
    args.in[i] =
        v->data ? (char *)v->data + row * v->stride * (int64_t)dtype_bytes(v->dtype) : NULL;
    args.in_stride[i] = v->stride, args.in_rows[i] = TABLE;
    args.index_bytes[i] = v->dtype == DTYPE_I64 ? 8 : 4;
  }
  for (int o = 0; o < w->c.row.n_outputs; o++) {
    int64_t cols = w->c.row.output_is_scalar[o] ? 1 : w->c.row.cols;
    out[o] = aligned((size_t)(n * cols) * dtype_bytes(w->c.row.output_dtype[o]));
    args.out[o] = out[o], args.out_stride[o] = cols;
  }
  int together = w->tile.before_blocks > 1 ? w->tile.before_blocks : w->tile.cluster;
  emulated_run(w->n, &args, (int)row_tile_blocks(&w->tile, w->c.row.cols, n), w->tile.threads,
               together > 1 ? together : 1, order);
}

static void reference(const struct world *w, double *out[2]) {
  struct batch_geometry g = {.cu_seqlens = w->cu, .positions = w->positions};
  struct view in[ROW_MAX_INPUTS];
  int32_t cols = w->c.row.cols;
  double *regs = malloc(sizeof *regs * 8 * (size_t)cols), *made = NULL;
  float *rows = NULL;
  memcpy(in, w->in, sizeof in);
  if (w->c.before_recipe) {
    made = malloc(sizeof *made * (size_t)(w->tokens * cols));
    rows = malloc(sizeof *rows * (size_t)(w->tokens * cols));
    ref_row_program(&w->c.before, w->in + w->c.row.n_inputs, &made, w->tokens, &g, regs);
    for (int64_t i = 0; i < w->tokens * cols; i++)
      rows[i] = (float)made[i];
    in[0] = (struct view){rows, cols, cols, DTYPE_F32};
  }
  for (int o = 0; o < w->c.row.n_outputs; o++)
    out[o] = malloc(sizeof(double) * (size_t)(w->rows * cols));
  ref_row_program(&w->c.row, in, out, w->rows, &g, regs);
  free(regs), free(made), free(rows);
}

static void compare(const struct world *w, void *const got[2], double *const want[2]) {
  for (int o = 0; o < w->c.row.n_outputs; o++) {
    enum dtype dtype = w->c.row.output_dtype[o];
    int64_t cols = w->c.row.output_is_scalar[o] ? 1 : w->c.row.cols;
    double bound = dtype == DTYPE_F32 ? 2e-5 : dtype == DTYPE_F16 ? 1e-3 : 8e-3;
    if (recipe_is_table(w->c.recipe, 0)) bound = 1.2e-2; // rounds to bf16 on the way
    for (int64_t i = 0; i < w->rows * cols; i++) {
      double x = get(got[o], dtype, i), y = want[o][i];
      if (!(fabs(x - y) <= bound * (1 + fabs(y))))
        fail_msg("case %d, %s after %s, %d columns, output %d, row %ld column %ld: %g, not %g",
                 w->n, w->c.recipe->name, w->c.before_recipe ? w->c.before_recipe->name : "nothing",
                 w->c.row.cols, o, (long)(i / cols), (long)(i % cols), x, y);
    }
  }
}

// The rows of `part`, which begin at `first` of `whole`.
static void same_bits(const struct world *w, void *const whole[2], void *const part[2],
                      int64_t first, int64_t n) {
  for (int o = 0; o < w->c.row.n_outputs; o++) {
    int64_t cols = w->c.row.output_is_scalar[o] ? 1 : w->c.row.cols;
    size_t row = (size_t)cols * dtype_bytes(w->c.row.output_dtype[o]);
    if (memcmp((char *)whole[o] + (size_t)first * row, part[o], (size_t)n * row) != 0)
      fail_msg("case %d, %s: other bits", w->n, w->c.recipe->name);
  }
}

static void release(void *out[2], int n) {
  for (int o = 0; o < n; o++)
    free(out[o]);
}

static void kernels_match_the_reference(void **state) {
  (void)state;
  int made = 0, shared = 0;
  for (int n = 0; n < EMULATED_CASES; n++) {
    struct world w;
    void *all[2], *again[2], *alone[2];
    double *want[2];
    world_make(&w, n);
    int outputs = w.c.row.n_outputs;
    run(&w, 0, SEQS, 0, all);
    reference(&w, want);
    compare(&w, all, want);
    run(&w, 0, SEQS, 1 + n % 2, again); // the warps in another order
    same_bits(&w, all, again, 0, SEQS);
    run(&w, 3, 1, 0, alone); // a sequence by itself
    same_bits(&w, all, alone, 3, 1);
    release(all, outputs), release(again, outputs), release(alone, outputs);
    for (int o = 0; o < outputs; o++)
      free(want[o]);
    made += w.c.before_recipe != NULL;
    shared += w.tile.before_blocks > 1;
    world_free(&w);
  }
  printf("  %d kernels, %d of which make what they pool, %d in clusters\n", EMULATED_CASES, made,
         shared);
  assert_true(made > 20 && shared > 5);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(kernels_match_the_reference)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
