// Products: the choice between the library and our own kernels, slices of N, epilogues.
#include "kernels/cpu/product.h"

#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/onednn.h"

#include <stdlib.h>
#include <string.h>

#define SLICE_ALIGN 32    // columns; our own kernels work on panels of this width
#define SLICE_MIN 64      // columns: below, one thread does it all

struct slice {
  int32_t first, n;
  struct onednn_slice *library;
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
    int32_t begin = units * i / p->n_slices * SLICE_ALIGN, end = units * (i + 1) / p->n_slices * SLICE_ALIGN;
    if (end > n) end = n;
    p->slices[i].first = begin;
    p->slices[i].n = end - begin;
    if (end - begin > p->widest) p->widest = end - begin;
  }
}

static bool fill_slice(struct product *p, struct slice *s, product_read_rows read, void *arg, const char **why) {
  const struct linear_problem *problem = &p->spec.problem;
  size_t bytes = (size_t)s->n * (size_t)problem->k * dtype_bytes(problem->w_dtype);
  void *rows = malloc(bytes);
  *why = "out of memory";
  if (!rows) return false;
  bool ok = read(arg, s->first, s->n, rows);
  if (ok) {
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
    ok = s->library != NULL;
  }
  free(rows);
  return ok;
}

struct product *product_create(const struct product_spec *spec, product_read_rows read, void *arg, const char **why) {
  int32_t n_slices = count_slices(spec);
  struct product *p = calloc(1, sizeof *p + (size_t)n_slices * sizeof p->slices[0]);
  *why = "out of memory";
  if (!p) return NULL;
  p->spec = *spec;
  p->n_slices = n_slices;
  p->kind = PRODUCT_LIBRARY;
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
  for (int32_t i = 0; i < p->n_slices; i++) onednn_slice_destroy(p->slices[i].library);
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
  for (int32_t i = 0; i < p->n_slices; i++) bytes += onednn_slice_bytes(p->slices[i].library);
  return bytes;
}

size_t product_workspace_bytes(const struct product *p) {
  size_t sums = p->direct ? 0 : (size_t)PRODUCT_ROWS * (size_t)p->widest * sizeof(float);
  return ((size_t)((p->spec.problem.n + 15) & ~15) * sizeof(float) + sums + 63) & ~(size_t)63; // a converted bias, then sums
}

// ---- execution ----
static struct view element_view(struct view v, int64_t col) {
  v.data = (char *)v.data + col * (int64_t)dtype_bytes(v.dtype);
  return v;
}

static void finish(const struct product *p, const struct product_run *run, const struct slice *s, const float *sums,
                   int64_t sums_stride, int first_op) {
  const struct linear_problem *problem = &p->spec.problem;
  struct view y = {run->y, p->spec.y_stride, problem->n, problem->y_dtype};
  struct epilogue_call call = {.ops = problem->epilogue + first_op,
                               .n_ops = (uint8_t)(problem->n_epilogue - first_op),
                               .rows = run->rows,
                               .cols = s->n,
                               .sums = sums,
                               .sums_stride = sums_stride,
                               .y = element_view(y, s->first)};
  for (int i = first_op; i < problem->n_epilogue; i++) {
    uint8_t kind = problem->epilogue[i].kind;
    if (kind == EPI_BIAS || kind == EPI_ADD || kind == EPI_MUL)
      call.operands[i - first_op] = element_view(run->operands[i], s->first);
  }
  p->spec.ops->epilogue_run(&call);
}

// The bias as floats: where it is, or converted into the workspace.
static const float *bias_floats(const struct product *p, const struct product_run *run, const struct slice *s) {
  const struct view *v = &run->operands[0];
  if (v->dtype == DTYPE_F32) return (const float *)v->data + s->first;
  float *out = run->workspace;
  for (int32_t i = 0; i < s->n; i++) {
    uint16_t bits = ((const uint16_t *)v->data)[s->first + i];
    out[i] = v->dtype == DTYPE_BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
  }
  (void)p;
  return out;
}

bool product_run(const struct product *p, const struct product_run *run) {
  const struct slice *s = &p->slices[run->slice];
  const struct linear_problem *problem = &p->spec.problem;
  const float *bias = p->bias_inside ? bias_floats(p, run, s) : NULL;
  int first_op = p->bias_inside ? 1 : 0;
  char *y = (char *)run->y + (int64_t)s->first * (int64_t)dtype_bytes(problem->y_dtype);
  float *sums = (float *)run->workspace + ((problem->n + 15) & ~15);
  if (!onednn_slice_run(s->library, run->thread, run->rows, run->x, bias, p->direct ? y : (char *)sums)) return false;
  if (!p->direct) finish(p, run, s, sums, p->widest, first_op);
  else if (first_op < problem->n_epilogue) finish(p, run, s, (const float *)y, p->spec.y_stride, first_op);
  return true;
}

void product_thread_init(void) {
  onednn_thread_init();
}
