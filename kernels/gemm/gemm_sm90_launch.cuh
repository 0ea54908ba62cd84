// Host side of one dtype's Hopper kernel: tensor maps, arguments, instantiation by tile and activation.
#ifndef GEMM_GEMM_SM90_LAUNCH_CUH
#define GEMM_GEMM_SM90_LAUNCH_CUH

#include "kernels/common/tensor_map.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_sm90.cuh"

// False: an operand that the kernel cannot read in pairs.
static bool gemm_fill_epilogue(const struct linear_problem *p, const struct view *in, struct gemm_epilogue *e, int *act) {
  e->n = p->n_epilogue;
  for (int i = 0; i < e->n; i++) {
    const struct epilogue_op *from = &p->epilogue[i];
    gemm_op *to = &e->op[i];
    *to = gemm_op{from->kind, from->act, from->imm, DTYPE_F32, nullptr, 0};
    if (from->kind == EPI_ACT || from->kind == EPI_SCALE) continue;
    const struct view *v = &in[from->operand];
    to->dtype = v->dtype, to->operand = v->data, to->stride = v->stride;
    if (v->dtype != DTYPE_F32 && v->dtype != p->x_dtype) return false;
    if (p->n % 2 != 0 || (uintptr_t)v->data % 8 != 0 || (from->kind != EPI_BIAS && v->stride % 2 != 0)) return false;
  }
  // is it [bias] [activation] [residual or gate] ?
  int at = 0;
  *act = ACT_NONE;
  if (at < e->n && e->op[at].kind == EPI_BIAS) at++;
  if (at < e->n && e->op[at].kind == EPI_ACT) *act = e->op[at++].act;
  bool residual = at < e->n && (e->op[at].kind == EPI_ADD || e->op[at].kind == EPI_MUL);
  if (at + residual != e->n) {
    *act = GEMM_ACT_ANY;
    return true;
  }
  if (e->n && e->op[0].kind == EPI_BIAS) e->bias = e->op[0].operand, e->bias_wide = e->op[0].dtype == DTYPE_F32;
  if (residual) e->residual = true, e->op[0] = e->op[at];
  return true;
}

template <class C, int ACT>
static int gemm_launch(const CUtensorMap *x, const CUtensorMap *w, const CUtensorMap *y, const gemm_args *args, int sms, cudaStream_t stream) {
  auto kernel = gemm_sm90<C, ACT>;
  cudaError_t rc = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, C::SHARED_BYTES);
  if (rc != cudaSuccess) return rc;
  const int64_t clusters_m = (args->m + C::CLUSTER * C::BM - 1) / (C::CLUSTER * C::BM);
  const int64_t tiles = clusters_m * ((args->n + C::BN - 1) / C::BN), room = sms / C::CLUSTER;
  if (tiles > INT32_MAX) return CUDA_UNSUPPORTED;
  const unsigned blocks = (unsigned)((tiles < room ? tiles : room) * C::CLUSTER);
  kernel<<<blocks, C::THREADS, C::SHARED_BYTES, stream>>>(*x, *w, *y, *args);
  return cudaGetLastError();
}

template <class C>
static int gemm_launch_act(int act, const CUtensorMap *x, const CUtensorMap *w, const CUtensorMap *y, const gemm_args *args, int sms,
                           cudaStream_t stream) {
  switch (act) {
  case ACT_NONE: return gemm_launch<C, ACT_NONE>(x, w, y, args, sms, stream);
  case ACT_GELU_ERF: return gemm_launch<C, ACT_GELU_ERF>(x, w, y, args, sms, stream);
  case ACT_GELU_TANH: return gemm_launch<C, ACT_GELU_TANH>(x, w, y, args, sms, stream);
  case ACT_SILU: return gemm_launch<C, ACT_SILU>(x, w, y, args, sms, stream);
  case ACT_RELU: return gemm_launch<C, ACT_RELU>(x, w, y, args, sms, stream);
  case ACT_TANH: return gemm_launch<C, ACT_TANH>(x, w, y, args, sms, stream);
  case ACT_SIGMOID: return gemm_launch<C, ACT_SIGMOID>(x, w, y, args, sms, stream);
  default: return gemm_launch<C, GEMM_ACT_ANY>(x, w, y, args, sms, stream);
  }
}

template <class C>
static int gemm_run(const struct linear_problem *p, const struct view *in, const struct view *y, int64_t m, cudaStream_t stream) {
  CUtensorMap map_x, map_w, map_y;
  gemm_args args = {};
  int act, sms, device, major;
  cudaError_t rc = cudaGetDevice(&device);
  if (rc == cudaSuccess) rc = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  if (rc == cudaSuccess) rc = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (rc != cudaSuccess) return rc;
  if (major != 9) return CUDA_UNSUPPORTED;
  int status = tensor_map_matrix(&map_x, p->x_dtype, in[0].data, m, p->k, in[0].stride, C::BM);
  if (status == 0) status = tensor_map_matrix(&map_w, p->w_dtype, in[1].data, p->n, p->k, in[1].stride, C::BN / 2);
  if (status != 0) return status;
  args.m = m, args.n = p->n, args.k = p->k;
  args.y = y->data, args.y_stride = y->stride, args.y_dtype = p->y_dtype;
  args.y_bulk = p->y_dtype == p->x_dtype && tensor_map_matrix(&map_y, p->y_dtype, y->data, m, p->n, y->stride, 16) == 0;
  if (!args.y_bulk) map_y = map_x; // not used; any valid map
  if (!gemm_fill_epilogue(p, in, &args.epilogue, &act)) return CUDA_UNSUPPORTED;
  return gemm_launch_act<C>(act, &map_x, &map_w, &map_y, &args, sms, stream);
}

template <class T>
static int gemm_run_tile(const struct linear_problem *p, const struct view *in, const struct view *y, int64_t m, enum gemm_tile tile,
                         cudaStream_t stream) {
  if (tile == GEMM_PINGPONG_128x128) return gemm_run<gemm_config<T, 128, 128, 6, true>>(p, in, y, m, stream);
  return gemm_run<gemm_config<T, 128, 256, 4, false>>(p, in, y, m, stream);
}

#endif
