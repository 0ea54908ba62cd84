// A product with a LayerNorm behind it: in one kernel, at both of its widths, beside a product
// (cuBLASLt's where it is chosen) with residual and bias and a norm after it, generated or ours.
// Microseconds of GPU time by graph replay, all in turns at one clock; each launch has weights of
// its own, so that those of 768 columns and more come from memory, as in a stack of layers.
//
//   bench_gemm_norm [M...]     rows; 128 to 16,384 otherwise
#include "gpu_bench.h"

#include "kernels/gemm/gemm.h"

#define WORKSPACE_BYTES ((size_t)1 << 20)

static struct kernel_device device;
static void *workspace;
static uint32_t *counters;

struct norm_bench {
  struct linear_problem problem;
  struct norm_problem norm;
  struct view in[6], out, sum; // x, W, bias, residual, gamma, beta
  int64_t m;
  int layers, layer;
  struct kernel_choice product, then;
  const struct row_kernel *generated;
  struct row_args row_args;
  int width;
};

static struct kernel_call call_of(struct norm_bench *b, enum kernel_op op) {
  return (struct kernel_call){.device = &device,
                              .op = op,
                              .in = b->in,
                              .out = op == KERNEL_LINEAR ? &b->sum : &b->out,
                              .m = b->m,
                              .linear = &b->problem,
                              .norm = &b->norm,
                              .counters = counters};
}

static void next_layer(struct norm_bench *b) {
  size_t bytes = (size_t)b->problem.n * (size_t)b->problem.k * 2;
  char *first = (char *)b->in[1].data - bytes * (size_t)b->layer;
  b->layer = (b->layer + 1) % b->layers;
  b->in[1].data = first + bytes * (size_t)b->layer;
}

static void product_launch(void *arg) {
  struct norm_bench *b = arg;
  struct kernel_call call = call_of(b, KERNEL_LINEAR);
  CHECK_CUDA(kernel_run(&b->product, &call, workspace, bench_stream));
  next_layer(b);
}

static void apart_launch(void *arg) {
  struct norm_bench *b = arg;
  product_launch(arg);
  CHECK_CUDA(row_kernel_run(b->generated, &b->row_args, bench_stream));
}

static void then_launch(void *arg) {
  struct norm_bench *b = arg;
  struct kernel_call call = call_of(b, KERNEL_LINEAR_NORM);
  CHECK_CUDA(kernel_run(&b->then, &call, workspace, bench_stream));
  next_layer(b);
}

static void fused_launch(void *arg) {
  struct norm_bench *b = arg;
  struct kernel_call call = call_of(b, KERNEL_LINEAR_NORM);
  CHECK_CUDA(gemm_norm_sm90_bf16(&call, b->width, workspace, bench_stream));
  next_layer(b);
}

// LayerNorm as the generator of row kernels makes it.
static bool generate(int32_t n, struct row_program *p, struct row_kernel *kernel) {
  static char text[1 << 20];
  static struct row_ir ir;
  struct row_tile tiles[ROW_VARIANTS] = {{0}};
  struct jit *jit;
  struct cubin cubin;
  char message[JIT_MESSAGE_BYTES];
  *p = (struct row_program){.cols = n, .n_inputs = 3, .n_outputs = 1, .n_insts = 5, .n_regs = 3};
  p->inputs[0] = (struct row_input){IN_FULL, DTYPE_BF16, 0};
  p->inputs[1] = p->inputs[2] = (struct row_input){IN_PER_COL, DTYPE_BF16, 0};
  p->output_dtype[0] = DTYPE_BF16;
  for (uint8_t i = 0; i < 3; i++)
    p->insts[i] = (struct row_inst){.op = RI_LOAD, .dst = i, .a = i};
  p->insts[3] =
      (struct row_inst){.op = RI_LAYER_NORM, .dst = 0, .a = 0, .b = 1, .c = 2, .imm = 1e-5f};
  p->insts[4] = (struct row_inst){.op = RI_STORE};
  if (!row_ir_build(p, &ir)) return false;
  ir.clusters = true;
  if (jit_open(&(struct jit_options){.cache_dir = getenv("FUSEWIRE_JIT_CACHE")}, &jit, message) !=
      0) {
    fprintf(stderr, "%s\n", message);
    return false;
  }
  size_t used = strlen(strcpy(text, row_prelude));
  row_source_all(&ir, tiles, text + used, sizeof text - used);
  bool built = jit_compile(jit, text, "sm_90a", &cubin, message) == 0;
  if (!built) fprintf(stderr, "%s\n", message);
  if (built) {
    CHECK_CUDA(row_kernel_load(p, tiles, &cubin, kernel));
    cubin_free(&cubin);
  }
  jit_close(jit);
  return built;
}

static void run_size(int64_t m, int32_t k, int32_t n, int layers, const struct row_kernel *norm) {
  struct norm_bench b = {.problem = {.n = n,
                                     .k = k,
                                     .x_dtype = DTYPE_BF16,
                                     .w_dtype = DTYPE_BF16,
                                     .y_dtype = DTYPE_BF16,
                                     .n_epilogue = 2},
                         .norm = {.kind = ROW_NORM_LAYER, .gamma = 4, .beta = 5, .eps = 1e-5f},
                         .m = m,
                         .layers = layers,
                         .generated = norm};
  b.problem.epilogue[0] = (struct epilogue_op){.kind = EPI_BIAS, .operand = 2};
  b.problem.epilogue[1] = (struct epilogue_op){.kind = EPI_ADD, .operand = 3};
  void *data[6] = {bench_normal(DTYPE_BF16, m * k, 1),
                   bench_normal(DTYPE_BF16, (int64_t)n * k * layers, 1 / sqrt(k)),
                   bench_normal(DTYPE_BF16, n, 1),
                   bench_normal(DTYPE_BF16, m * n, 1),
                   bench_normal(DTYPE_BF16, n, 1),
                   bench_normal(DTYPE_BF16, n, 1)};
  void *y, *sum;
  CHECK_CUDA(cudaMalloc(&y, (size_t)(m * n) * 2));
  CHECK_CUDA(cudaMalloc(&sum, (size_t)(m * n) * 2));
  for (int i = 0; i < 6; i++)
    b.in[i] = (struct view){data[i], i < 2 ? k : n, i < 2 ? k : n, DTYPE_BF16};
  b.out = (struct view){y, n, n, DTYPE_BF16}, b.sum = (struct view){sum, n, n, DTYPE_BF16};
  b.row_args = (struct row_args){.rows = m};
  b.row_args.in[0] = sum, b.row_args.out[0] = y, b.row_args.in[1] = data[4];
  b.row_args.in[2] = data[5];
  b.row_args.in_stride[0] = b.row_args.out_stride[0] = n;
  struct kernel_call call = call_of(&b, KERNEL_LINEAR);
  CHECK_CUDA(kernel_choose(&call, WORKSPACE_BYTES, &b.product));
  call = call_of(&b, KERNEL_LINEAR_NORM);
  b.then.kernel = &kernel_gemm_then_norm;
  CHECK_CUDA(kernel_gemm_then_norm.prepare(&call, WORKSPACE_BYTES, &b.then));
  struct norm_bench narrow = b, wide = b, alone = b, apart = b;
  narrow.width = gemm_norm_chunk(n), wide.width = 2 * gemm_norm_chunk(n);
  struct bench_work work[] = {{product_launch, &alone, 0},
                              {then_launch, &b, 0},
                              {fused_launch, &narrow, 0},
                              {fused_launch, &wide, 0},
                              {apart_launch, &apart, NAN}};
  bench_turns(work, norm ? 5 : 4, layers);
  double best = fmin(work[2].us, work[3].us),
         least = norm ? fmin(work[1].us, work[4].us) : work[1].us;
  printf("{\"work\": \"product, norm\", \"m\": %ld, \"k\": %d, \"n\": %d, \"product\": \"%s\", "
         "\"product_us\": %.2f, \"apart_us\": %.2f, \"two_us\": %.2f, \"%dx%d_us\": %.2f, "
         "\"%dx%d_us\": %.2f, \"gain\": %.3f}\n",
         (long)m, k, n, b.product.kernel->name, work[0].us, work[4].us, work[1].us,
         n / narrow.width, narrow.width, work[2].us, n / wide.width, wide.width, work[3].us,
         least / best);
  fflush(stdout);
  for (int i = 0; i < 6; i++)
    cudaFree(data[i]);
  cudaFree(y), cudaFree(sum);
}

int main(int argc, char **argv) {
  static const int64_t usual[] = {128, 256, 512, 1024, 2048, 4096, 16384};
  static const int32_t shapes[][3] = {{768, 768, 48},  {3072, 768, 16},  {384, 384, 24},
                                      {1536, 384, 24}, {1024, 1024, 32}, {4096, 1024, 8}};
  char message[LT_MESSAGE_BYTES];
  struct lt *lt;
  bench_start("gemm_norm");
  CHECK_CUDA(kernel_device_query(&device));
  if (lt_open(&lt, message) == 0)
    device.lt = lt;
  else
    fprintf(stderr, "%s\n", message);
  CHECK_CUDA(cudaMalloc(&workspace, WORKSPACE_BYTES));
  CHECK_CUDA(cudaMalloc((void **)&counters, KERNEL_COUNTERS * sizeof *counters));
  CHECK_CUDA(cudaMemset(counters, 0, KERNEL_COUNTERS * sizeof *counters));
  for (int s = 0; s < 6; s++) {
    struct row_program program;
    struct row_kernel kernel;
    int32_t n = shapes[s][1];
    bool built = generate(n, &program, &kernel);
    for (int i = 0; i < (argc > 1 ? argc - 1 : 7); i++)
      run_size(argc > 1 ? atol(argv[i + 1]) : usual[i], shapes[s][0], n, shapes[s][2],
               built ? &kernel : NULL);
    if (built) row_kernel_unload(&kernel);
  }
  return 0;
}
