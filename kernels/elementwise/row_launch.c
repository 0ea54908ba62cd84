// Generated row kernels: load a cubin, pick the variant that the pointers allow, launch.
#include "kernels/cuda.h"

#include <cuda_runtime_api.h>
#include <string.h>

int row_kernel_load(const struct row_program *prog, const struct row_tile tiles[ROW_VARIANTS],
                    const struct cubin *cubin, struct row_kernel *out) {
  cudaLibrary_t library;
  *out = (struct row_kernel){.prog = prog};
  cudaError_t rc = cudaLibraryLoadData(&library, cubin->data, NULL, NULL, 0, NULL, NULL, 0);
  if (rc != cudaSuccess) return rc;
  out->library = library;
  for (int v = 0; v < ROW_VARIANTS; v++) {
    out->tiles[v] = tiles[v];
    if (tiles[v].threads == 0) continue;
    cudaKernel_t kernel;
    rc = cudaLibraryGetKernel(&kernel, library, row_variant_name[v]);
    if (rc != cudaSuccess) {
      row_kernel_unload(out);
      return rc;
    }
    out->kernels[v] = kernel;
  }
  return 0;
}

void row_kernel_unload(struct row_kernel *kernel) {
  if (kernel->library) cudaLibraryUnload((cudaLibrary_t)kernel->library);
  *kernel = (struct row_kernel){0};
}

static bool aligned16(const void *data, int64_t stride, enum dtype dtype) {
  return (uintptr_t)data % 16 == 0 && stride * (int64_t)dtype_bytes(dtype) % 16 == 0;
}

// Of the inputs of a program, which are the kernel's from `first` on.
static void look_at(const struct row_program *prog, int first, const struct row_args *args,
                    bool *aligned, bool *contiguous) {
  for (int i = 0; i < prog->n_inputs; i++) {
    const struct row_input *in = &prog->inputs[i];
    int64_t stride = args->in_stride[first + i];
    if (in->cls == IN_PER_ROW || in->cls == IN_SCALAR || in->dtype > DTYPE_BF16) continue;
    *aligned &= aligned16(args->in[first + i], in->cls == IN_PER_COL ? 0 : stride, in->dtype);
    *contiguous &= stride == prog->cols;
  }
}

static enum row_variant pick(const struct row_kernel *kernel, const struct row_args *args) {
  const struct row_program *prog = kernel->prog;
  bool aligned = true, contiguous = true;
  look_at(prog, 0, args, &aligned, &contiguous);
  if (kernel->before) look_at(kernel->before, kernel->before_in, args, &aligned, &contiguous);
  for (int i = 0; i < prog->n_outputs; i++) {
    if (prog->output_is_scalar[i]) continue;
    aligned &= aligned16(args->out[i], args->out_stride[i], prog->output_dtype[i]);
    contiguous &= args->out_stride[i] == prog->cols;
  }
  if (aligned && kernel->kernels[ROW_VARIANT_VECTOR] &&
      !(contiguous && kernel->kernels[ROW_VARIANT_FLAT])) {
    return ROW_VARIANT_VECTOR;
  }
  // one long row needs aligned bases only: its strides are its length
  bool bases = true;
  for (int i = 0; i < prog->n_inputs; i++)
    bases &= prog->inputs[i].cls == IN_SCALAR || (uintptr_t)args->in[i] % 16 == 0;
  for (int i = 0; i < prog->n_outputs; i++)
    bases &= (uintptr_t)args->out[i] % 16 == 0;
  if (contiguous && bases && kernel->kernels[ROW_VARIANT_FLAT]) return ROW_VARIANT_FLAT;
  return ROW_VARIANT_SCALAR;
}

int row_kernel_run(const struct row_kernel *kernel, const struct row_args *args,
                   struct CUstream_st *stream) {
  if (args->rows == 0) return 0;
  enum row_variant variant = pick(kernel, args);
  const struct row_tile *tile = &kernel->tiles[variant];
  uint32_t blocks = row_tile_blocks(tile, kernel->prog->cols, args->rows);
  if (blocks == 0 || !kernel->kernels[variant]) return CUDA_UNSUPPORTED;
  void *params[] = {(void *)(uintptr_t)args};
  return cudaLaunchKernel(kernel->kernels[variant], (dim3){blocks, 1, 1},
                          (dim3){(unsigned)tile->threads, 1, 1}, params, 0, stream);
}
