// Packing of weights for our own products.
#include "kernels/cpu/own.h"
#include "kernels/cpu/product.h"

#include <string.h>

size_t own_bytes(int32_t n, int32_t k, int32_t panel_cols, enum dtype dtype) {
  size_t panels = (size_t)((n + panel_cols - 1) / panel_cols);
  return panels * (size_t)panel_cols * (size_t)k * dtype_bytes(dtype);
}

size_t own_wide_floats(int32_t k) {
  size_t row = ((size_t)k + 15) & ~(size_t)15;
  return PRODUCT_ROWS * row + OWN_PANEL_MOST * (size_t)OWN_DEPTH;
}

// Always inlined into one call a width: the element's size is a constant in the loops.
static inline __attribute__((always_inline)) void
pack_panels(char *out, const char *w, int32_t n, int32_t k, int32_t panel_cols, size_t bytes) {
  for (int32_t col = 0; col < n; col++) {
    size_t first = (size_t)(col / panel_cols) * (size_t)panel_cols * (size_t)k;
    char *panel = out + (first + (size_t)(col % panel_cols)) * bytes;
    const char *row = w + (size_t)col * (size_t)k * bytes;
    for (int32_t i = 0; i < k; i++)
      memcpy(panel + (size_t)i * (size_t)panel_cols * bytes, row + (size_t)i * bytes, bytes);
  }
}

void own_pack(void *out, const void *w, int32_t n, int32_t k, int32_t panel_cols,
              enum dtype dtype) {
  memset(out, 0, own_bytes(n, k, panel_cols, dtype));
  if (dtype == DTYPE_BF16)
    pack_panels(out, w, n, k, panel_cols, sizeof(uint16_t));
  else
    pack_panels(out, w, n, k, panel_cols, sizeof(float));
}
