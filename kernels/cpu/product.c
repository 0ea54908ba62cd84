// Products: the choice between the library and our own kernels, slices of N, epilogues.
#include "kernels/cpu/product.h"

#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/own.h"

#include <stdlib.h>
#include <string.h>

#define SLICE_ALIGN 32 // columns
#define SLICE_MIN 64   // columns: below, one thread does it all
#define PACK_COLS 256  // columns packed at a time: whole units

struct slice { // of the library: some columns
  int32_t first, n;
  struct onednn_slice *library;
};

struct product {
  struct product_spec spec;
  enum product_kind kind;
  uint8_t layout; // enum own_layout
  int32_t n_units, unit_cols;
  char *packed;          // PRODUCT_OWN: [n columns up to whole panels, k]
  bool owned;            // `packed` is to be freed
  bool direct;           // the library writes y itself (fp32 y, or nothing left for our epilogue)
  bool bias_inside;      // the library adds the bias (the first of the epilogue)
  int32_t widest;        // columns of a slice
  struct slice slices[]; // PRODUCT_LIBRARY: [n_units]
};

const char *product_kind_name(enum product_kind kind) {
  static const char *const names[PRODUCT_KINDS] = {"auto", "library", "own"};
  return kind < PRODUCT_KINDS ? names[kind] : "invalid";
}

// ---- creation ----
// Of PRODUCT_OWN: whole groups (AMX's are the widest), more than one where units would be too many.
static int32_t unit_cols(const struct product_spec *spec) {
  int32_t group = spec->problem.w_dtype == DTYPE_BF16 ? OWN_GROUP_COLS : spec->ops->group_cols;
  int32_t groups = (spec->problem.n + group - 1) / group;
  return group * ((groups + PRODUCT_UNITS_MAX - 1) / PRODUCT_UNITS_MAX);
}

static int32_t count_units(const struct product_spec *spec, enum product_kind kind) {
  int32_t n = spec->problem.n;
  if (kind == PRODUCT_OWN) return (n + unit_cols(spec) - 1) / unit_cols(spec);
  int32_t most = n / SLICE_MIN < 1 ? 1 : n / SLICE_MIN;
  return spec->n_threads < most ? spec->n_threads : most;
}

static void cut_slices(struct product *p) {
  int32_t n = p->spec.problem.n, parts = (n + SLICE_ALIGN - 1) / SLICE_ALIGN;
  for (int32_t i = 0; i < p->n_units; i++) {
    int32_t begin = parts * i / p->n_units * SLICE_ALIGN,
            end = parts * (i + 1) / p->n_units * SLICE_ALIGN;
    if (end > n) end = n;
    p->slices[i].first = begin;
    p->slices[i].n = end - begin;
    if (end - begin > p->widest) p->widest = end - begin;
  }
}

// How our own kernels keep the weights; OWN_NONE: they do not take the problem.
enum own_layout { OWN_NONE, OWN_F32, OWN_BF16, OWN_AMX };

static enum own_layout layout_of(const struct product_spec *spec) {
  const struct linear_problem *problem = &spec->problem;
  if (problem->x_dtype != problem->w_dtype) return OWN_NONE;
  if (problem->x_dtype == DTYPE_F32) return OWN_F32;
  if (problem->x_dtype != DTYPE_BF16) return OWN_NONE;
  return spec->features->amx_bf16 && amx_supports(problem->k) ? OWN_AMX : OWN_BF16;
}

// The library has bf16 products for processors with bf16 instructions only.
static bool library_supports(const struct product_spec *spec) {
  if (!onednn_version()) return false;
  bool narrow = spec->problem.x_dtype != DTYPE_F32 || spec->problem.w_dtype != DTYPE_F32;
  return !narrow || spec->features->avx512_bf16 || spec->features->amx_bf16;
}

// Measured on Sapphire Rapids and on Zen 3 (bench/cpu/bench_product.c): our kernels win from 8 rows
// on where there is AVX2, AVX-512 or AMX, chiefly by their epilogues; at a single row on Zen 3 the
// library is up to a quarter faster at some shapes, and slower at others. Weights that are widened
// from bf16 are for processors that have nothing better.
static enum product_kind choose(const struct product_spec *spec) {
  enum own_layout layout = layout_of(spec);
  if (layout == OWN_NONE) return PRODUCT_LIBRARY;
  if (spec->kind == PRODUCT_OWN || !library_supports(spec)) return PRODUCT_OWN;
  if (spec->kind == PRODUCT_LIBRARY || layout == OWN_BF16) return PRODUCT_LIBRARY;
  return spec->ops->isa >= CPU_AVX2 ? PRODUCT_OWN : PRODUCT_LIBRARY;
}

static int32_t panel_cols(const struct product_spec *spec) {
  return layout_of(spec) == OWN_AMX ? AMX_COLS : spec->ops->panel_cols;
}

int32_t product_packing(const struct product_spec *spec, int32_t *align) {
  *align = panel_cols(spec);
  if (choose(spec) != PRODUCT_OWN) return 0;
  return (int32_t)layout_of(spec) * 1024 + *align;
}

static size_t packed_bytes(const struct product *p, int32_t n) {
  int32_t k = p->spec.problem.k;
  if (p->layout == OWN_AMX) return amx_bytes(n, k);
  return own_bytes(n, k, p->spec.ops->panel_cols, p->spec.problem.w_dtype);
}

static void pack_rows(const struct product *p, void *out, const void *rows, int32_t n) {
  int32_t k = p->spec.problem.k;
  if (p->layout == OWN_AMX)
    amx_pack(out, rows, n, k);
  else
    own_pack(out, rows, n, k, p->spec.ops->panel_cols, p->spec.problem.w_dtype);
}

// Some columns at a time: the copy in rows stays small.
static bool pack_own(struct product *p, product_read_rows read, void *arg) {
  const struct linear_problem *problem = &p->spec.problem;
  size_t bytes = packed_bytes(p, problem->n);
  p->owned = !p->spec.take;
  p->packed = p->spec.take ? p->spec.take(p->spec.take_arg, bytes)
                           : aligned_alloc(64, (bytes + 64) & ~(size_t)63);
  void *rows = malloc(PACK_COLS * (size_t)problem->k * dtype_bytes(problem->w_dtype));
  bool ok = p->packed && rows;
  for (int32_t first = 0; ok && first < problem->n; first += PACK_COLS) {
    int32_t n = problem->n - first < PACK_COLS ? problem->n - first : PACK_COLS;
    void *out = p->packed + packed_bytes(p, first);
    ok = read(arg, first, n, rows);
    if (ok) pack_rows(p, out, rows, n);
  }
  free(rows);
  return ok;
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

static bool fill_library(struct product *p, product_read_rows read, void *arg, const char **why) {
  const struct linear_problem *problem = &p->spec.problem;
  cut_slices(p);
  bool ok = true;
  for (int32_t i = 0; ok && i < p->n_units; i++) {
    struct slice *s = &p->slices[i];
    void *rows = malloc((size_t)s->n * (size_t)problem->k * dtype_bytes(problem->w_dtype));
    ok = rows && read(arg, s->first, s->n, rows) && make_library(p, s, rows, why);
    free(rows);
  }
  return ok;
}

struct product *product_create(const struct product_spec *spec, product_read_rows read, void *arg,
                               const char **why) {
  enum product_kind kind = choose(spec);
  int32_t n_units = count_units(spec, kind);
  size_t n_slices = kind == PRODUCT_LIBRARY ? (size_t)n_units : 0;
  struct product *p = calloc(1, sizeof *p + n_slices * sizeof p->slices[0]);
  *why = "out of memory";
  if (!p) return NULL;
  p->spec = *spec;
  p->n_units = n_units;
  p->unit_cols = unit_cols(spec);
  p->kind = kind;
  p->layout = kind == PRODUCT_OWN ? layout_of(spec) : OWN_NONE;
  const struct linear_problem *problem = &spec->problem;
  p->bias_inside = problem->n_epilogue > 0 && problem->epilogue[0].kind == EPI_BIAS;
  p->direct = !spec->finish &&
              (problem->y_dtype == DTYPE_F32 || problem->n_epilogue == (p->bias_inside ? 1 : 0));
  bool ok = true;
  if (kind == PRODUCT_LIBRARY)
    ok = fill_library(p, read, arg, why);
  else if (spec->packed)
    p->packed = (char *)(uintptr_t)spec->packed;
  else
    ok = pack_own(p, read, arg);
  if (ok) return p;
  product_destroy(p);
  return NULL;
}

void product_destroy(struct product *p) {
  if (!p) return;
  for (int32_t i = 0; p->kind == PRODUCT_LIBRARY && i < p->n_units; i++)
    onednn_slice_destroy(p->slices[i].library);
  if (p->owned) free(p->packed);
  free(p);
}

int32_t product_units(const struct product *p) {
  return p->n_units;
}

enum product_kind product_kind_of(const struct product *p) {
  return p->kind;
}

const void *product_packed(const struct product *p) {
  return p->packed;
}

const void *product_unit_weights(const struct product *p, int32_t unit) {
  if (!p->packed || unit >= p->n_units) return NULL;
  return p->packed + packed_bytes(p, unit * p->unit_cols);
}

int64_t product_bytes(const struct product *p) {
  if (p->kind == PRODUCT_OWN) return (int64_t)packed_bytes(p, p->spec.problem.n);
  int64_t bytes = 0;
  for (int32_t i = 0; i < p->n_units; i++)
    bytes += onednn_slice_bytes(p->slices[i].library);
  return bytes;
}

size_t product_workspace_bytes(const struct product *p) {
  if (p->kind == PRODUCT_OWN) {
    size_t floats = OWN_SUMS_FLOATS;
    if (p->layout == OWN_BF16) floats += own_wide_floats(p->spec.problem.k);
    return floats * sizeof(float);
  }
  size_t sums = p->direct ? 0 : (size_t)PRODUCT_ROWS * (size_t)p->widest * sizeof(float);
  return ((size_t)((p->spec.problem.n + 15) & ~15) * sizeof(float) + sums + 63) &
         ~(size_t)63; // a converted bias, then sums
}

// ---- execution ----
static struct view element_view(struct view v, int64_t col) {
  if (!v.data) return v;
  v.data = (char *)v.data + col * (int64_t)dtype_bytes(v.dtype);
  return v;
}

// The epilogue from operation `first_op` on, over columns [first, first + cols).
static struct epilogue_call columns_epilogue(const struct product *p, const struct product_run *run,
                                             int32_t first, int32_t cols, int first_op) {
  const struct linear_problem *problem = &p->spec.problem;
  struct view y = {run->y, p->spec.y_stride, problem->n, problem->y_dtype};
  struct epilogue_call call = {.ops = problem->epilogue + first_op,
                               .n_ops = (uint8_t)(problem->n_epilogue - first_op),
                               .rows = run->rows,
                               .cols = cols,
                               .y = element_view(y, first),
                               .finish = run->finish,
                               .first_col = first};
  for (int i = first_op; i < problem->n_epilogue; i++) {
    uint8_t kind = problem->epilogue[i].kind;
    if (kind == EPI_BIAS || kind == EPI_ADD || kind == EPI_MUL)
      call.operands[i - first_op] = element_view(run->operands[i], first);
  }
  return call;
}

static void run_own(const struct product *p, const struct product_run *run) {
  int32_t cols = p->unit_cols;
  int32_t first = run->unit * cols, end = first + run->n_units * cols;
  if (end > p->spec.problem.n) end = p->spec.problem.n;
  struct product_call call = {.rows = run->rows,
                              .n = end - first,
                              .k = p->spec.problem.k,
                              .x = run->x,
                              .x_stride = p->spec.x_stride,
                              .weights = product_unit_weights(p, run->unit),
                              .next = run->next,
                              .sums = run->workspace,
                              .epilogue = columns_epilogue(p, run, first, end - first, 0)};
  if (p->layout == OWN_AMX)
    amx_product_run(&call, p->spec.ops->epilogue_run);
  else if (p->layout == OWN_BF16)
    p->spec.ops->product_bf16_run(&call);
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
  struct epilogue_call call = columns_epilogue(p, run, s->first, s->n, first_op);
  int64_t stride = p->direct ? p->spec.y_stride : p->widest;
  epilogue_rectangle(&call, out, stride, 0, run->rows, 0, s->n, p->spec.ops->epilogue_run);
  return true;
}

bool product_run(const struct product *p, const struct product_run *run) {
  bool ok = true;
  if (p->kind == PRODUCT_OWN) run_own(p, run);
  for (int32_t i = 0; p->kind == PRODUCT_LIBRARY && i < run->n_units; i++)
    ok &= run_library(p, run, &p->slices[run->unit + i]);
  return ok;
}

void product_thread_init(void) {
  onednn_thread_init();
}
