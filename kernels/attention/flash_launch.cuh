// Host side of one dtype's flash kernel: tensor maps, arguments, instantiation by head size.
#ifndef ATTENTION_FLASH_LAUNCH_CUH
#define ATTENTION_FLASH_LAUNCH_CUH

#include "kernels/attention/attention.h"
#include "kernels/attention/flash_sm90.cuh"
#include "kernels/common/tensor_map.h"

template <class C>
static int flash_launch(const struct attention_problem *p, const struct view *in,
                        const struct view *out, const struct batch_geometry *g,
                        cudaStream_t stream) {
  flash_maps maps;
  int device, sms, major;
  cudaError_t rc = cudaGetDevice(&device);
  if (rc == cudaSuccess) rc = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  if (rc == cudaSuccess)
    rc = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (rc != cudaSuccess) return rc;
  if (major != 9 || (uintptr_t)out->data % 16 != 0 || out->stride % 8 != 0) return CUDA_UNSUPPORTED;
  CUtensorMap *const to[] = {&maps.q,       &maps.k,       &maps.v,
                             &maps.short_q, &maps.short_k, &maps.short_v};
  const int rows[] = {C::ROWS, C::KEYS, C::KEYS, FLASH_SHORT, FLASH_SHORT, FLASH_SHORT};
  int status = 0;
  for (int i = 0; i < 6 && status == 0; i++)
    status =
        tensor_map_heads(to[i], p->dtype, in[i % 3].data, g->n_tokens,
                         i % 3 == 0 ? p->heads : p->kv_heads, C::D, in[i % 3].stride, rows[i], 64);
  if (status != 0) return status;
  flash_args a = {};
  a.o = out->data, a.o_stride = out->stride, a.cu_seqlens = g->cu_seqlens;
  a.n_seqs = g->n_seqs, a.heads = p->heads, a.group = p->heads / p->kv_heads;
  a.scale_log2 = p->scale * FW_LOG2E;
  const int64_t tiles = row_tile_bound(g, C::ROWS) * a.heads; // there may be fewer
  if (tiles > INT32_MAX) return CUDA_UNSUPPORTED;
  rc = cudaFuncSetAttribute(flash_sm90<C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                            C::SHARED_BYTES);
  if (rc != cudaSuccess) return rc;
  flash_sm90<C>
      <<<(unsigned)(tiles < sms ? tiles : sms), C::THREADS, C::SHARED_BYTES, stream>>>(maps, a);
  return cudaGetLastError();
}

template <class T, int D, int KEYS, int NQ>
static int flash_run_causal(const struct attention_problem *p, const struct view *in,
                            const struct view *out, const struct batch_geometry *g,
                            cudaStream_t stream) {
  if (p->causal) return flash_launch<flash_config<T, D, KEYS, NQ, true>>(p, in, out, g, stream);
  return flash_launch<flash_config<T, D, KEYS, NQ, false>>(p, in, out, g, stream);
}

template <class T>
static int flash_run(const struct attention_problem *p, const struct view *in,
                     const struct view *out, const struct batch_geometry *g, cudaStream_t stream) {
  if (!(p->scale > 0.0f)) return CUDA_UNSUPPORTED;
  switch (p->head_dim) {
  case 32:
    return flash_run_causal<T, 32, 128, 2>(p, in, out, g, stream);
  case 64:
    return flash_run_causal<T, 64, 128, 2>(p, in, out, g, stream);
  case 80:
    return flash_run_causal<T, 80, 128, 2>(p, in, out, g, stream);
  case 96:
    return flash_run_causal<T, 96, 128, 2>(p, in, out, g, stream);
  case 128:
    return flash_run_causal<T, 128, 128, 2>(p, in, out, g, stream);
  case 256:
    return flash_run_causal<T, 256, 80, 1>(p, in, out, g, stream);
  default:
    return CUDA_UNSUPPORTED;
  }
}

#endif
