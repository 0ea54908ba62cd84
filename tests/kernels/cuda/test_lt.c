// cuBLASLt beside our own kernels: a row's bits must not depend on which of them computes it, nor
// on how many rows there are. Then the table's choice: names, fallbacks, workspace.
#include "gpu_test.h"

#include "kernels/gemm/gemm.h"

#define WORKSPACE_BYTES ((size_t)32 << 20)
static struct kernel_device device;
static void *workspace;

struct product {
  struct linear_problem problem;
  struct view in[4], y;
  void *own; // what our kernel writes
};

static struct kernel_call call_of(const struct product *p, const struct view *y, int64_t m) {
  return (struct kernel_call){
      .device = &device, .op = KERNEL_LINEAR, .in = p->in, .out = y, .m = m, .linear = &p->problem};
}

static void *device_normal(enum dtype dtype, int64_t count, double scale) {
  size_t size = dtype_bytes(dtype);
  char *host = malloc((size_t)count * size);
  void *data;
  for (int64_t i = 0; i < count; i++) {
    float x = (float)(normal() * scale);
    uint16_t half = dtype == DTYPE_BF16 ? f32_to_bf16(x) : f32_to_f16(x);
    memcpy(host + (size_t)i * size, dtype == DTYPE_F32 ? (void *)&x : (void *)&half, size);
  }
  CHECK_CUDA(cudaMalloc(&data, (size_t)count * size));
  CHECK_CUDA(cudaMemcpy(data, host, (size_t)count * size, cudaMemcpyHostToDevice));
  free(host);
  return data;
}

static void own_run(const struct product *p, int64_t m) {
  struct view y = p->y;
  y.data = p->own;
  struct kernel_call call = call_of(p, &y, m);
  const struct kernel *kernel =
      kernel_gemm_small.suits(&call) ? &kernel_gemm_small : &kernel_gemm_sm90;
  struct kernel_choice choice = {.kernel = kernel};
  CHECK_CUDA(kernel_run(&choice, &call, NULL, NULL));
}

static int64_t differing(const struct product *p, const void *a, const void *b, int64_t m) {
  size_t count = (size_t)(m * p->problem.n), size = dtype_bytes(p->problem.y_dtype);
  char *x = malloc(count * size), *y = malloc(count * size);
  int64_t n = 0;
  CHECK_CUDA(cudaMemcpy(x, a, count * size, cudaMemcpyDeviceToHost));
  CHECK_CUDA(cudaMemcpy(y, b, count * size, cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < count; i++)
    n += memcmp(x + i * size, y + i * size, size) != 0;
  free(x), free(y);
  return n;
}

// Every row count by cuBLASLt's choice for it, and by its choice for the most rows. Result, bias
// and residual are in `y_dtype`.
static void rows_have_the_same_bits(enum dtype dtype, enum dtype y_dtype, int32_t n, int32_t k,
                                    int n_epilogue) {
  static const int64_t ms[] = {4096, 1,   2,   7,   8,   16,  31,   64,
                               100,  128, 200, 256, 300, 512, 1000, 2048};
  static const struct epilogue_op bias = {.kind = EPI_BIAS, .operand = 2},
                                  add = {.kind = EPI_ADD, .operand = 3};
  struct product p = {.problem = {.n = n, .k = k, .x_dtype = dtype, .w_dtype = dtype}};
  int taken = 0;
  size_t size = dtype_bytes(y_dtype);
  p.problem.y_dtype = y_dtype, p.problem.n_epilogue = (uint8_t)n_epilogue;
  p.problem.epilogue[0] = bias, p.problem.epilogue[1] = add;
  p.in[0] = (struct view){device_normal(dtype, ms[0] * k, 1), k, k, dtype};
  p.in[1] = (struct view){device_normal(dtype, (int64_t)n * k, 1 / sqrt(k)), k, k, dtype};
  p.in[2] = (struct view){device_normal(y_dtype, n, 1), n, n, y_dtype};
  p.in[3] = (struct view){device_normal(y_dtype, ms[0] * n, 1), n, n, y_dtype};
  CHECK_CUDA(cudaMalloc(&p.y.data, (size_t)(ms[0] * n) * size));
  CHECK_CUDA(cudaMalloc(&p.own, (size_t)(ms[0] * n) * size));
  p.y = (struct view){p.y.data, n, n, y_dtype};
  struct kernel_choice most, choice;
  for (size_t i = 0; i < sizeof ms / sizeof *ms; i++) {
    struct kernel_call call = call_of(&p, &p.y, ms[i]);
    CHECK_CUDA(kernel_choose(&call, WORKSPACE_BYTES, &choice));
    if (i == 0) most = choice;
    own_run(&p, ms[i]);
    for (int use_most = 0; use_most < 2; use_most++) {
      CHECK_CUDA(cudaMemset(p.y.data, 0xff, (size_t)(ms[i] * n) * size));
      CHECK_CUDA(kernel_run(use_most ? &most : &choice, &call, workspace, NULL));
      CHECK_CUDA(cudaDeviceSynchronize());
      int64_t wrong = differing(&p, p.y.data, p.own, ms[i]);
      checks++;
      if (wrong) {
        printf("FAIL %s to %s %ldx%dx%d, %d epilogue operations, %s%s: %ld elements differ from "
               "ours\n",
               dtype_name(dtype), dtype_name(y_dtype), (long)ms[i], n, k, n_epilogue,
               choice.kernel->name, use_most ? " (choice for 4096 rows)" : "", (long)wrong);
        failures++;
      }
    }
    taken += choice.kernel == &kernel_lt;
  }
  printf("%s to %s n %d k %d, %d epilogue operations: cublaslt took %d of %zu row counts\n",
         dtype_name(dtype), dtype_name(y_dtype), n, k, n_epilogue, taken, sizeof ms / sizeof *ms);
  for (int i = 0; i < 4; i++)
    cudaFree(p.in[i].data);
  cudaFree(p.y.data), cudaFree(p.own);
}

static void expect_choice(const char *what, const struct linear_problem *p, const struct view *in,
                          const struct view *y, int64_t m, const struct kernel *want) {
  struct product product = {.problem = *p};
  struct kernel_call call = call_of(&product, y, m);
  struct kernel_choice choice;
  call.in = in;
  CHECK_CUDA(kernel_choose(&call, WORKSPACE_BYTES, &choice));
  checks++;
  if (choice.kernel != want) {
    printf("FAIL %s: %s was chosen, not %s\n", what, choice.kernel->name, want->name);
    failures++;
  }
}

// Addresses that are never read: the choice launches nothing.
static void the_choice_follows_the_call(void) {
  struct view in[3] = {{(void *)0x1000, 768, 768, DTYPE_BF16},
                       {(void *)0x2000, 768, 768, DTYPE_BF16},
                       {(void *)0x3000, 3072, 3072, DTYPE_BF16}};
  struct view y = {(void *)0x4000, 3072, 3072, DTYPE_BF16};
  struct linear_problem p = {3072, 768, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, 2, {{0}}};
  p.epilogue[0] = (struct epilogue_op){.kind = EPI_BIAS, .operand = 2};
  p.epilogue[1] = (struct epilogue_op){.kind = EPI_ACT, .act = ACT_GELU_ERF};
  expect_choice("gelu, one row", &p, in, &y, 1, &kernel_gemm_small);
  expect_choice("gelu, many rows", &p, in, &y, 8192, &kernel_gemm_sm90);
  const struct kernel_device without = {device.sm, device.multiprocessors, NULL}, with = device;
  p.n_epilogue = 1;
  expect_choice("bias", &p, in, &y, 8192, with.lt ? &kernel_lt : &kernel_gemm_sm90);
  device = without;
  expect_choice("bias, no cublaslt", &p, in, &y, 8192, &kernel_gemm_sm90);
  device = with;
  p.y_dtype = y.dtype = DTYPE_F32;
  expect_choice("a result in fp32, a bias in bf16", &p, in, &y, 8192, &kernel_gemm_sm90);
  in[2].dtype = DTYPE_F32;
  expect_choice("a result and a bias in fp32", &p, in, &y, 8192,
                with.lt ? &kernel_lt : &kernel_gemm_sm90);
  p.y_dtype = y.dtype = DTYPE_BF16;
  expect_choice("a bias in fp32", &p, in, &y, 8192, &kernel_gemm_sm90);
  in[2].dtype = DTYPE_BF16;
  in[0].data = (void *)0x1002;
  expect_choice("x off its alignment", &p, in, &y, 8192, &kernel_gemm_simple);
}

int main(void) {
  char message[LT_MESSAGE_BYTES];
  struct lt *lt = NULL;
  need_gpu();
  CHECK_CUDA(kernel_device_query(&device));
  if (device.sm != 90) {
    printf("sm_%d: cuBLASLt is used on sm_90 alone: skipped\n", device.sm);
    return 77;
  }
  if (lt_open(&lt, message) != 0) printf("%s: our own kernels alone\n", message);
  device.lt = lt;
  CHECK_CUDA(cudaMalloc(&workspace, WORKSPACE_BYTES));
  printf("seed %#lx\n", (unsigned long)rng_state);
  static const int32_t shapes[][2] = {{3072, 768}, {768, 3072}, {768, 768},   {2304, 768},
                                      {384, 1536}, {1152, 384}, {1024, 1024}, {200, 72}};
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    enum dtype dtype = i % 3 == 2 ? DTYPE_F16 : DTYPE_BF16;
    for (int n_epilogue = 0; n_epilogue <= 2; n_epilogue++) {
      rows_have_the_same_bits(dtype, dtype, shapes[i][0], shapes[i][1], n_epilogue);
      rows_have_the_same_bits(dtype, DTYPE_F32, shapes[i][0], shapes[i][1], n_epilogue);
    }
  }
  the_choice_follows_the_call();
  cudaFree(workspace);
  lt_close(lt);
  return report("lt");
}
