// The oracle's attention against values by hand and against another way of computing it (explicit
// matrices).
#include "kernels/ref/ref.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#define MAX_TOKENS 140
#define COLS 8

static void near(double found, double expected, const char *what) {
  if (!(fabs(found - expected) <= 1e-12))
    fail_msg("%s: found %.17g, expected %.17g", what, found, expected);
}

static double wave(int i) {
  return sin(i * 1.7 + 0.3) * 1.5;
}

// One query against keys [first, end), with the definition written out: weights e^s / sum e^s
// without any maximum.
static double expected_at(const double *q, const double *k, const double *v,
                          const struct attention_problem *p, int first, int end, int i, int h,
                          int d) {
  int q_cols = p->heads * p->head_dim, kv_cols = p->kv_heads * p->head_dim,
      kv = h * p->kv_heads / p->heads;
  double sum = 0, total = 0;
  for (int j = first; j < (p->causal ? i + 1 : end); j++) {
    double score = 0;
    for (int c = 0; c < p->head_dim; c++)
      score += q[i * q_cols + h * p->head_dim + c] * k[j * kv_cols + kv * p->head_dim + c];
    double weight = exp(score * (double)p->scale);
    sum += weight;
    total += weight * v[j * kv_cols + kv * p->head_dim + d];
  }
  return total / sum;
}

static void check(const int32_t *cu, int n_seqs, int heads, int kv_heads, bool causal) {
  static double q[MAX_TOKENS * COLS], k[MAX_TOKENS * COLS], v[MAX_TOKENS * COLS],
      o[MAX_TOKENS * COLS], work[MAX_TOKENS];
  struct attention_problem p = {.heads = heads,
                                .kv_heads = kv_heads,
                                .head_dim = COLS / heads,
                                .causal = causal,
                                .scale = 0.5f};
  struct batch_geometry g = {.n_tokens = cu[n_seqs], .n_seqs = n_seqs, .cu_seqlens = cu};
  for (int i = 0; i < cu[n_seqs] * COLS; i++) {
    q[i] = wave(i);
    k[i] = wave(3 * i + 1);
    v[i] = wave(7 * i + 2);
    o[i] = NAN;
  }
  for (int i = cu[n_seqs] * kv_heads * p.head_dim; i < MAX_TOKENS * COLS; i++)
    k[i] = v[i] = NAN; // behind the batch
  ref_attention(o, q, k, v, &p, &g, work);
  for (int b = 0; b < n_seqs; b++)
    for (int i = cu[b]; i < cu[b + 1]; i++)
      for (int c = 0; c < COLS; c++) {
        char label[96];
        snprintf(label, sizeof label, "heads %d/%d causal %d sequence %d token %d column %d", heads,
                 kv_heads, causal, b, i, c);
        near(o[i * COLS + c],
             expected_at(q, k, v, &p, cu[b], cu[b + 1], i, c / p.head_dim, c % p.head_dim), label);
      }
}

static void one_token_attends_to_itself(void **state) {
  (void)state;
  int32_t cu[] = {0, 1};
  struct attention_problem p = {.heads = 1, .kv_heads = 1, .head_dim = 2, .scale = 1};
  struct batch_geometry g = {.n_tokens = 1, .n_seqs = 1, .cu_seqlens = cu};
  double q[] = {5, 6}, k[] = {7, 8}, v[] = {0.25, -3}, o[2], work[1];
  ref_attention(o, q, k, v, &p, &g, work);
  near(o[0], 0.25, "o[0]");
  near(o[1], -3, "o[1]");
}

static void every_sequence_length_from_1_to_130_is_right(void **state) {
  (void)state;
  for (int32_t s = 1; s <= 130; s++)
    check((int32_t[]){0, s}, 1, 2, 2, false);
}

static void causal_queries_see_keys_up_to_their_own(void **state) {
  (void)state;
  for (int32_t s = 1; s <= 33; s++)
    check((int32_t[]){0, s}, 1, 2, 2, true);
}

static void sequences_of_a_packed_batch_do_not_see_each_other(void **state) {
  (void)state;
  check((int32_t[]){0, 3, 3, 20, 21, 40}, 5, 2, 2, false); // the second one is empty
  check((int32_t[]){0, 3, 3, 20, 21, 40}, 5, 2, 2, true);
}

static void query_heads_share_key_heads(void **state) {
  (void)state;
  check((int32_t[]){0, 5, 12}, 2, 4, 2, false);
  check((int32_t[]){0, 5, 12}, 2, 4, 1, true);
  check((int32_t[]){0, 5, 12}, 2, 8, 2, false);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_token_attends_to_itself),
      cmocka_unit_test(every_sequence_length_from_1_to_130_is_right),
      cmocka_unit_test(causal_queries_see_keys_up_to_their_own),
      cmocka_unit_test(sequences_of_a_packed_batch_do_not_see_each_other),
      cmocka_unit_test(query_heads_share_key_heads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
