// Measures a device: the constants of the cost model, and single products fused and unfused. By the
// device's own back end, with small plans made for it: what is measured is what plans reach. Slow
// (seconds); at start or by `fusewired tune`, while nothing else runs on the device.
#ifndef BACKEND_MEASURE_H
#define BACKEND_MEASURE_H

#include "backend/backend.h"

struct measure_options {
  int64_t buffer_bytes; // of a matrix that no cache must hold; 0: twice the cache
  double seconds;       // that each figure may take; 0: 0.1
  int32_t scale;        // products are made this many times smaller (tests); 0: 1
};

// Fills what can be measured of caps.plan.rates; what cannot, or comes out as it cannot be, stays
// as there.
MUST_USE enum status measure_rates(const struct backend_ops *backend, struct device *device,
                                   const struct measure_options *options, struct device_rates *out,
                                   struct error *err);

// The steps of a plan (FUSION_ON) that are products with more than a bias behind them: each is
// measured for `m` rows with its epilogue and with a kernel after it, cold, and kept in `out`
// (room for SHAPES_MAX), in place of an older measurement of the same problem. How many, or -1.
int measure_shapes(const struct backend_ops *backend, struct device *device,
                   const struct measure_options *options, const struct graph *graph,
                   const struct plan *plan, int32_t m, struct shape_table *out, struct error *err);

#endif
