// Products with a norm behind them, in the table of kernels: in one kernel, or in two that give the
// same bits.
#include "kernels/gemm/gemm.h"

int gemm_norm_chunk(int32_t n) {
  if (n > 0 && n % 96 == 0 && n <= 768) return 96;
  if (n > 0 && n % 128 == 0 && n <= 1024) return 128;
  return 0;
}

// At most a bias and a residual, each once.
static bool plain_sum(const struct kernel_call *call) {
  const struct linear_problem *p = call->linear;
  int n_bias = 0, n_add = 0;
  for (int i = 0; i < p->n_epilogue; i++) {
    n_bias += p->epilogue[i].kind == EPI_BIAS, n_add += p->epilogue[i].kind == EPI_ADD;
    if (p->epilogue[i].kind == EPI_ADD) {
      const struct view *v = &call->in[p->epilogue[i].operand];
      if (v->dtype != p->x_dtype || !view_aligned(v)) return false;
    }
  }
  return n_bias <= 1 && n_add <= 1 && n_bias + n_add == p->n_epilogue;
}

static bool weight_suits(const struct kernel_call *call, uint8_t operand) {
  if (operand == ROW_NONE) return true;
  const struct view *v = &call->in[operand];
  return (v->dtype == DTYPE_F32 || v->dtype == call->linear->x_dtype) &&
         (uintptr_t)v->data % 8 == 0;
}

// What both ask of the result and of the norm's weights. The kernels are for sm_90 alone.
static bool norm_suits(const struct kernel_call *call) {
  const struct linear_problem *p = call->linear;
  return call->device->sm == 90 && (p->x_dtype == DTYPE_BF16 || p->x_dtype == DTYPE_F16) &&
         p->w_dtype == p->x_dtype && p->y_dtype == p->x_dtype && gemm_norm_chunk(p->n) != 0 &&
         weight_suits(call, call->norm->gamma) && weight_suits(call, call->norm->beta) &&
         view_aligned(&call->out[0]) && (!call->norm->sum || view_aligned(&call->out[1]));
}

// ---- one kernel ----
static int groups_at_once(const struct kernel_call *call, int width) {
  int n = 0, blocks = call->linear->n / width;
  int rc = (call->linear->x_dtype == DTYPE_BF16 ? gemm_norm_groups_bf16
                                                : gemm_norm_groups_f16)(width, blocks, &n);
  return rc == 0 ? n : 0;
}

// Time of all rounds of groups, in clocks: of a step of k a multiprocessor multiplies width
// columns, or loads 128 + width rows; then the rows are finished.
static double rounds(const struct kernel_call *call, int width) {
  int at_once = groups_at_once(call, width);
  int64_t tiles = (call->m + 127) / 128, steps = (call->linear->k + 63) / 64;
  double step = width * 4 > (128 + width) * 2 ? width * 4 : (128 + width) * 2;
  if (at_once == 0) return 1e30;
  return (double)((tiles + at_once - 1) / at_once) * ((double)steps * step + 1000 + width * 15.0);
}

static int pick_width(const struct kernel_call *call) {
  int chunk = gemm_norm_chunk(call->linear->n);
  if (call->linear->n % (2 * chunk) != 0) return chunk;
  return rounds(call, 2 * chunk) <= rounds(call, chunk) ? 2 * chunk : chunk;
}

static bool one_supports(const struct kernel_call *call) {
  return norm_suits(call) && plain_sum(call) && kernel_gemm_sm90.supports(call);
}

static bool one_suits(const struct kernel_call *call) {
  return call->m >= 2048;
}

// For what the blocks of groups at either width tell each other: of as many as there can be at
// once.
static int one_prepare(const struct kernel_call *call, size_t workspace_bytes,
                       struct kernel_choice *out) {
  int chunk = gemm_norm_chunk(call->linear->n), groups = 0;
  for (int width = chunk; width <= 2 * chunk; width += chunk) {
    int blocks = call->linear->n / width;
    if (blocks <= 2 || call->linear->n % width != 0) continue;
    int n = call->device->multiprocessors / blocks;
    if (n > groups) groups = n;
  }
  out->workspace_bytes = (size_t)groups * 16384;
  return out->workspace_bytes <= workspace_bytes && groups * 16 <= KERNEL_COUNTERS
             ? 0
             : CUDA_UNSUPPORTED;
}

static int one_run(const struct kernel_choice *choice, const struct kernel_call *call,
                   void *workspace, struct CUstream_st *stream) {
  (void)choice;
  int width = pick_width(call), rc = gemm_norm_sm90_bf16(call, width, workspace, stream);
  return rc == CUDA_UNSUPPORTED ? gemm_norm_sm90_f16(call, width, workspace, stream) : rc;
}
const struct kernel kernel_gemm_norm_sm90 = {.name = "gemm_norm_sm90",
                                             .op = KERNEL_LINEAR_NORM,
                                             .supports = one_supports,
                                             .suits = one_suits,
                                             .prepare = one_prepare,
                                             .run = one_run};

// ---- a product, then its rows ----
// The product writes the sum where it is wanted, else to where y will be.
static struct kernel_call product_call(const struct kernel_call *call) {
  struct kernel_call product = *call;
  product.op = KERNEL_LINEAR, product.norm = NULL;
  product.out = &call->out[call->norm->sum ? 1 : 0];
  return product;
}

static int then_prepare(const struct kernel_call *call, size_t workspace_bytes,
                        struct kernel_choice *out) {
  const struct kernel *self = out->kernel;
  struct kernel_call product = product_call(call);
  int rc = kernel_choose(&product, workspace_bytes, out);
  out->product = out->kernel, out->kernel = self;
  return rc;
}

static int then_run(const struct kernel_choice *choice, const struct kernel_call *call,
                    void *workspace, struct CUstream_st *stream) {
  struct kernel_call product = product_call(call);
  struct kernel_choice first = *choice;
  first.kernel = choice->product;
  int rc = kernel_run(&first, &product, workspace, stream);
  if (rc != 0) return rc;
  rc = gemm_norm_rows_bf16(call, product.out, stream);
  return rc == CUDA_UNSUPPORTED ? gemm_norm_rows_f16(call, product.out, stream) : rc;
}
const struct kernel kernel_gemm_then_norm = {.name = "gemm_then_norm",
                                             .op = KERNEL_LINEAR_NORM,
                                             .supports = norm_suits,
                                             .prepare = then_prepare,
                                             .run = then_run};
