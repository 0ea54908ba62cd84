// Whole files, with errors that name them.
#ifndef CLIENT_FILE_H
#define CLIENT_FILE_H

#include "base/slab.h"
#include "base/status.h"

#define FILE_MAX_BYTES ((size_t)4 << 30) // more than a gRPC message can carry

// Regular files only (a FIFO could hang us). NOT_FOUND, INVALID_ARGUMENT, RESOURCE_EXHAUSTED. Free
// with file_free. The bytes are followed by one zero byte that `bytes` does not count.
MUST_USE enum status file_read(const char *path, struct slice *out, struct error *err);
void file_free(struct slice *file);
// Replaces the file. `path` "-" is standard output. FAILED_PRECONDITION: it cannot be written; the
// message has its name and the system's reason.
MUST_USE enum status file_write(const char *path, const struct slice *parts, int n_parts,
                                struct error *err);

#endif
