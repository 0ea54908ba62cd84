// Host side of unfused attention's products, one dtype of 16 bits.
#ifndef ATTENTION_PRODUCTS_LAUNCH_CUH
#define ATTENTION_PRODUCTS_LAUNCH_CUH

#include "kernels/attention/attention.h"
#include "kernels/attention/products.h"
#include "kernels/attention/products_mma.cuh"

static inline bool rows_aligned(const struct view *x) {
  return (uintptr_t)x->data % 16 == 0 && x->stride % 8 == 0;
}

template <class KERNEL> static int allow_shared(KERNEL kernel, int bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

template <class T>
static int scores_mma(const struct attention_problem *p, const struct view *q, const struct view *k,
                      float *scores, const struct batch_geometry *g, cudaStream_t stream) {
  products_args a = products_args_of(p, g);
  const int64_t tiles = scores_tile_bound(g, SCORES_TILE);
  const int width = (p->head_dim + 15) / 16 * 16;
  int bytes = 2 * SCORES_TILE * (width * 2 + 16);
  if (p->head_dim % 8 != 0 || p->head_dim > 256 || !rows_aligned(q) || !rows_aligned(k) ||
      tiles > INT32_MAX || p->heads > 65535)
    return CUDA_UNSUPPORTED;
  if (bytes < SCORES_THREADS / 32 * SCORES_PATCH) bytes = SCORES_THREADS / 32 * SCORES_PATCH;
  a.in[0] = q->data, a.stride[0] = q->stride, a.in[1] = k->data, a.stride[1] = k->stride;
  a.scores = scores;
  int rc = allow_shared(scores_mma_kernel<T>, bytes);
  if (rc != 0) return rc;
  scores_mma_kernel<T>
      <<<dim3((unsigned)tiles, (unsigned)p->heads), SCORES_THREADS, bytes, stream>>>(a);
  return cudaGetLastError();
}

template <class T, int D>
static int context_launch(const products_args *a, int64_t tiles, cudaStream_t stream) {
  const int bytes = 2 * CONTEXT_KEYS * (D * 2 + 16) + CONTEXT_THREADS / 32 * CONTEXT_PATCH;
  int rc = allow_shared(context_mma_kernel<T, D>, bytes);
  if (rc != 0) return rc;
  context_mma_kernel<T, D>
      <<<dim3((unsigned)tiles, (unsigned)a->heads), CONTEXT_THREADS, bytes, stream>>>(*a);
  return cudaGetLastError();
}

template <class T>
static int context_mma(const struct attention_problem *p, const float *scores, const struct view *v,
                       const struct view *out, const struct batch_geometry *g,
                       cudaStream_t stream) {
  products_args a = products_args_of(p, g);
  const int64_t tiles = row_tile_bound(g, CONTEXT_ROWS);
  if (p->head_dim % 8 != 0 || !rows_aligned(v) || (uintptr_t)out->data % 4 != 0 ||
      out->stride % 2 != 0 || tiles > INT32_MAX || p->heads > 65535)
    return CUDA_UNSUPPORTED;
  a.in[0] = v->data, a.stride[0] = v->stride, a.out = out->data, a.out_stride = out->stride;
  a.scores = (float *)(uintptr_t)scores;
  if (p->head_dim <= 32) return context_launch<T, 32>(&a, tiles, stream);
  if (p->head_dim <= 64) return context_launch<T, 64>(&a, tiles, stream);
  if (p->head_dim <= 96) return context_launch<T, 96>(&a, tiles, stream);
  if (p->head_dim <= 128) return context_launch<T, 128>(&a, tiles, stream);
  if (p->head_dim <= 256) return context_launch<T, 256>(&a, tiles, stream);
  return CUDA_UNSUPPORTED;
}

#endif
