// Host side of one dtype's Hopper kernel: tensor maps, arguments, instantiation by tile and
// activation.
#ifndef GEMM_GEMM_SM90_LAUNCH_CUH
#define GEMM_GEMM_SM90_LAUNCH_CUH

#include "kernels/common/tensor_map.h"
#include "kernels/gemm/epilogue_fill.cuh"
#include "kernels/gemm/gemm_sm90.cuh"

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
  default: // any list: on the ping-pong tiles alone, whose warpgroups have the registers for it
    if constexpr (C::PINGPONG) return gemm_launch<C, GEMM_ACT_ANY>(maps, args, sms, stream);
    return CUDA_UNSUPPORTED;
  }
}

template <class C> static int gemm_run(const struct kernel_call *call, cudaStream_t stream) {
  const struct linear_problem *p = call->linear;
  const struct view *in = call->in, *y = call->out;
  const int64_t m = call->m;
  CUtensorMap maps[4]; // x, W, y, residual
  gemm_args args = {};
  int act;
  int status = tensor_map_matrix(&maps[0], p->x_dtype, in[0].data, m, p->k, in[0].stride, C::BM);
  if (status == 0)
    status = (C::DIRECT ? tensor_map_interleaved : tensor_map_matrix)(
        &maps[1], p->w_dtype, in[1].data, p->n, p->k, in[1].stride, C::BN / 2);
  if (status != 0) return status;
  args.m = m, args.n = p->n, args.k = p->k;
  const int64_t clusters_m = (m + C::CLUSTER * C::BM - 1) / (C::CLUSTER * C::BM),
                tiles_n = (p->n + C::BN - 1) / C::BN;
  if (clusters_m > 32767 || tiles_n > 65535) return CUDA_UNSUPPORTED;
  args.tiles = gemm_tiles{(int)clusters_m, (int)tiles_n, (int)(clusters_m * tiles_n),
                          (p->k + C::BK - 1) / C::BK};
  args.y = y->data, args.y_stride = y->stride, args.y_dtype = p->y_dtype;
  args.y_pairs = gemm_pairs(y, p);
  args.y_bulk = p->y_dtype == p->x_dtype &&
                tensor_map_matrix(&maps[2], p->y_dtype, y->data, m, p->n, y->stride, 16) == 0;
  if (!args.y_bulk) maps[2] = maps[0]; // not used; any valid map
  gemm_fill_epilogue(call, &args.epilogue, &act, true);
  const gemm_op *r = &args.epilogue.op[0];
  const bool suits =
      act == GEMM_ACT_ANY ? gemm_list_direct(call) : args.y_bulk && !args.epilogue.residual;
  if (C::DIRECT && !suits) return CUDA_UNSUPPORTED;
  args.residual_bulk =
      !C::DIRECT && args.epilogue.residual && r->dtype == p->x_dtype &&
      tensor_map_matrix(&maps[3], p->x_dtype, r->operand, m, p->n, r->stride, 16) == 0;
  if (args.residual_bulk)
    args.epilogue.residual = false; // it comes through shared memory instead
  else
    maps[3] = maps[0];
  return gemm_launch_act<C>(act, maps, &args, call->device->multiprocessors, stream);
}

template <class T>
static int gemm_run_tile(const struct kernel_call *call, enum gemm_tile tile, cudaStream_t stream) {
  int rc = CUDA_UNSUPPORTED;
  if (call->m == 0) return 0;
  if (tile == GEMM_DIRECT_128x128)
    rc = gemm_run<gemm_config<T, 128, 128, 7, 0, true>>(call, stream);
  if (tile == GEMM_DEFERRED_128x192)
    rc = gemm_run<gemm_config<T, 128, 192, 5, 0, false>>(call, stream);
  if (tile == GEMM_DEFERRED_128x64)
    rc = gemm_run<gemm_config<T, 128, 64, 9, 0, false>>(call, stream);
  // What other tiles do not take: lists from registers where they can, all else through boxes.
  if (rc == CUDA_UNSUPPORTED && tile != GEMM_DIRECT_128x128 && tile != GEMM_PINGPONG_128x128)
    rc = gemm_run<gemm_config<T, 128, 128, 7, 0, true>>(call, stream);
  if (rc == CUDA_UNSUPPORTED) rc = gemm_run<gemm_config<T, 128, 128, 5, 4, true>>(call, stream);
  return rc;
}

#endif
