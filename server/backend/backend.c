// The back ends that this build knows, best first. One line adds one.
#include "backend/backend.h"

#include <string.h>

const struct backend_ops *const backend_table[] = {
#ifdef WITH_CUDA
    &backend_cuda,
#endif
    &backend_cpu,
    NULL,
};

const struct backend_ops *backend_find(const char *name) {
  for (const struct backend_ops *const *at = backend_table; *at; at++)
    if (strcmp((*at)->name, name) == 0) return *at;
  return NULL;
}
