// Attention against double: head sizes, grouped heads, causal or not, packed sequences of unlike
// and awkward lengths, views of one wide buffer, NaN in whatever is not the sequence's own, scores
// that overflow a naive exponential.
#include "gpu_test.h"

#include "kernels/attention/attention.h"

struct shape {
  int heads, kv_heads, dim;
  bool causal;
  enum dtype dtype;
  int lengths[8]; // 0 ends the list; -1 is an empty sequence
  double spread;  // of q: large ones make peaked softmaxes
  bool simple;
};

struct work {
  struct matrix qkv, out, cu;
  int64_t tokens;
  int n_seqs, longest;
};

static void make(const struct shape *s, struct work *w) {
  int starts[9] = {0};
  w->n_seqs = w->longest = 0;
  for (int i = 0; i < 8 && s->lengths[i]; i++) {
    int length = s->lengths[i] < 0 ? 0 : s->lengths[i];
    starts[i + 1] = starts[i] + length;
    w->longest = length > w->longest ? length : w->longest;
    w->n_seqs++;
  }
  w->tokens = starts[w->n_seqs];
  int64_t cols = (int64_t)(s->heads + 2 * s->kv_heads) * s->dim;
  w->qkv = matrix_make(s->dtype, w->tokens, cols, cols, 0, true);
  w->out = matrix_make(s->dtype, w->tokens, (int64_t)s->heads * s->dim,
                       (int64_t)s->heads * s->dim + 8, 0, false);
  w->cu = matrix_make(DTYPE_I32, 1, w->n_seqs + 1, w->n_seqs + 1, 0, false);
  for (int i = 0; i <= w->n_seqs; i++)
    matrix_set(&w->cu, 0, i, starts[i]);
  matrix_normal(&w->qkv, 1, 0);
  for (int64_t t = 0; t < w->tokens; t++) {
    for (int c = 0; c < s->heads * s->dim; c++)
      matrix_set(&w->qkv, t, c, matrix_get(&w->qkv, t, c) * s->spread);
  }
  matrix_upload(&w->cu);
}

static void poison_sequence(const struct shape *s, struct work *w, int seq) {
  int from = (int)matrix_get(&w->cu, 0, seq), to = (int)matrix_get(&w->cu, 0, seq + 1);
  for (int t = from; t < to; t++) {
    for (int64_t c = 0; c < w->qkv.cols; c++)
      matrix_set(&w->qkv, t, c, c % 3 ? NAN : INFINITY);
  }
  (void)s;
}

static void expect_row(const struct shape *s, const struct work *w, int seq, int row, int head,
                       double *out) {
  int64_t t0 = (int64_t)matrix_get(&w->cu, 0, seq);
  int length = (int)((int64_t)matrix_get(&w->cu, 0, seq + 1) - t0),
      last = s->causal ? row + 1 : length;
  int64_t kc = (int64_t)(s->heads + head / (s->heads / s->kv_heads)) * s->dim,
          vc = kc + (int64_t)s->kv_heads * s->dim;
  double *p = malloc(sizeof(double) * (size_t)length), top = -INFINITY, sum = 0;
  for (int j = 0; j < last; j++) {
    p[j] = 0;
    for (int c = 0; c < s->dim; c++)
      p[j] +=
          matrix_get(&w->qkv, t0 + row, head * s->dim + c) * matrix_get(&w->qkv, t0 + j, kc + c);
    p[j] /= sqrt(s->dim);
    top = p[j] > top ? p[j] : top;
  }
  for (int c = 0; c < s->dim; c++)
    out[c] = 0;
  for (int j = 0; j < last; j++) {
    double e = exp(p[j] - top);
    sum += e;
    for (int c = 0; c < s->dim; c++)
      out[c] += e * matrix_get(&w->qkv, t0 + j, vc + c);
  }
  for (int c = 0; c < s->dim; c++)
    out[c] /= sum;
  free(p);
}

static void run_case(const struct shape *s, int poisoned) {
  char what[160];
  struct work w;
  make(s, &w);
  if (poisoned >= 0) poison_sequence(s, &w, poisoned);
  matrix_upload(&w.qkv);
  snprintf(what, sizeof what, "attention %s h%d/%d d%d %s lengths %d %d %d spread %g poisoned %d%s",
           dtype_name(s->dtype), s->heads, s->kv_heads, s->dim, s->causal ? "causal" : "full",
           s->lengths[0], s->lengths[1], s->lengths[2], s->spread, poisoned,
           s->simple ? " simple" : "");
  struct attention_problem p = {s->heads, s->kv_heads, s->dim, s->causal, (float)(1 / sqrt(s->dim)),
                                s->dtype};
  struct batch_geometry g = {.n_tokens = (int32_t)w.tokens,
                             .n_seqs = w.n_seqs,
                             .max_seqlen = w.longest,
                             .cu_seqlens = w.cu.data};
  uint8_t *base = w.qkv.data;
  size_t es = dtype_bytes(s->dtype);
  int64_t stride = w.qkv.stride;
  struct view in[3] = {
      {base, stride, s->heads * s->dim, s->dtype},
      {base + (size_t)(s->heads * s->dim) * es, stride, s->kv_heads * s->dim, s->dtype},
      {base + (size_t)((s->heads + s->kv_heads) * s->dim) * es, stride, s->kv_heads * s->dim,
       s->dtype}};
  struct view out = {w.out.data, w.out.stride, (int32_t)w.out.cols, s->dtype};
  int rc;
  if (s->simple)
    rc = attention_simple(&p, in, &out, &g, NULL);
  else if (s->dtype == DTYPE_F32)
    rc = attention_run(&p, in, &out, &g, NULL);
  else
    rc = s->dtype == DTYPE_BF16 ? flash_sm90_bf16(&p, in, &out, &g, NULL)
                                : flash_sm90_f16(&p, in, &out, &g, NULL);
  CHECK_CUDA(rc);
  CHECK_CUDA(cudaDeviceSynchronize());
  matrix_download(&w.out, what);
  int shown = 0;
  double row_out[256];
  for (int seq = 0; seq < w.n_seqs; seq++) {
    if (seq == poisoned) continue;
    int t0 = (int)matrix_get(&w.cu, 0, seq), length = (int)matrix_get(&w.cu, 0, seq + 1) - t0;
    int step = length > 150 ? 7 : 1;
    for (int row = 0; row < length;
         row += row + step < length || row == length - 1 ? step : length - 1 - row) {
      int head = row % s->heads;
      expect_row(s, &w, seq, row, head, row_out);
      // P is rounded to 16 bits before it meets V: errors of 2^-9 (bf16) of values near 1, averaged
      // down
      double absolute = s->dtype == DTYPE_BF16 ? 6e-3 : s->dtype == DTYPE_F16 ? 1e-3 : 3e-5;
      for (int c = 0; c < s->dim; c++)
        compare(what, t0 + row, head * s->dim + c, matrix_get(&w.out, t0 + row, head * s->dim + c),
                row_out[c], s->dtype, 2, absolute, &shown);
    }
  }
  matrix_free(&w.qkv), matrix_free(&w.out), matrix_free(&w.cu);
}

static const int dims[] = {32, 64, 80, 96, 128, 256};

// NaN and inf of another sequence stay its own.
static void sequences_keep_to_themselves(void) {
  for (int d = 0; d < 6; d++) { // another sequence's NaN and inf stay its own
    run_case(&(struct shape){.heads = 2,
                             .kv_heads = 2,
                             .dim = dims[d],
                             .dtype = DTYPE_BF16,
                             .lengths = {100, 77, 200},
                             .spread = 1},
             1);
    run_case(&(struct shape){.heads = 2,
                             .kv_heads = 1,
                             .dim = dims[d],
                             .causal = true,
                             .dtype = DTYPE_F16,
                             .lengths = {300, 129, 64},
                             .spread = 1},
             1);
  }
}

static void blocks_walk_several_tiles(void) {
  // as many tiles as make every block walk several
  run_case(&(struct shape){.heads = 16,
                           .kv_heads = 16,
                           .dim = 64,
                           .dtype = DTYPE_BF16,
                           .lengths = {1500, 900, 1, 700, 1300, 44, 129, 1025},
                           .spread = 1},
           -1);
  run_case(&(struct shape){.heads = 16,
                           .kv_heads = 4,
                           .dim = 128,
                           .causal = true,
                           .dtype = DTYPE_BF16,
                           .lengths = {1500, 900, 1, 700, 1300, 44, 129, 1025},
                           .spread = 1},
           -1);
}

static void simple_kernel_takes_anything(void) {
  static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
  static const int odd[] = {1, 7, 33, 40, 64, 128, 200, 256};
  for (int i = 0; i < 16; i++) {
    run_case(&(struct shape){.heads = 4,
                             .kv_heads = i % 2 ? 2 : 4,
                             .dim = odd[i % 8],
                             .causal = i & 1,
                             .dtype = dtypes[i % 3],
                             .lengths = {45, 130, 1, -1, 9},
                             .spread = 1,
                             .simple = true},
             i % 4 == 3 ? 1 : -1);
  }
}

int main(void) {
  need_gpu();
  printf("seed %#lx\n", (unsigned long)rng_state);
  static const int lengths[][8] = {
      {128},           {1},        {127, 129, 1, 300}, {64, -1, 65, 513, 2},
      {255, 256, 257}, {1000, 17}, {-1, 5, 640},       {2048}};
  int n = 0;
  for (int d = 0; d < 6; d++) {
    for (int l = 0; l < 8; l++) {
      for (int causal = 0; causal < 2; causal++, n++) {
        struct shape s = {.heads = n % 3 ? 4 : 3,
                          .kv_heads = n % 3 == 1 ? 2
                                      : n % 3    ? 1
                                                 : 3,
                          .dim = dims[d],
                          .causal = causal,
                          .dtype = n % 5 < 2 ? DTYPE_F16 : DTYPE_BF16,
                          .spread = n % 4 == 3 ? 30 : 1};
        memcpy(s.lengths, lengths[l], sizeof s.lengths);
        run_case(&s, -1);
      }
    }
  }
  sequences_keep_to_themselves();
  blocks_walk_several_tiles();
  simple_kernel_takes_anything();
  return report("attention");
}
