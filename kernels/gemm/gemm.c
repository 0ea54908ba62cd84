// The rows of products in the table of kernels: which calls a kernel takes, and which it is meant
// for. Pure arithmetic on the shape and the addresses.
#include "kernels/gemm/gemm.h"

// Clusters of two 128-row tiles, tile_n columns wide.
static int64_t clusters(int64_t m, int32_t n, int tile_n) {
  return (m + 255) / 256 * ((n + tile_n - 1) / tile_n);
}

// Work of the busiest block, in columns of 128 x 64 x 1 products: what is left over in the last
// wave counts in full.
static int64_t busiest(int64_t m, int32_t n, int tile_n, int sms) {
  int64_t at_once = sms / 2;
  return (clusters(m, n, tile_n) + at_once - 1) / at_once * tile_n;
}

enum gemm_tile gemm_pick_tile(int64_t m, int32_t n, int sms) {
  if (gemm_pick_narrow(m, n, sms)) return GEMM_DEFERRED_128x64;
  int64_t direct = busiest(m, n, 128, sms), deferred = busiest(m, n, 192, sms);
  return deferred <= direct ? GEMM_DEFERRED_128x192 : GEMM_DIRECT_128x128;
}

static int64_t small_blocks(int64_t m, int32_t n, int bn) {
  return (m + 63) / 64 * (((int64_t)n + bn - 1) / bn);
}

// Few rows, or so few tiles that two a multiprocessor hold them all.
bool gemm_pick_small(int64_t m, int32_t n, int sms) {
  return m <= 64 || small_blocks(m, n, 64) <= 2 * sms;
}

bool gemm_pick_narrow(int64_t m, int32_t n, int sms) {
  return small_blocks(m, n, 64) > sms && clusters(m, n, 64) <= sms / 2;
}

int gemm_pick_small_n(int64_t m, int32_t n, int sms) {
  return small_blocks(m, n, 32) <= 2 * sms ? 32 : 64;
}

int gemm_pick_split(int64_t m, int32_t n, int32_t k, int bn, int sms) {
  int64_t blocks = small_blocks(m, n, bn);
  int split = 1;
  while (split < 8 && blocks * split * 2 <= sms && k / 64 / (split * 2) >= 3)
    split *= 2;
  return split;
}

static bool is_float(enum dtype dtype) {
  return dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16;
}

static bool is_spread(const struct epilogue_op *op) {
  return op->kind == EPI_ADD_SPREAD || op->kind == EPI_MUL_SPREAD;
}

// Is the operand read one value at a time, from anywhere?
static bool reads_singly(const struct epilogue_op *op) {
  return is_spread(op) && op->act >= SPREAD_COLUMNS;
}

// Operands for the tensor cores: x and W of one dtype, 16-byte rows, epilogue operands in pairs.
// Nothing here depends on m: all rows of a product take kernels that sum in the same order.
static bool tensor_core_operands(const struct kernel_call *call) {
  const struct linear_problem *p = call->linear;
  if (p->x_dtype != p->w_dtype || !is_float(p->x_dtype) || !is_float(p->y_dtype)) return false;
  if (!view_rows_aligned(&call->in[0]) || !view_rows_aligned(&call->in[1])) return false;
  for (int i = 0; i < p->n_epilogue; i++) {
    const struct epilogue_op *op = &p->epilogue[i];
    const struct view *v = call_operand(call, op);
    if (!v) continue;
    if (v->dtype != DTYPE_F32 && v->dtype != p->x_dtype) return false;
    bool singly = reads_singly(op);
    if (p->n % 2 != 0 || (!singly && (uintptr_t)v->data % 8 != 0) ||
        (op->kind != EPI_BIAS && !singly && v->stride % 2 != 0))
      return false;
  }
  return call->m <= INT32_MAX / 2; // a copy's coordinates are 32 bits
}

static bool narrow_operands(const struct kernel_call *call) {
  return call->linear->x_dtype != DTYPE_F32 && tensor_core_operands(call);
}

static bool hopper(const struct kernel_call *call) {
  return call->device->sm == 90 && narrow_operands(call);
}

// [bias] [activation], for the tiles that store straight from registers.
static bool direct_suits(const struct kernel_call *call) {
  const struct linear_problem *p = call->linear;
  for (int i = 0; i < p->n_epilogue; i++) {
    const struct epilogue_op *op = &p->epilogue[i];
    bool bias = op->kind == EPI_BIAS && i == 0,
         act = op->kind == EPI_ACT && i == p->n_epilogue - 1 &&
               (op->act == ACT_GELU_ERF || op->act == ACT_GELU_TANH || op->act == ACT_SILU);
    if (!bias && !act) return false;
  }
  return p->n % 32 == 0 && p->y_dtype == p->x_dtype && view_aligned(call->out);
}

bool gemm_list_direct(const struct kernel_call *call) {
  const struct linear_problem *p = call->linear;
  for (int i = 0; i < p->n_epilogue; i++) {
    const struct epilogue_op *op = &p->epilogue[i];
    const struct view *v = call_operand(call, op);
    if (!v || reads_singly(op)) continue;
    const bool columns = op->kind == EPI_BIAS || (is_spread(op) && op->act == SPREAD_ROWS);
    if (columns ? (uintptr_t)v->data % 16 != 0 : !view_rows_aligned(v)) return false;
  }
  return p->n % 32 == 0 && (p->y_dtype == p->x_dtype || p->y_dtype == DTYPE_F32) &&
         view_rows_aligned(call->out);
}

static bool small_suits(const struct kernel_call *call) {
  int32_t n = call->linear->n;
  int sms = call->device->multiprocessors;
  return gemm_pick_small(call->m, n, sms) &&
         !(call->m > 64 && gemm_pick_narrow(call->m, n, sms) && direct_suits(call));
}

static int run_small(const struct kernel_call *call, int bn, int split,
                     struct CUstream_st *stream) {
  int rc = gemm_small_bf16(call, bn, split, stream);
  return rc == CUDA_UNSUPPORTED ? gemm_small_f16(call, bn, split, stream) : rc;
}

static int small_run(const struct kernel_choice *choice, const struct kernel_call *call,
                     void *workspace, struct CUstream_st *stream) {
  (void)choice, (void)workspace;
  int bn = gemm_pick_small_n(call->m, call->linear->n, call->device->multiprocessors);
  return run_small(call, bn, 1, stream);
}
const struct kernel kernel_gemm_small = {.name = "gemm_small",
                                         .op = KERNEL_LINEAR,
                                         .supports = hopper,
                                         .suits = small_suits,
                                         .run = small_run};

static int sm90_run(const struct kernel_choice *choice, const struct kernel_call *call,
                    void *workspace, struct CUstream_st *stream) {
  (void)choice, (void)workspace;
  enum gemm_tile tile = gemm_pick_tile(call->m, call->linear->n, call->device->multiprocessors);
  int rc = gemm_sm90_bf16(call, tile, stream);
  return rc == CUDA_UNSUPPORTED ? gemm_sm90_f16(call, tile, stream) : rc;
}
const struct kernel kernel_gemm_sm90 = {
    .name = "gemm_sm90", .op = KERNEL_LINEAR, .supports = hopper, .run = sm90_run};

// The products of a warp, for cards that are not Hopper, with code for them or translated from PTX.
static bool mma_supports(const struct kernel_call *call) {
  return call->device->sm >= 80 && narrow_operands(call);
}

static int mma_run(const struct kernel_choice *choice, const struct kernel_call *call,
                   void *workspace, struct CUstream_st *stream) {
  (void)choice, (void)workspace;
  int64_t tiles = (call->m + 127) / 128 * (((int64_t)call->linear->n + 127) / 128);
  bool large = tiles >= call->device->multiprocessors;
  int rc = gemm_mma_bf16(call, large, stream);
  return rc == CUDA_UNSUPPORTED ? gemm_mma_f16(call, large, stream) : rc;
}
const struct kernel kernel_gemm_mma = {
    .name = "gemm_mma", .op = KERNEL_LINEAR, .supports = mma_supports, .run = mma_run};

static bool x3_supports(const struct kernel_call *call) {
  return call->device->sm >= 80 && call->linear->x_dtype == DTYPE_F32 && tensor_core_operands(call);
}

static int x3_run(const struct kernel_choice *choice, const struct kernel_call *call,
                  void *workspace, struct CUstream_st *stream) {
  (void)choice, (void)workspace;
  const struct linear_problem *p = call->linear;
  return gemm_tf32x3(call, x3_pick(call->m, p->n, p->k, call->device->multiprocessors), stream);
}
const struct kernel kernel_gemm_tf32x3 = {
    .name = "gemm_tf32x3", .op = KERNEL_LINEAR, .supports = x3_supports, .run = x3_run};

// Large tiles do the most with what they load; they need two thirds of the multiprocessors to pay.
enum simt_tile_size gemm_pick_simt(int64_t m, int32_t n, int sms) {
  int64_t large = (m + 127) / 128 * (((int64_t)n + 127) / 128),
          medium = (m + 63) / 64 * (((int64_t)n + 63) / 64);
  if (large * 3 >= (int64_t)sms * 2) return SIMT_128x128;
  return medium * 3 >= (int64_t)sms * 2 ? SIMT_64x64 : SIMT_32x32;
}

static int simt_run(const struct kernel_choice *choice, const struct kernel_call *call,
                    void *workspace, struct CUstream_st *stream) {
  (void)choice, (void)workspace;
  return gemm_simt_tile(
      call, gemm_pick_simt(call->m, call->linear->n, call->device->multiprocessors), stream);
}

static bool f32_supports(const struct kernel_call *call) {
  const struct linear_problem *p = call->linear;
  return p->x_dtype == DTYPE_F32 && p->w_dtype == DTYPE_F32 && is_float(p->y_dtype);
}
const struct kernel kernel_gemm_f32 = {.name = "gemm_f32",
                                       .op = KERNEL_LINEAR,
                                       .fallback = true,
                                       .supports = f32_supports,
                                       .run = simt_run};

static bool any_floats(const struct kernel_call *call) {
  const struct linear_problem *p = call->linear;
  return is_float(p->x_dtype) && is_float(p->w_dtype) && is_float(p->y_dtype);
}
const struct kernel kernel_gemm_simple = {.name = "gemm_simple",
                                          .op = KERNEL_LINEAR,
                                          .fallback = true,
                                          .supports = any_floats,
                                          .run = simt_run};

// cuBLASLt where its sums are known to be ours, bit by bit (kernels/gemm/lt.h): Hopper, 16 bits.
static bool lt_supports(const struct kernel_call *call) {
  const struct linear_problem *p = call->linear;
  return call->device->lt && (p->y_dtype == p->x_dtype || p->y_dtype == DTYPE_F32) &&
         p->n % 8 == 0 && p->k % 8 == 0 && view_aligned(call->out) && hopper(call);
}

static int prepare_lt(const struct kernel_call *call, size_t workspace_bytes,
                      struct kernel_choice *out) {
  int rc = lt_prepare(call->device->lt, call->linear, call->in, call->out, call->m, workspace_bytes,
                      &out->lt);
  out->workspace_bytes = out->lt.workspace_bytes;
  return rc;
}

static int run_lt(const struct kernel_choice *choice, const struct kernel_call *call,
                  void *workspace, struct CUstream_st *stream) {
  if (call->m == 0) return 0;
  int rc = lt_run(call->device->lt, &choice->lt, call->in, call->out, call->m, workspace, stream);
  if (rc != CUDA_UNSUPPORTED) return rc; // an algorithm may refuse fewer rows than it was found for
  return (small_suits(call) ? small_run : sm90_run)(choice, call, workspace, stream);
}
const struct kernel kernel_lt = {.name = "cublaslt",
                                 .op = KERNEL_LINEAR,
                                 .supports = lt_supports,
                                 .prepare = prepare_lt,
                                 .run = run_lt};

int linear_run(const struct linear_problem *p, const struct view *in, const struct view *y,
               int64_t m, struct CUstream_st *stream) {
  struct kernel_call call = {.op = KERNEL_LINEAR, .in = in, .out = y, .m = m, .linear = p};
  return kernel_run_now(&call, stream);
}

int linear_run_fastest(const struct linear_problem *p, const struct view *in, const struct view *y,
                       int64_t m, struct CUstream_st *stream) {
  struct kernel_device device;
  int rc = kernel_device_query(&device);
  if (rc != 0) return rc;
  struct kernel_call call = {
      .device = &device, .op = KERNEL_LINEAR, .in = in, .out = y, .m = m, .linear = p};
  if (m == 0 || !hopper(&call) || !small_suits(&call)) return linear_run(p, in, y, m, stream);
  int bn = gemm_pick_small_n(m, p->n, device.multiprocessors),
      split = gemm_pick_split(m, p->n, p->k, bn, device.multiprocessors);
  return run_small(&call, bn, split, stream);
}
