// Host side of one dtype's kernel for few rows.
#ifndef GEMM_GEMM_SMALL_LAUNCH_CUH
#define GEMM_GEMM_SMALL_LAUNCH_CUH

#include "kernels/gemm/gemm_small.cuh"
#include "kernels/gemm/gemm_sm90_launch.cuh"

template <class C>
static int small_run(const struct linear_problem *p, const struct view *in, const struct view *y, int64_t m, int split, cudaStream_t stream) {
  CUtensorMap map_x, map_w;
  gemm_args args = {};
  int act, device, major;
  cudaError_t rc = cudaGetDevice(&device);
  if (rc == cudaSuccess) rc = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (rc != cudaSuccess) return rc;
  const int64_t tiles_m = (m + C::BM - 1) / C::BM, tiles_n = ((int64_t)p->n + C::BN - 1) / C::BN;
  if (major != 9 || tiles_m > 65535 || tiles_n * split > INT32_MAX) return CUDA_UNSUPPORTED;
  int status = tensor_map_matrix(&map_x, p->x_dtype, in[0].data, m, p->k, in[0].stride, C::BM);
  if (status == 0) status = tensor_map_matrix(&map_w, p->w_dtype, in[1].data, p->n, p->k, in[1].stride, C::BN);
  if (status != 0) return status;
  if (!gemm_fill_epilogue(p, in, &args.epilogue, &act, false)) return CUDA_UNSUPPORTED;
  args.m = m, args.n = p->n, args.k = p->k;
  args.y = y->data, args.y_stride = y->stride, args.y_dtype = p->y_dtype;
  args.y_bulk = p->n % 2 == 0 && y->stride % 2 == 0 && (uintptr_t)y->data % 4 == 0; // here: pairs may be stored as one
  rc = cudaFuncSetAttribute(gemm_small<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::SHARED_BYTES);
  if (rc != cudaSuccess) return rc;
  cudaLaunchConfig_t config = {};
  cudaLaunchAttribute attribute = {};
  config.gridDim = dim3((unsigned)(tiles_n * split), (unsigned)tiles_m);
  config.blockDim = dim3(C::THREADS);
  config.dynamicSmemBytes = C::SHARED_BYTES;
  config.stream = stream;
  if (split > 1) {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = split, attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.attrs = &attribute, config.numAttrs = 1;
  }
  return cudaLaunchKernelEx(&config, gemm_small<C>, map_x, map_w, args, split);
}

template <class T>
static int small_run_tile(const struct linear_problem *p, const struct view *in, const struct view *y, int64_t m, int bn, int split,
                          cudaStream_t stream) {
  if (split != 1 && split != 2 && split != 4 && split != 8) return CUDA_UNSUPPORTED;
  if (bn == 32) return small_run<small_config<T, 32, 8>>(p, in, y, m, split, stream);
  return small_run<small_config<T, 64, 6>>(p, in, y, m, split, stream);
}

#endif
