// In the place of onednn.c where the build leaves oneDNN out (FUSEWIRE_ONEDNN=OFF): every product
// is ours, and what ours cannot do is refused when a model is loaded.
#include "kernels/cpu/onednn.h"

struct onednn_slice *onednn_slice_create(const struct onednn_slice_spec *spec, const void *weights,
                                         const char **why) {
  (void)spec, (void)weights;
  *why = "this build has no oneDNN, and its own products take fp32, or bf16 on AMX with k a "
         "multiple of 32";
  return NULL;
}

void onednn_slice_destroy(struct onednn_slice *slice) {
  (void)slice;
}

bool onednn_slice_run(const struct onednn_slice *slice, int thread, int32_t rows, const void *x,
                      const float *bias, void *y) {
  (void)slice, (void)thread, (void)rows, (void)x, (void)bias, (void)y;
  return false;
}

int64_t onednn_slice_bytes(const struct onednn_slice *slice) {
  (void)slice;
  return 0;
}

void onednn_thread_init(void) {}

const char *onednn_version(void) {
  return NULL;
}
