// Weight data as the back ends see it: a name, a shape, a dtype and read-only bytes (a mapped
// safetensors file or generated synthetic ones). Owned by model/weights; lives until every plan
// bound to it is unloaded.
#ifndef GRAPH_WEIGHTS_H
#define GRAPH_WEIGHTS_H

#include "kernels/types.h"

struct weight {
  const char *name;
  enum dtype stored_dtype; // fp32, fp16, bf16 of the file; converted by the back end when it binds
  int32_t rows, cols;      // [rows, cols]; a vector has rows 1
  const void *data;        // row-major, little-endian; alignment of the file, so read with memcpy
};

struct weight_table {
  const struct weight *weights; // by weight id (tensor.index)
  int32_t n_weights;
};

#endif
