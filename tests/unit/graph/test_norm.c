// Norms that products do on their result: what is taken, what is written, and, case by case, why
// not.
#include "fuse_bench.h"
#include "graph/cost.h"

#include <stdio.h>

static void bench_with_norm(struct bench *b, enum dtype dtype) {
  bench_begin(b);
  b->m.dtype = dtype;
  b->caps.product_norm[0] = (struct norm_columns){96, 768};
  b->caps.product_norm[1] = (struct norm_columns){128, 1024};
  b->caps.product_norm_dtypes = 1u << DTYPE_BF16 | 1u << DTYPE_F16;
}

// linear(x) + r, of `cols` columns.
static int32_t sum_of(struct bench *b, int32_t cols) {
  int32_t x = maker_input(&b->m, ROWS_TOKENS, 32), r = maker_input(&b->m, ROWS_TOKENS, cols);
  return maker_binary(&b->m, OP_ADD, maker_linear(&b->m, x, cols, true), r);
}

static void norm_of_a_sum(void **state) {
  (void)state;
  struct bench b;
  bench_with_norm(&b, DTYPE_BF16);
  int32_t s = sum_of(&b, 768), y = maker_layer_norm(&b.m, s);
  output_add(&b.graph, y);
  bench_plan(&b);
  EXPECT_STEPS(&b, "linear+bias+add+layer_norm");
  const struct step *step = &b.plan->steps[0];
  assert_int_equal(step->kind, STEP_LINEAR);
  assert_int_equal(step->norm.kind, ROW_NORM_LAYER);
  assert_false(step->norm.sum);
  assert_int_equal(step->n_in, 6); // x, W, bias, r, gamma, beta
  assert_int_equal(step->norm.gamma, 4);
  assert_int_equal(step->norm.beta, 5);
  assert_int_equal(step->n_out, 1);
  assert_int_equal(step->out[0].tensor, y);
  assert_true(edge(&b, s, y)->fused);
  assert_non_null(strstr(edge(&b, s, y)->reason, "whole rows between them"));
  // what the sum would cost on its way through memory is not moved: x, r, W and vectors are, and y
  assert_true(step->traffic.read.per_token == 2 * (32 + 768));
  assert_true(step->traffic.read.fixed == 2 * (32 * 768 + 3 * 768));
  assert_true(step->traffic.write.per_token == 2 * 768);
  assert_true(step->traffic.flops.per_token == 768 * (2 * 32 + 2 + 7));
  bench_end(&b);
}

static void rms_norm_without_bias_or_residual(void **state) {
  (void)state;
  struct bench b;
  bench_with_norm(&b, DTYPE_F16);
  int32_t s = maker_linear(&b.m, maker_input(&b.m, ROWS_TOKENS, 64), 1024, false);
  int32_t y = maker_node(&b.m, OP_RMS_NORM, (int32_t[]){s, maker_weight(&b.m, 1, 1024)}, 2,
                         (struct node_attrs){.eps = 0.25f});
  output_add(&b.graph, y);
  bench_plan(&b);
  EXPECT_STEPS(&b, "linear+rms_norm");
  const struct step *step = &b.plan->steps[0];
  assert_int_equal(step->norm.kind, ROW_NORM_RMS);
  assert_true(step->norm.eps == 0.25f);
  assert_int_equal(step->norm.gamma, 2);
  assert_int_equal(step->norm.beta, ROW_NONE);
  bench_end(&b);
}

// What others read of it is written as well: a product, the residual of another, an output.
static void sum_that_others_read_is_a_second_result(void **state) {
  (void)state;
  for (int who = 0; who < 3; who++) {
    struct bench b;
    bench_with_norm(&b, DTYPE_BF16);
    int32_t s = sum_of(&b, 384), y = maker_layer_norm(&b.m, s);
    int32_t z = maker_linear(&b.m, y, 384, false);
    if (who == 0) z = maker_binary(&b.m, OP_ADD, z, s);
    if (who == 1) output_add(&b.graph, maker_linear(&b.m, s, 8, false));
    if (who == 2) output_add(&b.graph, s);
    output_add(&b.graph, z);
    bench_plan(&b);
    const struct step *step = &b.plan->steps[0];
    assert_string_equal(step->label, "linear+bias+add+layer_norm");
    assert_true(step->norm.sum);
    assert_int_equal(step->n_out, 2);
    assert_int_equal(step->out[0].tensor, y);
    assert_int_equal(step->out[1].tensor, s);
    assert_true(step->out[0].offset_bytes != step->out[1].offset_bytes);
    assert_true(step->traffic.write.per_token == 2 * 2 * 384);
    bench_end(&b);
  }
}

static void encoder_layers_are_five_kernels(void **state) {
  (void)state;
  for (int able = 0; able < 2; able++) {
    struct bench b;
    bench_with_norm(&b, DTYPE_BF16);
    if (!able) b.caps.product_norm_dtypes = 0;
    int32_t x = maker_input(&b.m, ROWS_TOKENS, 384);
    for (int i = 0; i < 2; i++)
      x = block_encoder_post(&b.m, x, 12, 1536);
    output_add(&b.graph, x);
    bench_plan(&b);
    assert_int_equal(b.plan->n_steps, able ? 10 : 14);
    if (able) {
      assert_string_equal(b.plan->steps[2].label, "linear+bias+add+layer_norm");
      assert_string_equal(b.plan->steps[4].label, "linear+bias+add+layer_norm");
    }
    bench_end(&b);
  }
}

// Each like norm_of_a_sum but for one thing.
enum unlike {
  LIKE,
  FP32,
  NOT_ABLE,
  TOO_WIDE,
  ODD_WIDTH,
  ACTIVATION,
  TWO_RESIDUALS,
  OTHER_ROW_WORK,
  FOLLOWED,
  POOLED,
  ROUNDED,
  UNLIKES
};

static void why_not(void **state) {
  (void)state;
  static const char *const reason[UNLIKES] = {
      [FP32] = "in these dtypes",           [NOT_ABLE] = "an epilogue does not see",
      [TOO_WIDE] = "so many columns",       [ODD_WIDTH] = "so many columns",
      [ACTIVATION] = "and no more",         [TWO_RESIDUALS] = "and no more",
      [OTHER_ROW_WORK] = "what else reads", [FOLLOWED] = "what follows the norm",
      [POOLED] = "what follows the norm",   [ROUNDED] = "in these dtypes"};
  for (int unlike = LIKE; unlike < UNLIKES; unlike++) {
    struct bench b;
    bench_with_norm(&b, unlike == FP32 ? DTYPE_F32 : DTYPE_BF16);
    if (unlike == NOT_ABLE) b.caps.product_norm_dtypes = 0;
    int32_t cols = unlike == TOO_WIDE ? 1152 : unlike == ODD_WIDTH ? 500 : 768;
    int32_t s = sum_of(&b, cols);
    if (unlike == ACTIVATION) s = maker_unary(&b.m, OP_GELU, s);
    if (unlike == TWO_RESIDUALS)
      s = maker_binary(&b.m, OP_ADD, s, maker_input(&b.m, ROWS_TOKENS, cols));
    if (unlike == ROUNDED)
      s = maker_node(&b.m, OP_CAST, &s, 1, (struct node_attrs){.to = DTYPE_F32});
    if (unlike == ROUNDED) b.m.dtype = DTYPE_F32;
    int32_t y = maker_layer_norm(&b.m, s), out = y;
    if (unlike == OTHER_ROW_WORK) output_add(&b.graph, maker_unary(&b.m, OP_SOFTMAX, s));
    if (unlike == FOLLOWED) out = maker_unary(&b.m, OP_SILU, y);
    if (unlike == POOLED)
      out = maker_node(&b.m, OP_POOL, &y, 1, (struct node_attrs){.pool = POOL_MEAN});
    output_add(&b.graph, out);
    bench_plan(&b);
    const struct decision *d = edge(&b, s, y);
    if (unlike == LIKE)
      assert_true(d->fused);
    else
      expect_apart(&b, s, y, reason[unlike]);
    bench_end(&b);
  }
}

// ---- what pays ----
// bench/results/gpu-norm-2026-11-30.txt: product and generated LayerNorm, and the faster width of
// the one kernel, microseconds on an H200.
static const struct measured_norm {
  int32_t m, k, n;
  double apart_us, one_us;
} measured[] = {{512, 768, 768, 7.18, 9.39},       {1024, 768, 768, 8.29, 9.83},
                {2048, 768, 768, 10.83, 10.74},    {4096, 768, 768, 14.84, 14.30},
                {16384, 768, 768, 55.32, 52.18},   {512, 3072, 768, 10.86, 18.36},
                {1024, 3072, 768, 13.33, 18.91},   {2048, 3072, 768, 19.47, 20.23},
                {4096, 3072, 768, 36.46, 35.90},   {16384, 3072, 768, 141.70, 140.38},
                {512, 384, 384, 5.80, 7.58},       {1024, 384, 384, 6.21, 7.74},
                {2048, 384, 384, 7.82, 8.09},      {4096, 384, 384, 9.86, 8.56},
                {16384, 384, 384, 23.58, 17.01},   {512, 1536, 384, 7.56, 11.98},
                {1024, 1536, 384, 8.41, 12.15},    {2048, 1536, 384, 10.47, 12.51},
                {4096, 1536, 384, 14.11, 13.06},   {16384, 1536, 384, 46.54, 41.05},
                {512, 1024, 1024, 7.45, 11.65},    {1024, 1024, 1024, 9.24, 12.11},
                {2048, 1024, 1024, 13.02, 13.19},  {4096, 1024, 1024, 20.53, 19.62},
                {16384, 1024, 1024, 86.25, 82.16}, {512, 4096, 1024, 13.61, 25.75},
                {1024, 4096, 1024, 19.42, 26.21},  {2048, 4096, 1024, 30.11, 29.74},
                {4096, 4096, 1024, 59.27, 59.48},  {16384, 4096, 1024, 238.13, 234.20}};

static void plan_of(struct bench *b, const struct measured_norm *s, int32_t *sum, int32_t *norm) {
  bench_with_norm(b, DTYPE_BF16);
  b->caps.rates = device_rates_gpu();
  b->caps.product_norm_weighed = true;
  int32_t x = maker_input(&b->m, ROWS_TOKENS, s->k), r = maker_input(&b->m, ROWS_TOKENS, s->n);
  *sum = maker_binary(&b->m, OP_ADD, maker_linear(&b->m, x, s->n, true), r);
  *norm = maker_layer_norm(&b->m, *sum);
  output_add(&b->graph, *norm);
}

// Auto fuses where the card was faster by more than a few percent, and nowhere where it was slower.
static void auto_decides_as_the_card_does(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof measured / sizeof *measured; i++) {
    const struct measured_norm *s = &measured[i];
    struct bench b;
    int32_t sum, norm;
    struct error err = {0};
    plan_of(&b, s, &sum, &norm);
    struct plan_limits limits = {s->m, s->m, 128};
    assert_int_equal(plan_build(&b.graph, FUSION_AUTO, &b.caps, &limits, &b.plan, &err), STATUS_OK);
    const struct decision *d = edge(&b, sum, norm);
    printf("%6d x %4d -> %4d: apart %6.2f us, predicted %6.2f; one kernel %6.2f, %6.2f: %s\n", s->m,
           s->k, s->n, s->apart_us, d->apart_cost.us, s->one_us, d->fused_cost.us,
           d->fused ? "fused" : "apart");
    assert_true(d->legal);
    if (s->one_us < 0.93 * s->apart_us) assert_true(d->fused);
    if (s->one_us > s->apart_us) assert_false(d->fused);
    if (!d->fused) assert_non_null(strstr(d->reason, "does not pay"));
    if (d->fused) assert_in_range(1000 * d->fused_cost.us / s->one_us, 830, 1200);
    bench_end(&b);
  }
}

// Of few rows a step with a norm is two kernels, and its price says so.
static void few_rows_cost_two_launches(void **state) {
  (void)state;
  for (int many = 0; many < 2; many++) {
    struct bench b;
    int32_t sum, norm;
    plan_of(&b, &measured[many ? 18 : 15], &sum, &norm);
    b.caps.product_norm_weighed = false;
    struct plan_limits limits = {many ? 4096 : 512, 64, 128};
    assert_int_equal(plan_build(&b.graph, FUSION_ON, &b.caps, &limits, &b.plan, NULL), STATUS_OK);
    assert_int_equal(b.plan->n_steps, 1);
    assert_int_equal(b.plan->steps[0].cost.launches, many ? 1 : 2);
    bench_end(&b);
  }
}

static void on_leaves_it_to_auto_where_it_is_weighed(void **state) {
  (void)state;
  struct bench b;
  int32_t sum, norm;
  plan_of(&b, &measured[14], &sum, &norm);
  bench_plan(&b);
  EXPECT_STEPS(&b, "linear+bias+add", "layer_norm");
  expect_apart(&b, sum, norm, "auto weighs");
  bench_end(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(norm_of_a_sum),
      cmocka_unit_test(rms_norm_without_bias_or_residual),
      cmocka_unit_test(sum_that_others_read_is_a_second_result),
      cmocka_unit_test(encoder_layers_are_five_kernels),
      cmocka_unit_test(why_not),
      cmocka_unit_test(auto_decides_as_the_card_does),
      cmocka_unit_test(few_rows_cost_two_launches),
      cmocka_unit_test(on_leaves_it_to_auto_where_it_is_weighed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
