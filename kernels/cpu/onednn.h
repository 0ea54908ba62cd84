// The library's side of products: what product.c needs from oneDNN. One file calls it (onednn.c),
// so that 2.x and 3.x differ in one place.
#ifndef KERNELS_CPU_ONEDNN_H
#define KERNELS_CPU_ONEDNN_H

#include "kernels/types.h"

struct onednn_slice; // primitives for every bucket of rows, and packed weights of some columns

struct onednn_slice_spec {
  int32_t n, k;
  enum dtype x_dtype, w_dtype, y_dtype;
  int64_t x_stride, y_stride; // elements
  bool bias;                  // fp32 [n], added before the store
  int n_threads;
};
// `weights` is [n, k] row-major of w_dtype and may be freed afterwards.
struct onednn_slice *onednn_slice_create(const struct onednn_slice_spec *spec, const void *weights,
                                         const char **why);
void onednn_slice_destroy(struct onednn_slice *slice);
// y [rows, n] = x [rows, k] W^T (+ bias).
bool onednn_slice_run(const struct onednn_slice *slice, int thread, int32_t rows, const void *x,
                      const float *bias, void *y);
int64_t onednn_slice_bytes(const struct onednn_slice *slice);
void onednn_thread_init(void);
const char *onednn_version(void); // "2.6.3"; NULL where the build has none (onednn_none.c)

#endif
