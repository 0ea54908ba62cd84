// The table of kernels and the choice from it.
#include "kernels/kernel.h"

#include <cuda_runtime_api.h>
#include <stddef.h>

static const struct kernel *const table[] = {
#define KERNEL(name) &kernel_##name,
#include "kernels/kernels.def"
#undef KERNEL
};
#define N_KERNELS ((int)(sizeof table / sizeof table[0]))

int kernel_device_query(struct kernel_device *out) {
  int device, major, minor;
  *out = (struct kernel_device){0};
  cudaError_t rc = cudaGetDevice(&device);
  if (rc == cudaSuccess)
    rc = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (rc == cudaSuccess)
    rc = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  if (rc == cudaSuccess)
    rc = cudaDeviceGetAttribute(&out->multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (rc != cudaSuccess) return rc;
  out->sm = major * 10 + minor;
  return 0;
}

const struct kernel *kernel_at(int i) {
  return i >= 0 && i < N_KERNELS ? table[i] : NULL;
}

static int choose(const struct kernel_call *call, size_t workspace_bytes, bool any,
                  struct kernel_choice *out) {
  for (int i = 0; i < N_KERNELS; i++) {
    const struct kernel *kernel = table[i];
    if (kernel->op != call->op || !kernel->supports(call)) continue;
    if (!any && kernel->suits && !kernel->suits(call)) continue;
    *out = (struct kernel_choice){.kernel = kernel};
    int rc = kernel->prepare ? kernel->prepare(call, workspace_bytes, out) : 0;
    if (rc != CUDA_UNSUPPORTED) return rc;
  }
  return CUDA_UNSUPPORTED;
}

int kernel_choose(const struct kernel_call *call, size_t workspace_bytes,
                  struct kernel_choice *out) {
  int rc = choose(call, workspace_bytes, false, out);
  if (rc == CUDA_UNSUPPORTED) rc = choose(call, workspace_bytes, true, out);
  if (rc != 0) *out = (struct kernel_choice){0};
  return rc;
}

int kernel_run(const struct kernel_choice *choice, const struct kernel_call *call, void *workspace,
               struct CUstream_st *stream) {
  return choice->kernel->run(choice, call, workspace, stream);
}

int kernel_run_now(const struct kernel_call *call, struct CUstream_st *stream) {
  struct kernel_device device;
  struct kernel_choice choice;
  struct kernel_call here = *call;
  here.device = &device;
  int rc = kernel_device_query(&device);
  if (rc == 0) rc = kernel_choose(&here, 0, &choice);
  return rc == 0 ? kernel_run(&choice, &here, NULL, stream) : rc;
}
