// Weight data as the back ends see it: a name, a shape, a dtype and read-only bytes (a mapped
// safetensors file or generated synthetic ones). Owned by model/weights. What is read where it is
// (tables, vectors) lives until every plan bound to it is unloaded; a product's matrix only until
// every plan is bound: the product keeps its own.
#ifndef GRAPH_WEIGHTS_H
#define GRAPH_WEIGHTS_H

#include "kernels/types.h"

struct weight {
  const char *name;
  enum dtype stored_dtype; // fp32, fp16, bf16 of the file; converted by the back end when it binds
  int32_t rows, cols;      // [rows, cols]; a vector has rows 1
  const void *data; // row-major, little-endian; a matrix has the alignment of the file: memcpy
};

struct weight_table {
  const struct weight *weights; // by weight id (tensor.index)
  int32_t n_weights;
};

#endif
