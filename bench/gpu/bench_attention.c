// Attention forward by graph replay: TFLOP/s as 4 b h s^2 d (half of that when causal). N(0,1)
// data, packed [T, 3 h d] input. peers_attention.py beside this runs PyTorch's cuDNN and flash
// kernels on the same shapes.
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
};

static void launch(void *arg) {
  struct launch *l = arg;
  CHECK_CUDA(attention_run(&l->p, l->in, &l->out, &l->g, bench_stream));
}

int main(void) {
  bench_start("attention");
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    const struct size *z = &sizes[i];
    int64_t t = (int64_t)z->b * z->s, cols = (int64_t)z->h * z->d;
    uint16_t *qkv = bench_normal(DTYPE_BF16, t * cols * 3, 1), *o;
    int32_t *cu, host[65];
    CHECK_CUDA(cudaMalloc((void **)&o, (size_t)(t * cols) * 2));
    CHECK_CUDA(cudaMalloc((void **)&cu, sizeof host));
    for (int k = 0; k <= z->b; k++)
      host[k] = k * z->s;
    CHECK_CUDA(cudaMemcpy(cu, host, sizeof host, cudaMemcpyHostToDevice));
    for (int causal = 0; causal < 2; causal++) {
      struct launch l = {
          .p = {z->h, z->h, z->d, causal, (float)(1 / sqrt(z->d)), DTYPE_BF16},
          .g = {.n_tokens = (int32_t)t, .n_seqs = z->b, .max_seqlen = z->s, .cu_seqlens = cu}};
      for (int k = 0; k < 3; k++)
        l.in[k] = (struct view){qkv + k * cols, 3 * cols, (int32_t)cols, DTYPE_BF16};
      l.out = (struct view){o, cols, (int32_t)cols, DTYPE_BF16};
      double flop = 4.0 * z->b * z->h * z->s * (double)z->s * z->d * (causal ? 0.5 : 1),
             us = bench_us(launch, &l, 5);
      printf("{\"work\": \"attention\", \"b\": %d, \"h\": %d, \"s\": %d, \"d\": %d, \"causal\": "
             "%d, \"us\": %.1f, \"tflops\": %.0f}\n",
             z->b, z->h, z->s, z->d, causal, us, flop / us / 1e6);
      fflush(stdout);
    }
    cudaFree(qkv), cudaFree(o), cudaFree(cu);
  }
  return 0;
}
