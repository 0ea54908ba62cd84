// One thread's matrix products as the back end runs them: slices of a layer's weights that come
// from beyond the second-level cache, with their epilogues, ours beside oneDNN's. Times are the
// thread's CPU time, so that a busy machine disturbs little. `peak`: multiply-adds on registers
// alone, measured in between: what no product can beat.
//
//   bench_product [--bf16] [--hot] [ROWS...]     (--hot: the same weights again and again)
#include "kernels/cpu/product.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define COPIES 16

static double cpu_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ---- the floor: twelve chains of multiply-adds in registers ----
#define CHAINS 12
#define PEAK_ROUNDS 20000

#define PEAK(name, features, vector, set, fmadd)                                                   \
  __attribute__((target(features))) static double name(void) {                                     \
    vector sums[CHAINS], x = set(0.5f), y = set(1.0f);                                             \
    _Pragma("GCC unroll 12") for (int c = 0; c < CHAINS; c++) sums[c] = set((float)c);             \
    double start = cpu_seconds();                                                                  \
    for (int i = 0; i < PEAK_ROUNDS; i++) {                                                        \
      _Pragma("GCC unroll 12") for (int c = 0; c < CHAINS; c++) sums[c] = fmadd(sums[c], x, y);    \
    }                                                                                              \
    double seconds = cpu_seconds() - start;                                                        \
    _Pragma("GCC unroll 12") for (int c = 1; c < CHAINS; c++) sums[0] += sums[c];                  \
    volatile float keep = sums[0][0];                                                              \
    (void)keep;                                                                                    \
    return 2.0 * CHAINS * PEAK_ROUNDS * (sizeof(vector) / sizeof(float)) / seconds * 1e-9;         \
  }

#if defined(__x86_64__)
PEAK(peak_avx512, "avx512f,fma", __m512, _mm512_set1_ps, _mm512_fmadd_ps)
PEAK(peak_avx2, "avx2,fma", __m256, _mm256_set1_ps, _mm256_fmadd_ps)
#endif

// GFLOP/s of one thread; 0 where it is not known.
static double peak_gflops(enum cpu_isa isa) {
#if defined(__x86_64__)
  if (isa >= CPU_AVX512) return peak_avx512();
  if (isa == CPU_AVX2) return peak_avx2();
#endif
  (void)isa;
  return 0;
}

static float noise(uint32_t *seed) {
  *seed = *seed * 1664525u + 1013904223u;
  return (float)(*seed >> 8) * 0x1p-24f - 0.5f;
}

static bool read_rows(void *arg, int32_t first, int32_t rows, void *out) {
  const struct linear_problem *p = arg;
  uint32_t seed = (uint32_t)first + 1;
  for (int64_t i = 0; i < (int64_t)rows * p->k; i++) {
    if (p->w_dtype == DTYPE_F32)
      ((float *)out)[i] = noise(&seed);
    else
      ((uint16_t *)out)[i] = f32_to_bf16(noise(&seed));
  }
  return true;
}

static void *filled(size_t n, enum dtype dtype) {
  void *out = aligned_alloc(64, (n * 4 + 63) & ~(size_t)63);
  uint32_t seed = 7;
  for (size_t i = 0; i < n; i++) {
    if (dtype == DTYPE_F32)
      ((float *)out)[i] = noise(&seed);
    else
      ((uint16_t *)out)[i] = f32_to_bf16(noise(&seed));
  }
  return out;
}

struct subject { // one kind of product, ready to run
  struct product *products[COPIES];
  struct product_run run;
  struct view operands[EPILOGUE_MAX];
};

static void prepare(struct subject *s, const struct linear_problem *problem, enum product_kind kind,
                    int32_t rows, int copies, const struct cpu_features *features) {
  const char *why = "";
  struct product_spec spec = {.problem = *problem,
                              .x_stride = problem->k,
                              .y_stride = problem->n,
                              .n_threads = 1,
                              .kind = kind,
                              .features = features,
                              .ops = cpu_ops_for(features->isa)};
  for (int i = 0; i < copies; i++) {
    s->products[i] = product_create(&spec, read_rows, (void *)(uintptr_t)problem, &why);
    if (!s->products[i]) printf("%s\n", why), exit(1);
  }
  size_t n = (size_t)problem->n;
  void *bias = filled(n, problem->y_dtype), *residual = filled(PRODUCT_ROWS * n, problem->y_dtype);
  for (int i = 0; i < problem->n_epilogue; i++)
    s->operands[i] = (struct view){problem->epilogue[i].kind == EPI_BIAS ? bias : residual,
                                   problem->n, problem->n, problem->y_dtype};
  s->run = (struct product_run){
      .n_units = product_units(s->products[0]),
      .rows = rows,
      .x = filled(PRODUCT_ROWS * (size_t)problem->k, problem->x_dtype),
      .y = filled(PRODUCT_ROWS * n, problem->y_dtype),
      .operands = s->operands,
      .workspace = aligned_alloc(64, (product_workspace_bytes(s->products[0]) + 64) & ~(size_t)63)};
}

static double seconds_of(const struct subject *s, int copies) {
  double start = cpu_seconds();
  for (int i = 0; i < copies; i++)
    product_run(s->products[i], &s->run);
  return (cpu_seconds() - start) / copies;
}

// GFLOP/s over `rows` rows: the best of many short turns, the two kinds in turn.
// (Leaks: a bench.)
static void compare(const struct linear_problem *problem, int32_t rows, int copies,
                    const struct cpu_features *features, double gflops[2], double *peak) {
  static struct subject subjects[2];
  double best[2] = {1e9, 1e9};
  prepare(&subjects[0], problem, PRODUCT_LIBRARY, rows, copies, features);
  prepare(&subjects[1], problem, PRODUCT_OWN, rows, copies, features);
  for (int repeat = 0; repeat < 40; repeat++) {
    double reached = peak_gflops(features->isa);
    if (reached > *peak) *peak = reached;
    for (int i = 0; i < 2; i++) {
      double seconds = seconds_of(&subjects[i], copies);
      if (seconds < best[i]) best[i] = seconds;
    }
  }
  for (int i = 0; i < 2; i++)
    gflops[i] = 2.0 * rows * problem->k * problem->n / best[i] * 1e-9;
  for (int i = 0; i < 2; i++)
    for (int c = 0; c < copies; c++)
      product_destroy(subjects[i].products[c]);
}

int main(int argc, char **argv) {
  enum dtype dtype = DTYPE_F32;
  int copies = COPIES, n_rows = 0;
  int32_t rows[64];
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--bf16"))
      dtype = DTYPE_BF16;
    else if (!strcmp(argv[i], "--hot"))
      copies = 1;
    else if (n_rows < 64)
      rows[n_rows++] = atoi(argv[i]);
  }
  static const int32_t standard[] = {1, 8, 13, 25, 32, 51, 64};
  if (n_rows == 0) memcpy(rows, standard, sizeof standard), n_rows = 7;
  struct cpu_features features;
  cpu_detect(&features);
  product_thread_init();
  const struct {
    int32_t k, n;
    uint8_t n_epilogue;
    struct epilogue_op epilogue[2];
    const char *name;
  } shapes[] = {
      {384, 1152, 0, {{0}}, "plain"},
      {384, 1152, 1, {{.kind = EPI_BIAS}}, "bias"},
      {384, 384, 2, {{.kind = EPI_BIAS}, {.kind = EPI_ADD}}, "bias+add"},
      {384, 1536, 2, {{.kind = EPI_BIAS}, {.kind = EPI_ACT, .act = ACT_GELU_ERF}}, "bias+gelu"},
      {1536, 384, 2, {{.kind = EPI_BIAS}, {.kind = EPI_ADD}}, "bias+add"}};
  printf("%s, %s, one thread, GFLOP/s of its CPU time\n%-24s %5s %9s %9s %9s\n", features.brand,
         dtype_name(dtype), "shape", "rows", "library", "own", "peak");
  for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
    struct linear_problem problem = {.n = shapes[s].n,
                                     .k = shapes[s].k,
                                     .x_dtype = dtype,
                                     .w_dtype = dtype,
                                     .y_dtype = dtype,
                                     .n_epilogue = shapes[s].n_epilogue};
    memcpy(problem.epilogue, shapes[s].epilogue, sizeof shapes[s].epilogue);
    for (int r = 0; r < n_rows; r++) {
      char name[64];
      double gflops[2], peak = 0;
      snprintf(name, sizeof name, "%dx%d %s", problem.k, problem.n, shapes[s].name);
      compare(&problem, rows[r], copies, &features, gflops, &peak);
      printf("%-24s %5d %9.1f %9.1f %9.1f\n", name, rows[r], gflops[0], gflops[1], peak);
    }
  }
  return 0;
}
