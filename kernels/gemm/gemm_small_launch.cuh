// Host side of one dtype's kernel for few rows.
#ifndef GEMM_GEMM_SMALL_LAUNCH_CUH
#define GEMM_GEMM_SMALL_LAUNCH_CUH

#include "kernels/gemm/gemm_sm90_launch.cuh"
#include "kernels/gemm/gemm_small.cuh"

template <class C>
static int small_run(const struct linear_problem *p, const struct view *in, const struct view *y,
                     int64_t m, cudaStream_t stream) {
  CUtensorMap map_x, map_w;
  gemm_args args = {};
  int act, device, major;
  cudaError_t rc = cudaGetDevice(&device);
  if (rc == cudaSuccess)
    rc = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (rc != cudaSuccess) return rc;
  const int64_t tiles_m = (m + C::BM - 1) / C::BM, tiles_n = ((int64_t)p->n + C::BN - 1) / C::BN;
  if (major != 9 || tiles_m > 65535 || tiles_n * C::SPLIT > INT32_MAX) return CUDA_UNSUPPORTED;
  const int x_rows = m < C::BM ? (int)(m + 7) / 8 * 8 : C::BM;
  int status = tensor_map_matrix(&map_x, p->x_dtype, in[0].data, m, p->k, in[0].stride, x_rows);
  if (status == 0)
    status = tensor_map_matrix(&map_w, p->w_dtype, in[1].data, p->n, p->k, in[1].stride, C::BN);
  if (status != 0) return status;
  if (!gemm_fill_epilogue(p, in, &args.epilogue, &act, false)) return CUDA_UNSUPPORTED;
  args.m = m, args.n = p->n, args.k = p->k;
  args.y = y->data, args.y_stride = y->stride, args.y_dtype = p->y_dtype;
  args.y_bulk = p->n % 2 == 0 && y->stride % 2 == 0 &&
                (uintptr_t)y->data % 4 == 0; // here: pairs may be stored as one
  rc = cudaFuncSetAttribute(gemm_small<C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
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
    attribute.val.clusterDim.x = C::SPLIT,
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.attrs = &attribute, config.numAttrs = 1;
  }
  return cudaLaunchKernelEx(&config, gemm_small<C>, map_x, map_w, args, x_rows);
}

// A deep ring where every multiprocessor has one block at most, else a shallower one, so that two
// or three share it.
template <class T, int BN, int SPLIT>
static int small_run_depth(const struct linear_problem *p, const struct view *in,
                           const struct view *y, int64_t m, cudaStream_t stream) {
  constexpr int STAGE_KB = (64 + BN) / 8;
  const int64_t blocks = (m + 63) / 64 * ((p->n + BN - 1) / BN) * SPLIT;
  if (blocks <= 132)
    return small_run<small_config<T, BN, 192 / STAGE_KB, SPLIT>>(p, in, y, m, stream);
  return small_run<small_config<T, BN, 96 / STAGE_KB, SPLIT>>(p, in, y, m, stream);
}

template <class T, int BN>
static int small_run_split(const struct linear_problem *p, const struct view *in,
                           const struct view *y, int64_t m, int split, cudaStream_t stream) {
  switch (split) {
  case 1:
    return small_run_depth<T, BN, 1>(p, in, y, m, stream);
  case 2:
    return small_run_depth<T, BN, 2>(p, in, y, m, stream);
  case 4:
    return small_run_depth<T, BN, 4>(p, in, y, m, stream);
  case 8:
    return small_run_depth<T, BN, 8>(p, in, y, m, stream);
  default:
    return CUDA_UNSUPPORTED;
  }
}

template <class T>
static int small_run_tile(const struct linear_problem *p, const struct view *in,
                          const struct view *y, int64_t m, int bn, int split, cudaStream_t stream) {
  return bn == 32 ? small_run_split<T, 32>(p, in, y, m, split, stream)
                  : small_run_split<T, 64>(p, in, y, m, split, stream);
}

#endif
