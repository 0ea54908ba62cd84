// Every row of kernels.def against kernels/ref: each kernel is given every case that it says it can
// compute, whatever would be chosen. Sizes 1, odd, around the tiles and large; all dtypes and
// epilogues; poisoned outputs, gaps and neighbours; ugly values. A row that no case of this card
// reached is a failure, unless it is for other cards or needs a library that is not here.
//
// test_table [small | huge | none | KERNEL]: `small` takes small cases only (for
// compute-sanitizer), `huge` only the tensors of more than 2^31 elements; a kernel's name: that row
// alone.
#include "gpu_test.h"

#include "kernels/kernel.h"
#include "kernels/ref/ref.h"

#define WORKSPACE_BYTES ((size_t)32 << 20)

static struct kernel_device device;
static void *workspace;
static bool small_only;
static const enum dtype floats[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

// ---- comparison ----
static double contract(enum dtype dtype) { // relative L2 error
  return dtype == DTYPE_F32 ? 1e-5 : dtype == DTYPE_F16 ? 2e-3 : 8e-3;
}

// What a double becomes where it is stored: overflow is an infinity.
static double stored(enum dtype dtype, double x) {
  if (dtype == DTYPE_F16) return (double)f16_to_f32(f32_to_f16((float)x));
  if (dtype == DTYPE_BF16) return (double)bf16_to_f32(f32_to_bf16((float)x));
  return (double)(float)x;
}

static double worst; // error over what is allowed, of all rows since it was cleared

// Row by row: NaN where the oracle has NaN and nowhere else, the same infinities, and the finite
// rest within the contract. (One huge row must not hide a wrong small one.) `floor` is the size
// below which a row's error is absolute; `slack`, or NULL: what else each row may be off.
static void compare_rows(const char *what, const struct matrix *y, const double *want,
                         double relative, double floor, const double *slack) {
  int shown = 0;
  for (int64_t r = 0; r < y->rows; r++) {
    double error = 0, size = 0;
    bool alike = true;
    for (int64_t c = 0; c < y->cols; c++) {
      double got = matrix_get(y, r, c), exact = want[r * y->cols + c], at = stored(y->dtype, exact);
      bool edge =
          !isfinite(at) != !isfinite(got) && fabs(exact) > 6e4; // a rounding apart at the top
      if (edge) continue;
      if (isnan(at) != isnan(got) || (isinf(at) && at != got)) alike = false;
      if (!isfinite(at) || !isfinite(got)) continue;
      error += (got - exact) * (got - exact), size += exact * exact;
    }
    checks++;
    double limit =
        relative * fmax(sqrt(size), floor * sqrt((double)y->cols)) + (slack ? slack[r] : 0);
    worst = fmax(worst, sqrt(error) / limit);
    if (alike && sqrt(error) <= limit) continue;
    failures++;
    if (shown++ < 3)
      printf("FAIL %s: row %ld: %s, error %.3g of %.3g\n", what, (long)r,
             alike ? "wrong" : "NaN or infinity differs", sqrt(error), sqrt(size));
  }
}

static double *to_double(const struct matrix *m) {
  double *x = malloc(sizeof(double) * (size_t)(m->rows * m->cols) + 1);
  for (int64_t r = 0; r < m->rows; r++) {
    for (int64_t c = 0; c < m->cols; c++)
      x[r * m->cols + c] = matrix_get(m, r, c);
  }
  return x;
}

static struct view view_of(const struct matrix *m) {
  return (struct view){m->data, m->stride, (int32_t)m->cols, m->dtype};
}

enum data { PLAIN, FAR_MEAN, EQUAL, OVERFLOWING, DENORMAL, NON_FINITE, DATA_KINDS };
static const char *const data_name[DATA_KINDS] = {"plain",       "mean 1e6", "all equal",
                                                  "overflowing", "denormal", "inf and NaN"};

static void fill(struct matrix *m, enum data data, double scale) {
  bool half = m->dtype == DTYPE_F16;
  for (int64_t r = 0; r < m->rows; r++) {
    for (int64_t c = 0; c < m->cols; c++) {
      double x = normal() * scale;
      if (data == FAR_MEAN) x += half ? 2000 : 1e6;
      if (data == EQUAL) x = r % 2 ? 3.25 : 0;
      if (data == OVERFLOWING) x *= half ? 3e4 : 1e18;
      if (data == DENORMAL) x *= half ? 1e-6 : 1e-39;
      if (data == NON_FINITE && r % 4 && c == m->cols / 2)
        x = r % 4 == 1 ? INFINITY : r % 4 == 2 ? -INFINITY : NAN;
      matrix_set(m, r, c, x);
    }
  }
  matrix_upload(m);
}

// Runs one row of the table. False: not a case for it.
static bool run_row(const struct kernel *kernel, const struct kernel_call *call, const char *what) {
  struct kernel_choice choice = {.kernel = kernel};
  if (kernel->op != call->op || !kernel->supports(call)) return false;
  if (kernel->prepare) {
    int rc = kernel->prepare(call, WORKSPACE_BYTES, &choice);
    if (rc == CUDA_UNSUPPORTED) return false;
    CHECK_CUDA(rc);
  }
  int rc = kernel_run(&choice, call, workspace, NULL);
  if (rc == CUDA_UNSUPPORTED) {
    printf("FAIL %s: said it could and did not\n", what);
    failures++;
    return false;
  }
  CHECK_CUDA(rc);
  CHECK_CUDA(cudaDeviceSynchronize());
  return true;
}

// ---- products ----
static const struct epilogue {
  const char *name;
  int n;
  struct epilogue_op op[4];
} epilogues[] = {
    {"none", 0, {{0}}},
    {"bias", 1, {{EPI_BIAS, 0, 2, 0}}},
    {"bias erf", 2, {{EPI_BIAS, 0, 2, 0}, {EPI_ACT, ACT_GELU_ERF, 0, 0}}},
    {"bias tanh", 2, {{EPI_BIAS, 0, 2, 0}, {EPI_ACT, ACT_GELU_TANH, 0, 0}}},
    {"bias residual", 2, {{EPI_BIAS, 0, 2, 0}, {EPI_ADD, 0, 3, 0}}},
    {"residual", 1, {{EPI_ADD, 0, 3, 0}}},
    {"silu gate", 2, {{EPI_ACT, ACT_SILU, 0, 0}, {EPI_MUL, 0, 3, 0}}},
    {"erf scale residual",
     3,
     {{EPI_ACT, ACT_GELU_ERF, 0, 0}, {EPI_SCALE, 0, 0, 0.25f}, {EPI_ADD, 0, 3, 0}}},
    {"scale bias sigmoid",
     3,
     {{EPI_SCALE, 0, 0, 0.5f}, {EPI_BIAS, 0, 2, 0}, {EPI_ACT, ACT_SIGMOID, 0, 0}}},
    {"bias relu", 2, {{EPI_BIAS, 0, 2, 0}, {EPI_ACT, ACT_RELU, 0, 0}}},
    {"bias tanh act", 2, {{EPI_BIAS, 0, 2, 0}, {EPI_ACT, ACT_TANH, 0, 0}}},
    {"layer scale",
     3,
     {{EPI_BIAS, 0, 2, 0}, {EPI_MUL_SPREAD, SPREAD_ROWS, 2, 0}, {EPI_ADD, 0, 3, 0}}},
    {"beta residual, saved",
     3,
     {{EPI_ADD_SPREAD, SPREAD_NONE, 3, 0.5f}, {EPI_SAVE, 0, 1, 0}, {EPI_ACT, ACT_RELU, 0, 0}}},
};
#define N_EPILOGUES ((int)(sizeof epilogues / sizeof *epilogues))

struct product {
  int64_t m;
  int32_t n, k;
  int gap, shift; // elements between rows; by which x is off its alignment
  enum dtype in, out, operand;
  enum data data;
  const struct epilogue *epilogue;
};

static double epilogue_value(const struct epilogue *e, double v, double bias, double operand) {
  for (int i = 0; i < e->n; i++) {
    const struct epilogue_op *op = &e->op[i];
    if (op->kind == EPI_BIAS) v += bias;
    if (op->kind == EPI_ACT) v = ref_activate((enum activation)op->act, v);
    if (op->kind == EPI_SCALE) v *= (double)op->imm;
    if (op->kind == EPI_ADD) v += operand;
    if (op->kind == EPI_MUL) v *= operand;
    if (op->kind == EPI_ADD_SPREAD) v += (double)op->imm * operand;
    if (op->kind == EPI_MUL_SPREAD) v *= bias;
  }
  return v;
}

static double *product_expected(const struct product *p, const struct matrix in[4]) {
  double *x = to_double(&in[0]), *w = to_double(&in[1]), *bias = to_double(&in[2]),
         *operand = to_double(&in[3]);
  double *y = malloc(sizeof(double) * (size_t)(p->m * p->n));
  ref_linear(y, x, w, NULL, p->m, p->n, p->k);
  for (int64_t i = 0; i < p->m * p->n; i++)
    y[i] = epilogue_value(p->epilogue, y[i], bias[i % p->n], operand[i]);
  free(x), free(w), free(bias), free(operand);
  return y;
}

// A result, all of the epilogue behind it.
static void product_compare(const char *what, const struct product *p, const struct matrix in[4],
                            struct matrix *result) {
  double *want = product_expected(p, in);
  matrix_download(result, what);
  // sums that cancel: what counts is the size of what was summed, and of x that is its mean
  double floor = p->data == FAR_MEAN   ? (p->in == DTYPE_F16 ? 2000 : 1e6)
                 : p->data == DENORMAL ? 1e-30
                                       : 0.05;
  // numbers 2^-24 apart: a row's rounding is the contract's share of this
  if (p->data == DENORMAL && result->dtype == DTYPE_F16) floor = 0x1p-25 * sqrt(p->n) / 2e-3;
  if (p->data == OVERFLOWING) floor = p->in == DTYPE_F16 ? 3e4 : 1e18;
  compare_rows(what, result, want, contract(result->dtype == DTYPE_F32 ? p->in : result->dtype),
               floor, NULL);
  free(want);
}

static void product_case(const struct kernel *kernel, const struct product *p, int *ran) {
  char what[240];
  snprintf(what, sizeof what, "%s: %s->%s %ldx%dx%d gap %d shift %d, %s, %s", kernel->name,
           dtype_name(p->in), dtype_name(p->out), (long)p->m, p->n, p->k, p->gap, p->shift,
           p->epilogue->name, data_name[p->data]);
  struct matrix in[4] = {
      matrix_make(p->in, p->m, p->k, p->k + p->gap, (size_t)p->shift * dtype_bytes(p->in), true),
      matrix_make(p->in, p->n, p->k, p->k + p->gap, 0, true),
      matrix_make(p->operand, 1, p->n, p->n, 0, true),
      matrix_make(p->operand, p->m, p->n, p->n + p->gap, 0, true)};
  struct matrix y = matrix_make(p->out, p->m, p->n, p->n + p->gap, 0, false);
  fill(&in[0], p->data, 1), fill(&in[1], PLAIN, 1 / sqrt(p->k)), fill(&in[2], PLAIN, 1);
  fill(&in[3], PLAIN, 1);
  struct matrix saved = matrix_make(p->operand, p->m, p->n, p->n + p->gap, 0, false);
  struct view views[4], out[2] = {view_of(&y), view_of(&saved)};
  for (int i = 0; i < 4; i++)
    views[i] = view_of(&in[i]);
  struct linear_problem problem = {.n = p->n,
                                   .k = p->k,
                                   .x_dtype = p->in,
                                   .w_dtype = p->in,
                                   .y_dtype = p->out,
                                   .n_epilogue = (uint8_t)p->epilogue->n};
  memcpy(problem.epilogue, p->epilogue->op, sizeof p->epilogue->op);
  struct kernel_call call = {.device = &device,
                             .op = KERNEL_LINEAR,
                             .in = views,
                             .out = out,
                             .m = p->m,
                             .linear = &problem};
  if (run_row(kernel, &call, what)) {
    product_compare(what, p, in, &y);
    for (int i = 0; i < p->epilogue->n; i++) {
      if (p->epilogue->op[i].kind != EPI_SAVE) continue;
      struct epilogue before = *p->epilogue;
      struct product then = *p;
      before.n = i, then.epilogue = &before;
      product_compare(what, &then, in, &saved);
    }
    ++*ran;
  }
  for (int i = 0; i < 4; i++)
    matrix_free(&in[i]);
  matrix_free(&y), matrix_free(&saved);
}

// Two dozen shapes, each with other dtypes, epilogues and data: all pairs are met over the list.
static void products(const struct kernel *kernel, int *ran) {
  static const int32_t shapes[][3] = {
      {1, 1, 1},      {1, 8, 8},       {2, 64, 64},    {3, 5, 7},       {7, 136, 72},
      {16, 128, 64},  {17, 129, 65},   {63, 256, 128}, {64, 192, 64},   {65, 264, 136},
      {127, 120, 56}, {128, 128, 256}, {129, 136, 40}, {255, 72, 96},   {257, 264, 64},
      {33, 384, 384}, {4, 1536, 384},  {300, 520, 24}, {129, 1000, 72}, {512, 256, 512}};
  int n_shapes = (int)(sizeof shapes / sizeof *shapes), turn = 0;
  for (int i = 0; i < n_shapes; i++) {
    if (small_only && (int64_t)shapes[i][0] * shapes[i][1] * shapes[i][2] > 300000) continue;
    for (int d = 0; d < 3; d++) {
      for (int e = 0; e < (small_only ? 2 : 4); e++, turn++) {
        struct product p = {.m = shapes[i][0],
                            .n = shapes[i][1],
                            .k = shapes[i][2],
                            .gap = turn % 3 == 1   ? 8
                                   : turn % 7 == 3 ? 3
                                                   : 0,
                            .shift = turn % 11 == 5,
                            .in = floats[d],
                            .out = turn % 4 == 3 ? floats[(d + turn) % 3] : floats[d],
                            .operand = turn % 5 == 2 ? DTYPE_F32 : floats[d],
                            .data = turn % 2 ? PLAIN : (enum data)(turn / 2 % DATA_KINDS),
                            .epilogue = &epilogues[turn % N_EPILOGUES]};
        product_case(kernel, &p, ran);
      }
    }
  }
}

// ---- attention ----
struct attention {
  int heads, kv_heads, dim;
  bool causal;
  enum dtype dtype;
  double spread; // of q: large ones overflow a naive exponential
  bool poisoned; // the second sequence is NaN: nobody else's business
  int n_lengths, lengths[8];
};

// What rounding the scores in fp32 does to each row of the output: a score of 1000 leaves its
// probability right to 1e-4, whatever computes it. With u = 2^-24, the sum of d products is off by
// about 0.4 u |q| |k_j| (rounded partial sums of random signs; five times that is allowed), and
// scaling and the exponential's argument add up to 4 u |s_j|. An error e_j of a score moves the
// output by e_j p_j (v_j - o): where one key has all the weight, nothing is allowed beside the
// contract.
static double *score_slack(const struct attention *a, const double *q, const double *k,
                           const double *v, const int32_t *cu) {
  int32_t tokens = cu[a->n_lengths], d = a->dim, kv_cols = a->kv_heads * d;
  size_t n = (size_t)tokens, row = sizeof(double) * (size_t)d;
  double *slack = calloc(n, sizeof(double)), *p = calloc(n, sizeof(double)),
         *e = calloc(n, sizeof(double)), *o = malloc(row);
  for (int32_t seq = 0; seq < a->n_lengths; seq++) {
    for (int32_t t = cu[seq]; t < cu[seq + 1]; t++) {
      int32_t end = a->causal ? t + 1 : cu[seq + 1];
      for (int h = 0; h < a->heads; h++) {
        const double *query = q + (int64_t)(t * a->heads + h) * d;
        int64_t at = (int64_t)(h / (a->heads / a->kv_heads)) * d; // of the head's keys and values
        double top = -INFINITY, sum = 0, off = 0;
        for (int32_t j = cu[seq]; j < end; j++) {
          double s = 0, qq = 0, kk = 0;
          for (int32_t i = 0; i < d; i++) {
            double x = query[i], y = k[(int64_t)j * kv_cols + at + i];
            s += x * y, qq += x * x, kk += y * y;
          }
          p[j] = s / sqrt(d), top = fmax(top, p[j]);
          e[j] = 0x1p-24 * (2 * sqrt(qq * kk / d) + 4 * fabs(p[j]));
        }
        memset(o, 0, row);
        for (int32_t j = cu[seq]; j < end; j++)
          sum += p[j] = exp(p[j] - top);
        for (int32_t j = cu[seq]; j < end; j++) {
          for (int32_t i = 0; i < d; i++)
            o[i] += p[j] / sum * v[(int64_t)j * kv_cols + at + i];
        }
        for (int32_t j = cu[seq]; j < end; j++) {
          double far = 0;
          for (int32_t i = 0; i < d; i++)
            far += pow(v[(int64_t)j * kv_cols + at + i] - o[i], 2);
          off += e[j] * p[j] / sum * sqrt(far);
        }
        slack[t] += isfinite(off) ? off : 0;
      }
    }
  }
  free(p), free(e), free(o);
  return slack;
}

static void attention_run_case(const struct kernel *kernel, const struct attention *a, int *ran) {
  char what[200];
  int32_t cu[9] = {0}, longest = 0;
  for (int i = 0; i < a->n_lengths; i++) {
    cu[i + 1] = cu[i] + a->lengths[i];
    longest = a->lengths[i] > longest ? a->lengths[i] : longest;
  }
  int32_t tokens = cu[a->n_lengths], q_cols = a->heads * a->dim, kv_cols = a->kv_heads * a->dim;
  snprintf(what, sizeof what, "%s: %s h%d/%d d%d%s %d sequences, longest %d, spread %g",
           kernel->name, dtype_name(a->dtype), a->heads, a->kv_heads, a->dim,
           a->causal ? " causal" : "", a->n_lengths, longest, a->spread);
  struct matrix in[3] = {matrix_make(a->dtype, tokens, q_cols, q_cols + 8, 0, true),
                         matrix_make(a->dtype, tokens, kv_cols, kv_cols + 16, 0, true),
                         matrix_make(a->dtype, tokens, kv_cols, kv_cols + 8, 0, true)};
  struct matrix out = matrix_make(a->dtype, tokens, q_cols, q_cols + 8, 0, false);
  struct matrix bounds = matrix_make(DTYPE_I32, 1, a->n_lengths + 1, a->n_lengths + 1, 0, false);
  struct view views[3];
  for (int i = 0; i < 3; i++) {
    fill(&in[i], PLAIN, i == 0 ? a->spread : 1);
    if (a->poisoned) {
      for (int32_t t = cu[1]; t < cu[2]; t++) {
        for (int64_t c = 0; c < in[i].cols; c++)
          matrix_set(&in[i], t, c, c % 2 ? NAN : INFINITY);
      }
      matrix_upload(&in[i]);
    }
    views[i] = view_of(&in[i]);
  }
  for (int i = 0; i <= a->n_lengths; i++)
    matrix_set(&bounds, 0, i, cu[i]);
  matrix_upload(&bounds);
  struct attention_problem problem = {
      a->heads, a->kv_heads, a->dim, a->causal, (float)(1 / sqrt(a->dim)), a->dtype};
  struct batch_geometry host = {
      .n_tokens = tokens, .n_seqs = a->n_lengths, .max_seqlen = longest, .cu_seqlens = cu};
  struct batch_geometry geometry = host;
  geometry.cu_seqlens = bounds.data;
  struct view y = view_of(&out);
  struct kernel_call call = {.device = &device,
                             .op = KERNEL_ATTENTION,
                             .in = views,
                             .out = &y,
                             .attention = &problem,
                             .geometry = &geometry};
  if (run_row(kernel, &call, what)) {
    double *q = to_double(&in[0]), *k = to_double(&in[1]), *v = to_double(&in[2]);
    double *want = malloc(sizeof(double) * (size_t)tokens * (size_t)q_cols),
           *work = malloc(sizeof(double) * (size_t)longest);
    ref_attention(want, q, k, v, &problem, &host, work);
    matrix_download(&out, what);
    double *slack = a->dtype == DTYPE_F32 ? score_slack(a, q, k, v, cu) : NULL;
    compare_rows(what, &out, want, contract(a->dtype), 0.02, slack);
    free(slack), free(q), free(k), free(v), free(want), free(work);
    ++*ran;
  }
  for (int i = 0; i < 3; i++)
    matrix_free(&in[i]);
  matrix_free(&out), matrix_free(&bounds);
}

static void attentions(const struct kernel *kernel, int *ran) {
  static const int dims[] = {32, 64, 80, 96, 128, 256, 24, 20};
  static const int lengths[][8] = {{1},           {2, 1, 7, 0, 33},         {63, 64, 65, 17},
                                   {127, 1, 129}, {128, 130, 3, 0, 31, 96}, {300, 5}};
  static const int counts[] = {1, 5, 4, 3, 6, 2};
  int turn = 0;
  for (int d = 0; d < 8; d++) {
    for (int l = 0; l < (small_only ? 2 : 6); l++) {
      for (int t = 0; t < 3; t++, turn++) {
        struct attention a = {.heads = turn % 3 == 2 ? 4 : 2,
                              .kv_heads = turn % 4 == 1 ? 1 : 2,
                              .dim = dims[d],
                              .causal = turn % 2,
                              .dtype = floats[t],
                              .spread = turn % 5 == 4 ? 200 : 1,
                              .poisoned = counts[l] > 2 && turn % 3 == 0,
                              .n_lengths = counts[l]};
        memcpy(a.lengths, lengths[l], sizeof a.lengths);
        attention_run_case(kernel, &a, ran);
      }
    }
  }
}

// ---- more than 2^31 elements ----
// One block of rows, HUGE_COPIES times: every block of the result has the bits of the first, and
// the first the oracle's values.
#define HUGE_COPIES 2080
static void *repeated(const void *block, size_t bytes) {
  char *all;
  CHECK_CUDA(cudaMalloc((void **)&all, bytes * HUGE_COPIES));
  for (size_t i = 0; i < HUGE_COPIES; i++)
    CHECK_CUDA(cudaMemcpyAsync(all + i * bytes, block, bytes, cudaMemcpyDeviceToDevice, NULL));
  return all;
}

// The first block of y to `first` on the host; others against it.
static void blocks_are_equal(const char *what, const char *y, char *first, size_t bytes) {
  static const size_t blocks[] = {1, 1023, 1024, HUGE_COPIES - 2, HUGE_COPIES - 1};
  char *other = malloc(bytes);
  CHECK_CUDA(cudaMemcpy(first, y, bytes, cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
    CHECK_CUDA(cudaMemcpy(other, y + blocks[i] * bytes, bytes, cudaMemcpyDeviceToHost));
    checks++;
    if (memcmp(first, other, bytes) == 0) continue;
    printf("FAIL %s: block %zu differs from the first\n", what, blocks[i]);
    failures++;
  }
  free(other);
}

static void huge_product(const struct kernel *kernel, enum dtype dtype, int32_t n, int32_t k) {
  const int64_t block = 256, m = block * HUGE_COPIES;
  char what[120];
  snprintf(what, sizeof what, "%s: %s, x of %ld and y of %ld elements", kernel->name,
           dtype_name(dtype), (long)(m * k), (long)(m * n));
  struct linear_problem problem = {
      .n = n, .k = k, .x_dtype = dtype, .w_dtype = dtype, .y_dtype = dtype};
  struct matrix x = matrix_make(dtype, block, k, k, 0, true),
                w = matrix_make(dtype, n, k, k, 0, true);
  struct matrix head = matrix_make(dtype, block, n, n, 0, false);
  fill(&x, PLAIN, 1), fill(&w, PLAIN, 1 / sqrt(k));
  char *all = repeated(x.data, x.bytes), *y = repeated(head.data, head.bytes); // y: poison
  struct view in[2] = {{all, k, k, dtype}, view_of(&w)}, out = {y, n, n, dtype};
  struct kernel_call call = {
      .device = &device, .op = KERNEL_LINEAR, .in = in, .out = &out, .m = m, .linear = &problem};
  if (run_row(kernel, &call, what)) {
    double *xs = to_double(&x), *ws = to_double(&w),
           *want = malloc(sizeof(double) * (size_t)n * 16);
    blocks_are_equal(what, y, (char *)head.host, head.bytes);
    ref_linear(want, xs, ws, NULL, 16, n, k);
    head.rows = 16;
    compare_rows(what, &head, want, contract(dtype), 0.05, NULL);
    printf("ran %s\n", what);
    free(xs), free(ws), free(want);
  }
  cudaFree(all), cudaFree(y), matrix_free(&x), matrix_free(&w), matrix_free(&head);
}

// Sequences of 128 tokens; q, k and v are columns of one buffer, whose offsets pass 2^32. `kernel`
// NULL: the four unfused steps, with a score matrix of more than 2^31 elements.
static void huge_attention(const struct kernel *kernel, enum dtype dtype) {
  enum { HEADS = 32, DIM = 128, COLS = HEADS * DIM, LENGTH = 128, BLOCK = 256 };
  const int32_t tokens = BLOCK * HUGE_COPIES, seqs = tokens / LENGTH;
  const char *name = kernel ? kernel->name : "unfused attention";
  char what[120];
  snprintf(what, sizeof what, "%s: %s, %ld elements of each operand", name, dtype_name(dtype),
           (long)tokens * COLS);
  struct attention_problem problem = {HEADS, HEADS, DIM, false, 0.08838834764f, dtype};
  struct matrix qkv = matrix_make(dtype, BLOCK, 3 * COLS, 3 * COLS, 0, true),
                head = matrix_make(dtype, BLOCK, COLS, COLS, 0, false),
                cu = matrix_make(DTYPE_I32, 1, seqs + 1, seqs + 1, 0, false),
                offset = matrix_make(DTYPE_I64, 1, seqs + 1, seqs + 1, 0, false);
  fill(&qkv, PLAIN, 1);
  for (int32_t i = 0; i <= seqs; i++) {
    matrix_set(&cu, 0, i, i * LENGTH);
    matrix_set(&offset, 0, i, (double)i * LENGTH * LENGTH);
  }
  matrix_upload(&cu), matrix_upload(&offset);
  char *all = repeated(qkv.data, qkv.bytes), *y = repeated(head.data, head.bytes);
  float *scores = NULL;
  struct view in[3], out = {y, COLS, COLS, dtype};
  for (size_t i = 0; i < 3; i++)
    in[i] = (struct view){all + i * COLS * dtype_bytes(dtype), (int64_t)3 * COLS, COLS, dtype};
  struct batch_geometry geometry = {.n_tokens = tokens,
                                    .n_seqs = seqs,
                                    .max_seqlen = LENGTH,
                                    .sum_sq = (int64_t)seqs * LENGTH * LENGTH,
                                    .cu_seqlens = cu.data,
                                    .scores_offset = offset.data};
  struct kernel_call call = {.device = &device,
                             .op = KERNEL_ATTENTION,
                             .in = in,
                             .out = &out,
                             .attention = &problem,
                             .geometry = &geometry};
  bool ran = kernel && run_row(kernel, &call, what);
  if (!kernel) {
    CHECK_CUDA(cudaMalloc((void **)&scores, (size_t)geometry.sum_sq * HEADS * sizeof(float)));
    CHECK_CUDA(attention_scores(&problem, &in[0], &in[1], scores, &geometry, NULL));
    CHECK_CUDA(attention_scores_scale(&problem, scores, &geometry, NULL));
    CHECK_CUDA(attention_scores_softmax(&problem, scores, &geometry, NULL));
    CHECK_CUDA(attention_context(&problem, scores, &in[2], &out, &geometry, NULL));
    CHECK_CUDA(cudaDeviceSynchronize());
    ran = true;
  }
  if (ran) {
    double *part[3], work[LENGTH], *want = malloc(sizeof(double) * LENGTH * COLS);
    struct batch_geometry one = {
        .n_tokens = LENGTH, .n_seqs = 1, .cu_seqlens = (const int32_t[]){0, LENGTH}};
    for (int i = 0; i < 3; i++) {
      part[i] = malloc(sizeof(double) * LENGTH * COLS);
      for (int64_t j = 0; j < (int64_t)LENGTH * COLS; j++)
        part[i][j] = matrix_get(&qkv, j / COLS, (int64_t)i * COLS + j % COLS);
    }
    blocks_are_equal(what, y, (char *)head.host, head.bytes);
    ref_attention(want, part[0], part[1], part[2], &problem, &one, work);
    head.rows = LENGTH;
    compare_rows(what, &head, want, contract(dtype), 0.02, NULL);
    printf("ran %s\n", what);
    free(part[0]), free(part[1]), free(part[2]), free(want);
  }
  cudaFree(all), cudaFree(y), cudaFree(scores), matrix_free(&qkv), matrix_free(&head);
  matrix_free(&cu), matrix_free(&offset);
}

static void huge(void) {
  size_t free_bytes, all_bytes;
  CHECK_CUDA(cudaMemGetInfo(&free_bytes, &all_bytes));
  if (free_bytes < (size_t)48 << 30) {
    printf("SKIP more than 2^31 elements: %zu GiB free, of 48\n", free_bytes >> 30);
    return;
  }
  for (int i = 0; kernel_at(i); i++) {
    const struct kernel *kernel = kernel_at(i);
    for (int d = 0; d < 3; d += 2) { // fp32, bf16
      if (kernel->op == KERNEL_ATTENTION) {
        huge_attention(kernel, floats[d]);
        continue;
      }
      huge_product(kernel, floats[d], 4104, 64);
      huge_product(kernel, floats[d], 64, 4104);
    }
  }
  huge_attention(NULL, DTYPE_BF16);
}

// ---- every row ----
static bool for_this_card(const struct kernel *kernel) {
  if (strcmp(kernel->name, "lt") == 0 && !device.lt) return false;
  return !strstr(kernel->name, "sm90") && strcmp(kernel->name, "gemm_small") != 0 ? true
                                                                                  : device.sm == 90;
}

int main(int argc, char **argv) {
  char message[LT_MESSAGE_BYTES];
  struct lt *lt = NULL;
  need_gpu();
  if (argc > 1 && strcmp(argv[1], "none") == 0) return 0; // does the sanitizer start at all?
  small_only = argc > 1 && strcmp(argv[1], "small") == 0;
  bool huge_only = argc > 1 && strcmp(argv[1], "huge") == 0;
  const char *only = argc > 1 && !small_only && !huge_only ? argv[1] : NULL;
  printf("seed %#lx\n", (unsigned long)rng_state);
  CHECK_CUDA(kernel_device_query(&device));
  if (lt_open(&lt, message) != 0) printf("SKIP lt: %s\n", message);
  device.lt = lt;
  CHECK_CUDA(cudaMalloc(&workspace, WORKSPACE_BYTES));
  for (int i = 0; kernel_at(i) && !huge_only; i++) {
    const struct kernel *kernel = kernel_at(i);
    int ran = 0, before = checks;
    if (only && strcmp(only, kernel->name) != 0) continue;
    worst = 0;
    if (kernel->op == KERNEL_LINEAR_NORM) continue; // test_gemm_norm.c
    if (kernel->op == KERNEL_LINEAR)
      products(kernel, &ran);
    else
      attentions(kernel, &ran);
    printf("%-18s %4d cases, %6d rows, worst at %.2f of its limit\n", kernel->name, ran,
           checks - before, worst);
    if (ran == 0 && for_this_card(kernel))
      printf("FAIL %s: no case reached it\n", kernel->name), failures++;
  }
  if (only && checks == 0) printf("FAIL no kernel %s\n", only), failures++;
  if (!small_only && !only) huge();
  cudaFree(workspace);
  if (lt) lt_close(lt);
  return report("table");
}
