// Attention, fused and unfused, against kernels/ref: head sizes, grouped heads, causal or not,
// packed sequences of unlike and awkward lengths, views of one wide buffer, NaN in whatever is not
// the sequence's own, scores that overflow a naive exponential, counts of a bucket around a smaller
// batch.
#include "gpu_test.h"

#include "kernels/attention/attention.h"
#include "kernels/attention/products.h"
#include "kernels/ref/ref.h"

static bool small_only;
static long turn, parts = 1;
enum path { FUSED, FUSED_32, FUSED_MMA, FUSED_SIMPLE, UNFUSED, UNFUSED_SIMPLE };
static const char *const path_name[] = {"fused",        "fused by 32 rows", "fused mma",
                                        "fused simple", "unfused",          "unfused simple"};

struct shape {
  int heads, kv_heads, dim;
  bool causal;
  enum dtype dtype;
  int lengths[8]; // 0 ends the list; -1 is an empty sequence
  double spread;  // of q: large ones make peaked softmaxes
  enum path path;
  int poisoned; // sequence full of NaN and inf, 0: none (so never the first)
  bool bucket;  // counts on the host are larger than the batch
  size_t shift; // elements by which addresses are off
};

struct work {
  struct matrix qkv, out, cu, offset, scores;
  int64_t tokens, sum_sq;
  int n_seqs, longest;
  struct batch_geometry geometry;
};

static void make_geometry(const struct shape *s, struct work *w) {
  int starts[9] = {0};
  int64_t squares[9] = {0};
  for (int i = 0; i < 8 && s->lengths[i]; i++) {
    int length = s->lengths[i] < 0 ? 0 : s->lengths[i];
    starts[i + 1] = starts[i] + length;
    squares[i + 1] = squares[i] + (int64_t)length * length;
    w->longest = length > w->longest ? length : w->longest;
    w->n_seqs++;
  }
  w->tokens = starts[w->n_seqs], w->sum_sq = squares[w->n_seqs];
  int slots = w->n_seqs + (s->bucket ? 37 : 0);
  w->cu = matrix_make(DTYPE_I32, 1, slots + 1, slots + 1, 0, false);
  w->offset = matrix_make(DTYPE_I64, 1, slots + 1, slots + 1, 0, false);
  for (int i = 0; i <= slots; i++) { // past the last they repeat the end
    matrix_set(&w->cu, 0, i, starts[i < w->n_seqs ? i : w->n_seqs]);
    matrix_set(&w->offset, 0, i, (double)squares[i < w->n_seqs ? i : w->n_seqs]);
  }
  matrix_upload(&w->cu);
  matrix_upload(&w->offset);
  w->geometry = (struct batch_geometry){
      .n_tokens = (int32_t)w->tokens + (s->bucket ? 300 : 0),
      .n_seqs = slots,
      .max_seqlen = w->longest + (s->bucket ? 700 : 0),
      .sum_sq = w->sum_sq + (s->bucket ? 90000 : 0),
      .cu_seqlens = w->cu.data,
      .scores_offset = w->offset.data,
  };
}

static void make(const struct shape *s, struct work *w) {
  *w = (struct work){0};
  make_geometry(s, w);
  int64_t cols = (int64_t)(s->heads + 2 * s->kv_heads) * s->dim, slots = w->geometry.n_tokens,
          wide = (int64_t)s->heads * s->dim;
  size_t shift = s->shift * dtype_bytes(s->dtype);
  w->qkv = matrix_make(s->dtype, slots, cols, cols, shift, true);
  w->out = matrix_make(s->dtype, slots, wide, wide + 8, shift, false);
  w->scores = matrix_make(DTYPE_F32, 1, s->heads * w->geometry.sum_sq,
                          s->heads * w->geometry.sum_sq, 0, false);
  for (int64_t t = 0; t < w->tokens; t++) { // rows behind the last token stay NaN
    for (int64_t c = 0; c < cols; c++)
      matrix_set(&w->qkv, t, c, normal() * (c < wide ? s->spread : 1));
  }
  if (s->poisoned > 0) {
    int from = (int)matrix_get(&w->cu, 0, s->poisoned),
        to = (int)matrix_get(&w->cu, 0, s->poisoned + 1);
    for (int t = from; t < to; t++) {
      for (int64_t c = 0; c < cols; c++)
        matrix_set(&w->qkv, t, c, c % 3 ? NAN : INFINITY);
    }
  }
  matrix_upload(&w->qkv);
}

static int run_unfused(const struct shape *s, const struct attention_problem *p,
                       const struct view *in, const struct view *out, const struct work *w) {
  float *scores = w->scores.data;
  const struct batch_geometry *g = &w->geometry;
  bool simple = s->path == UNFUSED_SIMPLE;
  int rc = simple ? scores_simple(p, &in[0], &in[1], scores, g, NULL)
                  : attention_scores(p, &in[0], &in[1], scores, g, NULL);
  if (rc == 0) rc = attention_scores_scale(p, scores, g, NULL);
  if (rc == 0) rc = attention_scores_softmax(p, scores, g, NULL);
  if (rc != 0) return rc;
  return simple ? context_simple(p, scores, &in[2], out, g, NULL)
                : attention_context(p, scores, &in[2], out, g, NULL);
}

static int run(const struct shape *s, const struct attention_problem *p, const struct work *w) {
  uint8_t *base = w->qkv.data;
  size_t es = dtype_bytes(s->dtype);
  int64_t stride = w->qkv.stride;
  struct view in[3] = {
      {base, stride, s->heads * s->dim, s->dtype},
      {base + (size_t)(s->heads * s->dim) * es, stride, s->kv_heads * s->dim, s->dtype},
      {base + (size_t)((s->heads + s->kv_heads) * s->dim) * es, stride, s->kv_heads * s->dim,
       s->dtype}};
  struct view out = {w->out.data, w->out.stride, (int32_t)w->out.cols, s->dtype};
  const struct batch_geometry *g = &w->geometry;
  if (s->path >= UNFUSED) return run_unfused(s, p, in, &out, w);
  if (s->path == FUSED_SIMPLE) return attention_simple(p, in, &out, g, NULL);
  if (s->dtype == DTYPE_F32) return flash_f32(p, in, &out, g, s->path == FUSED_32 ? 32 : 64, NULL);
  if (s->path == FUSED_MMA)
    return s->dtype == DTYPE_BF16 ? flash_mma_bf16(p, in, &out, g, NULL)
                                  : flash_mma_f16(p, in, &out, g, NULL);
  return s->dtype == DTYPE_BF16 ? flash_sm90_bf16(p, in, &out, g, NULL)
                                : flash_sm90_f16(p, in, &out, g, NULL);
}

// What must not have been written: rows behind the last token, scores behind the last sequence's.
static void expect_untouched(const struct shape *s, struct work *w, const char *what) {
  size_t wrong = 0, row = (size_t)w->out.stride * dtype_bytes(s->dtype);
  for (size_t i = (size_t)w->tokens * row; i < w->out.bytes; i++)
    wrong += w->out.host[i] != POISON;
  for (size_t i = (size_t)(s->heads * w->sum_sq) * 4; i < w->scores.bytes; i++)
    wrong += w->scores.host[i] != POISON;
  if (wrong == 0) return;
  printf("FAIL %s: %zu bytes behind the batch were written\n", what, wrong);
  failures++;
}

// One head of one sequence; the oracle gets it as a problem of its own.
static void verify_head(const struct shape *s, const struct work *w, int seq, int head,
                        const char *what) {
  int t0 = (int)matrix_get(&w->cu, 0, seq), length = (int)matrix_get(&w->cu, 0, seq + 1) - t0;
  size_t n = (size_t)length * (size_t)s->dim;
  double *m = malloc((4 * n + (size_t)length) * sizeof *m), *want = m + 3 * n;
  int cols[3] = {head * s->dim, (s->heads + head / (s->heads / s->kv_heads)) * s->dim, 0};
  cols[2] = cols[1] + s->kv_heads * s->dim;
  for (int i = 0; i < 3; i++) {
    for (size_t j = 0; j < n; j++)
      m[(size_t)i * n + j] =
          matrix_get(&w->qkv, t0 + (int64_t)j / s->dim, cols[i] + (int)j % s->dim);
  }
  struct attention_problem p = {1, 1, s->dim, s->causal, (float)(1 / sqrt(s->dim)), DTYPE_F32};
  struct batch_geometry g = {
      .n_tokens = length, .n_seqs = 1, .cu_seqlens = (const int32_t[]){0, length}};
  ref_attention(want, m, m + n, m + 2 * n, &p, &g, m + 4 * n);
  // P is rounded to 16 bits before it meets V: errors of 2^-9 (bf16) of values near 1, averaged
  // down
  double absolute = s->dtype == DTYPE_BF16 ? 6e-3 : s->dtype == DTYPE_F16 ? 1e-3 : 3e-5;
  double limit = s->dtype == DTYPE_BF16 ? 8e-3 : s->dtype == DTYPE_F16 ? 2e-3 : 1e-5;
  double error = 0, size = 0;
  int shown = 0;
  for (size_t j = 0; j < n; j++) {
    int64_t row = t0 + (int64_t)j / s->dim, col = head * s->dim + (int)j % s->dim;
    double got = matrix_get(&w->out, row, col);
    compare(what, row, col, got, want[j], s->dtype, 2, absolute, &shown);
    error += (got - want[j]) * (got - want[j]), size += want[j] * want[j];
  }
  checks++;
  if (n > 0 && !(sqrt(error / size) < limit)) {
    printf("FAIL %s: sequence %d head %d, relative L2 %.3g\n", what, seq, head, sqrt(error / size));
    failures++;
  }
  free(m);
}

// The same by the other number of queries a block.
static void expect_same_bits(const struct shape *s, const struct attention_problem *p,
                             const struct work *w, const char *what) {
  struct shape other = *s;
  other.path = FUSED;
  uint8_t *found = malloc(w->out.bytes);
  CHECK_CUDA(cudaMemset(w->out.data, POISON, w->out.bytes));
  CHECK_CUDA(run(&other, p, w));
  CHECK_CUDA(cudaDeviceSynchronize());
  CHECK_CUDA(cudaMemcpy(found, w->out.data, w->out.bytes, cudaMemcpyDeviceToHost));
  checks++;
  if (memcmp(found, w->out.host, w->out.bytes) != 0) {
    printf("FAIL %s: other bits by 64 rows\n", what);
    failures++;
  }
  free(found);
}

static bool left_out(const struct shape *s) {
  int tokens = 0;
  for (int i = 0; i < 8; i++)
    tokens += s->lengths[i] > 0 ? s->lengths[i] : 0;
  if (small_only && tokens > 700) return true;
  return turn++ % (small_only ? 5 : parts) != 0;
}

static void run_case(const struct shape *s) {
  char what[200];
  struct work w;
  if (left_out(s)) return;
  make(s, &w);
  snprintf(what, sizeof what,
           "attention %s %s h%d/%d d%d %s lengths %d %d %d spread %g poisoned %d%s shift %zu",
           path_name[s->path], dtype_name(s->dtype), s->heads, s->kv_heads, s->dim,
           s->causal ? "causal" : "full", s->lengths[0], s->lengths[1], s->lengths[2], s->spread,
           s->poisoned, s->bucket ? " bucket" : "", s->shift);
  struct attention_problem p = {s->heads, s->kv_heads, s->dim, s->causal, (float)(1 / sqrt(s->dim)),
                                s->dtype};
  int rc = run(s, &p, &w);
  if (rc != 0) printf("%s\n", what);
  CHECK_CUDA(rc);
  rc = (int)cudaDeviceSynchronize();
  if (rc != 0) printf("%s\n", what);
  CHECK_CUDA(rc);
  matrix_download(&w.out, what);
  matrix_download(&w.scores, what);
  expect_untouched(s, &w, what);
  if (s->path == FUSED_32) expect_same_bits(s, &p, &w, what);
  for (int seq = 0; seq < w.n_seqs; seq++) {
    bool small = s->lengths[seq] <= 100; // of a long sequence, one head is looked at
    for (int head = small ? 0 : seq % s->heads; head < s->heads; head += small ? 1 : s->heads) {
      if (seq == 0 || seq != s->poisoned) verify_head(s, &w, seq, head, what);
    }
  }
  matrix_free(&w.qkv), matrix_free(&w.out), matrix_free(&w.cu);
  matrix_free(&w.offset), matrix_free(&w.scores);
}

static const int dims[] = {32, 64, 80, 96, 128, 256};
static const enum dtype half_dtypes[] = {DTYPE_BF16, DTYPE_F16};

// Every head size with lengths around the tiles' edges; heads, dtype, spread and bucket vary along.
static void every_head_size(enum path path) {
  static const int lengths[][8] = {
      {128},           {1},        {127, 129, 1, 300}, {64, -1, 65, 513, 2},
      {255, 256, 257}, {1000, 17}, {-1, 5, 640},       {1300}};
  int n = 0;
  for (int d = 0; d < 6; d++) {
    for (int l = 0; l < 8; l++) {
      for (int causal = 0; causal < 2; causal++, n++) {
        if (l >= 5 && (d + l) % (path == FUSED ? 2 : 3)) continue;
        struct shape s = {.heads = n % 3 ? 4 : 3,
                          .kv_heads = n % 3 == 1 ? 2
                                      : n % 3    ? 1
                                                 : 3,
                          .dim = dims[d],
                          .causal = causal,
                          .dtype = half_dtypes[n % 5 < 2],
                          .spread = n % 4 == 3 ? 30 : 1,
                          .path = path,
                          .bucket = n % 2};
        memcpy(s.lengths, lengths[l], sizeof s.lengths);
        run_case(&s);
      }
    }
  }
}

// NaN and inf of another sequence stay its own.
static void sequences_keep_to_themselves(enum path path) {
  for (int d = 0; d < 6; d++) {
    for (int causal = 0; causal < 2; causal++)
      run_case(&(struct shape){.heads = 2,
                               .kv_heads = causal ? 1 : 2,
                               .dim = dims[d],
                               .causal = causal,
                               .dtype = half_dtypes[causal],
                               .lengths = {100, 77, 200},
                               .spread = 1,
                               .path = path,
                               .poisoned = 1});
  }
}

// More tiles than the card has multiprocessors, sequences of very unlike lengths.
static void blocks_walk_several_tiles(enum path path) {
  for (int causal = 0; causal < 2; causal++)
    run_case(&(struct shape){.heads = 16,
                             .kv_heads = causal ? 4 : 16,
                             .dim = causal ? 128 : 64,
                             .causal = causal,
                             .dtype = DTYPE_BF16,
                             .lengths = {1500, 900, 1, 700, 1300, 44, 129, 1025},
                             .spread = 1,
                             .path = path,
                             .bucket = true});
}

static void simple_kernels_take_anything(enum path path) {
  static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
  static const int odd[] = {1, 7, 33, 40, 64, 128, 200, 256};
  for (int i = 0; i < 16; i++) {
    run_case(&(struct shape){.heads = 4,
                             .kv_heads = i % 2 ? 2 : 4,
                             .dim = odd[i % 8],
                             .causal = i & 1,
                             .dtype = dtypes[i % 3],
                             .lengths = {45, 130, 1, -1, 9},
                             .spread = i % 5 == 4 ? 30 : 1,
                             .path = path,
                             .poisoned = i % 4 == 3 ? 1 : 0,
                             .bucket = i % 4 == 2,
                             .shift = i % 2});
  }
}

// Head sizes that are none of the kernel's own widths, lengths around its tiles.
static void fp32(enum path path) {
  static const int sizes[] = {32, 64, 80, 96, 128, 1, 7, 33, 40, 100};
  for (int i = 0; i < 20; i++)
    run_case(&(struct shape){.heads = 4,
                             .kv_heads = i % 2 ? 2 : 4,
                             .dim = sizes[i % 10],
                             .causal = i % 3 == 1,
                             .dtype = DTYPE_F32,
                             .lengths = {63, 64, 65, 129, 31, -1, 200},
                             .spread = i % 7 == 6 ? 8 : 1,
                             .path = path,
                             .poisoned = i % 4 == 3 ? 3 : 0,
                             .bucket = i % 5 > 2,
                             .shift = i % 6 == 5});
}

// Rows of scores beyond one warp's registers, and beyond a block's.
static void long_rows_of_scores(void) {
  for (int causal = 0; causal < 2; causal++)
    run_case(&(struct shape){.heads = 1,
                             .kv_heads = 1,
                             .dim = 16,
                             .causal = causal,
                             .dtype = causal ? DTYPE_BF16 : DTYPE_F32,
                             .lengths = {1024, 1025, 3, 2111},
                             .spread = 1,
                             .path = UNFUSED});
  run_case(&(struct shape){.heads = 1,
                           .kv_heads = 1,
                           .dim = 8,
                           .dtype = DTYPE_F32,
                           .lengths = {5, 8200},
                           .spread = 1,
                           .path = UNFUSED});
}

int main(int argc, char **argv) {
  need_gpu();
  small_only = argc > 1 && strcmp(argv[1], "small") == 0;
  if (argc > 2) turn = strtol(argv[1], NULL, 10), parts = strtol(argv[2], NULL, 10);
  printf("seed %#lx\n", (unsigned long)rng_state);
  static const enum path paths[] = {FUSED, FUSED_MMA, UNFUSED};
  for (int i = 0; i < 3; i++) {
    every_head_size(paths[i]);
    sequences_keep_to_themselves(paths[i]);
    blocks_walk_several_tiles(paths[i]);
  }
  fp32(FUSED);
  fp32(FUSED_32);
  fp32(UNFUSED);
  simple_kernels_take_anything(FUSED_SIMPLE);
  simple_kernels_take_anything(UNFUSED_SIMPLE);
  long_rows_of_scores();
  return report("attention");
}
