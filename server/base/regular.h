// Files that are opened where nothing may wait: in place of one that was meant there may stand a
// FIFO, which holds whoever opens it until somebody writes, or a device without an end.
#ifndef BASE_REGULAR_H
#define BASE_REGULAR_H

#include "base/status.h"
#include <sys/stat.h>

// INVALID_ARGUMENT: something else stands there. OK also for what is not there at all: whoever
// opens it says why.
static inline enum status regular_file(const char *key, const char *path, struct error *err) {
  struct stat there;
  if (stat(path, &there) != 0 || S_ISREG(there.st_mode)) return STATUS_OK;
  return error_set(err, STATUS_INVALID_ARGUMENT, "%s: %.400s: not a regular file%s", key, path,
                   S_ISDIR(there.st_mode) ? " (a directory)" : "");
}

#endif
