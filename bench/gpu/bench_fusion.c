// The experiments of bench/fusion.h on the GPU.
#include "../fusion.h"
#include "gpu_bench.h"

static double copy_seconds(int64_t bytes, double seconds) {
  void *to, *from;
  (void)seconds;
  CHECK_CUDA(cudaMalloc(&to, (size_t)bytes));
  CHECK_CUDA(cudaMalloc(&from, (size_t)bytes));
  double us = bench_copy_us(to, from, (size_t)bytes);
  cudaFree(to), cudaFree(from);
  return us / 1e6;
}

int main(int argc, char **argv) {
  struct fusion_bench b = {.backend = &backend_cuda, .copy_seconds = copy_seconds};
  if (backend_cuda.probe() == 0) return 77;
  bench_start("fusion");
  return fusion_main(&b, argc, argv);
}
