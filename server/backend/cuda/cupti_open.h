// CUPTI, opened late and by name: it comes with the toolkit, not with the driver, and a program
// that can do without it must start without it. Needs none of its headers.
#ifndef BACKEND_CUDA_CUPTI_OPEN_H
#define BACKEND_CUDA_CUPTI_OPEN_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>

struct cupti_function {
  const char *name;
  void **at; // where its address goes
};

// The library, which stays open, and all of `functions`. False: `why` says what is missing.
static inline bool cupti_open(const struct cupti_function *functions, size_t n, char *why,
                              size_t why_bytes) {
  static const char *const names[] = {"libcupti.so.13",
                                      "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13",
                                      "/usr/local/cuda/lib64/libcupti.so.13"};
  void *library = NULL;
  for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++)
    library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(why, why_bytes, "no %s where the loader looks, nor under /usr/local/cuda", names[0]);
    return false;
  }
  for (size_t i = 0; i < n; i++) {
    if ((*functions[i].at = dlsym(library, functions[i].name))) continue;
    snprintf(why, why_bytes, "the libcupti that was found has no %s", functions[i].name);
    return false;
  }
  return true;
}

#endif
