// Generated row kernels against kernels/ref: every input class, reduction and dtype, odd sizes,
// views with gaps, addresses off their alignment, ugly values, rows that a cluster shares, long
// sequences to pool, more than 2^31 elements.
//
// test_row [small | compile [part|any parts]]: `small` takes every so-many-th case of few columns
// (for compute-sanitizer); with `compile` every kernel (or every parts-th) is generated and
// compiled and none is run: no GPU is needed. FUSEWIRE_JIT_CACHE names a folder for the cubins
// (default: a new one).
#include "before_recipes.h"
#include "gpu_test.h"

#include "kernels/ref/ref.h"

#include <dirent.h>
#include <time.h>
#include <unistd.h>

static struct jit *jit;
static char arch[16] = "sm_90a";
static bool compile_only, small_only;
static long part, parts = 1;
static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

struct layout {
  int32_t cols;
  int64_t rows;
  int gap;        // elements between rows
  size_t shift;   // elements by which addresses are off
  int data;       // 0 normal; 1.. ugly
  int longest;    // of sequences to pool; 0: about 20
  enum dtype out; // of the outputs; 0: the inputs'
};

// `before` NULL: the program reads all that it pools.
static int build(const struct row_program *p, const struct row_program *before,
                 struct row_kernel *kernel) {
  static char text[1 << 20];
  static struct row_ir ir, before_ir;
  struct row_tile tiles[ROW_VARIANTS];
  char message[JIT_MESSAGE_BYTES];
  struct cubin cubin;
  if (compile_only && part++ % parts != 0) return 0;
  if (!row_ir_build(p, &ir)) return -1;
  ir.clusters = atoi(arch + 3) >= 90;
  if (before && !row_ir_build_before(before, p->n_inputs, 0, &before_ir, &ir)) return -1;
  size_t n = strlen(strcpy(text, row_prelude));
  row_source_all(&ir, tiles, text + n, sizeof text - n);
  if (jit_compile(jit, text, arch, &cubin, message) != 0) {
    printf("%s\n", message);
    return -1;
  }
  checks += compile_only;
  if (!compile_only) {
    CHECK_CUDA(row_kernel_load(p, tiles, &cubin, kernel));
    kernel->before = before, kernel->before_in = p->n_inputs;
  }
  cubin_free(&cubin);
  return 0;
}

static void fill_ugly(struct matrix *m, int data) {
  for (int64_t r = 0; r < m->rows; r++) {
    for (int64_t c = 0; c < m->cols; c++) {
      double x = normal();
      if (data == 1) x += m->dtype == DTYPE_F16 ? 2000 : 1e6;  // mean far from zero
      if (data == 2) x = r % 2 ? 3.25 : 0;                     // all equal
      if (data == 3) x *= m->dtype == DTYPE_F16 ? 30000 : 1e4; // squares beyond fp16
      if (data == 4) x *= 1e-6;                                // subnormal fp16
      if (data == 5 && c == m->cols / 2) x = r % 3 == 0 ? INFINITY : r % 3 == 1 ? -INFINITY : NAN;
      if (data == 6) x = -INFINITY;
      if (data == 7) x = 3e38; // sums of these overflow
      matrix_set(m, r, c, x);
    }
  }
}

struct run {
  const struct recipe *recipe;
  const struct layout *layout;
  struct row_program prog;
  struct matrix in[6], out[2], positions, cu;
  int64_t rows, tokens;
  char what[160];
};

static void make_geometry(struct run *run) {
  run->positions = matrix_make(DTYPE_I32, 1, run->rows, run->rows, 0, false);
  run->cu = matrix_make(DTYPE_I32, 1, run->rows + 1, run->rows + 1, 0, false);
  int64_t at = 0;
  for (int64_t r = 0; r < run->rows; r++) {
    matrix_set(&run->positions, 0, r, (double)(r % 19) - 1); // -1: out of range, reads as zeros
    matrix_set(&run->cu, 0, r, (double)at);
    at += r % 5 == 2
              ? 0
              : 1 + (int64_t)(uniform() * (run->layout->longest ? run->layout->longest : 20));
  }
  matrix_set(&run->cu, 0, run->rows, (double)at);
  run->tokens = at;
  matrix_upload(&run->positions);
  matrix_upload(&run->cu);
}

static void make_input(struct run *run, int i) {
  const struct layout *l = run->layout;
  enum row_input_class cls = run->recipe->cls[i];
  enum dtype dtype = run->prog.inputs[i].dtype;
  bool index = dtype == DTYPE_I64;
  int64_t cols = cls == IN_PER_ROW || cls == IN_SCALAR ? 1 : l->cols;
  int64_t rows = cls == IN_FULL || cls == IN_PER_ROW ? run->rows
                 : cls == IN_GATHER                  ? 17
                 : cls >= IN_POOL_MEAN               ? run->tokens
                                                     : 1;
  if (rows == 0) rows = 1;
  run->in[i] = matrix_make(dtype, rows, cols, cols + (cols > 1 || index ? l->gap : 0),
                           l->shift * dtype_bytes(dtype), true);
  if (index) {
    for (int64_t r = 0; r < rows; r++)
      matrix_set(&run->in[i], r, 0, (double)((int64_t)(uniform() * 20) - 1));
  } else if (l->data && cls == IN_FULL) {
    fill_ugly(&run->in[i], l->data);
  } else {
    matrix_normal(&run->in[i], 1, 0);
  }
  matrix_upload(&run->in[i]);
}

// A table as the oracle gets it: rows that it does not have are zeros.
#define TABLE_SLACK 8
static void *padded(const struct matrix *m) {
  size_t row = (size_t)m->stride * dtype_bytes(m->dtype);
  uint8_t *copy = calloc((size_t)m->rows + TABLE_SLACK, row);
  memcpy(copy, m->host, m->bytes);
  return copy;
}

static void compare_output(const struct run *run, int o, const double *want) {
  const struct matrix *out = &run->out[o];
  int shown = 0;
  // a mean of 1e6 in fp32 leaves 1/16 of resolution to the input itself; what is checked is that no
  // more is lost
  double absolute = run->layout->data == 1 ? 2e-3 : run->layout->data == 3 ? 2e-3 : 2e-6;
  bool cast =
      recipe_is_table(run->recipe, 0); // rounds on the way: two roundings, to bf16 the coarser
  for (int64_t i = 0; i < run->rows * out->cols; i++) {
    int64_t row = i / out->cols, c = i % out->cols;
    double ulps = cast ? 2.1 : out->dtype == DTYPE_F32 ? 64 : 1.01;
    compare(run->what, row, c, matrix_get(out, row, c), want[i], cast ? DTYPE_BF16 : out->dtype,
            ulps, absolute, &shown);
  }
}

static void verify(struct run *run) {
  const struct recipe *r = run->recipe;
  size_t cols = (size_t)run->layout->cols;
  double *regs = malloc(sizeof(double) * run->prog.n_regs * cols), *out[ROW_MAX_OUTPUTS];
  struct view in[ROW_MAX_INPUTS] = {{0}};
  struct batch_geometry g = {.cu_seqlens = (int32_t *)run->cu.host,
                             .positions = (int32_t *)run->positions.host};
  for (int i = 0; i < r->n_inputs; i++)
    in[i] = (struct view){padded(&run->in[i]), run->in[i].stride, (int32_t)run->in[i].cols,
                          run->in[i].dtype};
  for (int o = 0; o < r->n_outputs; o++)
    out[o] = malloc(sizeof(double) * (size_t)run->rows * cols);
  ref_row_program(&run->prog, in, out, run->rows, &g, regs);
  for (int o = 0; o < r->n_outputs; o++) {
    compare_output(run, o, out[o]);
    free(out[o]);
  }
  for (int i = 0; i < r->n_inputs; i++)
    free(in[i].data);
  free(regs);
}

static void run_case(const struct recipe *recipe, enum dtype dtype, const struct layout *l) {
  static int turn;
  if (small_only && ((l->cols > 1100 && l->cols != 8200) || turn++ % 7 != 0)) return;
  struct run run = {.recipe = recipe, .layout = l, .rows = l->rows};
  struct row_kernel kernel;
  snprintf(run.what, sizeof run.what, "%s %s %ldx%d gap %d shift %zu data %d", recipe->name,
           dtype_name(dtype), (long)l->rows, l->cols, l->gap, l->shift, l->data);
  recipe_program(recipe, dtype, l->cols, &run.prog);
  enum dtype out_dtype = l->out ? l->out : dtype;
  for (int o = 0; o < recipe->n_outputs; o++)
    run.prog.output_dtype[o] = out_dtype;
  if (build(&run.prog, NULL, &kernel) != 0) {
    printf("FAIL %s: not built\n", run.what);
    failures++;
    return;
  }
  if (compile_only) return;
  make_geometry(&run);
  struct row_args args = {
      .rows = run.rows, .positions = run.positions.data, .cu_seqlens = run.cu.data};
  for (int i = 0; i < recipe->n_inputs; i++) {
    make_input(&run, i);
    args.in[i] = run.in[i].data, args.in_stride[i] = run.in[i].stride,
    args.in_rows[i] = run.in[i].rows;
    args.index_bytes[i] = run.in[i].dtype == DTYPE_I64 ? 8 : 4;
  }
  for (int o = 0; o < recipe->n_outputs; o++) {
    int64_t cols = recipe->scalar_out[o] ? 1 : l->cols;
    run.out[o] = matrix_make(out_dtype, run.rows, cols, cols + (cols > 1 ? l->gap : 0),
                             l->shift * dtype_bytes(out_dtype), false);
    args.out[o] = run.out[o].data, args.out_stride[o] = run.out[o].stride;
  }
  CHECK_CUDA(row_kernel_run(&kernel, &args, NULL));
  CHECK_CUDA(cudaDeviceSynchronize());
  for (int o = 0; o < recipe->n_outputs; o++)
    matrix_download(&run.out[o], run.what);
  verify(&run);
  for (int i = 0; i < recipe->n_inputs; i++)
    matrix_free(&run.in[i]);
  for (int o = 0; o < recipe->n_outputs; o++)
    matrix_free(&run.out[o]);
  matrix_free(&run.positions);
  matrix_free(&run.cu);
  row_kernel_unload(&kernel);
}

static void every_recipe_at_many_widths(void) {
  static const int32_t widths[] = {1, 2, 7, 8, 9, 33, 64, 127, 128, 384, 768, 1000, 1025, 4096};
  for (size_t r = 0; r < sizeof recipes / sizeof *recipes; r++) {
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
      enum dtype dtype = dtypes[(r + w) % 3];
      int64_t rows = widths[w] > 1000 ? 5 : 37;
      run_case(&recipes[r], dtype, &(struct layout){.cols = widths[w], .rows = rows});
      if (w % 3 == 1)
        run_case(&recipes[r], dtype,
                 &(struct layout){.cols = widths[w], .rows = rows, .gap = 8, .shift = 1});
      if (w % 4 == 3)
        run_case(&recipes[r], dtype, &(struct layout){.cols = widths[w], .rows = rows, .gap = 8});
    }
  }
}

static void outputs_of_another_dtype(void) {
  static const enum dtype pairs[][2] = {{DTYPE_BF16, DTYPE_F32},
                                        {DTYPE_F32, DTYPE_BF16},
                                        {DTYPE_F16, DTYPE_F32},
                                        {DTYPE_BF16, DTYPE_F16}};
  static const int which[] = {0, 2, 4, 5, 7, 9};
  for (int i = 0; i < 24; i++) {
    run_case(&recipes[which[i % 6]], pairs[i / 6][0],
             &(struct layout){.cols = i % 2 ? 192 : 771, .rows = 11, .out = pairs[i / 6][1]});
  }
}

// Widths that a block holds, that clusters of two, four and eight hold, and that are read again.
static void wide_rows(void) {
  static const int32_t widths[] = {8192, 8200, 12289, 16384, 32768, 70000, 300000, 1700008};
  for (int r = 4; r < 10; r++) {
    for (int w = 0; w < 8; w++) {
      if (w > 5 && (r + w) % 3) continue;
      run_case(&recipes[r], dtypes[(r + w) % 3], &(struct layout){.cols = widths[w], .rows = 3});
    }
  }
}

// Sequences that a block folds in slices, rows too wide for that, sequences without a token.
static void long_sequences_to_pool(void) {
  static const int32_t widths[] = {1, 8, 33, 384, 768, 1001, 4096, 8192, 9000};
  for (int r = 11; r < 14; r++) {
    for (int w = 0; w < 9; w++)
      run_case(&recipes[r], dtypes[(r + w) % 3],
               &(struct layout){.cols = widths[w], .rows = 6, .longest = 700, .gap = w % 2 * 8});
  }
}

// ---- what is pooled made by the kernel ----
struct before_run {
  struct row_program before, row;
  struct run geometry; // cu_seqlens, positions
  struct matrix in[BEFORE_MAX_IN], out[2];
  int n_in;
};

static void make_before_input(struct before_run *b, const struct row_input *in, bool token_rows,
                              const struct layout *l) {
  bool one = in->cls == IN_PER_ROW || in->cls == IN_SCALAR, index = in->dtype == DTYPE_I64;
  int64_t cols = one ? 1 : l->cols;
  int64_t rows = in->cls == IN_PER_COL || in->cls == IN_SCALAR ? 1
                 : in->cls == IN_GATHER                        ? 17
                 : token_rows || in->cls >= IN_POOL_MEAN       ? b->geometry.tokens
                                                               : l->rows;
  struct matrix *m = &b->in[b->n_in++];
  *m = matrix_make(in->dtype, rows, cols, cols + (cols > 1 ? l->gap : 0),
                   l->shift * dtype_bytes(in->dtype), true);
  if (index)
    for (int64_t r = 0; r < rows; r++)
      matrix_set(m, r, 0, (double)((int64_t)(uniform() * 20) - 1));
  else
    matrix_normal(m, 1, 0);
  matrix_upload(m);
}

static void verify_before(struct before_run *b, const struct layout *l, const char *what) {
  struct row_program *row = &b->row;
  int64_t tokens = b->geometry.tokens, cols = row->cols;
  double *regs = malloc(sizeof *regs * 8 * (size_t)cols), *out[2],
         *made = malloc(sizeof *made * (size_t)(tokens * cols));
  float *rows = malloc(sizeof *rows * (size_t)(tokens * cols));
  struct view in[BEFORE_MAX_IN] = {{0}};
  struct batch_geometry g = {.cu_seqlens = (int32_t *)b->geometry.cu.host,
                             .positions = (int32_t *)b->geometry.positions.host};
  for (int i = 1; i < b->n_in; i++)
    in[i] =
        (struct view){padded(&b->in[i]), b->in[i].stride, (int32_t)b->in[i].cols, b->in[i].dtype};
  ref_row_program(&b->before, in + row->n_inputs, &made, tokens, &g, regs);
  for (int64_t i = 0; i < tokens * cols; i++)
    rows[i] = (float)made[i];
  in[0] = (struct view){rows, cols, (int32_t)cols, DTYPE_F32};
  for (int o = 0; o < row->n_outputs; o++)
    out[o] = malloc(sizeof(double) * (size_t)(l->rows * cols));
  ref_row_program(row, in, out, l->rows, &g, regs);
  for (int o = 0; o < row->n_outputs; o++) {
    int shown = 0;
    const struct matrix *m = &b->out[o];
    for (int64_t i = 0; i < l->rows * m->cols; i++) // activations of tokens are in the rows' form
      compare(what, i / m->cols, i % m->cols, matrix_get(m, i / m->cols, i % m->cols), out[o][i],
              m->dtype, m->dtype == DTYPE_F32 ? 64 : 1.5, 4e-6, &shown);
    free(out[o]);
  }
  for (int i = 1; i < b->n_in; i++)
    free(in[i].data);
  free(regs), free(made), free(rows);
}

static void launch_before(struct before_run *b, const struct row_kernel *kernel, int64_t first,
                          int64_t n) {
  struct row_args args = {.rows = n,
                          .positions = b->geometry.positions.data,
                          .cu_seqlens = (const int32_t *)b->geometry.cu.data + first};
  for (int i = 1; i < b->n_in; i++) {
    struct matrix *m = &b->in[i];
    args.in[i] = m->data, args.in_stride[i] = m->stride, args.in_rows[i] = m->rows;
    args.index_bytes[i] = m->dtype == DTYPE_I64 ? 8 : 4;
  }
  args.in_stride[0] = b->row.cols;
  if (b->row.n_inputs > 1 && b->row.inputs[1].cls == IN_FULL)
    args.in[1] = (const char *)args.in[1] +
                 (size_t)(first * args.in_stride[1]) * dtype_bytes(b->in[1].dtype);
  for (int o = 0; o < b->row.n_outputs; o++)
    args.out[o] = b->out[o].data, args.out_stride[o] = b->out[o].stride;
  CHECK_CUDA(row_kernel_run(kernel, &args, NULL));
  CHECK_CUDA(cudaDeviceSynchronize());
}

// One sequence by itself has the bits that it has among all of them.
static void alone(struct before_run *b, const struct row_kernel *kernel, const struct layout *l,
                  const char *what) {
  struct matrix *out = &b->out[0];
  size_t row = (size_t)out->cols * dtype_bytes(out->dtype);
  char *company = malloc(row), *single = malloc(row);
  int64_t at = l->rows - 1;
  CHECK_CUDA(cudaMemcpy(company,
                        (char *)out->data + (size_t)(at * out->stride) * dtype_bytes(out->dtype),
                        row, cudaMemcpyDeviceToHost));
  launch_before(b, kernel, at, 1);
  CHECK_CUDA(cudaMemcpy(single, out->data, row, cudaMemcpyDeviceToHost));
  checks++;
  if (memcmp(company, single, row) != 0) failures++, printf("FAIL %s: other bits alone\n", what);
  free(company), free(single);
}

static void run_before_case(int tokens, int pool, enum row_input_class cls, enum dtype dtype,
                            const struct layout *l) {
  static struct before_run b;
  struct row_kernel kernel;
  char what[160];
  memset(&b, 0, sizeof b);
  if (small_only && l->cols > 1100) return;
  snprintf(what, sizeof what, "%s of %s %s %ldx%d gap %d shift %zu", pool_recipes[pool].name,
           token_recipes[tokens].name, dtype_name(dtype), (long)l->rows, l->cols, l->gap, l->shift);
  before_programs(tokens, pool, cls, dtype, l->cols, &b.before, &b.row);
  if (build(&b.row, &b.before, &kernel) != 0) {
    printf("FAIL %s: not built\n", what);
    failures++;
    return;
  }
  if (compile_only) return;
  b.geometry = (struct run){.layout = l, .rows = l->rows};
  make_geometry(&b.geometry);
  matrix_free(&b.geometry.positions); // of tokens, here
  b.geometry.positions = matrix_make(DTYPE_I32, 1, b.geometry.tokens, b.geometry.tokens, 0, false);
  for (int64_t t = 0; t < b.geometry.tokens; t++)
    matrix_set(&b.geometry.positions, 0, t, (double)(t % 19) - 1);
  matrix_upload(&b.geometry.positions);
  b.n_in = 1;
  for (int i = 1; i < b.row.n_inputs; i++)
    make_before_input(&b, &b.row.inputs[i], false, l);
  for (int i = 0; i < b.before.n_inputs; i++)
    make_before_input(&b, &b.before.inputs[i], true, l);
  for (int o = 0; o < b.row.n_outputs; o++) {
    int64_t cols = b.row.output_is_scalar[o] ? 1 : l->cols;
    b.out[o] = matrix_make(dtype, l->rows, cols, cols + (cols > 1 ? l->gap : 0),
                           l->shift * dtype_bytes(dtype), false);
  }
  launch_before(&b, &kernel, 0, l->rows);
  for (int o = 0; o < b.row.n_outputs; o++)
    matrix_download(&b.out[o], what);
  verify_before(&b, l, what);
  alone(&b, &kernel, l, what);
  for (int i = 1; i < b.n_in; i++)
    matrix_free(&b.in[i]);
  for (int o = 0; o < b.row.n_outputs; o++)
    matrix_free(&b.out[o]);
  matrix_free(&b.geometry.positions);
  matrix_free(&b.geometry.cu);
  row_kernel_unload(&kernel);
}

static void rows_made_as_they_are_pooled(void) {
  static const int32_t widths[] = {1, 8, 33, 96, 384, 768, 1001, 1024, 2048, 3000, 4096};
  static const enum row_input_class classes[] = {IN_POOL_MEAN, IN_POOL_MAX, IN_POOL_CLS};
  int at = 0;
  for (int tokens = 0; tokens < TOKEN_RECIPES; tokens++)
    for (int w = 0; w < 11; w++, at++)
      run_before_case(tokens, at % POOL_RECIPES, classes[(at + at / 3) % 3], dtypes[(at / 2) % 3],
                      &(struct layout){.cols = widths[w],
                                       .rows = w % 2 ? 7 : 40,
                                       .longest = w % 2 ? 600 : 0,
                                       .gap = w % 3 == 1 ? 8 : 0,
                                       .shift = (size_t)(w % 4 == 3)});
}

static void ugly_values(void) {
  for (int d = 0; d < 3; d += 2) { // equal rows whose sum overflows
    run_case(&recipes[4], dtypes[d], &(struct layout){.cols = 96, .rows = 3, .data = 7});
    run_case(&recipes[4], dtypes[d], &(struct layout){.cols = 20000, .rows = 3, .data = 7});
  }
  for (int data = 1; data <= 6; data++) {
    for (int d = 0; d < 3; d++) {
      run_case(&recipes[0], dtypes[d], &(struct layout){.cols = 96, .rows = 9, .data = data});
      if (data == 1 && dtypes[d] == DTYPE_BF16) continue;
      for (int r = 4; r < 10; r++) {
        if (data == 1 && r == 5) continue; // the sum of two such inputs is itself rounded to 1/16
        run_case(&recipes[r], dtypes[d],
                 &(struct layout){.cols = 96, .rows = 9, .data = data == 6 && r != 7 ? 2 : data});
      }
    }
  }
}

// 2.6e9 elements: positions near both ends and around 2^31 are looked at.
static void more_than_2_31_elements(void) {
  const int64_t rows = 40000, cols = 65536, probes[] = {0,
                                                        77777,
                                                        ((int64_t)1 << 31) - 1,
                                                        (int64_t)1 << 31,
                                                        ((int64_t)1 << 31) + 12345,
                                                        rows * cols - 1};
  struct row_program p;
  struct row_kernel kernel;
  uint16_t *x, *y, value;
  recipe_program(&recipes[1], DTYPE_BF16, (int32_t)cols, &p);
  if (build(&p, NULL, &kernel) != 0) exit(1);
  if (compile_only) return;
  if (cudaMalloc((void **)&x, (size_t)(rows * cols) * 2) != cudaSuccess ||
      cudaMalloc((void **)&y, (size_t)(rows * cols) * 2) != cudaSuccess) {
    printf("skipped: no memory for 2^31 elements\n");
    return;
  }
  CHECK_CUDA(cudaMemset(x, 0x3f, (size_t)(rows * cols) * 2));
  CHECK_CUDA(cudaMemset(y, POISON, (size_t)(rows * cols) * 2));
  for (int i = 0; i < 6; i++) {
    value = f32_to_bf16((float)(i + 2));
    CHECK_CUDA(cudaMemcpy(x + probes[i], &value, 2, cudaMemcpyHostToDevice));
  }
  for (int pass = 0; pass < 2; pass++) { // as one long row, then as a matrix
    struct row_args args = {
        .in = {x}, .in_stride = {cols}, .out = {y}, .out_stride = {cols}, .rows = rows};
    if (pass == 1) {
      kernel.kernels[ROW_VARIANT_FLAT] = NULL;
      CHECK_CUDA(cudaMemset(y, POISON, (size_t)(rows * cols) * 2));
    }
    CHECK_CUDA(row_kernel_run(&kernel, &args, NULL));
    for (int i = 0; i < 6; i++) {
      int shown = 0;
      CHECK_CUDA(cudaMemcpy(&value, y + probes[i], 2, cudaMemcpyDeviceToHost));
      double want = ((i + 2) * 1.001 + 0.001) * 1.001 + 0.001;
      compare("2^31 elements", pass, probes[i], bf16_to_f32(value), want, DTYPE_BF16, 1.01, 0,
              &shown);
      CHECK_CUDA(cudaMemcpy(&value, y + probes[i] + (i == 5 ? -1 : 1), 2, cudaMemcpyDeviceToHost));
      if (i != 2)
        compare("2^31 neighbours", pass, probes[i], bf16_to_f32(value),
                (0.74609375 * 1.001 + 0.001) * 1.001 + 0.001, DTYPE_BF16, 1.01, 0, &shown);
    }
  }
  cudaFree(x);
  cudaFree(y);
  row_kernel_unload(&kernel);
}

// Cubins are kept, and the folders for them made, however many of them were missing.
static void cubins_are_kept(const char *folder) {
  DIR *files = opendir(folder);
  int n = 0;
  for (struct dirent *entry; files && (entry = readdir(files));)
    n += entry->d_name[0] != '.';
  if (files) closedir(files);
  checks++;
  if (n == 0) failures++, printf("FAIL no cubin in %s\n", folder);
}

int main(int argc, char **argv) {
  char message[JIT_MESSAGE_BYTES], fresh[] = "/tmp/fw-jit-XXXXXX", folder[64];
  const char *cache = getenv("FUSEWIRE_JIT_CACHE");
  int major, minor;
  small_only = argc > 1 && strcmp(argv[1], "small") == 0;
  compile_only = argc > 1 && strcmp(argv[1], "compile") == 0;
  if (argc > 3) {
    parts = strtol(argv[3], NULL, 10);
    part =
        strcmp(argv[2], "any") == 0 ? (time(NULL) ^ getpid()) % parts : strtol(argv[2], NULL, 10);
    printf("part %ld of %ld\n", part, parts);
  }
  if (!compile_only) {
    need_gpu();
    CHECK_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    CHECK_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
    snprintf(arch, sizeof arch, "sm_%d%d%s", major, minor, major == 9 ? "a" : "");
  }
  snprintf(folder, sizeof folder, "%s/cache/cubins", mkdtemp(fresh));
  if (jit_open(&(struct jit_options){cache ? cache : folder}, &jit, message) != 0) {
    printf("%s: skipped\n", message);
    return 77;
  }
  printf("%s, seed %#lx\n", arch, (unsigned long)rng_state);
  every_recipe_at_many_widths();
  outputs_of_another_dtype();
  wide_rows();
  long_sequences_to_pool();
  rows_made_as_they_are_pooled();
  ugly_values();
  if (!small_only) more_than_2_31_elements();
  jit_close(jit);
  if (!cache) cubins_are_kept(folder);
  return report("row");
}
