// Weights on the card: converted to the dtype that a plan computes in, several parts one after
// another, shared between the plans of one model. Control thread only; the device is current.
#ifndef BACKEND_CUDA_WEIGHTS_H
#define BACKEND_CUDA_WEIGHTS_H

#include "backend/cuda/cuda_device.h"

// One allocation: the rows of `weight` [n_parts] of a table, one after another. Kept in
// device.weights while any bound plan counts on it; the table outlives those.
struct weight_block {
  struct weight_block *next;
  const struct weight *table;
  int32_t weight[OPERAND_PARTS];
  uint8_t n_parts;
  enum dtype dtype;
  void *data;
  int64_t bytes;
  int32_t refs;
};

// Pinned memory through which weights go to the card, one chunk being converted while the other is
// copied. Zero is closed.
#define UPLOAD_CHUNK_BYTES (4 << 20)
#define UPLOAD_CHUNKS 2
struct upload {
  struct device *device;
  const struct cpu_ops *ops; // that convert
  cudaStream_t stream;
  char *chunk[UPLOAD_CHUNKS];
  cudaEvent_t copied[UPLOAD_CHUNKS];
  int next;
};
MUST_USE enum status upload_open(struct device *device, struct upload *out, struct error *err);
// Waits for what is on its way.
MUST_USE enum status upload_finish(struct upload *upload, struct error *err);
void upload_close(struct upload *upload);

// The operand's data: a block that holds its parts in this order, or a new one. `*block` is counted
// once for the caller (weight_put), `*data` points into it, 16-byte aligned.
MUST_USE enum status weight_get(struct upload *upload, const struct weight_table *table,
                                const struct operand *operand, struct weight_block **block,
                                void **data, struct error *err);
void weight_put(struct device *device, struct weight_block *block);
// Of all blocks of that table.
int64_t weight_table_bytes(const struct device *device, const struct weight_table *table);

#endif
