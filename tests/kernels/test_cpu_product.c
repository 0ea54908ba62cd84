// Matrix products on the CPU, the library's and our own, against the double reference: all row
// counts, odd shapes, every epilogue, slices, strides.
#include "kernels/cpu/product.h"

#include "cpu_test.h"

struct subject {
  struct linear_problem problem;
  struct matrix x, w, bias, other, y;
  struct product *product;
  void *workspace;
};

static bool read_rows(void *arg, int32_t first, int32_t rows, void *out) {
  const struct subject *s = arg;
  size_t row = (size_t)s->problem.k * dtype_bytes(s->problem.w_dtype);
  memcpy(out, (char *)s->w.view.data + (size_t)first * row, (size_t)rows * row);
  return true;
}

static bool without_bf16; // the processor's bf16 instructions are left alone

static bool subject_make(struct subject *s, const struct linear_problem *problem, int threads,
                         enum product_kind kind, enum cpu_isa isa, const char **why) {
  struct cpu_features features;
  cpu_detect(&features);
  if (without_bf16) features.avx512_bf16 = features.amx_bf16 = false;
  int32_t n = problem->n, k = problem->k;
  *s = (struct subject){.problem = *problem,
                        .x = matrix_random(PRODUCT_ROWS, k, k + (k % 2 ? 0 : 6), problem->x_dtype),
                        .w = matrix_random(n, k, k, problem->w_dtype),
                        .bias = matrix_random(1, n, n, problem->y_dtype),
                        .other = matrix_random(PRODUCT_ROWS, n, n + 4, problem->y_dtype),
                        .y = matrix_make(PRODUCT_ROWS, n, n + 3, problem->y_dtype)};
  struct product_spec spec = {.problem = *problem,
                              .x_stride = s->x.view.stride,
                              .y_stride = s->y.view.stride,
                              .n_threads = threads,
                              .kind = kind,
                              .features = &features,
                              .ops = cpu_ops_for(isa)};
  s->product = product_create(&spec, read_rows, s, why);
  if (!s->product) return false;
  s->workspace = aligned_alloc(64, (product_workspace_bytes(s->product) + 64) & ~(size_t)63);
  return true;
}

static void subject_free(struct subject *s) {
  product_destroy(s->product);
  matrix_free(&s->x), matrix_free(&s->w), matrix_free(&s->bias), matrix_free(&s->other),
      matrix_free(&s->y);
  free(s->workspace);
}

static double epilogue(const struct subject *s, double sum, int64_t r, int64_t c) {
  for (int i = 0; i < s->problem.n_epilogue; i++) {
    const struct epilogue_op *op = &s->problem.epilogue[i];
    if (op->kind == EPI_BIAS) sum += (double)matrix_at(&s->bias, 0, c);
    if (op->kind == EPI_ACT) sum = ref_activate((enum activation)op->act, sum);
    if (op->kind == EPI_SCALE) sum *= (double)op->imm;
    if (op->kind == EPI_ADD) sum += (double)matrix_at(&s->other, r, c);
    if (op->kind == EPI_MUL) sum *= (double)matrix_at(&s->other, r, c);
  }
  return sum;
}

static void run_rows(struct subject *s, int32_t rows) {
  struct view operands[EPILOGUE_MAX];
  for (int i = 0; i < s->problem.n_epilogue; i++)
    operands[i] = s->problem.epilogue[i].kind == EPI_BIAS ? s->bias.view : s->other.view;
  // In calls of one, two, three... units.
  int32_t units = product_units(s->product), some = 1;
  for (int32_t unit = 0; unit < units; unit += some++) {
    struct product_run run = {.unit = unit,
                              .n_units = units - unit < some ? units - unit : some,
                              .next = product_unit_weights(s->product, 0),
                              .rows = rows,
                              .x = s->x.view.data,
                              .y = s->y.view.data,
                              .operands = operands,
                              .workspace = s->workspace};
    assert_true(product_run(s->product, &run));
  }
}

static void check_rows(struct subject *s, int32_t rows, const char *what) {
  int32_t n = s->problem.n, k = s->problem.k;
  double *x = matrix_doubles(&s->x), *w = matrix_doubles(&s->w),
         *want = malloc((size_t)(rows * n) * sizeof *want);
  ref_linear(want, x, w, NULL, rows, n, k);
  for (int32_t r = 0; r < rows; r++)
    for (int32_t c = 0; c < n; c++)
      want[r * n + c] = epilogue(s, want[r * n + c], r, c);
  run_rows(s, rows);
  struct matrix head = s->y;
  head.rows = rows;
  double distance = matrix_distance(&head, want);
  if (!(distance <= bound_of(s->problem.y_dtype)))
    fail_msg("%s, %s, rows %d, n %d, k %d: off by %g", what,
             product_kind_name(product_kind_of(s->product)), rows, n, k, distance);
  if (!matrix_intact(&s->y)) fail_msg("%s wrote outside of its output", what);
  free(x), free(w), free(want);
}

static void each_shape(enum product_kind kind, enum dtype dtype, enum cpu_isa isa) {
  static const int32_t sizes[][2] = {{1, 1},   {3, 7},     {17, 32},   {31, 33},  {64, 64},
                                     {65, 96}, {130, 160}, {384, 384}, {70, 769}, {33, 1600}};
  static const int32_t counts[] = {1,  2,  3,  6,  13, 14, 15, 16, 17,
                                   25, 29, 31, 32, 33, 43, 57, 63, 64};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    struct linear_problem problem = {.n = sizes[i][0],
                                     .k = sizes[i][1],
                                     .x_dtype = dtype,
                                     .w_dtype = dtype,
                                     .y_dtype = dtype,
                                     .n_epilogue = 1,
                                     .epilogue = {{.kind = EPI_BIAS}}};
    const char *why = "";
    struct subject s;
    if (!subject_make(&s, &problem, 1 + (int)(i % 3), kind, isa, &why)) fail_msg("%s", why);
    for (size_t r = 0; r < sizeof counts / sizeof counts[0]; r++)
      check_rows(&s, counts[r], cpu_isa_name(isa));
    subject_free(&s);
  }
}

static void every_row_count_and_shape_fp32(void **state) {
  (void)state;
  for (int isa = 0; isa < CPU_ISA_COUNT; isa++)
    if (cpu_ops_for((enum cpu_isa)isa)) each_shape(PRODUCT_OWN, DTYPE_F32, (enum cpu_isa)isa);
  each_shape(PRODUCT_LIBRARY, DTYPE_F32, CPU_PORTABLE);
}

static void every_row_count_and_shape_bf16(void **state) {
  (void)state;
  struct cpu_features features;
  cpu_detect(&features);
  each_shape(PRODUCT_OWN, DTYPE_BF16, features.isa);
  each_shape(PRODUCT_LIBRARY, DTYPE_BF16, features.isa);
}

// Where there are no bf16 instructions the library has no bf16 product, and ours widens.
static void every_row_count_and_shape_bf16_widened(void **state) {
  (void)state;
  without_bf16 = true;
  for (int isa = 0; isa < CPU_ISA_COUNT; isa++)
    if (cpu_ops_for((enum cpu_isa)isa)) each_shape(PRODUCT_AUTO, DTYPE_BF16, (enum cpu_isa)isa);
  without_bf16 = false;
}

static void random_epilogue(struct linear_problem *p) {
  p->n_epilogue = (uint8_t)(test_random() % 5);
  for (int i = 0; i < p->n_epilogue; i++) {
    struct epilogue_op *op = &p->epilogue[i];
    op->kind = (uint8_t)(test_random() % 5);
    op->act = (uint8_t)(1 + test_random() % (ACT_COUNT - 1));
    op->imm = 0.5f + test_float() * 0.25f;
  }
}

static void every_epilogue_matches_the_reference(void **state) {
  (void)state;
  struct cpu_features features;
  cpu_detect(&features);
  for (int turn = 0; turn < 60; turn++) {
    enum dtype dtype = turn % 2 ? DTYPE_BF16 : DTYPE_F32;
    struct linear_problem problem = {.n = (int32_t)(1 + test_random() % 150),
                                     .k = (int32_t)(32 * (1 + test_random() % 5)),
                                     .x_dtype = dtype,
                                     .w_dtype = dtype,
                                     .y_dtype = dtype};
    random_epilogue(&problem);
    for (int kind = PRODUCT_LIBRARY; kind <= PRODUCT_OWN; kind++) {
      const char *why = "";
      struct subject s;
      if (!subject_make(&s, &problem, 2, (enum product_kind)kind, features.isa, &why))
        fail_msg("%s", why);
      check_rows(&s, (int32_t)(1 + test_random() % 64), "epilogue");
      subject_free(&s);
    }
  }
}

// bf16 products may leave fp32 sums: x and weights bf16, y fp32.
static void bf16_products_may_write_fp32(void **state) {
  (void)state;
  struct cpu_features features;
  cpu_detect(&features);
  struct linear_problem problem = {
      .n = 70,
      .k = 64,
      .x_dtype = DTYPE_BF16,
      .w_dtype = DTYPE_BF16,
      .y_dtype = DTYPE_F32,
      .n_epilogue = 2,
      .epilogue = {{.kind = EPI_BIAS}, {.kind = EPI_ACT, .act = ACT_GELU_ERF}}};
  for (int kind = PRODUCT_LIBRARY; kind <= PRODUCT_OWN; kind++) {
    const char *why = "";
    struct subject s;
    if (!subject_make(&s, &problem, 2, (enum product_kind)kind, features.isa, &why))
      fail_msg("%s", why);
    check_rows(&s, 41, "fp32 sums");
    subject_free(&s);
  }
}

// A row of NaN or infinity changes that row of y only, whatever rows share its block.
static void a_bad_row_stays_in_its_row(void **state) {
  (void)state;
  struct cpu_features features;
  cpu_detect(&features);
  for (int variant = 0; variant < 4; variant++) {
    enum dtype dtype = variant & 1 ? DTYPE_BF16 : DTYPE_F32;
    struct linear_problem problem = {
        .n = 100, .k = 64, .x_dtype = dtype, .w_dtype = dtype, .y_dtype = dtype};
    const char *why = "";
    struct subject s;
    if (!subject_make(&s, &problem, 2, variant & 2 ? PRODUCT_OWN : PRODUCT_LIBRARY, features.isa,
                      &why))
      fail_msg("%s", why);
    typed_set(s.x.view.data, dtype, 5 * s.x.view.stride + 3, NAN);
    typed_set(s.x.view.data, dtype, 20 * s.x.view.stride + 63, INFINITY);
    run_rows(&s, 40);
    for (int r = 0; r < 40; r++)
      for (int c = 0; c < 100; c++) {
        bool finite = isfinite(matrix_at(&s.y, r, c));
        if (finite != (r != 5 && r != 20))
          fail_msg("row %d column %d is %g", r, c, (double)matrix_at(&s.y, r, c));
      }
    subject_free(&s);
  }
}

static bool read_small_numbers(void *arg, int32_t first, int32_t rows, void *out) {
  int32_t k = *(const int32_t *)arg;
  for (int64_t i = 0; i < (int64_t)rows * k; i++)
    ((float *)out)[i] = (float)((first + i / k) % 5);
  return true;
}

// What a hostile model file may ask for: numbers of rows and columns whose products leave 32 bits,
// and more columns than units. Whole numbers, so that every sum is exact.
static void huge_sizes_are_computed(void **state) {
  (void)state;
  static const int32_t sizes[][2] = {{3, 2000003}, {64 * PRODUCT_UNITS_MAX + 77, 1}};
  struct cpu_features features;
  cpu_detect(&features);
  for (int i = 0; i < 2; i++) {
    int32_t n = sizes[i][0], k = sizes[i][1];
    struct product_spec spec = {.problem = {.n = n,
                                            .k = k,
                                            .x_dtype = DTYPE_F32,
                                            .w_dtype = DTYPE_F32,
                                            .y_dtype = DTYPE_F32},
                                .x_stride = k,
                                .y_stride = n,
                                .n_threads = 2,
                                .kind = PRODUCT_OWN,
                                .features = &features,
                                .ops = cpu_ops_for(features.isa)};
    const char *why = "";
    struct product *product = product_create(&spec, read_small_numbers, &k, &why);
    if (!product) fail_msg("%s", why);
    int32_t units = product_units(product);
    assert_in_range(units, 1, PRODUCT_UNITS_MAX);
    float *x = malloc((size_t)k * sizeof *x), *y = malloc((size_t)n * sizeof *y);
    for (int32_t j = 0; j < k; j++)
      x[j] = 1;
    void *workspace = aligned_alloc(64, (product_workspace_bytes(product) + 63) & ~(size_t)63);
    for (int32_t unit = 0, some; unit < units; unit += some) {
      some = unit == 0 && units > 1 ? 1 : units - unit;
      struct product_run run = {
          .unit = unit, .n_units = some, .rows = 1, .x = x, .y = y, .workspace = workspace};
      assert_true(product_run(product, &run));
    }
    for (int32_t j = 0; j < n; j++)
      if (y[j] != (float)k * (float)(j % 5)) fail_msg("n %d k %d: y[%d] is %g", n, k, j, y[j]);
    free(x), free(y), free(workspace);
    product_destroy(product);
  }
}

int main(void) {
  test_seed_now();
  product_thread_init();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_row_count_and_shape_fp32),
      cmocka_unit_test(every_row_count_and_shape_bf16),
      cmocka_unit_test(every_row_count_and_shape_bf16_widened),
      cmocka_unit_test(every_epilogue_matches_the_reference),
      cmocka_unit_test(bf16_products_may_write_fp32),
      cmocka_unit_test(a_bad_row_stays_in_its_row),
      cmocka_unit_test(huge_sizes_are_computed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
