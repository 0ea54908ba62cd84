// Host side of one dtype's kernel for few rows.
#ifndef GEMM_GEMM_SMALL_LAUNCH_CUH
#define GEMM_GEMM_SMALL_LAUNCH_CUH

#include "kernels/common/tensor_map.h"
#include "kernels/gemm/epilogue_fill.cuh"
#include "kernels/gemm/gemm_small.cuh"

template <class C> static int small_launch(const struct kernel_call *call, cudaStream_t stream) {
  const struct linear_problem *p = call->linear;
  const struct view *in = call->in, *y = call->out;
  const int64_t m = call->m;
  CUtensorMap map_x, map_w;
  gemm_args args = {};
  int act;
  const int64_t tiles_m = (m + C::BM - 1) / C::BM, tiles_n = ((int64_t)p->n + C::BN - 1) / C::BN;
  if (tiles_m > 65535 || tiles_n * C::SPLIT > INT32_MAX) return CUDA_UNSUPPORTED;
  const int x_rows = m < C::BM ? (int)(m + 7) / 8 * 8 : C::BM;
  int status = tensor_map_matrix(&map_x, p->x_dtype, in[0].data, m, p->k, in[0].stride, x_rows);
  if (status == 0)
    status = tensor_map_matrix(&map_w, p->w_dtype, in[1].data, p->n, p->k, in[1].stride, C::BN);
  if (status != 0) return status;
  gemm_fill_epilogue(call, &args.epilogue, &act, false);
  args.m = m, args.n = p->n, args.k = p->k;
  args.y = y->data, args.y_stride = y->stride, args.y_dtype = p->y_dtype;
  args.y_pairs = gemm_pairs(y, p);
  cudaError_t rc = cudaFuncSetAttribute(gemm_small<C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        C::SHARED_BYTES);
  if (rc != cudaSuccess) return rc;
  cudaLaunchConfig_t config = {};
  cudaLaunchAttribute attribute = {};
  config.gridDim = dim3((unsigned)(tiles_n * C::SPLIT), (unsigned)tiles_m);
  config.blockDim = dim3(C::THREADS);
  config.dynamicSmemBytes = C::SHARED_BYTES;
  config.stream = stream;
  if (C::SPLIT > 1) {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = C::SPLIT;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.attrs = &attribute, config.numAttrs = 1;
  }
  return cudaLaunchKernelEx(&config, gemm_small<C>, map_x, map_w, args, x_rows);
}

// A deep ring where every multiprocessor has one block at most, else a shallower one, so that two
// share it.
template <class T, int BN, int SPLIT>
static int small_run(const struct kernel_call *call, cudaStream_t stream) {
  constexpr int STAGE_KB = (64 + BN) / 8;
  const int64_t blocks = (call->m + 63) / 64 * ((call->linear->n + BN - 1) / BN) * SPLIT;
  if (blocks <= call->device->multiprocessors)
    return small_launch<small_config<T, BN, 200 / STAGE_KB, SPLIT>>(call, stream);
  return small_launch<small_config<T, BN, 100 / STAGE_KB, SPLIT>>(call, stream);
}

template <class T, int BN>
static int small_run_split(const struct kernel_call *call, int split, cudaStream_t stream) {
  if (call->m == 0) return 0;
  switch (split) {
  case 1:
    return small_run<T, BN, 1>(call, stream);
  case 2:
    return small_run<T, BN, 2>(call, stream);
  case 4:
    return small_run<T, BN, 4>(call, stream);
  case 8:
    return small_run<T, BN, 8>(call, stream);
  default:
    return CUDA_UNSUPPORTED;
  }
}

template <class T>
static int small_run_tile(const struct kernel_call *call, int bn, int split, cudaStream_t stream) {
  return bn == 32 ? small_run_split<T, 32>(call, split, stream)
                  : small_run_split<T, 64>(call, split, stream);
}

#endif
