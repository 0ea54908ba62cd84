// Products with a norm behind them, against kernels/ref: the one kernel at both of its widths, and
// the two that do the same; sizes around the tiles, more tiles than clusters at a time, every
// operand there or not, views with gaps, poisoned outputs and neighbours, ugly values; a row's bits
// in any batch and from any of them; what is refused. test_gemm_norm [small]: `small` takes small
// cases only (for compute-sanitizer), among them one of more tiles than groups at a time.
#include "gpu_test.h"

#include "kernels/gemm/gemm.h"
#include "kernels/ref/ref.h"

#define WORKSPACE_BYTES ((size_t)4 << 20)

static struct kernel_device device;
static void *workspace;
static uint32_t *counters;
static bool small_only;

enum which { NARROW, WIDE, THEN, CHOSEN, WHICH };
static const char *const which_name[] = {"narrow", "wide", "two kernels", "chosen"};

enum ugly { PLAIN, FAR_MEAN, ALL_EQUAL, LARGEST, ALMOST_EQUAL, TINY, NOT_FINITE, UGLY };
static const char *const ugly_name[] = {"plain",        "far mean", "all equal", "largest",
                                        "almost equal", "tiny",     "inf, NaN"};

struct norm_case {
  int64_t m;
  int32_t n, k;
  enum dtype dtype, weights; // of x, W, y; of bias, gamma and beta
  bool bias, residual, gamma, beta, sum, rms;
  int gap; // elements between rows
  float eps;
  enum ugly ugly; // of the residual, where the product is nothing
};

enum { X, W, BIAS, RESIDUAL, GAMMA, BETA, INPUTS };
struct norm_run {
  struct matrix in[INPUTS], y, sum;
  struct view views[INPUTS], out[2];
  struct linear_problem problem;
  struct norm_problem norm;
};

static double ugly_value(const struct norm_case *c, int64_t row, int32_t col) {
  bool half = c->dtype == DTYPE_F16;
  switch (c->ugly) {
  case FAR_MEAN:
    return normal() * (half ? 4 : 16384) + (half ? 2000 : 1e6);
  case ALL_EQUAL:
    return row % 3 == 0 ? 0 : row % 3 == 1 ? 3.25 : -1e6 * (half ? 0.01 : 1);
  case LARGEST:
    return half ? 65504 : 3.38e38;
  case ALMOST_EQUAL:
    return 1 + (col == row % c->n ? (half ? 0x1p-10 : 0x1p-7) : 0);
  case TINY:
    return normal() * (half ? 1e-6 : 1e-39);
  case NOT_FINITE:
    return row % 4 && col == (int32_t)(row * 37 % c->n) ? row % 4 == 1   ? INFINITY
                                                          : row % 4 == 2 ? -INFINITY
                                                                         : NAN
                                                        : normal();
  default:
    return normal();
  }
}

static void make_run(const struct norm_case *c, struct norm_run *r) {
  const int64_t rows[INPUTS] = {c->m, c->n, 1, c->m, 1, 1};
  const int32_t cols[INPUTS] = {c->k, c->k, c->n, c->n, c->n, c->n};
  *r = (struct norm_run){
      .problem = {.n = c->n, .k = c->k, .x_dtype = c->dtype, .w_dtype = c->dtype},
      .norm = {.kind = c->rms ? ROW_NORM_RMS : ROW_NORM_LAYER, .eps = c->eps, .sum = c->sum}};
  r->problem.y_dtype = c->dtype;
  for (int i = 0; i < INPUTS; i++) {
    bool vector = i == BIAS || i == GAMMA || i == BETA;
    r->in[i] = matrix_make(vector ? c->weights : c->dtype, rows[i], cols[i],
                           cols[i] + (vector ? 0 : c->gap), 0, true);
    matrix_normal(&r->in[i], i == W ? 1 / sqrt(c->k) : 1, i == GAMMA ? 1 : 0);
  }
  for (int64_t row = 0; row < c->m && c->ugly; row++) {
    for (int32_t col = 0; col < c->n; col++)
      matrix_set(&r->in[RESIDUAL], row, col, ugly_value(c, row, col));
    for (int32_t k = 0; k < c->k; k++)
      matrix_set(&r->in[X], row, k, 0);
  }
  for (int i = 0; i < INPUTS; i++) {
    matrix_upload(&r->in[i]);
    r->views[i] =
        (struct view){r->in[i].data, r->in[i].stride, (int32_t)r->in[i].cols, r->in[i].dtype};
  }
  if (c->bias)
    r->problem.epilogue[r->problem.n_epilogue++] =
        (struct epilogue_op){.kind = EPI_BIAS, .operand = BIAS};
  if (c->residual)
    r->problem.epilogue[r->problem.n_epilogue++] =
        (struct epilogue_op){.kind = EPI_ADD, .operand = RESIDUAL};
  r->norm.gamma = c->gamma ? GAMMA : ROW_NONE, r->norm.beta = c->beta ? BETA : ROW_NONE;
}

static void make_outputs(const struct norm_case *c, struct norm_run *r) {
  r->y = matrix_make(c->dtype, c->m, c->n, c->n + c->gap, 0, false);
  r->sum = matrix_make(c->dtype, c->m, c->n, c->n + c->gap, 0, false);
  r->out[0] = (struct view){r->y.data, r->y.stride, c->n, c->dtype};
  r->out[1] = (struct view){r->sum.data, r->sum.stride, c->n, c->dtype};
}

static void free_outputs(struct norm_run *r) {
  matrix_free(&r->y), matrix_free(&r->sum);
}

static void free_run(struct norm_run *r) {
  for (int i = 0; i < INPUTS; i++)
    matrix_free(&r->in[i]);
}

static struct kernel_call call_of(const struct norm_run *r, int64_t m) {
  return (struct kernel_call){.device = &device,
                              .op = KERNEL_LINEAR_NORM,
                              .in = r->views,
                              .out = r->out,
                              .m = m,
                              .linear = &r->problem,
                              .norm = &r->norm,
                              .counters = counters};
}

// False: there is no such width for rows of n.
static bool run_kernel(enum which which, const struct norm_run *r, int64_t m) {
  struct kernel_call call = call_of(r, m);
  struct kernel_choice choice = {.kernel = &kernel_gemm_then_norm};
  int rc, width = gemm_norm_chunk(r->problem.n) * (which == WIDE ? 2 : 1);
  if (which == WIDE && r->problem.n % width != 0) return false;
  if (which <= WIDE) {
    rc = r->problem.x_dtype == DTYPE_BF16 ? gemm_norm_sm90_bf16(&call, width, workspace, NULL)
                                          : gemm_norm_sm90_f16(&call, width, workspace, NULL);
  } else {
    rc = which == THEN ? choice.kernel->prepare(&call, WORKSPACE_BYTES, &choice)
                       : kernel_choose(&call, WORKSPACE_BYTES, &choice);
    CHECK_CUDA(rc);
    rc = kernel_run(&choice, &call, workspace, NULL);
  }
  CHECK_CUDA(rc);
  CHECK_CUDA(cudaDeviceSynchronize());
  return true;
}

// ---- against double ----
static double rounded(enum dtype dtype, double x) {
  return dtype == DTYPE_F16 ? (double)f16_to_f32(f32_to_f16((float)x))
                            : (double)bf16_to_f32(f32_to_bf16((float)x));
}

static void expected_row(const struct norm_case *c, const struct norm_run *r, int64_t row,
                         double *sum, double *y) {
  double *gamma = malloc(sizeof(double) * (size_t)c->n),
         *beta = malloc(sizeof(double) * (size_t)c->n);
  for (int32_t col = 0; col < c->n; col++) {
    double v = 0;
    for (int32_t k = 0; k < c->k && !c->ugly; k++)
      v += matrix_get(&r->in[X], row, k) * matrix_get(&r->in[W], col, k);
    if (c->bias) v += matrix_get(&r->in[BIAS], 0, col);
    if (c->residual) v += matrix_get(&r->in[RESIDUAL], row, col);
    sum[col] = rounded(c->dtype, v);
    gamma[col] = matrix_get(&r->in[GAMMA], 0, col), beta[col] = matrix_get(&r->in[BETA], 0, col);
  }
  if (c->rms) {
    ref_rms_norm(y, sum, c->gamma ? gamma : NULL, 1, c->n, (double)c->eps);
    for (int32_t col = 0; col < c->n && c->beta; col++)
      y[col] += beta[col];
  } else {
    ref_layer_norm(y, sum, c->gamma ? gamma : NULL, c->beta ? beta : NULL, 1, c->n, (double)c->eps);
  }
  free(gamma), free(beta);
}

// A row: NaN where the oracle has NaN and nowhere else, the rest within the contract.
static void compare_row(const char *what, const char *name, const struct matrix *got, int64_t row,
                        const double *want) {
  double error = 0, size = 0, limit = got->dtype == DTYPE_F16 ? 2e-3 : 8e-3;
  int unlike = 0;
  for (int64_t col = 0; col < got->cols; col++) {
    double v = matrix_get(got, row, col);
    unlike += isnan(v) != isnan(want[col]) || (isinf(want[col]) && v != want[col]);
    if (!isfinite(v) || !isfinite(want[col])) continue;
    error += (v - want[col]) * (v - want[col]), size += want[col] * want[col];
  }
  checks++;
  if (!unlike && sqrt(error) <= limit * fmax(sqrt(size), 1e-3 * sqrt((double)got->cols))) return;
  if (failures++ < 40)
    printf("FAIL %s: %s of row %ld: error %.3g of %.3g, %d not alike; first %g want %g\n", what,
           name, (long)row, sqrt(error), sqrt(size), unlike, matrix_get(got, row, 0), want[0]);
}

// Of large cases some rows, the last among them.
static int rows_looked_at(const struct norm_case *c, int64_t *rows) {
  int n = 0;
  int64_t step = c->m * c->n * (int64_t)c->k > 4000000 ? c->m / 11 + 1 : 1;
  for (int64_t row = 0; row < c->m;
       row += row + step < c->m || row == c->m - 1 ? step : c->m - 1 - row)
    rows[n++] = row;
  return n;
}

static void run_case(const struct norm_case *c) {
  char what[240];
  struct norm_run r;
  static int64_t rows[32768];
  int n_rows = rows_looked_at(c, rows);
  size_t cols = (size_t)c->n, values = (size_t)n_rows * cols;
  double *sum = malloc(sizeof(double) * values), *y = malloc(sizeof(double) * values);
  make_run(c, &r);
  for (int i = 0; i < n_rows; i++)
    expected_row(c, &r, rows[i], sum + (size_t)i * cols, y + (size_t)i * cols);
  for (enum which which = NARROW; which < WHICH; which++) {
    snprintf(what, sizeof what, "%s %s %ldx%dx%d%s%s%s%s%s %s gap %d, %s", which_name[which],
             dtype_name(c->dtype), (long)c->m, c->n, c->k, c->bias ? " bias" : "",
             c->residual ? " residual" : "", c->gamma ? " gamma" : "", c->beta ? " beta" : "",
             c->sum ? " sum" : "", c->rms ? "rms" : "layer", c->gap, ugly_name[c->ugly]);
    make_outputs(c, &r);
    if (run_kernel(which, &r, c->m)) {
      matrix_download(&r.y, what);
      matrix_download(&r.sum, what);
      for (int i = 0; i < n_rows; i++) {
        compare_row(what, "y", &r.y, rows[i], y + (size_t)i * cols);
        if (c->sum) compare_row(what, "the sum", &r.sum, rows[i], sum + (size_t)i * cols);
      }
      for (size_t i = 0; i < r.sum.bytes && !c->sum; i++)
        failures += r.sum.host[i] != POISON;
    }
    free_outputs(&r);
  }
  free_run(&r);
  free(sum), free(y);
}

static void sizes_and_operands(void) {
  static const int64_t ms[] = {1, 2, 15, 63, 64, 65, 127, 128, 129, 255, 257, 300};
  static const int32_t ns[] = {384, 768, 1024, 96,  128, 192, 256,
                               288, 480, 512,  576, 640, 672, 896},
                       ks[] = {8, 64, 72, 200, 448, 320, 832};
  for (int i = 0; i < 84; i++) {
    struct norm_case c = {.m = ms[i % 12],
                          .n = ns[i % 5 < 3 ? i % 3 : i % 14],
                          .k = ks[i % 7],
                          .dtype = i % 2 ? DTYPE_F16 : DTYPE_BF16,
                          .bias = i % 3 != 2,
                          .residual = i % 4 != 3,
                          .gamma = i % 5 != 4,
                          .beta = i % 6 != 5,
                          .sum = i % 7 < 3,
                          .rms = i % 8 >= 5,
                          .gap = i % 9 == 4 ? 8 : 0,
                          .eps = i % 2 ? 1e-5f : 1e-12f};
    c.weights = i % 11 < 5 ? DTYPE_F32 : c.dtype;
    if (small_only && c.m * c.n * (int64_t)c.k > 4000000) continue;
    run_case(&c);
  }
}

// More tiles of rows than groups at a time, of few and of many steps of k.
static void many_tiles(void) {
  static const int32_t shapes[][3] = {{4096, 768, 768},  {9001, 768, 64},  {8320, 384, 384},
                                      {12999, 384, 200}, {4097, 1024, 72}, {6000, 1024, 1088},
                                      {20000, 128, 128}, {16500, 96, 64}};
  for (int i = small_only ? 7 : 0; i < 8; i++) {
    struct norm_case c = {.m = shapes[i][0],
                          .n = shapes[i][1],
                          .k = shapes[i][2],
                          .dtype = i % 2 ? DTYPE_F16 : DTYPE_BF16,
                          .weights = DTYPE_F32,
                          .bias = true,
                          .residual = true,
                          .gamma = true,
                          .beta = true,
                          .sum = i % 3 == 0,
                          .rms = i % 4 == 3,
                          .eps = 1e-5f};
    run_case(&c);
  }
}

static void ugly_values(void) {
  for (enum ugly ugly = FAR_MEAN; ugly < UGLY; ugly++) {
    for (int i = 0; i < 12; i++) {
      struct norm_case c = {.m = 70,
                            .n = i % 3 == 0   ? 384
                                 : i % 3 == 1 ? 768
                                              : 1024,
                            .k = 64,
                            .dtype = i % 2 ? DTYPE_F16 : DTYPE_BF16,
                            .weights = DTYPE_F32,
                            .residual = true,
                            .gamma = true,
                            .beta = i % 4 < 2,
                            .sum = i % 4 == 3,
                            .rms = i >= 8,
                            .eps = i % 4 ? 1e-5f : 1e-12f,
                            .ugly = ugly};
      // their squares are beyond fp32, which is where RMSNorm adds them up
      if (c.rms && ugly == LARGEST && c.dtype == DTYPE_BF16) continue;
      run_case(&c);
    }
  }
}

// ---- bits ----
static void same_bits(enum dtype dtype, int32_t n, int32_t k, bool rms) {
  static const int64_t batches[] = {1, 2, 7, 64, 65, 128, 130, 511, 700, 4300, 5000};
  const int64_t all = 5000;
  struct norm_case c = {.m = all,
                        .n = n,
                        .k = k,
                        .dtype = dtype,
                        .weights = dtype,
                        .bias = true,
                        .residual = true,
                        .gamma = true,
                        .beta = !rms,
                        .sum = rms,
                        .rms = rms,
                        .eps = 1e-5f};
  struct norm_run r;
  make_run(&c, &r);
  make_outputs(&c, &r);
  size_t row = (size_t)n * dtype_bytes(dtype);
  uint8_t *whole = malloc((size_t)all * row);
  run_kernel(NARROW, &r, all);
  CHECK_CUDA(cudaMemcpy(whole, r.y.data, (size_t)all * row, cudaMemcpyDeviceToHost));
  for (enum which which = NARROW; which < WHICH; which++) {
    for (int i = 0; i < 11; i++) {
      CHECK_CUDA(cudaMemset(r.y.data, POISON, (size_t)all * row));
      if (!run_kernel(which, &r, batches[i])) continue;
      CHECK_CUDA(cudaMemcpy(r.y.host, r.y.data, (size_t)all * row, cudaMemcpyDeviceToHost));
      checks++;
      int64_t differ = 0;
      for (int64_t at = 0; at < batches[i]; at++)
        differ += memcmp(whole + (size_t)at * row, r.y.host + (size_t)at * row, row) != 0;
      for (size_t at = (size_t)batches[i] * row; at < (size_t)all * row; at++)
        differ += r.y.host[at] != POISON;
      if (differ == 0) continue;
      failures++;
      printf("FAIL bits of %s %s %dx%d%s: %ld of %ld rows differ from those of a batch of %ld\n",
             which_name[which], dtype_name(dtype), k, n, rms ? " rms" : "", (long)differ,
             (long)batches[i], (long)all);
    }
  }
  free(whole);
  free_outputs(&r);
  free_run(&r);
}

// The residual may be y.
static void in_place(enum dtype dtype) {
  struct norm_case c = {.m = 4500,
                        .n = 768,
                        .k = 256,
                        .dtype = dtype,
                        .weights = DTYPE_F32,
                        .bias = true,
                        .residual = true,
                        .gamma = true,
                        .beta = true,
                        .eps = 1e-5f};
  struct norm_run r;
  make_run(&c, &r);
  make_outputs(&c, &r);
  size_t bytes = (size_t)c.m * 768 * 2;
  uint8_t *apart = malloc(bytes), *here = malloc(bytes);
  run_kernel(NARROW, &r, c.m);
  CHECK_CUDA(cudaMemcpy(apart, r.y.data, bytes, cudaMemcpyDeviceToHost));
  r.views[RESIDUAL].data = r.y.data;
  for (enum which which = NARROW; which < WHICH; which++) {
    CHECK_CUDA(cudaMemcpy(r.y.data, r.in[RESIDUAL].data, bytes, cudaMemcpyDeviceToDevice));
    run_kernel(which, &r, c.m);
    CHECK_CUDA(cudaMemcpy(here, r.y.data, bytes, cudaMemcpyDeviceToHost));
    checks++;
    if (memcmp(apart, here, bytes) == 0) continue;
    failures++;
    printf("FAIL %s %s: another result where the residual is y\n", which_name[which],
           dtype_name(dtype));
  }
  free(apart), free(here);
  free_outputs(&r);
  free_run(&r);
}

// ---- refusals ----
// `one`: the one kernel; `two`: a product, then its rows.
static void expect_support(const char *what, struct norm_run *r, bool one, bool two) {
  struct kernel_call call = call_of(r, 64);
  checks++;
  if (kernel_gemm_norm_sm90.supports(&call) == one && kernel_gemm_then_norm.supports(&call) == two)
    return;
  failures++;
  printf("FAIL %s: expected %s kernel and %s kernels\n", what, one ? "one" : "no one",
         two ? "two" : "no two");
}

static void refusals(void) {
  struct norm_case c = {.m = 64,
                        .n = 768,
                        .k = 128,
                        .dtype = DTYPE_BF16,
                        .weights = DTYPE_F32,
                        .bias = true,
                        .residual = true,
                        .gamma = true,
                        .beta = true,
                        .eps = 1e-5f};
  struct norm_run r, was;
  make_run(&c, &r);
  make_outputs(&c, &r);
  was = r;
  expect_support("a plain one", &r, true, true);
  static const int32_t widths[] = {100, 64, 32, 800, 864, 1056, 1152, 1536, 0};
  for (int i = 0; i < 9; i++) {
    r.problem.n = widths[i];
    expect_support("rows of another width", &r, false, false);
  }
  r = was, r.problem.x_dtype = r.problem.w_dtype = r.problem.y_dtype = DTYPE_F32;
  expect_support("fp32", &r, false, false);
  r = was, r.problem.y_dtype = DTYPE_F32;
  expect_support("a result in fp32", &r, false, false);
  r = was, r.problem.epilogue[1].kind = EPI_MUL;
  expect_support("a gate", &r, false, true);
  r = was, r.problem.epilogue[r.problem.n_epilogue++] =
               (struct epilogue_op){.kind = EPI_ACT, .act = ACT_GELU_ERF};
  expect_support("an activation", &r, false, true);
  r = was, r.problem.epilogue[r.problem.n_epilogue++] = r.problem.epilogue[1];
  expect_support("two residuals", &r, false, true);
  r = was, r.views[RESIDUAL].dtype = DTYPE_F32;
  expect_support("a residual in fp32", &r, false, true);
  r = was, r.views[RESIDUAL].stride = 772;
  expect_support("a residual with odd rows", &r, false, true);
  r = was, r.views[GAMMA].dtype = DTYPE_F16;
  expect_support("gamma of another dtype", &r, false, false);
  r = was, r.out[0].data = (char *)r.out[0].data + 2;
  expect_support("y off its alignment", &r, false, false);
  r = was, r.norm.sum = true, r.out[1].stride = 770;
  expect_support("a sum with odd rows", &r, false, false);
  r = was;
  struct kernel_call call = call_of(&r, 64);
  struct kernel_device other = {.sm = 80, .multiprocessors = 108};
  call.device = &other;
  checks++;
  if (kernel_gemm_norm_sm90.supports(&call) || kernel_gemm_then_norm.supports(&call))
    failures++, printf("FAIL another card: not refused\n");
  free_outputs(&r);
  free_run(&r);
}

int main(int argc, char **argv) {
  small_only = argc > 1 && strcmp(argv[1], "small") == 0;
  need_gpu();
  CHECK_CUDA(kernel_device_query(&device));
  if (device.sm != 90) {
    printf("SKIP: these kernels are for sm_90\n");
    return 77;
  }
  CHECK_CUDA(cudaMalloc(&workspace, WORKSPACE_BYTES));
  CHECK_CUDA(cudaMemset(workspace, 0xff, WORKSPACE_BYTES));
  CHECK_CUDA(cudaMalloc((void **)&counters, KERNEL_COUNTERS * sizeof *counters));
  CHECK_CUDA(cudaMemset(counters, 0, KERNEL_COUNTERS * sizeof *counters));
  printf("seed %#lx; groups at a time:", (unsigned long)rng_state);
  static const int widths[][2] = {{96, 4},  {96, 8},  {128, 3}, {128, 4}, {128, 8},
                                  {192, 2}, {192, 4}, {256, 2}, {256, 4}};
  for (int i = 0; i < 9; i++) {
    int n = 0;
    CHECK_CUDA(gemm_norm_groups_bf16(widths[i][0], widths[i][1], &n));
    printf(" %d of %dx%d", n, widths[i][1], widths[i][0]);
  }
  printf("\n");
  fflush(stdout);
  sizes_and_operands();
  if (!small_only) ugly_values(), in_place(DTYPE_BF16), in_place(DTYPE_F16);
  for (int rms = 0; rms < 2 && !small_only; rms++) {
    same_bits(DTYPE_BF16, 768, 320, rms), same_bits(DTYPE_F16, 384, 768, rms);
    same_bits(DTYPE_F16, 1024, 64, rms), same_bits(DTYPE_BF16, 576, 136, rms);
  }
  many_tiles();
  refusals();
  static uint32_t left[KERNEL_COUNTERS];
  CHECK_CUDA(cudaMemcpy(left, counters, sizeof left, cudaMemcpyDeviceToHost));
  for (int i = 0; i < KERNEL_COUNTERS; i++)
    failures += left[i] != 0;
  cudaFree(workspace), cudaFree(counters);
  return report("gemm_norm");
}
