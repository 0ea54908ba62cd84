// NumPy's .npy files, versions 1.0 and 2.0 (3.0 too, when its header is ASCII): little-endian
// numbers in C order. The header is hostile input: no length, count or product in it is believed
// before it is checked.
#ifndef CLIENT_NPY_H
#define CLIENT_NPY_H

#include "client/tensor.h"

// Parse the whole file's bytes. Fills type, rank, dims of `out` and points `data` (borrowed) at the
// elements. INVALID_ARGUMENT with what was found and what was expected. Refused: Fortran order
// (unless the order makes no difference), big-endian, objects, strings, structured types, more than
// TENSOR_RANK dimensions, a file longer or shorter than its header says.
MUST_USE enum status npy_parse(struct slice file, struct infer_tensor *out, struct slice *data,
                               struct error *err);
// Read a file; `out` owns a copy of the elements. NOT_FOUND, INVALID_ARGUMENT, RESOURCE_EXHAUSTED.
MUST_USE enum status npy_read(const char *path, struct infer_tensor *out, struct error *err);
// Write version 1.0. BF16 is stored as '<u2' bit patterns. INVALID_ARGUMENT for types .npy has no
// word for.
MUST_USE enum status npy_write(const char *path, enum datatype type, const int64_t *dims, int rank,
                               struct slice data, struct error *err);

#endif
