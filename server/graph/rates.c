// The documented defaults of the cost model's constants; docs/PLANNER.md has their sources.
#include "graph/rates.h"

struct device_rates device_rates_gpu(void) {
  struct device_rates rates = {
      .read = 4.06e12,
      .triad = 4.28e12,
      .copy = 4.08e12,
      .write = 3.03e12,
      .cache = 6.3e12,
      .cache_bytes = 60 << 20,
      .vector = 28e12,
      .reduced = 28e12,
      .special = 4.2e12,
      .special_16 = 12.6e12,
      .softmax = 26e12,
      .attention_f32 = 28e12,
      .epilogue = 20e12,
      .epilogue_f32 = 3.0e12,
      .library_epilogues = 1u << EPI_BIAS | 1u << EPI_ADD, // kernels/gemm/lt.h
      .fused_product = 0.92,
      .launch_us = 2.0,
      .start_us = 1.0,
      .batch_us = 3.5,
      .units = 132,
      .unit_load = 100e9,
      .overlap = 1.6,
      .kept = 0.73,
      .kept_product = 0.47,
      .plain_dtypes = 1u << DTYPE_F32,
      .walks = {[CLASS_LIBRARY] = {.cols = 768, .roughly = true},
                // 66 clusters of 256 rows by 128 columns, 8 along the rows
                [CLASS_OWN] = {.rows = 2048, .cols = 1056},
                // kernels/gemm/walk.cuh
                [CLASS_PLAIN] = {.rows = 2048, .cols = 1056}},
      .row_bytes = 3 << 20,       // 96 floats a thread, 1,024 threads, clusters of 8 blocks
      .pool_row_bytes = 64 << 10, // 64 floats a thread, 256 threads
      .pool_blocks = 8,
  };
  rates.product[DTYPE_F32] = 74e12;
  rates.product[DTYPE_F16] = 770e12;
  rates.product[DTYPE_BF16] = 800e12;
  return rates;
}

struct device_rates device_rates_cpu(int threads) {
  double n = threads < 1 ? 1 : threads;
  // A few cores fill a memory channel each; eight are more than most sockets' memory can feed.
  double memory = 12e9 * (n < 8 ? n : 8 + (n - 8) / 4);
  struct device_rates rates = {
      .read = 1.1 * memory,
      .triad = 0.95 * memory,
      .copy = 0.9 * memory,
      .write = 0.6 * memory, // a line is read before it is written
      .cache = 30e9 * n,
      .cache_bytes = 32 << 20,
      .vector = 40e9 * n,
      .reduced = 10e9 * n,
      .special = 6.5e9 * n,
      .special_16 = 6.5e9 * n,
      .softmax = 6.5e9 * n,
      .epilogue = 12e9 * n,
      .finish = 0.5e9 * n, // both measured on an EPYC (docs/PLANNER.md)
      .attention_finish = 3e9 * n,
      .fused_product = 1,
      .launch_us = 1,
      .kept = 0.73,
      .kept_product = 0.47,
      // each thread has rows of its own and passes over all of W
      .walks = {[CLASS_LIBRARY] = {.rows = 32 * (int32_t)n},
                [CLASS_OWN] = {.rows = 32 * (int32_t)n},
                [CLASS_PLAIN] = {.rows = 32 * (int32_t)n}},
      .row_bytes = 512 << 10, // of the second-level cache
  };
  rates.product[DTYPE_F32] = 60e9 * n;
  rates.product[DTYPE_BF16] = rates.product[DTYPE_F16] = 120e9 * n;
  return rates;
}
