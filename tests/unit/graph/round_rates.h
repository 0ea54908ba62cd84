// A device of round numbers, for predictions that can be worked out by hand.
#ifndef TESTS_UNIT_GRAPH_ROUND_RATES_H
#define TESTS_UNIT_GRAPH_ROUND_RATES_H

#include "graph/plan.h"

// 1 TB/s memory, 4 TB/s cache of 40 MB, 100 TFLOP/s, 10 TFLOP/s beside products, 1 us a kernel.
// Work is divided finely, and a product's memory traffic hides behind its arithmetic.
static inline struct device_rates round_rates(void) {
  struct device_rates rates = {.read = 1e12,
                               .triad = 1e12,
                               .copy = 1e12,
                               .write = 1e12,
                               .cache = 4e12,
                               .cache_bytes = 40000000,
                               .vector = 10e12,
                               .reduced = 10e12,
                               .special = 10e12,
                               .special_16 = 10e12,
                               .softmax = 10e12,
                               .epilogue = 10e12,
                               .fused_product = 1,
                               .launch_us = 1,
                               .kept = 0.75,
                               .kept_product = 0.5,
                               .row_bytes = 1 << 18};
  for (int d = 0; d < DTYPE_COUNT; d++)
    rates.product[d] = 100e12;
  for (int kind = 0; kind < CLASS_COUNT; kind++)
    rates.walks[kind] = (struct product_walk){.rows = 1024};
  return rates;
}

#endif
