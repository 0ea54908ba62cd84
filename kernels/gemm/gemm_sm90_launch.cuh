// Host side of one dtype's Hopper kernel: tensor maps, arguments, instantiation by tile and
// activation.
#ifndef GEMM_GEMM_SM90_LAUNCH_CUH
#define GEMM_GEMM_SM90_LAUNCH_CUH

#include "kernels/common/tensor_map.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_sm90.cuh"

// False: an operand that the kernel cannot read in pairs. take_apart: find the common form, and its
// activation.
static inline bool gemm_fill_epilogue(const struct linear_problem *p, const struct view *in,
                                      struct gemm_epilogue *e, int *act, bool take_apart) {
  e->n = p->n_epilogue;
  for (int i = 0; i < e->n; i++) {
    const struct epilogue_op *from = &p->epilogue[i];
    gemm_op *to = &e->op[i];
    *to = gemm_op{from->kind, from->act, from->imm, DTYPE_F32, nullptr, 0};
    if (from->kind == EPI_ACT || from->kind == EPI_SCALE) continue;
    const struct view *v = &in[from->operand];
    to->dtype = v->dtype, to->operand = v->data, to->stride = v->stride;
    if (v->dtype != DTYPE_F32 && v->dtype != p->x_dtype) return false;
    if (p->n % 2 != 0 || (uintptr_t)v->data % 8 != 0 ||
        (from->kind != EPI_BIAS && v->stride % 2 != 0))
      return false;
  }
  *act = ACT_NONE;
  if (!take_apart) return true;
  // is it [bias] [activation] [residual or gate] ?
  int at = 0;
  if (at < e->n && e->op[at].kind == EPI_BIAS) at++;
  if (at < e->n && e->op[at].kind == EPI_ACT) *act = e->op[at++].act;
  if (*act == ACT_RELU || *act == ACT_TANH || *act == ACT_SIGMOID)
    *act = GEMM_ACT_ANY; // no kernel of their own
  bool residual = at < e->n && (e->op[at].kind == EPI_ADD || e->op[at].kind == EPI_MUL);
  if (at + residual != e->n) *act = GEMM_ACT_ANY;
  if (*act == GEMM_ACT_ANY) return true;
  if (e->n && e->op[0].kind == EPI_BIAS)
    e->bias = e->op[0].operand, e->bias_wide = e->op[0].dtype == DTYPE_F32;
  if (residual) e->residual = true, e->op[0] = e->op[at];
  return true;
}

template <class C, int ACT>
static int gemm_launch(const CUtensorMap maps[4], const gemm_args *args, int sms,
                       cudaStream_t stream) {
  auto kernel = gemm_sm90<C, ACT>;
  cudaError_t rc =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, C::SHARED_BYTES);
  if (rc != cudaSuccess) return rc;
  const int64_t tiles = args->tiles.total, room = sms / C::CLUSTER;
  const unsigned blocks = (unsigned)((tiles < room ? tiles : room) * C::CLUSTER);
  kernel<<<blocks, C::THREADS, C::SHARED_BYTES, stream>>>(maps[0], maps[1], maps[2], maps[3],
                                                          *args);
  return cudaGetLastError();
}

template <class C>
static int gemm_launch_act(int act, const CUtensorMap maps[4], const gemm_args *args, int sms,
                           cudaStream_t stream) {
  switch (act) {
  case ACT_NONE:
    return gemm_launch<C, ACT_NONE>(maps, args, sms, stream);
  case ACT_GELU_ERF:
    return gemm_launch<C, ACT_GELU_ERF>(maps, args, sms, stream);
  case ACT_GELU_TANH:
    return gemm_launch<C, ACT_GELU_TANH>(maps, args, sms, stream);
  case ACT_SILU:
    return gemm_launch<C, ACT_SILU>(maps, args, sms, stream);
  default: // any list: on the ping-pong tile alone, whose warpgroups have the registers for it
    if constexpr (C::PINGPONG) return gemm_launch<C, GEMM_ACT_ANY>(maps, args, sms, stream);
    return CUDA_UNSUPPORTED;
  }
}

template <class C>
static int gemm_run(const struct linear_problem *p, const struct view *in, const struct view *y,
                    int64_t m, cudaStream_t stream) {
  CUtensorMap maps[4]; // x, W, y, residual
  gemm_args args = {};
  int act, sms, device, major;
  cudaError_t rc = cudaGetDevice(&device);
  if (rc == cudaSuccess) rc = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  if (rc == cudaSuccess)
    rc = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (rc != cudaSuccess) return rc;
  if (major != 9) return CUDA_UNSUPPORTED;
  int status = tensor_map_matrix(&maps[0], p->x_dtype, in[0].data, m, p->k, in[0].stride, C::BM);
  if (status == 0)
    status =
        tensor_map_matrix(&maps[1], p->w_dtype, in[1].data, p->n, p->k, in[1].stride, C::BN / 2);
  if (status != 0) return status;
  args.m = m, args.n = p->n, args.k = p->k;
  const int64_t clusters_m = (m + C::CLUSTER * C::BM - 1) / (C::CLUSTER * C::BM),
                tiles_n = (p->n + C::BN - 1) / C::BN;
  if (clusters_m > 32767 || tiles_n > 65535) return CUDA_UNSUPPORTED;
  args.tiles = gemm_tiles{(int)clusters_m, (int)tiles_n, (int)(clusters_m * tiles_n),
                          (p->k + C::BK - 1) / C::BK};
  args.y = y->data, args.y_stride = y->stride, args.y_dtype = p->y_dtype;
  args.y_bulk = p->y_dtype == p->x_dtype &&
                tensor_map_matrix(&maps[2], p->y_dtype, y->data, m, p->n, y->stride, 16) == 0;
  if (!args.y_bulk) maps[2] = maps[0]; // not used; any valid map
  if (!gemm_fill_epilogue(p, in, &args.epilogue, &act, true)) return CUDA_UNSUPPORTED;
  const gemm_op *r = &args.epilogue.op[0];
  if (!C::PINGPONG && (!args.y_bulk || args.epilogue.residual)) return CUDA_UNSUPPORTED;
  args.residual_bulk =
      C::PINGPONG && args.y_bulk && args.epilogue.residual && r->dtype == p->x_dtype &&
      tensor_map_matrix(&maps[3], p->x_dtype, r->operand, m, p->n, r->stride, 16) == 0;
  if (args.residual_bulk)
    args.epilogue.residual = false; // it comes through shared memory instead
  else
    maps[3] = maps[0];
  return gemm_launch_act<C>(act, maps, &args, sms, stream);
}

template <class T>
static int gemm_run_tile(const struct linear_problem *p, const struct view *in,
                         const struct view *y, int64_t m, enum gemm_tile tile,
                         cudaStream_t stream) {
  int rc = CUDA_UNSUPPORTED;
  if (tile == GEMM_COOPERATIVE_128x192)
    rc = gemm_run<gemm_config<T, 128, 192, 5, 1, false>>(p, in, y, m, stream);
  if (rc == CUDA_UNSUPPORTED)
    rc = gemm_run<gemm_config<T, 128, 128, 5, 4, true>>(p, in, y, m, stream);
  return rc;
}

#endif
