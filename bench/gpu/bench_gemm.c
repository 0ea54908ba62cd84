// Linear with its epilogue beside cuBLASLt on the same card in the same run: the plain product,
// cuBLASLt's own bias + tanh-GELU epilogue, its product with bias and a separate kernel for erf
// GELU (ours, generated: one read and one write at the speed of a copy), and ours with exact erf
// GELU by each tile. Microseconds of GPU time by graph replay; N(0,1) data. These take turns, at
// one clock; `alone`: each at the clock that the card's power limit leaves it.
#include "gpu_bench.h"

#include "kernels/gemm/gemm.h"

#include <cublasLt.h>

#define CHECK_LT(call)                                                                             \
  do {                                                                                             \
    int rc_ = (int)(call);                                                                         \
    if (rc_ != 0) {                                                                                \
      fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, rc_);                          \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)
#define WORKSPACE_BYTES (32u << 20)

struct size {
  int64_t m;
  int32_t k, n;
};
static const struct size sizes[] = {
    {16384, 768, 3072}, {16384, 1024, 4096}, {8192, 4096, 16384}, {4096, 768, 3072},
    {65536, 256, 1024}, {16384, 3072, 768},  {4096, 768, 2304},   {4096, 3072, 768},
    {8192, 8192, 8192}, {128, 768, 3072},    {512, 768, 3072},
};
static cublasLtHandle_t lt;
static void *workspace;
static struct kernel_device device;

// y^T [n, m] = W [n, k] x^T in the library's column-major words.
struct product {
  cublasLtMatmulDesc_t op;
  cublasLtMatrixLayout_t a, b, d;
  cublasLtMatmulHeuristicResult_t found[8];
  int n_found, use;
  const void *w, *x;
  const void *residual; // NULL: none
  void *y;
};

static void product_make(struct product *p, const struct size *s, const void *x, const void *w,
                         void *y, const void *bias, cublasLtEpilogue_t epilogue,
                         cudaDataType_t type, cudaDataType_t result) {
  cublasOperation_t transpose = CUBLAS_OP_T;
  cublasLtMatmulPreference_t preference;
  size_t bytes = WORKSPACE_BYTES;
  *p = (struct product){.w = w, .x = x, .y = y};
  CHECK_LT(cublasLtMatmulDescCreate(&p->op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  CHECK_LT(cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                          sizeof transpose));
  if (bias) {
    CHECK_LT(cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                            sizeof epilogue));
    CHECK_LT(cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                            sizeof bias));
  }
  CHECK_LT(cublasLtMatrixLayoutCreate(&p->a, type, (uint64_t)s->k, (uint64_t)s->n, s->k));
  CHECK_LT(cublasLtMatrixLayoutCreate(&p->b, type, (uint64_t)s->k, (uint64_t)s->m, s->k));
  CHECK_LT(cublasLtMatrixLayoutCreate(&p->d, result, (uint64_t)s->n, (uint64_t)s->m, s->n));
  CHECK_LT(cublasLtMatmulPreferenceCreate(&preference));
  CHECK_LT(cublasLtMatmulPreferenceSetAttribute(
      preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
  CHECK_LT(cublasLtMatmulAlgoGetHeuristic(lt, p->op, p->a, p->b, p->d, p->d, preference, 8,
                                          p->found, &p->n_found));
  cublasLtMatmulPreferenceDestroy(preference);
}

static void product_launch(void *arg) {
  struct product *p = arg;
  float one = 1, beta = p->residual ? 1 : 0;
  CHECK_LT(cublasLtMatmul(lt, p->op, &one, p->w, p->a, p->x, p->b, &beta,
                          p->residual ? p->residual : p->y, p->d, p->y, p->d,
                          &p->found[p->use].algo, workspace, WORKSPACE_BYTES, bench_stream));
}

// First choice of the library, and the best of its first four.
static void product_times(struct product *p, int n, double *first, double *best) {
  for (p->use = 0; p->use < p->n_found && p->use < 4; p->use++) {
    double us = bench_us(product_launch, p, n);
    if (p->use == 0) *first = *best = us;
    if (us < *best) *best = us;
  }
}

// The library's product with bias, then GELU by a kernel of its own, in place.
struct separate {
  struct product product;
  struct row_program program;
  struct row_kernel gelu;
  struct row_args args;
};

static bool separate_make(struct separate *s, const struct size *size, const void *x, const void *w,
                          void *y, const void *bias) {
  static char text[1 << 20];
  static struct row_ir ir;
  struct row_tile tiles[ROW_VARIANTS] = {{0}};
  struct jit *jit;
  struct cubin cubin;
  char message[JIT_MESSAGE_BYTES];
  *s = (struct separate){
      .program = {.cols = size->n, .n_inputs = 1, .n_outputs = 1, .n_insts = 3, .n_regs = 1}};
  s->program.inputs[0] = (struct row_input){IN_FULL, DTYPE_BF16, 0};
  s->program.output_dtype[0] = DTYPE_BF16;
  s->program.insts[0] = (struct row_inst){.op = RI_LOAD};
  s->program.insts[1] = (struct row_inst){.op = RI_ACT, .aux = ACT_GELU_ERF};
  s->program.insts[2] = (struct row_inst){.op = RI_STORE};
  if (!row_ir_build(&s->program, &ir) ||
      jit_open(&(struct jit_options){.cache_dir = getenv("FUSEWIRE_JIT_CACHE")}, &jit, message) !=
          0)
    return false;
  size_t n = strlen(strcpy(text, row_prelude));
  row_source_all(&ir, tiles, text + n, sizeof text - n);
  bool built = jit_compile(jit, text, "sm_90a", &cubin, message) == 0;
  if (built) {
    CHECK_CUDA(row_kernel_load(&s->program, tiles, &cubin, &s->gelu));
    cubin_free(&cubin);
  }
  jit_close(jit);
  s->args = (struct row_args){.rows = size->m};
  s->args.in[0] = y, s->args.out[0] = y;
  s->args.in_stride[0] = s->args.out_stride[0] = size->n;
  product_make(&s->product, size, x, w, y, bias, CUBLASLT_EPILOGUE_BIAS, CUDA_R_16BF, CUDA_R_16BF);
  return built;
}

static void separate_launch(void *arg) {
  struct separate *s = arg;
  product_launch(&s->product);
  CHECK_CUDA(row_kernel_run(&s->gelu, &s->args, bench_stream));
}

struct ours {
  struct linear_problem problem;
  struct view in[4], y;
  int64_t m;
  enum gemm_tile tile;
};

static struct kernel_call ours_call(const struct ours *o) {
  return (struct kernel_call){.device = &device,
                              .op = KERNEL_LINEAR,
                              .in = o->in,
                              .out = &o->y,
                              .m = o->m,
                              .linear = &o->problem};
}

static void ours_launch(void *arg) {
  struct ours *o = arg;
  struct kernel_call call = ours_call(o);
  CHECK_CUDA(gemm_sm90_bf16(&call, o->tile, bench_stream));
}

static void ours_set(struct ours *o, int n_epilogue, int act, enum gemm_tile tile) {
  o->problem.n_epilogue = (uint8_t)n_epilogue;
  o->problem.epilogue[0] = (struct epilogue_op){.kind = EPI_BIAS, .operand = 2};
  o->problem.epilogue[1] = act ? (struct epilogue_op){.kind = EPI_ACT, .act = (uint8_t)act}
                               : (struct epilogue_op){.kind = EPI_ADD, .operand = 3};
  o->tile = tile;
}

static double ours_us(struct ours *o, int n_epilogue, int act, enum gemm_tile tile, int n) {
  ours_set(o, n_epilogue, act, tile);
  return bench_us(ours_launch, o, n);
}

static void run_size(const struct size *s) {
  double scale = 1 / sqrt(s->k), flop = 2.0 * (double)s->m * s->n * s->k;
  void *x = bench_normal(DTYPE_BF16, s->m * s->k, 1),
       *w = bench_normal(DTYPE_BF16, (int64_t)s->n * s->k, scale);
  void *b = bench_normal(DTYPE_BF16, s->n, 1), *r = bench_normal(DTYPE_BF16, s->m * s->n, 1), *y;
  CHECK_CUDA(cudaMalloc(&y, (size_t)(s->m * s->n) * 2));
  struct product plain, fused;
  struct separate separate;
  double first = 0, best = 0, fused_first = 0, fused_best = 0;
  int n = flop > 2e11 ? 3 : 10;
  product_make(&plain, s, x, w, y, NULL, CUBLASLT_EPILOGUE_DEFAULT, CUDA_R_16BF, CUDA_R_16BF);
  product_make(&fused, s, x, w, y, b, CUBLASLT_EPILOGUE_GELU_BIAS, CUDA_R_16BF, CUDA_R_16BF);
  struct ours o = {.problem = {.n = s->n,
                               .k = s->k,
                               .x_dtype = DTYPE_BF16,
                               .w_dtype = DTYPE_BF16,
                               .y_dtype = DTYPE_BF16},
                   .m = s->m};
  o.in[0] = (struct view){x, s->k, s->k, DTYPE_BF16},
  o.in[1] = (struct view){w, s->k, s->k, DTYPE_BF16};
  o.in[2] = (struct view){b, s->n, s->n, DTYPE_BF16},
  o.in[3] = (struct view){r, s->n, s->n, DTYPE_BF16};
  o.y = (struct view){y, s->n, s->n, DTYPE_BF16};
  struct ours in_turn[GEMM_TILES];
  struct bench_work work[GEMM_TILES + 3] = {{product_launch, &plain, 0},
                                            {product_launch, &fused, 0}};
  for (int tile = 0; tile < GEMM_TILES; tile++) {
    in_turn[tile] = o;
    ours_set(&in_turn[tile], 2, ACT_GELU_ERF, (enum gemm_tile)tile);
    work[2 + tile] = (struct bench_work){ours_launch, &in_turn[tile], 0};
  }
  work[2 + GEMM_TILES] = (struct bench_work){separate_launch, &separate, NAN};
  bool built = separate_make(&separate, s, x, w, y, b);
  bench_turns(work, 2 + GEMM_TILES + built, n);
  if (built) row_kernel_unload(&separate.gelu);
  product_times(&plain, n, &first, &best);
  product_times(&fused, n, &fused_first, &fused_best);
  printf("{\"work\": \"linear\", \"m\": %ld, \"k\": %d, \"n\": %d, \"product_us\": %.2f, "
         "\"chosen\": %d, \"tflops\": %.0f, \"lt_bias_tanh_us\": %.2f, \"lt_bias_then_erf_us\": "
         "%.2f,\n   "
         "\"product_alone_us\": %.2f, \"product_alone_best_us\": %.2f, "
         "\"lt_bias_tanh_alone_us\": %.2f, \"lt_bias_tanh_alone_best_us\": %.2f",
         (long)s->m, s->k, s->n, work[0].us,
         (int)gemm_pick_tile(s->m, s->n, device.multiprocessors), flop / work[0].us / 1e6,
         work[1].us, work[2 + GEMM_TILES].us, first, best, fused_first, fused_best);
  for (int tile = 0; tile < GEMM_TILES; tile++) {
    double none = ours_us(&o, 0, 0, (enum gemm_tile)tile, n),
           gelu = ours_us(&o, 2, ACT_GELU_ERF, (enum gemm_tile)tile, n);
    double residual = ours_us(&o, 2, 0, (enum gemm_tile)tile, n);
    double bias = ours_us(&o, 1, 0, (enum gemm_tile)tile, n);
    o.problem.epilogue[0] = (struct epilogue_op){.kind = EPI_ACT, .act = ACT_GELU_ERF};
    double erf_only = bench_us(ours_launch, &o, n);
    double us = work[2 + tile].us;
    printf(",\n   \"tile%d\": {\"bias_erf_us\": %.2f, \"erf_of_product\": %.3f, \"tflops\": %.0f, "
           "\"none_alone_us\": %.2f, \"bias_alone_us\": %.2f, \"erf_alone_us\": %.2f, "
           "\"bias_erf_alone_us\": %.2f, \"bias_residual_alone_us\": %.2f, "
           "\"alone_erf_of_product\": %.3f}",
           tile, us, us / work[0].us, flop / us / 1e6, none, bias, erf_only, gelu, residual,
           gelu / first);
  }
  printf("}\n");
  fflush(stdout);
  cudaFree(x), cudaFree(w), cudaFree(b), cudaFree(r), cudaFree(y);
}

// Few rows, weights streamed: `layers` distinct weights in one graph, together larger than L2;
// microseconds a product.
struct few {
  struct ours ours;
  struct product product;
  int layers, bn, split;
  uint16_t *w;
  bool lt;
};

static void few_launch(void *arg) {
  struct few *f = arg;
  size_t layer = (size_t)f->ours.problem.n * (size_t)f->ours.problem.k;
  for (int i = 0; i < f->layers; i++) {
    if (f->lt) {
      f->product.w = f->w + layer * (size_t)i;
      product_launch(&f->product);
      continue;
    }
    f->ours.in[1].data = f->w + layer * (size_t)i;
    struct kernel_call call = ours_call(&f->ours);
    if (f->bn == 0)
      CHECK_CUDA(gemm_sm90_bf16(&call, GEMM_PINGPONG_128x128, bench_stream));
    else
      CHECK_CUDA(gemm_small_bf16(&call, f->bn, f->split, bench_stream));
  }
}

static void run_few(int64_t m, int32_t k, int32_t n, int layers) {
  struct size s = {m, k, n};
  double bytes = 2.0 * ((double)n * k + (double)m * k + (double)m * n);
  void *x = bench_normal(DTYPE_BF16, m * k, 1), *b = bench_normal(DTYPE_BF16, n, 1), *y;
  struct few f = {.layers = layers,
                  .w = bench_normal(DTYPE_BF16, (int64_t)n * k * layers, 1 / sqrt(k))};
  CHECK_CUDA(cudaMalloc(&y, (size_t)(m * n) * 2));
  product_make(&f.product, &s, x, f.w, y, b, CUBLASLT_EPILOGUE_GELU_BIAS, CUDA_R_16BF, CUDA_R_16BF);
  f.lt = true;
  double best = 1e9;
  for (f.product.use = 0; f.product.use < f.product.n_found && f.product.use < 4; f.product.use++)
    best = fmin(best, bench_us(few_launch, &f, 1) / layers);
  f.lt = false;
  f.ours = (struct ours){.problem = {.n = n,
                                     .k = k,
                                     .x_dtype = DTYPE_BF16,
                                     .w_dtype = DTYPE_BF16,
                                     .y_dtype = DTYPE_BF16,
                                     .n_epilogue = 2},
                         .m = m};
  f.ours.problem.epilogue[0] = (struct epilogue_op){.kind = EPI_BIAS, .operand = 2};
  f.ours.problem.epilogue[1] = (struct epilogue_op){.kind = EPI_ACT, .act = ACT_GELU_ERF};
  f.ours.in[0] = (struct view){x, k, k, DTYPE_BF16},
  f.ours.in[1] = (struct view){f.w, k, k, DTYPE_BF16};
  f.ours.in[2] = (struct view){b, n, n, DTYPE_BF16}, f.ours.y = (struct view){y, n, n, DTYPE_BF16};
  printf("{\"work\": \"few rows\", \"m\": %ld, \"k\": %d, \"n\": %d, \"bytes_us\": %.2f, "
         "\"lt_bias_tanh_best_us\": %.2f, \"pingpong_us\": %.2f",
         (long)m, k, n, bytes / 4.3e6, best, bench_us(few_launch, &f, 1) / layers);
  for (f.bn = 32; f.bn <= 64; f.bn += 32) {
    for (f.split = 1; f.split <= 8; f.split *= 2)
      printf(", \"%dx%d\": %.2f", f.bn, f.split, bench_us(few_launch, &f, 1) / layers);
  }
  printf("}\n");
  fflush(stdout);
  cudaFree(x), cudaFree(b), cudaFree(y), cudaFree(f.w);
}

// ---- 16-bit operands, results and residuals in fp32 ----
static void small_launch(void *arg) {
  struct ours *o = arg;
  struct kernel_call call = ours_call(o);
  CHECK_CUDA(gemm_small_bf16(&call, 64, 1, bench_stream));
}

static void run_mixed(int64_t m, int32_t n, int32_t k) {
  struct size s = {m, k, n};
  double flop = 2.0 * (double)m * n * k;
  int launches = flop > 2e10 ? 3 : 20;
  void *x = bench_normal(DTYPE_BF16, m * k, 1),
       *w = bench_normal(DTYPE_BF16, (int64_t)n * k, 1 / sqrt(k));
  void *b = bench_normal(DTYPE_BF16, n, 1), *r = bench_normal(DTYPE_BF16, m * n, 1),
       *r32 = bench_normal(DTYPE_F32, m * n, 1), *b32 = bench_normal(DTYPE_F32, n, 1), *y;
  CHECK_CUDA(cudaMalloc(&y, (size_t)(m * n) * 4));
  struct product plain, wide, added;
  product_make(&plain, &s, x, w, y, NULL, CUBLASLT_EPILOGUE_DEFAULT, CUDA_R_16BF, CUDA_R_16BF);
  product_make(&wide, &s, x, w, y, b32, CUBLASLT_EPILOGUE_BIAS, CUDA_R_16BF, CUDA_R_32F);
  added = wide, added.residual = r32;
  printf("{\"work\": \"linear, mixed\", \"m\": %ld, \"n\": %d, \"k\": %d, \"lt_us\": %.2f, "
         "\"lt_fp32_bias_us\": %.2f, \"lt_fp32_bias_residual_us\": %.2f",
         (long)m, n, k, bench_us(product_launch, &plain, launches),
         bench_us(product_launch, &wide, launches), bench_us(product_launch, &added, launches));
  for (int way = 0; way < 8; way++) {
    const bool y32 = way & 1, with_r32 = way >> 1 & 1, small = way >> 2;
    struct ours o = {.problem = {.n = n,
                                 .k = k,
                                 .x_dtype = DTYPE_BF16,
                                 .w_dtype = DTYPE_BF16,
                                 .y_dtype = y32 ? DTYPE_F32 : DTYPE_BF16},
                     .in = {{x, k, k, DTYPE_BF16},
                            {w, k, k, DTYPE_BF16},
                            {b, n, n, DTYPE_BF16},
                            {with_r32 ? r32 : r, n, n, with_r32 ? DTYPE_F32 : DTYPE_BF16}},
                     .y = {y, n, n, y32 ? DTYPE_F32 : DTYPE_BF16},
                     .m = m};
    double us[3];
    for (int e = 0; e < 3; e++) {
      ours_set(&o, e, 0, GEMM_PINGPONG_128x128);
      us[e] = bench_us(small ? small_launch : ours_launch, &o, launches);
    }
    printf(",\n  \"%s, y %s, residual %s\": {\"none_us\": %.2f, \"bias_us\": %.2f, "
           "\"bias_residual_us\": %.2f}",
           small ? "small" : "ping-pong", y32 ? "fp32" : "bf16", with_r32 ? "fp32" : "bf16", us[0],
           us[1], us[2]);
  }
  printf("}\n");
  fflush(stdout);
  cudaFree(x), cudaFree(w), cudaFree(b), cudaFree(r), cudaFree(r32), cudaFree(b32), cudaFree(y);
}

// ---- fp32 ----
// Ours by each tile, on the tensor cores and without, beside the library's product without TF32,
// in turns; the weights of a few rows are as warm as the L2 leaves them.
struct f32 {
  struct ours ours;
  int tile; // of the tensor cores' kernel, and after these of the other
};

static void f32_launch(void *arg) {
  struct f32 *f = arg;
  struct kernel_call call = ours_call(&f->ours);
  if (f->tile < X3_TILES)
    CHECK_CUDA(gemm_tf32x3(&call, (enum x3_tile_size)f->tile, bench_stream));
  else
    CHECK_CUDA(gemm_simt_tile(&call, (enum simt_tile_size)(f->tile - X3_TILES), bench_stream));
}

static double f32_us(struct f32 *f, int n_epilogue, int act, int n) {
  ours_set(&f->ours, n_epilogue, act, 0);
  return bench_us(f32_launch, f, n);
}

// Relative L2 beside the library's result (`other`), over the first 64 rows.
static double f32_apart(const void *y, const void *other, int64_t m, int32_t n) {
  size_t count = (size_t)(m < 64 ? m : 64) * (size_t)n;
  float *a = malloc(count * 4), *b = malloc(count * 4);
  double off = 0, size = 0;
  CHECK_CUDA(cudaMemcpy(a, y, count * 4, cudaMemcpyDeviceToHost));
  CHECK_CUDA(cudaMemcpy(b, other, count * 4, cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < count; i++)
    off += pow((double)a[i] - b[i], 2), size += (double)b[i] * b[i];
  free(a), free(b);
  return sqrt(off / size);
}

static void run_f32(int64_t m, int32_t n, int32_t k) {
  static const char *const names[] = {"x3_32",   "x3_64",   "x3_128x64",
                                      "simt_32", "simt_64", "simt_128"};
  enum { KERNELS = X3_TILES + SIMT_TILES };
  struct size s = {m, k, n};
  double flop = 2.0 * (double)m * n * k;
  void *x = bench_normal(DTYPE_F32, m * k, 1),
       *w = bench_normal(DTYPE_F32, (int64_t)n * k, 1 / sqrt(k));
  void *b = bench_normal(DTYPE_F32, n, 1), *r = bench_normal(DTYPE_F32, m * n, 1), *y, *other;
  CHECK_CUDA(cudaMalloc(&y, (size_t)(m * n) * 4));
  CHECK_CUDA(cudaMalloc(&other, (size_t)(m * n) * 4));
  struct product plain;
  product_make(&plain, &s, x, w, other, NULL, CUBLASLT_EPILOGUE_DEFAULT, CUDA_R_32F, CUDA_R_32F);
  plain.use = 0;
  struct bench_work work[KERNELS + 1] = {{product_launch, &plain, 0}};
  struct f32 f[KERNELS];
  int launches = flop > 2e10 ? 3 : 20;
  for (int i = 0; i < KERNELS; i++) {
    f[i] = (struct f32){
        {.problem =
             {.n = n, .k = k, .x_dtype = DTYPE_F32, .w_dtype = DTYPE_F32, .y_dtype = DTYPE_F32},
         .in = {{x, k, k, DTYPE_F32},
                {w, k, k, DTYPE_F32},
                {b, n, n, DTYPE_F32},
                {r, n, n, DTYPE_F32}},
         .y = {y, n, n, DTYPE_F32},
         .m = m},
        i};
    work[1 + i] = (struct bench_work){f32_launch, &f[i], 0};
  }
  bench_turns(work, KERNELS + 1, launches);
  printf("{\"work\": \"linear fp32\", \"m\": %ld, \"n\": %d, \"k\": %d, \"lt_us\": %.2f, "
         "\"lt_tflops\": %.1f, \"picked\": \"%s\"",
         (long)m, n, k, work[0].us, flop / work[0].us / 1e6,
         names[x3_pick(m, n, k, device.multiprocessors)]);
  for (int i = 0; i < KERNELS; i++) {
    const bool picked =
        i < X3_TILES || i == X3_TILES + (int)gemm_pick_simt(m, n, device.multiprocessors);
    f32_launch(&f[i]);
    CHECK_CUDA(cudaStreamSynchronize(bench_stream));
    printf(",\n  \"%s\": {\"us\": %.2f, \"tflops\": %.1f, \"apart\": %.1e", names[i],
           work[1 + i].us, flop / work[1 + i].us / 1e6, f32_apart(y, other, m, n));
    if (picked) // with epilogues not all of the other kernel's tiles
      printf(", \"bias_us\": %.2f, \"bias_erf_us\": %.2f, \"bias_residual_us\": %.2f",
             f32_us(&f[i], 1, 0, launches), f32_us(&f[i], 2, ACT_GELU_ERF, launches),
             f32_us(&f[i], 2, 0, launches));
    printf("}");
  }
  printf("}\n");
  fflush(stdout);
  cudaFree(x), cudaFree(w), cudaFree(b), cudaFree(r), cudaFree(y), cudaFree(other);
}

// bench_gemm [N | fp32 | mixed]: the first N sizes only; products in fp32; of 16-bit operands with
// results in fp32.
int main(int argc, char **argv) {
  bench_start("gemm");
  CHECK_CUDA(kernel_device_query(&device));
  CHECK_LT(cublasLtCreate(&lt));
  CHECK_CUDA(cudaMalloc(&workspace, WORKSPACE_BYTES));
  if (argc > 1 && strcmp(argv[1], "fp32") == 0) {
    static const int32_t f32_sizes[][3] = {{4096, 3072, 768},  {4096, 768, 3072}, {4096, 768, 768},
                                           {128, 3072, 768},   {2048, 1536, 384}, {2048, 384, 1536},
                                           {16384, 3072, 768}, {1024, 2304, 768}, {1, 3072, 768},
                                           {1, 768, 3072},     {16, 1536, 384},   {64, 768, 768},
                                           {512, 1152, 384},   {2048, 384, 384}};
    for (size_t i = 0; i < sizeof f32_sizes / sizeof *f32_sizes; i++)
      run_f32(f32_sizes[i][0], f32_sizes[i][1], f32_sizes[i][2]);
    return 0;
  }
  if (argc > 1 && strcmp(argv[1], "mixed") == 0) {
    static const int32_t mixed[][3] = {{256, 768, 3072},
                                       {2048, 768, 3072},
                                       {2048, 768, 768},
                                       {2048, 3072, 768},
                                       {8192, 768, 3072}};
    for (size_t i = 0; i < sizeof mixed / sizeof *mixed; i++)
      run_mixed(mixed[i][0], mixed[i][1], mixed[i][2]);
    return 0;
  }
  int n = argc > 1 ? atoi(argv[1]) : (int)(sizeof sizes / sizeof *sizes);
  for (int i = 0; i < n; i++)
    run_size(&sizes[i]);
  static const int64_t ms[] = {1, 16, 64, 128, 256};
  for (int i = 0; i < (n < 5 ? 0 : 5); i++) {
    run_few(ms[i], 768, 3072, 48);
    run_few(ms[i], 3072, 768, 48);
    run_few(ms[i], 768, 768, 96);
    run_few(ms[i], 4096, 16384, 4);
  }
  return 0;
}
