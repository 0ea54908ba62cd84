// A safetensors file, mapped read-only, with every length, offset and shape checked before anybody
// may look.
//
// Layout: 8 bytes little-endian header length, a JSON object {name: {dtype, shape, data_offsets}},
// the data. Checked: the header fits and is a flat object without duplicate keys, each dtype is
// known, shape x dtype = bytes, offsets are inside the data, and the tensors cover the data without
// overlap or hole. Alignment of the data is not assumed. Load time only; read-only afterwards (any
// thread). The file must not be cut while it is mapped (until the model is bound): replace it by
// rename.
#ifndef MODEL_SAFETENSORS_H
#define MODEL_SAFETENSORS_H

#include "base/status.h"
#include "bounds.h"
#include "kernels/types.h"

struct safetensors;

struct safetensors_entry {
  const char *name;
  char dtype_word[16]; // as the file says: "F32"
  enum dtype dtype;    // DTYPE_INVALID: known to the format, but no dtype of ours (F64, U8, ...)
  int32_t rank;
  int64_t dims[LIMIT_TENSOR_RANK];
  const void *data;
  size_t bytes;
};

// NOT_FOUND: no such file; INVALID_ARGUMENT: not a regular file or not a right one;
// RESOURCE_EXHAUSTED: out of memory.
MUST_USE enum status safetensors_open(const char *path, struct safetensors **out,
                                      struct error *err);
// The same for bytes in memory, which stay the caller's and must outlive the result. `name` is for
// messages.
MUST_USE enum status safetensors_parse(const void *bytes, size_t n_bytes, const char *name,
                                       struct safetensors **out, struct error *err);
void safetensors_close(struct safetensors *file); // NULL is fine
int32_t safetensors_count(const struct safetensors *file);
const struct safetensors_entry *safetensors_at(const struct safetensors *file,
                                               int32_t index); // by name, ascending
const struct safetensors_entry *safetensors_find(const struct safetensors *file,
                                                 const char *name); // NULL: none

#endif
