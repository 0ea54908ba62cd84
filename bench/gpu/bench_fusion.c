// The experiments of bench/fusion.h on the GPU.
#include "../fusion.h"
#include "gpu_bench.h"

#include "backend/cuda/cuda_device.h"

static double copy_seconds(int64_t bytes, double seconds) {
  void *to, *from;
  (void)seconds;
  CHECK_CUDA(cudaMalloc(&to, (size_t)bytes));
  CHECK_CUDA(cudaMalloc(&from, (size_t)bytes));
  double us = bench_copy_us(to, from, (size_t)bytes);
  cudaFree(to), cudaFree(from);
  return us / 1e6;
}

// The steps of a plan that has run once: where its batch lies on the device is known since.
struct replay {
  const struct probe_plan *plan;
  struct batch_geometry geometry;
};

static void replay_launch(void *arg) {
  struct replay *r = arg;
  struct lane_plan *lane = r->plan->bound->lanes[r->plan->lane->index];
  for (int32_t i = 0; i < r->plan->plan->n_steps; i++)
    CHECK_CUDA(lane->launches[i].run(&lane->launches[i], &r->geometry, bench_stream));
}

static double kernel_seconds(struct probe_plan *plan) {
  struct replay r = {plan, plan->lane->geometry};
  const struct batch_geometry *batch = &plan->geometry;
  r.geometry.n_tokens = batch->n_tokens, r.geometry.n_seqs = batch->n_seqs;
  r.geometry.max_seqlen = batch->max_seqlen, r.geometry.sum_sq = batch->sum_sq;
  return bench_us(replay_launch, &r, 10) / 1e6;
}

int main(int argc, char **argv) {
  struct fusion_bench b = {
      .backend = &backend_cuda, .copy_seconds = copy_seconds, .kernel_seconds = kernel_seconds};
  if (backend_cuda.probe() == 0) return 77;
  bench_start("fusion");
  return fusion_main(&b, argc, argv);
}
