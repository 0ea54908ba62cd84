#include "backend/cuda/weights.h"
#include "backend/convert.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PART_ALIGN 16 // of a part inside a block that an operand may point at

// ---- on the way to the card ----
enum status upload_open(struct device *device, struct upload *out, struct error *err) {
  *out = (struct upload){.device = device, .ops = convert_ops()};
  int rc = cudaStreamCreateWithFlags(&out->stream, cudaStreamNonBlocking);
  for (int i = 0; rc == 0 && i < UPLOAD_CHUNKS; i++) {
    rc = cudaMallocHost((void **)&out->chunk[i], UPLOAD_CHUNK_BYTES);
    if (rc == 0) rc = cudaEventCreateWithFlags(&out->copied[i], cudaEventDisableTiming);
  }
  enum status status = cuda_check(device, rc, "memory to upload weights through", err);
  if (status != STATUS_OK) upload_close(out);
  return status;
}

enum status upload_finish(struct upload *upload, struct error *err) {
  return cuda_check(upload->device, cudaStreamSynchronize(upload->stream), "upload of weights",
                    err);
}

void upload_close(struct upload *upload) {
  for (int i = 0; i < UPLOAD_CHUNKS; i++) {
    if (upload->copied[i]) cudaEventDestroy(upload->copied[i]);
    if (upload->chunk[i]) cudaFreeHost(upload->chunk[i]);
  }
  if (upload->stream) cudaStreamDestroy(upload->stream);
  *upload = (struct upload){0};
}

static int upload_weight(struct upload *upload, const struct weight *w, enum dtype dtype,
                         char *to) {
  size_t to_bytes = dtype_bytes(dtype);
  int64_t n = (int64_t)w->rows * w->cols, chunk = UPLOAD_CHUNK_BYTES / (int64_t)to_bytes;
  for (int64_t i = 0; i < n; i += chunk) {
    int64_t m = n - i < chunk ? n - i : chunk;
    int at = upload->next;
    upload->next = (at + 1) % UPLOAD_CHUNKS;
    int rc = cudaEventSynchronize(upload->copied[at]); // done at once when it never was recorded
    if (rc != 0) return rc;
    convert_weight(upload->ops, w, i, m, dtype, upload->chunk[at]);
    rc = cudaMemcpyAsync(to + (size_t)i * to_bytes, upload->chunk[at], (size_t)m * to_bytes,
                         cudaMemcpyHostToDevice, upload->stream);
    if (rc == 0) rc = cudaEventRecord(upload->copied[at], upload->stream);
    if (rc != 0) return rc;
  }
  return 0;
}

// ---- blocks ----
static int64_t weight_bytes(const struct weight *w, enum dtype dtype) {
  return (int64_t)w->rows * w->cols * (int64_t)dtype_bytes(dtype); // bounds.h bounds each factor
}

// Where the operand's parts lie in the block, one after another; -1: they do not, or not aligned.
static int64_t offset_in(const struct weight_block *block, const struct operand *operand) {
  int64_t offset = 0;
  for (int first = 0; first + operand->n_parts <= block->n_parts; first++) {
    bool same = true;
    for (int i = 0; i < operand->n_parts; i++)
      same = same && block->weight[first + i] == operand->weight[i];
    if (same) return offset % PART_ALIGN == 0 ? offset : -1;
    offset += weight_bytes(&block->table[block->weight[first]], block->dtype);
  }
  return -1;
}

static struct weight_block *block_find(const struct device *device,
                                       const struct weight_table *table,
                                       const struct operand *operand, int64_t *offset) {
  for (struct weight_block *block = device->weights; block; block = block->next) {
    if (block->table != table->weights || block->dtype != operand->dtype) continue;
    *offset = offset_in(block, operand);
    if (*offset >= 0) return block;
  }
  *offset = 0;
  return NULL;
}

static enum status block_fill(struct upload *upload, struct weight_block *block,
                              struct error *err) {
  char *to = block->data;
  for (int i = 0; i < block->n_parts; i++) {
    const struct weight *w = &block->table[block->weight[i]];
    enum status status = cuda_check(upload->device, upload_weight(upload, w, block->dtype, to),
                                    "upload of weights", err);
    if (status != STATUS_OK) return status;
    to += weight_bytes(w, block->dtype);
  }
  return STATUS_OK;
}

static enum status block_new(struct upload *upload, const struct weight_table *table,
                             const struct operand *operand, struct weight_block **out,
                             struct error *err) {
  struct device *device = upload->device;
  struct weight_block *block = calloc(1, sizeof *block);
  if (!block) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a weight");
  *block = (struct weight_block){
      .table = table->weights, .n_parts = operand->n_parts, .dtype = operand->dtype};
  memcpy(block->weight, operand->weight, sizeof block->weight);
  for (int i = 0; i < block->n_parts; i++)
    block->bytes += weight_bytes(&table->weights[block->weight[i]], block->dtype);
  FW_ASSERT(block->bytes > 0); // shapes were checked when the graph was built
  char name[320];
  snprintf(name, sizeof name, "weight %s", table->weights[block->weight[0]].name);
  enum status status =
      cuda_memory_take(device, LEDGER_WEIGHTS, block->bytes, name, &block->data, err);
  if (status != STATUS_OK) {
    free(block);
    return status;
  }
  block->next = device->weights;
  device->weights = block;
  *out = block;
  return block_fill(upload, block, err);
}

enum status weight_get(struct upload *upload, const struct weight_table *table,
                       const struct operand *operand, struct weight_block **block, void **data,
                       struct error *err) {
  int64_t offset;
  enum status status = STATUS_OK;
  struct weight_block *found = block_find(upload->device, table, operand, &offset);
  if (!found) status = block_new(upload, table, operand, &found, err);
  *block = found; // also after a failed upload, so that it is put back
  if (!found) return status;
  found->refs++;
  *data = (char *)found->data + offset;
  return status;
}

void weight_put(struct device *device, struct weight_block *block) {
  FW_ASSERT(block->refs > 0);
  if (--block->refs > 0) return;
  struct weight_block **at = &device->weights;
  while (*at != block)
    at = &(*at)->next;
  *at = block->next;
  cuda_memory_give(device, LEDGER_WEIGHTS, block->data, block->bytes);
  free(block);
}

int64_t weight_table_bytes(const struct device *device, const struct weight_table *table) {
  int64_t bytes = 0;
  for (const struct weight_block *block = device->weights; block; block = block->next)
    if (block->table == table->weights) bytes += block->bytes;
  return bytes;
}
