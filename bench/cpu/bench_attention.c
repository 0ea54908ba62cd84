// One thread's fused attention: nanoseconds a head and GFLOP/s of the thread's CPU time, by
// sequence length.
//
//   bench_attention [--bf16] [--dim D] [--causal] [LENGTHS...]
#include "kernels/cpu/attention.h"
#include "kernels/cpu/features.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define HEADS 12

static double cpu_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void run_heads(const struct cpu_ops *ops, struct attention_call *call, int32_t length) {
  for (call->head = 0; call->head < HEADS; call->head++)
    for (call->first = 0; call->first < length; call->first += ATTENTION_QUERIES) {
      int32_t left = length - call->first;
      call->count = left < ATTENTION_QUERIES ? left : ATTENTION_QUERIES;
      ops->attention_run(call);
    }
}

// Best nanoseconds of one head of one sequence.
static double measure(const struct cpu_ops *ops, const struct attention_problem *problem,
                      int32_t length) {
  int32_t cu[2] = {0, length}, width = HEADS * problem->head_dim;
  int64_t offsets[2] = {0, (int64_t)length * length}, stride = 3 * width;
  size_t element = dtype_bytes(problem->dtype), elements = (size_t)(length * stride);
  struct batch_geometry g = {.n_tokens = length,
                             .n_seqs = 1,
                             .max_seqlen = length,
                             .cu_seqlens = cu,
                             .scores_offset = offsets};
  char *qkv = aligned_alloc(64, (elements * element + 63) & ~(size_t)63);
  char *o = aligned_alloc(64, ((size_t)(length * width) * element + 63) & ~(size_t)63);
  for (size_t i = 0; i < elements; i++) {
    float x = (float)(i * 7919 % 1000) * 2e-3f - 1;
    if (problem->dtype == DTYPE_F32)
      ((float *)qkv)[i] = x;
    else
      ((uint16_t *)qkv)[i] = f32_to_bf16(x);
  }
  struct attention_call call = {
      .problem = problem,
      .geometry = &g,
      .q = {qkv, stride, width, problem->dtype},
      .k = {qkv + (size_t)width * element, stride, width, problem->dtype},
      .v = {qkv + 2 * (size_t)width * element, stride, width, problem->dtype},
      .o = {o, width, width, problem->dtype}};
  call.scratch = aligned_alloc(64, (attention_scratch_bytes(problem) + 63) & ~(size_t)63);
  double best = 1e9;
  for (int repeat = 0; repeat < 60; repeat++) {
    double start = cpu_seconds();
    for (int i = 0; i < 4; i++)
      run_heads(ops, &call, length);
    double seconds = (cpu_seconds() - start) / (4 * HEADS);
    if (seconds < best) best = seconds;
  }
  free(qkv), free(o), free(call.scratch);
  return best * 1e9;
}

int main(int argc, char **argv) {
  struct attention_problem problem = {
      .heads = HEADS, .kv_heads = HEADS, .head_dim = 32, .dtype = DTYPE_F32};
  int32_t lengths[64] = {8, 25, 32, 64, 128, 512}, n = 0;
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--bf16"))
      problem.dtype = DTYPE_BF16;
    else if (!strcmp(argv[i], "--causal"))
      problem.causal = true;
    else if (!strcmp(argv[i], "--dim") && i + 1 < argc)
      problem.head_dim = atoi(argv[++i]);
    else if (n < 64)
      lengths[n++] = atoi(argv[i]);
  }
  if (n == 0) n = 6;
  problem.scale = 1 / sqrtf((float)problem.head_dim);
  struct cpu_features features;
  cpu_detect(&features);
  const struct cpu_ops *ops = cpu_ops_for(features.isa);
  printf("%s, %s, head dim %d%s\n", cpu_isa_name(ops->isa), dtype_name(problem.dtype),
         problem.head_dim, problem.causal ? ", causal" : "");
  for (int i = 0; i < n; i++) {
    double ns = measure(ops, &problem, lengths[i]), l = lengths[i];
    printf("  length %4d: %9.0f ns a head, %6.1f GFLOP/s\n", lengths[i], ns,
           4 * l * l * problem.head_dim / ns);
  }
  return 0;
}
