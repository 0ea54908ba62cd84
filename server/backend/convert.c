#include "backend/convert.h"

#include <string.h>

#define CONVERT_CHUNK 4096 // elements

const struct cpu_ops *convert_ops(void) {
  struct cpu_features features;
  cpu_detect(&features);
  const struct cpu_ops *ops = cpu_ops_for(features.isa);
  return ops ? ops : cpu_ops_for(CPU_PORTABLE);
}

// What is not aligned goes through a buffer that is before it is looked at as numbers.
void convert_weight(const struct cpu_ops *ops, const struct weight *w, int64_t first, int64_t n,
                    enum dtype dtype, void *out) {
  size_t from = dtype_bytes(w->stored_dtype), to = dtype_bytes(dtype);
  const char *src = (const char *)w->data + (size_t)first * from;
  if (w->stored_dtype == dtype) {
    memcpy(out, src, (size_t)n * to);
    return;
  }
  _Alignas(64) char buffer[CONVERT_CHUNK * sizeof(float)];
  for (int64_t i = 0; i < n; i += CONVERT_CHUNK) {
    int64_t m = n - i < CONVERT_CHUNK ? n - i : CONVERT_CHUNK;
    memcpy(buffer, src + (size_t)i * from, (size_t)m * from);
    ops->convert((char *)out + (size_t)i * to, dtype, buffer, w->stored_dtype, m);
  }
}
