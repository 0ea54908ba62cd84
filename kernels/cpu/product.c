// Products: the choice between the library and our own kernels, slices of N, epilogues.
#include "kernels/cpu/product.h"

#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/own.h"

#include <stdlib.h>
#include <string.h>

#define SLICE_ALIGN 32 // columns; our own kernels work on panels of this width
#define SLICE_MIN 64   // columns: below, one thread does it all

struct slice {
  int32_t first, n;
  struct onednn_slice *library; // PRODUCT_LIBRARY
  void *packed;                 // PRODUCT_OWN
  size_t packed_bytes;
};

struct product {
  struct product_spec spec;
  enum product_kind kind;
  int32_t n_slices;
  bool direct;      // the library writes y itself (fp32 y, or nothing left for our epilogue)
  bool bias_inside; // the library adds the bias (the first of the epilogue)
  int32_t widest;
  struct slice slices[];
};

const char *product_kind_name(enum product_kind kind) {
  static const char *const names[PRODUCT_KINDS] = {"auto", "library", "own"};
  return kind < PRODUCT_KINDS ? names[kind] : "invalid";
}

// ---- creation ----
static int32_t count_slices(const struct product_spec *spec) {
  int32_t most = spec->problem.n / SLICE_MIN;
  if (most < 1) most = 1;
  return spec->n_slices < most ? spec->n_slices : most;
}

static void cut_slices(struct product *p) {
  int32_t n = p->spec.problem.n, units = (n + SLICE_ALIGN - 1) / SLICE_ALIGN;
  for (int32_t i = 0; i < p->n_slices; i++) {
    int32_t begin = units * i / p->n_slices * SLICE_ALIGN,
            end = units * (i + 1) / p->n_slices * SLICE_ALIGN;
    if (end > n) end = n;
    p->slices[i].first = begin;
    p->slices[i].n = end - begin;
    if (end - begin > p->widest) p->widest = end - begin;
  }
}

static bool is_amx(const struct product *p) {
  return p->spec.problem.w_dtype == DTYPE_BF16;
}

static bool own_supports(const struct product_spec *spec) {
  const struct linear_problem *problem = &spec->problem;
  if (problem->x_dtype != problem->w_dtype) return false;
  if (problem->x_dtype == DTYPE_F32) return true;
  return problem->x_dtype == DTYPE_BF16 && spec->features->amx_bf16 && amx_supports(problem->k);
}

// Measured on Sapphire Rapids (bench/cpu/bench_product.c): our kernels win for every row count
// where there is AVX-512 or AMX, chiefly by their epilogues. On AVX2 the library is kept.
static enum product_kind choose(const struct product_spec *spec) {
  if (spec->kind == PRODUCT_LIBRARY || !own_supports(spec)) return PRODUCT_LIBRARY;
  if (spec->kind == PRODUCT_OWN) return PRODUCT_OWN;
  return spec->ops->isa >= CPU_AVX512 || !onednn_version() ? PRODUCT_OWN : PRODUCT_LIBRARY;
}

static bool pack_own(struct product *p, struct slice *s, const void *rows) {
  int32_t k = p->spec.problem.k, panel = p->spec.ops->panel_cols;
  s->packed_bytes = is_amx(p) ? amx_bytes(s->n, k) : own_f32_bytes(s->n, k, panel);
  s->packed = p->spec.take ? p->spec.take(p->spec.take_arg, s->packed_bytes)
                           : aligned_alloc(64, (s->packed_bytes + 64) & ~(size_t)63);
  if (!s->packed) return false;
  if (is_amx(p))
    amx_pack(s->packed, rows, s->n, k);
  else
    own_f32_pack(s->packed, rows, s->n, k, panel);
  return true;
}

static bool make_library(struct product *p, struct slice *s, const void *rows, const char **why) {
  const struct linear_problem *problem = &p->spec.problem;
  struct onednn_slice_spec spec = {.n = s->n,
                                   .k = problem->k,
                                   .x_dtype = problem->x_dtype,
                                   .w_dtype = problem->w_dtype,
                                   .y_dtype = p->direct ? problem->y_dtype : DTYPE_F32,
                                   .x_stride = p->spec.x_stride,
                                   .y_stride = p->direct ? p->spec.y_stride : p->widest,
                                   .bias = p->bias_inside,
                                   .n_threads = p->spec.n_threads};
  s->library = onednn_slice_create(&spec, rows, why);
  return s->library != NULL;
}

static bool fill_slice(struct product *p, struct slice *s, product_read_rows read, void *arg,
                       const char **why) {
  const struct linear_problem *problem = &p->spec.problem;
  size_t bytes = (size_t)s->n * (size_t)problem->k * dtype_bytes(problem->w_dtype);
  void *rows = malloc(bytes);
  *why = "out of memory";
  if (!rows) return false;
  bool ok = read(arg, s->first, s->n, rows);
  if (ok) ok = p->kind == PRODUCT_OWN ? pack_own(p, s, rows) : make_library(p, s, rows, why);
  free(rows);
  return ok;
}

struct product *product_create(const struct product_spec *spec, product_read_rows read, void *arg,
                               const char **why) {
  int32_t n_slices = count_slices(spec);
  struct product *p = calloc(1, sizeof *p + (size_t)n_slices * sizeof p->slices[0]);
  *why = "out of memory";
  if (!p) return NULL;
  p->spec = *spec;
  p->n_slices = n_slices;
  p->kind = choose(spec);
  const struct linear_problem *problem = &spec->problem;
  p->bias_inside = problem->n_epilogue > 0 && problem->epilogue[0].kind == EPI_BIAS;
  p->direct = problem->y_dtype == DTYPE_F32 || problem->n_epilogue == (p->bias_inside ? 1 : 0);
  cut_slices(p);
  for (int32_t i = 0; i < n_slices; i++) {
    if (fill_slice(p, &p->slices[i], read, arg, why)) continue;
    product_destroy(p);
    return NULL;
  }
  return p;
}

void product_destroy(struct product *p) {
  if (!p) return;
  for (int32_t i = 0; i < p->n_slices; i++) {
    onednn_slice_destroy(p->slices[i].library);
    if (!p->spec.take) free(p->slices[i].packed);
  }
  free(p);
}

int32_t product_slices(const struct product *p) {
  return p->n_slices;
}

enum product_kind product_kind_of(const struct product *p) {
  return p->kind;
}

int64_t product_bytes(const struct product *p) {
  int64_t bytes = 0;
  for (int32_t i = 0; i < p->n_slices; i++) {
    const struct slice *s = &p->slices[i];
    bytes += s->library ? onednn_slice_bytes(s->library) : (int64_t)s->packed_bytes;
  }
  return bytes;
}

size_t product_workspace_bytes(const struct product *p) {
  if (p->kind == PRODUCT_OWN) return OWN_SUMS_FLOATS * sizeof(float);
  size_t sums = p->direct ? 0 : (size_t)PRODUCT_ROWS * (size_t)p->widest * sizeof(float);
  return ((size_t)((p->spec.problem.n + 15) & ~15) * sizeof(float) + sums + 63) &
         ~(size_t)63; // a converted bias, then sums
}

// ---- execution ----
static struct view element_view(struct view v, int64_t col) {
  v.data = (char *)v.data + col * (int64_t)dtype_bytes(v.dtype);
  return v;
}

// The epilogue from operation `first_op` on, over a whole slice.
static struct epilogue_call slice_epilogue(const struct product *p, const struct product_run *run,
                                           const struct slice *s, int first_op) {
  const struct linear_problem *problem = &p->spec.problem;
  struct view y = {run->y, p->spec.y_stride, problem->n, problem->y_dtype};
  struct epilogue_call call = {.ops = problem->epilogue + first_op,
                               .n_ops = (uint8_t)(problem->n_epilogue - first_op),
                               .rows = run->rows,
                               .cols = s->n,
                               .y = element_view(y, s->first)};
  for (int i = first_op; i < problem->n_epilogue; i++) {
    uint8_t kind = problem->epilogue[i].kind;
    if (kind == EPI_BIAS || kind == EPI_ADD || kind == EPI_MUL)
      call.operands[i - first_op] = element_view(run->operands[i], s->first);
  }
  return call;
}

static void run_own(const struct product *p, const struct product_run *run, const struct slice *s) {
  struct product_call call = {.rows = run->rows,
                              .n = s->n,
                              .k = p->spec.problem.k,
                              .x = run->x,
                              .x_stride = p->spec.x_stride,
                              .weights = s->packed,
                              .sums = run->workspace,
                              .epilogue = slice_epilogue(p, run, s, 0)};
  if (is_amx(p))
    amx_product_run(&call, p->spec.ops->epilogue_run);
  else
    p->spec.ops->product_f32_run(&call);
}

// The bias as floats: where it is, or converted into the workspace.
static const float *bias_floats(const struct product_run *run, const struct slice *s) {
  const struct view *v = &run->operands[0];
  if (v->dtype == DTYPE_F32) return (const float *)v->data + s->first;
  float *out = run->workspace;
  for (int32_t i = 0; i < s->n; i++) {
    uint16_t bits = ((const uint16_t *)v->data)[s->first + i];
    out[i] = v->dtype == DTYPE_BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
  }
  return out;
}

static bool run_library(const struct product *p, const struct product_run *run,
                        const struct slice *s) {
  const struct linear_problem *problem = &p->spec.problem;
  const float *bias = p->bias_inside ? bias_floats(run, s) : NULL;
  int first_op = p->bias_inside ? 1 : 0;
  char *y = (char *)run->y + (int64_t)s->first * (int64_t)dtype_bytes(problem->y_dtype);
  float *sums = (float *)run->workspace + ((problem->n + 15) & ~15);
  void *out = p->direct ? (void *)y : sums;
  if (!onednn_slice_run(s->library, run->thread, run->rows, run->x, bias, out)) return false;
  if (p->direct && first_op == problem->n_epilogue) return true;
  struct epilogue_call call = slice_epilogue(p, run, s, first_op);
  call.sums = out;
  call.sums_stride = p->direct ? p->spec.y_stride : p->widest;
  p->spec.ops->epilogue_run(&call);
  return true;
}

bool product_run(const struct product *p, const struct product_run *run) {
  const struct slice *s = &p->slices[run->slice];
  if (p->kind == PRODUCT_LIBRARY) return run_library(p, run, s);
  run_own(p, run, s);
  return true;
}

void product_thread_init(void) {
  onednn_thread_init();
}
