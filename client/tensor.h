// A tensor as the client handles it: name, wire datatype, shape, bytes. And the table of wire
// datatypes.
#ifndef CLIENT_TENSOR_H
#define CLIENT_TENSOR_H

#include "base/slab.h"
#include "base/status.h"
#include <stdint.h>

#define TENSOR_RANK 8
#define TENSOR_NAME_BYTES 256

enum datatype {
  TYPE_NONE,
  TYPE_BOOL,
  TYPE_UINT8,
  TYPE_UINT16,
  TYPE_UINT32,
  TYPE_UINT64,
  TYPE_INT8,
  TYPE_INT16,
  TYPE_INT32,
  TYPE_INT64,
  TYPE_FP16,
  TYPE_BF16,
  TYPE_FP32,
  TYPE_FP64,
  TYPE_BYTES,
  TYPE_COUNT,
};
const char *datatype_name(enum datatype type); // "INT64": the protocol's word; "?" outside the enum
enum datatype datatype_of(struct slice name);  // TYPE_NONE when unknown
size_t datatype_bytes(enum datatype type);     // of one element; 0 for BYTES and NONE
const char *datatype_npy(
    enum datatype type); // "<i8"; BF16 is written as "<u2"; NULL when .npy has no such type

struct infer_tensor {
  char name[TENSOR_NAME_BYTES];
  enum datatype type;
  int rank;
  int64_t dims[TENSOR_RANK];
  uint8_t *data; // owned (malloc), row-major, little-endian
  size_t bytes;
};

void tensor_free(struct infer_tensor *tensor);
// Product of dims times the element size, overflow-checked; dims must be >= 0 and type of fixed
// size.
MUST_USE enum status tensor_bytes(enum datatype type, const int64_t *dims, int rank, size_t *bytes);
// Allocate zeroed data for the type and dims already set, of at most `most` bytes: a server's word
// for a shape is not believed without a limit. RESOURCE_EXHAUSTED or INVALID_ARGUMENT.
MUST_USE enum status tensor_alloc(struct infer_tensor *tensor, size_t most, struct error *err);
// "[2, 128, 384]" into `out`; returns `out`.
const char *shape_text(const int64_t *dims, int rank, char *out, size_t out_bytes);

#endif
