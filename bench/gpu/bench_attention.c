// Attention forward by graph replay: TFLOP/s as 4 b h s^2 d (half of that when causal). N(0,1)
// data, packed [T, 3 h d] input. peers_attention.py beside this runs PyTorch's cuDNN and flash
// kernels on the same shapes. Then the mma.sync kernel and the fp32 one, buckets larger than their
// batch, and unfused attention kernel by kernel beside the bytes that it must move.
#include "gpu_bench.h"

#include "kernels/attention/attention.h"

struct size {
  int b, h, s, d;
};
static const struct size sizes[] = {{32, 12, 128, 64},  {32, 12, 512, 64},  {8, 16, 2048, 64},
                                    {2, 16, 8192, 64},  {8, 16, 2048, 128}, {2, 16, 8192, 128},
                                    {4, 16, 2048, 256}, {8, 16, 2048, 96}};

struct launch {
  struct attention_problem p;
  struct batch_geometry g;
  struct view in[3], out;
  float *scores;
  int64_t tokens;
};

// b sequences of s tokens in arrays for `slots` sequences.
static void setup(struct launch *l, const struct size *z, enum dtype dtype, bool causal,
                  int slots) {
  int64_t t = (int64_t)z->b * z->s, cols = (int64_t)z->h * z->d;
  int32_t cu[1025];
  int64_t offset[1025];
  for (int k = 0; k <= slots; k++) {
    int n = k < z->b ? k : z->b;
    cu[k] = n * z->s, offset[k] = (int64_t)n * z->s * z->s;
  }
  size_t cu_bytes = sizeof *cu * (size_t)(slots + 1), offset_bytes = 2 * cu_bytes;
  *l =
      (struct launch){.p = {z->h, z->h, z->d, causal, (float)(1 / sqrt(z->d)), dtype}, .tokens = t};
  uint8_t *qkv = bench_normal(dtype, t * cols * 3, 1);
  void *o, *cu_device, *offset_device;
  CHECK_CUDA(cudaMalloc(&o, (size_t)(t * cols) * dtype_bytes(dtype)));
  CHECK_CUDA(cudaMalloc(&cu_device, cu_bytes));
  CHECK_CUDA(cudaMalloc(&offset_device, offset_bytes));
  CHECK_CUDA(cudaMemcpy(cu_device, cu, cu_bytes, cudaMemcpyHostToDevice));
  CHECK_CUDA(cudaMemcpy(offset_device, offset, offset_bytes, cudaMemcpyHostToDevice));
  for (int k = 0; k < 3; k++)
    l->in[k] = (struct view){qkv + (size_t)(k * cols) * dtype_bytes(dtype), 3 * cols, (int32_t)cols,
                             dtype};
  l->out = (struct view){o, cols, (int32_t)cols, dtype};
  l->g = (struct batch_geometry){.n_tokens = (int32_t)t,
                                 .n_seqs = slots,
                                 .max_seqlen = z->s,
                                 .sum_sq = offset[slots],
                                 .cu_seqlens = cu_device,
                                 .scores_offset = offset_device};
}

static void teardown(struct launch *l) {
  cudaFree(l->in[0].data), cudaFree(l->out.data), cudaFree(l->scores);
  cudaFree((void *)(uintptr_t)l->g.cu_seqlens), cudaFree((void *)(uintptr_t)l->g.scores_offset);
}

static void launch_fused(void *arg) {
  struct launch *l = arg;
  CHECK_CUDA(attention_run(&l->p, l->in, &l->out, &l->g, bench_stream));
}
static void launch_mma(void *arg) {
  struct launch *l = arg;
  CHECK_CUDA(flash_mma_bf16(&l->p, l->in, &l->out, &l->g, bench_stream));
}
static void launch_simple(void *arg) {
  struct launch *l = arg;
  CHECK_CUDA(attention_simple(&l->p, l->in, &l->out, &l->g, bench_stream));
}
static void launch_scores(void *arg) {
  struct launch *l = arg;
  CHECK_CUDA(attention_scores(&l->p, &l->in[0], &l->in[1], l->scores, &l->g, bench_stream));
}
static void launch_scale(void *arg) {
  struct launch *l = arg;
  CHECK_CUDA(attention_scores_scale(&l->p, l->scores, &l->g, bench_stream));
}
static void launch_softmax(void *arg) {
  struct launch *l = arg;
  CHECK_CUDA(attention_scores_softmax(&l->p, l->scores, &l->g, bench_stream));
}
static void launch_context(void *arg) {
  struct launch *l = arg;
  CHECK_CUDA(attention_context(&l->p, l->scores, &l->in[2], &l->out, &l->g, bench_stream));
}

static void fused(const char *work, const struct size *z, enum dtype dtype, bool causal,
                  void (*run)(void *), int slots, int scale) {
  struct launch l;
  setup(&l, z, dtype, causal, slots);
  l.g.n_tokens *= scale, l.g.max_seqlen *= scale; // a bucket's counts
  double flop = 4.0 * z->b * z->h * z->s * (double)z->s * z->d * (causal ? 0.5 : 1),
         us = bench_us(run, &l, 5);
  printf("{\"work\": \"%s\", \"dtype\": \"%s\", \"b\": %d, \"h\": %d, \"s\": %d, \"d\": %d, "
         "\"causal\": %d, \"slots\": %d, \"counts\": %d, \"us\": %.1f, \"tflops\": %.0f}\n",
         work, dtype_name(dtype), z->b, z->h, z->s, z->d, causal, slots, scale, us,
         flop / us / 1e6);
  fflush(stdout);
  teardown(&l);
}

static void unfused(const struct size *z, enum dtype dtype, bool causal) {
  struct launch l;
  setup(&l, z, dtype, causal, z->b);
  double scores = 4.0 * z->b * z->h * (double)z->s * z->s,
         rows = (double)l.tokens * z->h * z->d * (double)dtype_bytes(dtype);
  CHECK_CUDA(cudaMalloc((void **)&l.scores, (size_t)scores));
  const struct {
    const char *name;
    void (*run)(void *);
    double bytes;
  } parts[] = {{"scores", launch_scores, scores + 2 * rows},
               {"scale", launch_scale, 2 * scores},
               {"softmax", launch_softmax, 2 * scores},
               {"context", launch_context, scores + 2 * rows}};
  for (int i = 0; i < 4; i++) {
    double us = bench_us(parts[i].run, &l, 5);
    printf("{\"work\": \"unfused %s\", \"dtype\": \"%s\", \"b\": %d, \"h\": %d, \"s\": %d, "
           "\"d\": %d, \"causal\": %d, \"us\": %.1f, \"gbps\": %.0f}\n",
           parts[i].name, dtype_name(dtype), z->b, z->h, z->s, z->d, causal, us,
           parts[i].bytes / us / 1e3);
  }
  fflush(stdout);
  teardown(&l);
}

int main(void) {
  static const struct size minilm = {32, 12, 128, 32}, base = {32, 12, 128, 64},
                           base512 = {32, 12, 512, 64}, few = {2, 12, 60, 64};
  bench_start("attention");
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    for (int causal = 0; causal < 2; causal++)
      fused("attention", &sizes[i], DTYPE_BF16, causal, launch_fused, sizes[i].b, 1);
  }
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    for (int causal = 0; causal < 2; causal++)
      fused("attention mma", &sizes[i], DTYPE_BF16, causal, launch_mma, sizes[i].b, 1);
  }
  fused("attention", &minilm, DTYPE_BF16, false, launch_fused, 32, 1);
  fused("attention", &minilm, DTYPE_F32, false, launch_fused, 32, 1);
  fused("attention simple", &minilm, DTYPE_F32, false, launch_simple, 32, 1);
  fused("attention", &base512, DTYPE_F32, false, launch_fused, 32, 1);
  static const struct size shorts[] = {
      {256, 12, 20, 32}, {128, 12, 32, 64}, {64, 12, 64, 64}, {256, 12, 64, 32}, {64, 12, 128, 32}};
  for (int i = 0; i < 5; i++) {
    fused("attention", &shorts[i], DTYPE_BF16, false, launch_fused, shorts[i].b, 1);
    fused("attention mma", &shorts[i], DTYPE_BF16, false, launch_mma, shorts[i].b, 1);
  }
  fused("attention", &few, DTYPE_BF16, false, launch_fused, 2, 1);
  fused("attention", &few, DTYPE_BF16, false, launch_fused, 256, 1);
  fused("attention", &few, DTYPE_BF16, false, launch_fused, 1024, 8);
  fused("attention", &few, DTYPE_BF16, true, launch_fused, 1024, 8);
  unfused(&base, DTYPE_BF16, false);
  unfused(&base512, DTYPE_BF16, false);
  unfused(&base512, DTYPE_BF16, true);
  unfused(&minilm, DTYPE_F32, false);
  unfused(&base512, DTYPE_F32, false);
  return 0;
}
