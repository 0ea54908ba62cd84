// Packing of weights for our own fp32 product.
#include "kernels/cpu/own.h"

#include <string.h>

size_t own_f32_bytes(int32_t n, int32_t k, int32_t panel_cols) {
  size_t panels = (size_t)((n + panel_cols - 1) / panel_cols);
  return panels * (size_t)panel_cols * (size_t)k * sizeof(float);
}

void own_f32_pack(float *out, const float *w, int32_t n, int32_t k, int32_t panel_cols) {
  memset(out, 0, own_f32_bytes(n, k, panel_cols));
  for (int32_t col = 0; col < n; col++) {
    float *panel =
        out + (size_t)(col / panel_cols) * (size_t)panel_cols * (size_t)k + col % panel_cols;
    for (int32_t i = 0; i < k; i++)
      panel[(size_t)i * (size_t)panel_cols] = w[(size_t)col * (size_t)k + (size_t)i];
  }
}
