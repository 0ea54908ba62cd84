#include "client/tensor.h"
#include "client/pb.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct datatype_row {
  const char *name;
  uint8_t bytes;
  const char *npy;
} datatypes[TYPE_COUNT] = {
    [TYPE_NONE] = {"?", 0, NULL},         [TYPE_BOOL] = {"BOOL", 1, "|b1"},
    [TYPE_UINT8] = {"UINT8", 1, "|u1"},   [TYPE_UINT16] = {"UINT16", 2, "<u2"},
    [TYPE_UINT32] = {"UINT32", 4, "<u4"}, [TYPE_UINT64] = {"UINT64", 8, "<u8"},
    [TYPE_INT8] = {"INT8", 1, "|i1"},     [TYPE_INT16] = {"INT16", 2, "<i2"},
    [TYPE_INT32] = {"INT32", 4, "<i4"},   [TYPE_INT64] = {"INT64", 8, "<i8"},
    [TYPE_FP16] = {"FP16", 2, "<f2"},     [TYPE_BF16] = {"BF16", 2, "<u2"},
    [TYPE_FP32] = {"FP32", 4, "<f4"},     [TYPE_FP64] = {"FP64", 8, "<f8"},
    [TYPE_BYTES] = {"BYTES", 0, NULL},
};

static const struct datatype_row *row_of(enum datatype type) {
  return &datatypes[(unsigned)type < TYPE_COUNT ? type : TYPE_NONE];
}

const char *datatype_name(enum datatype type) {
  return row_of(type)->name;
}

size_t datatype_bytes(enum datatype type) {
  return row_of(type)->bytes;
}

const char *datatype_npy(enum datatype type) {
  return row_of(type)->npy;
}

enum datatype datatype_of(struct slice name) {
  for (int type = TYPE_BOOL; type < TYPE_COUNT; type++) {
    if (slice_is(name, datatypes[type].name)) return (enum datatype)type;
  }
  return TYPE_NONE;
}

void tensor_free(struct infer_tensor *tensor) {
  free(tensor->data);
  tensor->data = NULL;
  tensor->bytes = 0;
}

enum status tensor_bytes(enum datatype type, const int64_t *dims, int rank, size_t *bytes) {
  size_t total = datatype_bytes(type);
  if (total == 0) return STATUS_INVALID_ARGUMENT;
  for (int i = 0; i < rank; i++) {
    if (dims[i] < 0 || __builtin_mul_overflow(total, (size_t)dims[i], &total)) {
      return STATUS_OUT_OF_RANGE;
    }
  }
  *bytes = total;
  return STATUS_OK;
}

enum status tensor_alloc(struct infer_tensor *tensor, size_t most, struct error *err) {
  char shape[128];
  size_t bytes = 0;
  const enum status status = tensor_bytes(tensor->type, tensor->dims, tensor->rank, &bytes);
  if (status != STATUS_OK) {
    return error_set(err, status, "%s: %s %s is not a tensor that can be made here", tensor->name,
                     datatype_name(tensor->type),
                     shape_text(tensor->dims, tensor->rank, shape, sizeof shape));
  }
  if (bytes > most) {
    return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                     "%s: %s %s has %zu bytes, and a message has no room for more than %zu",
                     tensor->name, datatype_name(tensor->type),
                     shape_text(tensor->dims, tensor->rank, shape, sizeof shape), bytes, most);
  }
  tensor->data = calloc(1, bytes ? bytes : 1);
  tensor->bytes = bytes;
  if (!tensor->data) {
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: no memory for %zu bytes", tensor->name,
                     bytes);
  }
  return STATUS_OK;
}

const char *shape_text(const int64_t *dims, int rank, char *out, size_t out_bytes) {
  size_t used = 0;
  out[0] = 0;
  for (int i = 0; i < rank && used < out_bytes; i++) {
    const int n = snprintf(out + used, out_bytes - used, "%s%" PRId64, i ? ", " : "[", dims[i]);
    used += n > 0 ? (size_t)n : 0;
  }
  if (used < out_bytes) snprintf(out + used, out_bytes - used, rank ? "]" : "[]");
  return out;
}
