// How fast a device is, as far as the planner's cost model goes. Plain data: measured once for a
// device and kept by its id (backend/rates_file.h), or one of the documented defaults below.
#ifndef GRAPH_RATES_H
#define GRAPH_RATES_H

#include "kernels/types.h"

struct device_rates {
  // Bytes a second through main memory, read and written ones together, by their mix: reads alone,
  // two reads for each write, one read for each write, writes alone.
  double read, triad, copy, write;
  double cache;        // bytes a second between the last-level cache and the cores
  int64_t cache_bytes; // size of the last-level cache (a GPU's L2)
  // Floating-point operations a second of large matrix products, by dtype of the operands.
  double product[DTYPE_COUNT];
  double vector; // of element-wise fp32 work in row programs, counted as docs/TRAFFIC.md does
  // Of the same work in a product's epilogue: what one epilogue adds to the time of a product that
  // is bound by its arithmetic.
  double epilogue;
  // Bit per enum epilogue_kind that the fastest products take; others are for a kernel that reaches
  // the share `fused_product` of their rate. 0: all products are of one kernel.
  uint32_t library_epilogues;
  double fused_product;
  double launch_us;       // one more step in a plan
  int32_t tile_m, tile_n; // of a product's result, as it is computed
  int32_t tile_group;     // tiles of rows that are under way while the weights pass by once
  // Bytes of a row's live values (registers x columns x 4) that a row program keeps near the units
  // that compute: in registers (GPU), in the core's own cache (CPU). Of longer rows it passes over
  // the values again for every reduction.
  int64_t row_bytes;
};

// Defaults, for a device that has not been measured. GPU: an H200. CPU: `threads` cores of a
// server with AVX2 or more.
struct device_rates device_rates_gpu(void);
struct device_rates device_rates_cpu(int threads);

#endif
