// What was measured of products of certain shapes (`fusewired tune`): fused with their epilogue,
// and with a row kernel after them. Where a measurement exists, it wins over the cost model.
#ifndef GRAPH_SHAPES_H
#define GRAPH_SHAPES_H

#include "kernels/types.h"

#define SHAPES_MAX 4096
#define SHAPE_EPILOGUE_BYTES 96

struct measured_shape {
  int32_t n, k, m; // m: rows of the batch
  enum dtype x_dtype, y_dtype;
  char epilogue[SHAPE_EPILOGUE_BYTES]; // shape_epilogue of all that may follow, "bias,gelu,add"
  double fused_us, apart_us; // cold caches; apart: product (with its own bias), then the rest
};

struct shape_table {
  struct measured_shape *shapes;
  int32_t n;
};

// The epilogue as one word; cut when it does not fit, which then matches nothing. Returns `out`.
const char *shape_epilogue(const struct epilogue_op *ops, int n, char out[SHAPE_EPILOGUE_BYTES]);
// The measurement of this problem whose m is nearest, by ratio, and at most twice or half of it.
// NULL: there is none. The first of equals.
const struct measured_shape *shape_find(const struct shape_table *table,
                                        const struct linear_problem *problem, int64_t m);

#endif
