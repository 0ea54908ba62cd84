// The two ends of an encoder at BERT's shapes: three tables' rows summed and normalised, and
// sequences pooled and normalised. Beside the bytes that must move and a copy of as many. Then
// LayerNorm of rows that one block, and clusters of blocks, hold.
#include "gpu_bench.h"

#define I(op_, dst_, a_, ...)                                                                      \
  { .op = op_, .dst = dst_, .a = a_, __VA_ARGS__ }

struct launch {
  struct row_kernel kernel;
  struct row_args args;
};

static struct jit *jit;

static bool clusters = true;

static bool build(const struct row_program *p, struct row_kernel *out) {
  static char text[1 << 20];
  static struct row_ir ir;
  struct row_tile tiles[ROW_VARIANTS] = {{0}};
  char message[JIT_MESSAGE_BYTES];
  struct cubin cubin;
  if (!row_ir_build(p, &ir)) return false;
  ir.clusters = clusters;
  size_t n = strlen(row_prelude);
  memcpy(text, row_prelude, n);
  row_source_all(&ir, tiles, text + n, sizeof text - n);
  if (jit_compile(jit, text, "sm_90a", &cubin, message) != 0) {
    printf("%s\n", message);
    return false;
  }
  CHECK_CUDA(row_kernel_load(p, tiles, &cubin, out));
  cubin_free(&cubin);
  return true;
}

static void launch(void *arg) {
  struct launch *l = arg;
  CHECK_CUDA(row_kernel_run(&l->kernel, &l->args, bench_stream));
}

static void measure(const char *work, struct launch *l, const struct row_program *p, int64_t tokens,
                    double bytes) {
  void *from = bench_normal(DTYPE_F32, (int64_t)(bytes / 8) + 1, 1), *to;
  CHECK_CUDA(cudaMalloc(&to, (size_t)bytes));
  double copy_us = bench_copy_us(to, from, (size_t)(bytes / 2));
  if (!build(p, &l->kernel)) return;
  double us = bench_us(launch, l, 10);
  const struct row_tile *t = &l->kernel.tiles[0];
  printf("{\"work\": \"%s\", \"dtype\": \"%s\", \"rows\": %ld, \"tokens\": %ld, \"cols\": %d, "
         "\"us\": %.2f, \"copy_us\": %.2f, \"gbps\": %.0f, \"tile\": [%d, %d, %d, %d, %d]}\n",
         work, dtype_name(p->output_dtype[0]), (long)l->args.rows, (long)tokens, p->cols, us,
         copy_us, bytes / us / 1e3, t->group, t->depth, t->threads, t->cluster, t->slices);
  fflush(stdout);
  row_kernel_unload(&l->kernel);
  cudaFree(from), cudaFree(to);
}

static void embedding(enum dtype dtype, int64_t tokens, int32_t cols) {
  enum { WORDS = 30522, POSITIONS = 512 };
  struct row_program p = {.cols = cols, .n_inputs = 5, .n_outputs = 1, .n_insts = 9, .n_regs = 4};
  const struct row_inst insts[] = {
      I(RI_LOAD, 0, 0),        I(RI_LOAD, 1, 1),
      I(RI_ADD, 0, 0, .b = 1), I(RI_LOAD, 1, 2),
      I(RI_ADD, 0, 0, .b = 1), I(RI_LOAD, 1, 3),
      I(RI_LOAD, 2, 4),        I(RI_LAYER_NORM, 3, 0, .b = 1, .c = 2, .imm = 1e-12f),
      I(RI_STORE, 0, 3)};
  memcpy(p.insts, insts, sizeof insts);
  struct launch l = {.args.rows = tokens};
  size_t es = dtype_bytes(dtype);
  int64_t *ids = malloc(sizeof *ids * (size_t)tokens), rows[] = {WORDS, 2, POSITIONS, 1, 1};
  int32_t *positions = malloc(sizeof *positions * (size_t)tokens);
  for (int64_t t = 0; t < tokens; t++)
    ids[t] = t * 7919 % WORDS, positions[t] = (int32_t)(t % 128);
  for (int i = 0; i < 5; i++) {
    p.inputs[i] = (struct row_input){i < 3 ? IN_GATHER : IN_PER_COL, dtype,
                                     (uint8_t)(i == 0   ? 5
                                               : i == 1 ? 6
                                                        : 255)};
    l.args.in[i] = bench_normal(dtype, rows[i] * cols, 1);
    l.args.in_stride[i] = cols, l.args.in_rows[i] = rows[i];
  }
  for (int i = 5; i < 7; i++) { // word ids; types, all 0
    CHECK_CUDA(cudaMalloc((void **)(uintptr_t)&l.args.in[i], sizeof *ids * (size_t)tokens));
    CHECK_CUDA(cudaMemset((void *)(uintptr_t)l.args.in[i], 0, sizeof *ids * (size_t)tokens));
    l.args.in_stride[i] = 1, l.args.index_bytes[i] = 8;
  }
  CHECK_CUDA(cudaMemcpy((void *)(uintptr_t)l.args.in[5], ids, sizeof *ids * (size_t)tokens,
                        cudaMemcpyHostToDevice));
  CHECK_CUDA(cudaMalloc((void **)(uintptr_t)&l.args.positions, 4 * (size_t)tokens));
  CHECK_CUDA(cudaMemcpy((void *)(uintptr_t)l.args.positions, positions, 4 * (size_t)tokens,
                        cudaMemcpyHostToDevice));
  CHECK_CUDA(cudaMalloc(&l.args.out[0], (size_t)(tokens * cols) * es));
  l.args.out_stride[0] = cols;
  p.output_dtype[0] = dtype;
  // the small tables stay in the cache; of the large one every token has its row
  measure("embedding, layer norm", &l, &p, tokens,
          (double)tokens * (2.0 * cols * (double)es + 8 + 8 + 4));
  for (int i = 0; i < 7; i++)
    cudaFree((void *)(uintptr_t)l.args.in[i]);
  cudaFree((void *)(uintptr_t)l.args.positions), cudaFree(l.args.out[0]);
  free(ids), free(positions);
}

static void pool(enum dtype dtype, int32_t seqs, int32_t length, int32_t cols) {
  struct row_program p = {.cols = cols, .n_inputs = 1, .n_outputs = 1, .n_insts = 3, .n_regs = 1};
  const struct row_inst insts[] = {I(RI_LOAD, 0, 0), I(RI_NORMALIZE, 0, 0, .imm = 1e-12f),
                                   I(RI_STORE, 0, 0)};
  memcpy(p.insts, insts, sizeof insts);
  p.inputs[0] = (struct row_input){IN_POOL_MEAN, dtype, 0};
  p.output_dtype[0] = DTYPE_F32;
  int64_t tokens = (int64_t)seqs * length;
  int32_t *cu = malloc(sizeof *cu * (size_t)(seqs + 1));
  for (int i = 0; i <= seqs; i++)
    cu[i] = i * length;
  struct launch l = {.args.rows = seqs};
  l.args.in[0] = bench_normal(dtype, tokens * cols, 1), l.args.in_stride[0] = cols;
  CHECK_CUDA(cudaMalloc((void **)(uintptr_t)&l.args.cu_seqlens, sizeof *cu * (size_t)(seqs + 1)));
  CHECK_CUDA(cudaMemcpy((void *)(uintptr_t)l.args.cu_seqlens, cu, sizeof *cu * (size_t)(seqs + 1),
                        cudaMemcpyHostToDevice));
  CHECK_CUDA(cudaMalloc(&l.args.out[0], sizeof(float) * (size_t)(seqs * cols)));
  l.args.out_stride[0] = cols;
  measure("mean pool, normalize", &l, &p, tokens,
          (double)tokens * cols * (double)dtype_bytes(dtype) + 4.0 * seqs * cols);
  cudaFree((void *)(uintptr_t)l.args.in[0]), cudaFree((void *)(uintptr_t)l.args.cu_seqlens);
  cudaFree(l.args.out[0]);
  free(cu);
}

static void layer_norm(enum dtype dtype, int64_t rows, int32_t cols) {
  struct row_program p = {.cols = cols, .n_inputs = 3, .n_outputs = 1, .n_insts = 5, .n_regs = 4};
  const struct row_inst insts[] = {I(RI_LOAD, 0, 0), I(RI_LOAD, 1, 1), I(RI_LOAD, 2, 2),
                                   I(RI_LAYER_NORM, 3, 0, .b = 1, .c = 2, .imm = 1e-5f),
                                   I(RI_STORE, 0, 3)};
  memcpy(p.insts, insts, sizeof insts);
  struct launch l = {.args.rows = rows};
  for (int i = 0; i < 3; i++) {
    p.inputs[i] = (struct row_input){i == 0 ? IN_FULL : IN_PER_COL, dtype, 0};
    l.args.in[i] = bench_normal(dtype, i == 0 ? rows * cols : cols, 1), l.args.in_stride[i] = cols;
  }
  p.output_dtype[0] = dtype;
  CHECK_CUDA(cudaMalloc(&l.args.out[0], (size_t)(rows * cols) * dtype_bytes(dtype)));
  l.args.out_stride[0] = cols;
  measure("layer norm", &l, &p, rows, 2.0 * (double)(rows * cols) * (double)dtype_bytes(dtype));
  for (int i = 0; i < 3; i++)
    cudaFree((void *)(uintptr_t)l.args.in[i]);
  cudaFree(l.args.out[0]);
}

int main(void) {
  static const int32_t batches[][2] = {{1, 128}, {1, 512}, {32, 128}, {32, 512}, {256, 32}};
  char message[JIT_MESSAGE_BYTES];
  if (jit_open(&(struct jit_options){getenv("FUSEWIRE_JIT_CACHE")}, &jit, message) != 0) {
    printf("%s\n", message);
    return 1;
  }
  bench_start("embed");
  for (int i = 0; i < 5; i++) {
    int32_t n = batches[i][0], s = batches[i][1];
    embedding(DTYPE_BF16, (int64_t)n * s, 768);
    pool(DTYPE_BF16, n, s, 768);
  }
  embedding(DTYPE_F32, 32 * 128, 384);
  pool(DTYPE_F32, 32, 128, 384);
  pool(DTYPE_BF16, 1, 8192, 768);
  static const int32_t wide[][2] = {{16384, 4096}, {4096, 16384}, {1024, 65536}, {1024, 12288},
                                    {8, 65536},    {8, 8192},     {128, 262144}};
  for (int pass = 0; pass < 2; pass++, clusters = false) {
    for (int i = 0; i < 7; i++)
      layer_norm(DTYPE_BF16, wide[i][0], wide[i][1]);
    layer_norm(DTYPE_F32, 2048, 32768);
  }
  jit_close(jit);
  return 0;
}
