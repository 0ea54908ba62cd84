// Weights as their file has them, in the dtype that a plan computes in: for every back end.
#ifndef BACKEND_CONVERT_H
#define BACKEND_CONVERT_H

#include "graph/weights.h"
#include "kernels/cpu/features.h"

// The conversions of the best instruction set of this processor.
const struct cpu_ops *convert_ops(void);
// Elements [first, first + n) of a stored weight as `dtype`, into `out`. The file's data may lie at
// any address. Any thread.
void convert_weight(const struct cpu_ops *ops, const struct weight *w, int64_t first, int64_t n,
                    enum dtype dtype, void *out);

#endif
