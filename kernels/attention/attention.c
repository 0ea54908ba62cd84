// The rows of attention in the table of kernels, and the choice of the unfused products. Nothing
// here makes a row's bits depend on more than its own sequence.
#include "kernels/attention/attention.h"
#include "kernels/attention/products.h"
#include "kernels/kernel.h"

static bool nothing(const struct batch_geometry *g) {
  return g->n_tokens == 0 || g->n_seqs == 0;
}

static bool heads_valid(const struct attention_problem *p) {
  return p->heads >= 1 && p->kv_heads >= 1 && p->heads % p->kv_heads == 0 && p->head_dim >= 1;
}

// 16-bit rows of whole 16-byte pieces, one of the head sizes that there are kernels for. A scale
// that is not positive would turn the maximum of the scores into their minimum.
static bool flash_operands(const struct kernel_call *call) {
  static const int32_t dims[] = {32, 64, 80, 96, 128, 256};
  const struct attention_problem *p = call->attention;
  bool known = false;
  for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
    known |= p->head_dim == dims[i];
  return known && heads_valid(p) && p->scale > 0 &&
         (p->dtype == DTYPE_BF16 || p->dtype == DTYPE_F16) && view_aligned(&call->in[0]) &&
         view_aligned(&call->in[1]) && view_aligned(&call->in[2]) && view_aligned(call->out);
}

typedef int attention_fn(const struct attention_problem *, const struct view *, const struct view *,
                         const struct batch_geometry *, struct CUstream_st *);

static int launch(attention_fn *fn, const struct kernel_call *call, struct CUstream_st *stream) {
  if (nothing(call->geometry)) return 0;
  return fn(call->attention, call->in, call->out, call->geometry, stream);
}

static bool sm90_supports(const struct kernel_call *call) {
  return call->device->sm == 90 && flash_operands(call);
}
static int sm90_run(const struct kernel_choice *choice, const struct kernel_call *call,
                    void *workspace, struct CUstream_st *stream) {
  (void)choice, (void)workspace;
  bool bf16 = call->attention->dtype == DTYPE_BF16;
  return launch(bf16 ? flash_sm90_bf16 : flash_sm90_f16, call, stream);
}
const struct kernel kernel_flash_sm90 = {
    .name = "flash_sm90", .op = KERNEL_ATTENTION, .supports = sm90_supports, .run = sm90_run};

static bool mma_supports(const struct kernel_call *call) {
  return call->device->sm >= 80 && flash_operands(call);
}
static int mma_run(const struct kernel_choice *choice, const struct kernel_call *call,
                   void *workspace, struct CUstream_st *stream) {
  (void)choice, (void)workspace;
  bool bf16 = call->attention->dtype == DTYPE_BF16;
  return launch(bf16 ? flash_mma_bf16 : flash_mma_f16, call, stream);
}
const struct kernel kernel_flash_mma = {
    .name = "flash_mma", .op = KERNEL_ATTENTION, .supports = mma_supports, .run = mma_run};

static bool f32_supports(const struct kernel_call *call) {
  const struct attention_problem *p = call->attention;
  return call->device->sm >= 80 && p->dtype == DTYPE_F32 && heads_valid(p) && p->head_dim <= 128 &&
         p->scale > 0;
}
static int f32_run(const struct kernel_choice *choice, const struct kernel_call *call,
                   void *workspace, struct CUstream_st *stream) {
  (void)choice, (void)workspace;
  if (nothing(call->geometry)) return 0;
  // two blocks of 64 queries share a multiprocessor: where there are fewer, twice as many of 32
  int64_t blocks = row_tile_bound(call->geometry, 64) * call->attention->heads;
  return flash_f32(call->attention, call->in, call->out, call->geometry,
                   blocks < 2 * (int64_t)call->device->multiprocessors ? 32 : 64, stream);
}
const struct kernel kernel_flash_f32 = {
    .name = "flash_f32", .op = KERNEL_ATTENTION, .supports = f32_supports, .run = f32_run};

static bool simple_supports(const struct kernel_call *call) {
  const struct attention_problem *p = call->attention;
  return heads_valid(p) && p->head_dim <= 256 &&
         (p->dtype == DTYPE_F32 || p->dtype == DTYPE_BF16 || p->dtype == DTYPE_F16);
}
static int simple_run(const struct kernel_choice *choice, const struct kernel_call *call,
                      void *workspace, struct CUstream_st *stream) {
  (void)choice, (void)workspace;
  return launch(attention_simple, call, stream);
}
const struct kernel kernel_attention_simple = {.name = "attention_simple",
                                               .op = KERNEL_ATTENTION,
                                               .fallback = true,
                                               .supports = simple_supports,
                                               .run = simple_run};

int attention_run(const struct attention_problem *p, const struct view *in, const struct view *out,
                  const struct batch_geometry *g, struct CUstream_st *stream) {
  struct kernel_call call = {
      .op = KERNEL_ATTENTION, .in = in, .out = out, .attention = p, .geometry = g};
  return kernel_run_now(&call, stream);
}

int attention_scores(const struct attention_problem *p, const struct view *q, const struct view *k,
                     float *scores, const struct batch_geometry *g, struct CUstream_st *stream) {
  if (nothing(g)) return 0;
  if (!heads_valid(p)) return CUDA_UNSUPPORTED;
  int rc = scores_mma_bf16(p, q, k, scores, g, stream);
  if (rc == CUDA_UNSUPPORTED) rc = scores_mma_f16(p, q, k, scores, g, stream);
  if (rc == CUDA_UNSUPPORTED) rc = scores_simple(p, q, k, scores, g, stream);
  return rc;
}

int attention_context(const struct attention_problem *p, const float *scores, const struct view *v,
                      const struct view *out, const struct batch_geometry *g,
                      struct CUstream_st *stream) {
  if (nothing(g)) return 0;
  if (!heads_valid(p)) return CUDA_UNSUPPORTED;
  int rc = context_mma_bf16(p, scores, v, out, g, stream);
  if (rc == CUDA_UNSUPPORTED) rc = context_mma_f16(p, scores, v, out, g, stream);
  if (rc == CUDA_UNSUPPORTED) rc = context_simple(p, scores, v, out, g, stream);
  return rc;
}
