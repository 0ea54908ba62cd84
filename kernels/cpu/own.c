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

void own_f32_pack(float *out, const float *w, int32_t n, int32_t k, int32_t panel_cols) {
  memset(out, 0, own_bytes(n, k, panel_cols, DTYPE_F32));
  for (int32_t col = 0; col < n; col++) {
    float *panel =
        out + (size_t)(col / panel_cols) * (size_t)panel_cols * (size_t)k + col % panel_cols;
    for (int32_t i = 0; i < k; i++)
      panel[(size_t)i * (size_t)panel_cols] = w[(size_t)col * (size_t)k + (size_t)i];
  }
}

void own_bf16_pack(uint16_t *out, const uint16_t *w, int32_t n, int32_t k, int32_t panel_cols) {
  memset(out, 0, own_bytes(n, k, panel_cols, DTYPE_BF16));
  for (int32_t col = 0; col < n; col++) {
    uint16_t *panel =
        out + (size_t)(col / panel_cols) * (size_t)panel_cols * (size_t)k + col % panel_cols;
    for (int32_t i = 0; i < k; i++)
      panel[(size_t)i * (size_t)panel_cols] = w[(size_t)col * (size_t)k + (size_t)i];
  }
}
