// Host side of one dtype's product with a norm behind it: tensor maps, arguments, clusters.
#ifndef GEMM_GEMM_NORM_SM90_LAUNCH_CUH
#define GEMM_GEMM_NORM_SM90_LAUNCH_CUH

#include "kernels/common/tensor_map.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_norm_sm90.cuh"

static inline void gemm_norm_weight(const struct kernel_call *call, uint8_t operand,
                                    const void **data, bool *wide) {
  *data = operand == ROW_NONE ? nullptr : call->in[operand].data;
  *wide = *data && call->in[operand].dtype == DTYPE_F32;
}

static inline void gemm_norm_fill(const struct kernel_call *call, gemm_norm_args *args) {
  const struct linear_problem *p = call->linear;
  for (int i = 0; i < p->n_epilogue; i++) {
    const struct epilogue_op *op = &p->epilogue[i];
    if (op->kind == EPI_BIAS) gemm_norm_weight(call, op->operand, &args->bias, &args->bias_wide);
    if (op->kind != EPI_ADD) continue;
    args->residual = call->in[op->operand].data;
    args->residual_stride = call->in[op->operand].stride;
  }
  gemm_norm_weight(call, call->norm->gamma, &args->gamma, &args->gamma_wide);
  gemm_norm_weight(call, call->norm->beta, &args->beta, &args->beta_wide);
  args->m = call->m;
  args->eps = call->norm->eps, args->rms = call->norm->kind == ROW_NORM_RMS;
  args->y = call->out[0].data, args->y_stride = call->out[0].stride;
  if (call->norm->sum) args->sum = call->out[1].data, args->sum_stride = call->out[1].stride;
}

// Neighbours in a group that share x.
static inline int gemm_norm_cluster(int blocks) {
  return blocks % 2 == 0 ? 2 : 1;
}

template <class C>
static cudaError_t gemm_norm_configure(int cluster, cudaStream_t stream, cudaLaunchConfig_t *config,
                                       cudaLaunchAttribute *attribute) {
  attribute->id = cudaLaunchAttributeClusterDimension;
  attribute->val.clusterDim.x = (unsigned)cluster;
  attribute->val.clusterDim.y = attribute->val.clusterDim.z = 1;
  config->blockDim = dim3(C::THREADS), config->gridDim = dim3((unsigned)cluster);
  config->dynamicSmemBytes = C::SHARED_BYTES, config->stream = stream;
  config->attrs = attribute, config->numAttrs = 1;
  return cudaFuncSetAttribute(gemm_norm_sm90<C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              C::SHARED_BYTES);
}

// Groups of so many blocks that the card runs at a time. The answer is kept: cards of one daemon
// are alike.
template <class C> static int gemm_norm_groups_of(int blocks, int *out) {
  static int known[9];
  *out = __atomic_load_n(&known[blocks], __ATOMIC_RELAXED);
  if (*out > 0) return 0;
  cudaLaunchConfig_t config = {};
  cudaLaunchAttribute attribute = {};
  int cluster = gemm_norm_cluster(blocks), clusters = 0;
  cudaError_t rc = gemm_norm_configure<C>(cluster, nullptr, &config, &attribute);
  if (rc == cudaSuccess) rc = cudaOccupancyMaxActiveClusters(&clusters, gemm_norm_sm90<C>, &config);
  if (rc != cudaSuccess) return rc;
  *out = clusters * cluster / blocks;
  if (*out < 1) return CUDA_UNSUPPORTED;
  __atomic_store_n(&known[blocks], *out, __ATOMIC_RELAXED);
  return 0;
}

template <class C>
static int gemm_norm_launch(const struct kernel_call *call, void *workspace, cudaStream_t stream) {
  const struct linear_problem *p = call->linear;
  const struct view *in = call->in;
  gemm_norm_args args = {};
  CUtensorMap map_x, map_w;
  gemm_norm_fill(call, &args);
  args.blocks = p->n / C::BN, args.cluster = gemm_norm_cluster(args.blocks);
  args.tiles = (int)((call->m + C::BM - 1) / C::BM);
  args.k_steps = (p->k + C::BK - 1) / C::BK;
  args.inverse = 1.0f / (float)p->n;
  args.exchange = workspace, args.arrived = call->counters;
  int groups, rc = gemm_norm_groups_of<C>(args.blocks, &groups);
  if (rc == 0)
    rc = tensor_map_matrix(&map_x, p->x_dtype, in[0].data, call->m, p->k, in[0].stride,
                           C::BM / args.cluster);
  if (rc == 0)
    rc = tensor_map_interleaved(&map_w, p->w_dtype, in[1].data, p->n, p->k, in[1].stride, C::BN);
  if (rc != 0) return rc;
  cudaLaunchConfig_t config = {};
  cudaLaunchAttribute attribute = {};
  cudaError_t status = gemm_norm_configure<C>(args.cluster, stream, &config, &attribute);
  if (status != cudaSuccess) return status;
  config.gridDim.x = (unsigned)((args.tiles < groups ? args.tiles : groups) * args.blocks);
  return cudaLaunchKernelEx(&config, gemm_norm_sm90<C>, map_x, map_w, args);
}

// As many stages as fit beside 24 KiB of other things.
template <class T, int BN, int CHUNK>
using gemm_norm_tile = gemm_norm_config<T, BN, CHUNK, 202 / ((128 + BN) / 8)>;

// What is to be done with the kernel of tiles of `width` columns.
#define GEMM_NORM_BY_WIDTH(T, width, call)                                                         \
  switch (width) {                                                                                 \
  case 96:                                                                                         \
    return call<gemm_norm_tile<T, 96, 96>>;                                                        \
  case 128:                                                                                        \
    return call<gemm_norm_tile<T, 128, 128>>;                                                      \
  case 192:                                                                                        \
    return call<gemm_norm_tile<T, 192, 96>>;                                                       \
  case 256:                                                                                        \
    return call<gemm_norm_tile<T, 256, 128>>;                                                      \
  default:                                                                                         \
    return nullptr;                                                                                \
  }

typedef int (*gemm_norm_launcher)(const struct kernel_call *call, void *workspace,
                                  cudaStream_t stream);
template <class T> static gemm_norm_launcher gemm_norm_launcher_of(int width) {
  GEMM_NORM_BY_WIDTH(T, width, gemm_norm_launch)
}
typedef int (*gemm_norm_counter)(int blocks, int *out);
template <class T> static gemm_norm_counter gemm_norm_counter_of(int width) {
  GEMM_NORM_BY_WIDTH(T, width, gemm_norm_groups_of)
}

// ---- rows in memory ----
template <class T, int CHUNK>
static int gemm_norm_rows_launch(const struct kernel_call *call, const struct view *x,
                                 cudaStream_t stream) {
  norm_rows_args args = {};
  gemm_norm_weight(call, call->norm->gamma, &args.gamma, &args.gamma_wide);
  gemm_norm_weight(call, call->norm->beta, &args.beta, &args.beta_wide);
  args.m = call->m, args.chunks = call->linear->n / CHUNK;
  args.threads_log2 = args.chunks > 4 ? 5 : args.chunks > 2 ? 4 : args.chunks > 1 ? 3 : 2;
  args.eps = call->norm->eps, args.rms = call->norm->kind == ROW_NORM_RMS;
  args.inverse = 1.0f / (float)call->linear->n;
  args.x = x->data, args.x_stride = x->stride;
  args.y = call->out[0].data, args.y_stride = call->out[0].stride;
  const int64_t rows = 128 >> args.threads_log2; // of a block
  gemm_norm_rows<T, CHUNK><<<(unsigned)((args.m + rows - 1) / rows), 128, 0, stream>>>(args);
  return cudaGetLastError();
}

template <class T>
static int gemm_norm_rows_run(const struct kernel_call *call, const struct view *x,
                              cudaStream_t stream) {
  if (call->m == 0) return 0;
  return gemm_norm_chunk(call->linear->n) == 96 ? gemm_norm_rows_launch<T, 96>(call, x, stream)
                                                : gemm_norm_rows_launch<T, 128>(call, x, stream);
}

template <class T>
static int gemm_norm_run(const struct kernel_call *call, int width, void *workspace,
                         cudaStream_t stream) {
  gemm_norm_launcher launch = gemm_norm_launcher_of<T>(width);
  if (!launch || call->linear->n % width != 0 || call->linear->n / width > 8)
    return CUDA_UNSUPPORTED;
  return call->m == 0 ? 0 : launch(call, workspace, stream);
}

#endif
