// The table of kernels for products and attention (kernels.def), and the choice from it.
//
// At load a call's kernel is chosen once for each row count that will be run (a bucket): the choice
// is plain data, knows its kernel's name, whether it is a fallback, and the workspace it needs. At
// run time kernel_run launches it.
#ifndef KERNELS_KERNEL_H
#define KERNELS_KERNEL_H

#include "kernels/cuda.h"
#include "kernels/gemm/lt.h"

#ifdef __cplusplus
extern "C" {
#endif

// Facts of the device; who owns it fills them in.
struct kernel_device {
  int sm; // compute capability times ten: 90
  int multiprocessors;
  const struct lt *lt; // cuBLASLt; NULL where it was not opened
};
// The current device's, without cuBLASLt. 0 or a cudaError_t.
int kernel_device_query(struct kernel_device *out);

enum kernel_op { KERNEL_LINEAR, KERNEL_LINEAR_NORM, KERNEL_ATTENTION };
// One product or attention with its operands, as linear_run and attention_run have them; what
// EPI_SAVE of a product's list writes is in out[1 ..]. Of a
// product with a norm behind it, out[0] is y and out[1], where it is wanted, the sum; y must not
// overlap an input, but may be EPI_ADD's operand where the sum is not wanted.
struct kernel_call {
  const struct kernel_device *device;
  enum kernel_op op;
  const struct view *in, *out;
  int64_t m;                                 // products: rows of x
  const struct linear_problem *linear;       // of products
  const struct norm_problem *norm;           // of KERNEL_LINEAR_NORM
  const struct attention_problem *attention; // of KERNEL_ATTENTION
  const struct batch_geometry *geometry;     // of KERNEL_ATTENTION
  // KERNEL_LINEAR_NORM, when it runs: KERNEL_COUNTERS words of device memory, the stream's own. 0
  // before a kernel and after it.
  uint32_t *counters;
};

#define KERNEL_COUNTERS 1024

// What an operation of a product's epilogue reads, or EPI_SAVE writes; NULL: neither.
static inline const struct view *call_operand(const struct kernel_call *call,
                                              const struct epilogue_op *op) {
  if (op->kind == EPI_SAVE) return &call->out[op->operand];
  return epilogue_reads(op->kind) ? &call->in[op->operand] : NULL;
}

struct kernel;
struct kernel_choice {
  const struct kernel *kernel;
  size_t workspace_bytes;
  struct lt_plan lt;            // of the row `lt`
  const struct kernel *product; // of `gemm_then_norm`: the product's
};

struct kernel {
  const char *name; // for people: "gemm_sm90"
  enum kernel_op op;
  bool fallback; // takes what nothing faster takes: counted where it runs
  // Can this kernel compute the call? Pure: dtypes, strides, alignment of the addresses, m.
  bool (*supports)(const struct kernel_call *call);
  // Of those that can, is this one meant for it? NULL: always. Decides speed only.
  bool (*suits)(const struct kernel_call *call);
  // NULL: nothing to prepare. CUDA_UNSUPPORTED: not this kernel after all.
  int (*prepare)(const struct kernel_call *call, size_t workspace_bytes, struct kernel_choice *out);
  int (*run)(const struct kernel_choice *choice, const struct kernel_call *call, void *workspace,
             struct CUstream_st *stream);
};
#define KERNEL(name) extern const struct kernel kernel_##name;
#include "kernels/kernels.def"
#undef KERNEL

// Row `i` of the table, NULL past its end.
const struct kernel *kernel_at(int i);
// The first kernel of the table that can compute the call and is meant for it, else the first that
// can. Up to `workspace_bytes` of workspace. 0, or CUDA_UNSUPPORTED: none can. Load time: cuBLASLt
// is asked for an algorithm. A choice for m rows may run any smaller number of rows, and other
// addresses of the same alignment; a row's bits are the same whichever choice computes it.
int kernel_choose(const struct kernel_call *call, size_t workspace_bytes,
                  struct kernel_choice *out);
// workspace: choice->workspace_bytes of device memory of this stream's own, 256-byte aligned. May
// be captured.
int kernel_run(const struct kernel_choice *choice, const struct kernel_call *call, void *workspace,
               struct CUstream_st *stream);
// Both at once, on the current device and without cuBLASLt (call->device is not looked at).
int kernel_run_now(const struct kernel_call *call, struct CUstream_st *stream);

// Rows of 16-bit elements that can be read 16 bytes at a time.
static inline bool view_aligned(const struct view *v) {
  return (uintptr_t)v->data % 16 == 0 && v->stride > 0 && v->stride % 8 == 0;
}

// The same of elements of any dtype.
static inline bool view_rows_aligned(const struct view *v) {
  return (uintptr_t)v->data % 16 == 0 && v->stride > 0 &&
         v->stride * (int64_t)dtype_bytes(v->dtype) % 16 == 0;
}

#ifdef __cplusplus
}
#endif
#endif
