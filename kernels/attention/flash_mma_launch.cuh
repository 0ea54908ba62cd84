// Host side of one dtype's flash_mma kernel: arguments, instantiation by head size.
#ifndef ATTENTION_FLASH_MMA_LAUNCH_CUH
#define ATTENTION_FLASH_MMA_LAUNCH_CUH

#include "kernels/attention/attention.h"
#include "kernels/attention/flash_mma.cuh"

static inline bool mma_rows_aligned(const struct view *x) {
  return (uintptr_t)x->data % 16 == 0 && x->stride % 8 == 0;
}

template <class C>
static int mma_launch(const struct attention_problem *p, const struct view *in,
                      const struct view *out, const struct batch_geometry *g, cudaStream_t stream) {
  mma_args args = {};
  flash_args *a = &args.a;
  const int64_t tiles = row_tile_bound(g, C::ROWS) * p->heads;
  if (tiles > INT32_MAX) return CUDA_UNSUPPORTED;
  args.q = in[0].data, args.q_stride = in[0].stride;
  args.k = in[1].data, args.k_stride = in[1].stride;
  args.v = in[2].data, args.v_stride = in[2].stride;
  a->o = out->data, a->o_stride = out->stride, a->cu_seqlens = g->cu_seqlens;
  a->n_seqs = g->n_seqs, a->heads = p->heads, a->group = p->heads / p->kv_heads;
  a->scale_log2 = p->scale * FW_LOG2E;
  cudaError_t rc = cudaFuncSetAttribute(flash_mma<C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        C::SHARED_BYTES);
  if (rc != cudaSuccess) return rc;
  flash_mma<C><<<(unsigned)tiles, C::THREADS, C::SHARED_BYTES, stream>>>(args);
  return cudaGetLastError();
}

template <class T, int D, int KEYS, int M>
static int mma_run_causal(const struct attention_problem *p, const struct view *in,
                          const struct view *out, const struct batch_geometry *g,
                          cudaStream_t stream) {
  if (p->causal) return mma_launch<mma_config<T, D, KEYS, M, true>>(p, in, out, g, stream);
  return mma_launch<mma_config<T, D, KEYS, M, false>>(p, in, out, g, stream);
}

template <class T>
static int mma_run(const struct attention_problem *p, const struct view *in, const struct view *out,
                   const struct batch_geometry *g, cudaStream_t stream) {
  if (!(p->scale > 0.0f) || !mma_rows_aligned(&in[0]) || !mma_rows_aligned(&in[1]) ||
      !mma_rows_aligned(&in[2]) || !mma_rows_aligned(out))
    return CUDA_UNSUPPORTED;
  switch (p->head_dim) {
  case 32:
    return mma_run_causal<T, 32, 64, 2>(p, in, out, g, stream);
  case 64:
    return mma_run_causal<T, 64, 64, 2>(p, in, out, g, stream);
  case 80:
    return mma_run_causal<T, 80, 64, 2>(p, in, out, g, stream);
  case 96:
    return mma_run_causal<T, 96, 32, 2>(p, in, out, g, stream);
  case 128:
    return mma_run_causal<T, 128, 32, 2>(p, in, out, g, stream);
  case 256:
    return mma_run_causal<T, 256, 32, 1>(p, in, out, g, stream);
  default:
    return CUDA_UNSUPPORTED;
  }
}

#endif
