// How fast a device is, as far as the planner's cost model goes. Plain data: measured once for a
// device and kept by its id (backend/rates_file.h), or one of the documented defaults below.
#ifndef GRAPH_RATES_H
#define GRAPH_RATES_H

#include "kernels/types.h"

// The order in which a product's kernel computes its result, which decides what it reads again:
// blocks of `rows` x `cols` at a time (0: all), all columns of some rows before the next rows.
struct product_walk {
  int32_t rows, cols;
  bool roughly; // an order that is not known so well, and loses x by and by
};

// Kernels that compute products. Which one a product runs on: product_class_of (graph/cost.h).
enum product_class {
  CLASS_LIBRARY, // takes few epilogues (library_epilogues)
  CLASS_OWN,     // takes all
  CLASS_PLAIN,   // of dtypes that the others do not take (plain_dtypes): one kernel for all
  CLASS_COUNT
};

struct device_rates {
  // Bytes a second through main memory, read and written ones together, by their mix: reads alone,
  // two reads for each write, one read for each write, writes alone.
  double read, triad, copy, write;
  double cache;        // bytes a second between the last-level cache and the cores
  int64_t cache_bytes; // size of the last-level cache (a GPU's L2)
  // Shares of that cache: what survives in it between steps, and of a product's operands until its
  // blocks read them again.
  double kept, kept_product;
  // Floating-point operations a second of large matrix products, by dtype of the operands.
  double product[DTYPE_COUNT];
  // Of row programs, counted as docs/TRAFFIC.md does: plain operations (sums, products, maxima of
  // two values), norms and other reductions of rows, and activations (8 operations each by
  // convention) in the form that programs with fp32 results take, and in the one of 16-bit results.
  double vector, reduced, special, special_16;
  double softmax; // of a fused attention beside its products: 6 operations a score
  // Products of attention in fp32 where they do not run as products do. 0: as product; on a CPU
  // (`units` 0) as product in fp32, of whatever dtype attention's operands are.
  double attention_f32;
  // Of the same work in a product's epilogue: what one epilogue adds to the time of a product that
  // is bound by its arithmetic.
  double epilogue;
  double epilogue_f32; // of fp32 operands, whose activations are exact. 0: as epilogue
  // Values a second of a product's and an attention's result that a finish takes in its pieces,
  // over and above the arithmetic: short rows, far apart in memory, each piece readied for. 0: no
  // cost.
  double finish, attention_finish;
  // Bit per enum epilogue_kind that the fastest products take; others are for a kernel that reaches
  // the share `fused_product` of their rate. 0: all products are of one kernel.
  uint32_t library_epilogues;
  double fused_product;
  uint32_t plain_dtypes; // bit per dtype whose products are CLASS_PLAIN
  struct product_walk walks[CLASS_COUNT];
  double launch_us; // one more step in a plan
  double start_us;  // and how much later a product or an attention comes into its stride
  // What a request's time of compute has beside its kernels: the batch's graph begins, its ends are
  // stamped. No part of a plan's cost, which is what its kernels take one behind the other.
  double batch_us;
  // What runs blocks of a kernel at a time (a GPU's multiprocessors), and bytes a second that one
  // of them loads for a product. 0: work is divided finely enough for its size not to matter.
  int32_t units;
  double unit_load;
  // How well a product's arithmetic, and its epilogue and memory traffic, hide behind each other:
  // its time is (a^p + b^p)^(1/p). 0: the epilogue adds to the arithmetic, and the memory traffic
  // hides behind both.
  double overlap;
  // Bytes of a row's live values (registers x columns x 4) that a row program keeps near the units
  // that compute: in registers (GPU), in the core's own cache (CPU). Of longer rows it passes over
  // the values again for every reduction.
  int64_t row_bytes;
  // Of kernels that make the rows they pool: the most bytes of one row's values (0: no limit), and
  // how many blocks share a sequence. The row generator's numbers, as above.
  int64_t pool_row_bytes;
  int32_t pool_blocks;
};

// Defaults, for a device that has not been measured. GPU: an H200. CPU: `threads` cores of a
// server with AVX2 or more.
struct device_rates device_rates_gpu(void);
struct device_rates device_rates_cpu(int threads);

#endif
