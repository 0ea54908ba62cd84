// What products, attentions and poolings take along, case by case: finishes on a result, and rows
// that are made where they are pooled.
#include "fuse_bench.h"
#include "graph/finish_list.h"

// ---- finishes ----
static void bench_with_finish(struct bench *b) {
  bench_begin(b);
  b->caps.product_finish = b->caps.attention_finish = true;
}

static void finish_takes_factors_of_columns_and_of_the_residual(void **state) {
  (void)state;
  for (int able = 0; able < 2; able++) {
    struct bench b;
    bench_begin(&b);
    b.caps.product_finish = able;
    int32_t x = maker_input(&b.m, ROWS_TOKENS, 16), r = maker_input(&b.m, ROWS_TOKENS, 8);
    int32_t y = maker_linear(&b.m, x, 8, true);
    int32_t s = maker_binary(&b.m, OP_MUL, y, maker_weight(&b.m, 1, 8)),
            t = maker_unary(&b.m, OP_SCALE, r), z = maker_binary(&b.m, OP_ADD, s, t);
    output_add(&b.graph, z);
    bench_plan(&b);
    if (able) {
      EXPECT_STEPS(&b, "linear+bias+mul+scale+add");
      const struct step *step = &b.plan->steps[0];
      assert_int_equal(step->linear.n_epilogue, 1);
      assert_int_equal(step->finish_in, 3);
      assert_int_equal(step->finish.n_inputs, 3); // the result, the factors, r
      assert_true(edge(&b, t, z)->fused && edge(&b, y, s)->fused);
      // An edge inside is weighed as the kernel that it is in.
      assert_true(edge(&b, y, s)->both.finish_values.per_token == 8);
      assert_true(edge(&b, y, s)->first.finish_values.per_token == 0);
      assert_non_null(strstr(edge(&b, y, s)->reason, "each piece of the product's result"));
    } else {
      EXPECT_STEPS(&b, "linear+bias", "mul+scale+add");
      expect_apart(&b, y, s, "broadcast");
    }
    bench_end(&b);
  }
}

// beta * r is taken along; r that is normalised first, or read elsewhere, is an operand.
static void finish_takes_what_makes_its_operand_when_nothing_else_reads_it(void **state) {
  (void)state;
  struct bench b;
  bench_with_finish(&b);
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 16), r = maker_input(&b.m, ROWS_TOKENS, 8);
  int32_t t = maker_unary(&b.m, OP_SCALE, r), u = maker_unary(&b.m, OP_TANH, r);
  int32_t z = maker_binary(&b.m, OP_ADD, maker_linear(&b.m, x, 8, true), t);
  output_add(&b.graph, maker_binary(&b.m, OP_ADD, maker_linear(&b.m, x, 8, true), u));
  output_add(&b.graph, z);
  output_add(&b.graph, u);
  bench_plan(&b);
  EXPECT_STEPS(&b, "tanh", "linear+bias+scale+add", "linear+bias+add");
  assert_int_equal(b.plan->steps[2].finish.n_insts, 0); // the list says it
  bench_end(&b);
}

static void finish_writes_results_that_others_read(void **state) {
  (void)state;
  struct bench b;
  bench_with_finish(&b);
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 8);
  int32_t y = maker_linear(&b.m, x, 8, true), g = maker_unary(&b.m, OP_GELU, y);
  int32_t z = maker_linear(&b.m, y, 8, true); // reads y from memory
  output_add(&b.graph, g);
  output_add(&b.graph, z);
  bench_plan(&b);
  EXPECT_STEPS(&b, "linear+bias+gelu", "linear+bias");
  assert_int_equal(b.plan->steps[0].n_out, 2);
  expect_apart(&b, y, z, "reads its operand from memory");
  bench_end(&b);
}

// Where products run lists alone: factors of columns and of the residual, results that others read;
// not what needs two of its own values at once, nor work on an operand.
static void finish_of_a_device_that_runs_lists(void **state) {
  (void)state;
  for (int what = 0; what < 7; what++) {
    struct bench b;
    bench_begin(&b);
    b.caps.product_finish = b.caps.finish_lists = true;
    b.caps.row_chains = false;
    int32_t x = maker_input(&b.m, ROWS_TOKENS, 16), r = maker_input(&b.m, ROWS_TOKENS, 8);
    int32_t y = maker_linear(&b.m, x, what == 5 ? 7 : 8, true), z = y;
    if (what == 5) z = maker_binary(&b.m, OP_MUL, y, maker_weight(&b.m, 1, 7)); // no pairs
    if (what == 6) { // fast kernels in fp32 read nothing narrower
      b.m.dtype = DTYPE_BF16;
      z = maker_binary(&b.m, OP_MUL, y, maker_input(&b.m, ROWS_TOKENS, 1));
    }
    if (what == 0)
      z = maker_binary(&b.m, OP_MUL, y, maker_weight(&b.m, 1, 8)),
      z = maker_binary(&b.m, OP_ADD, z, maker_unary(&b.m, OP_SCALE, r));
    if (what == 1) output_add(&b.graph, y), z = maker_unary(&b.m, OP_GELU, y);
    if (what == 2) z = maker_binary(&b.m, OP_MUL, y, maker_unary(&b.m, OP_SIGMOID, y));
    if (what == 3) z = maker_binary(&b.m, OP_MUL, y, maker_unary(&b.m, OP_GELU, r));
    if (what == 4) z = maker_binary(&b.m, OP_MUL, y, maker_input(&b.m, ROWS_TOKENS, 1));
    output_add(&b.graph, z);
    bench_plan(&b);
    static const char *const steps[][2] = {{"linear+bias+mul+scale+add", NULL},
                                           {"linear+bias+gelu", NULL},
                                           {"linear+bias", "sigmoid+mul"},
                                           {"gelu", "linear+bias+mul"},
                                           {"linear+bias+mul", NULL},
                                           {"linear+bias", "mul"},
                                           {"linear+bias", "mul"}};
    for (int i = 0; i < 2 && steps[what][i]; i++)
      if (i >= b.plan->n_steps || strcmp(b.plan->steps[i].label, steps[what][i]) != 0)
        fail_msg("case %d: step %d is %s", what, i,
                 i < b.plan->n_steps ? b.plan->steps[i].label : "none");
    const struct step *step = &b.plan->steps[what == 3];
    struct linear_problem list = step->linear;
    bool finish = what < 2 || what == 4;
    assert_int_equal(step->finish.n_insts > 0, finish);
    if (finish) assert_true(finish_as_list(&step->finish, step->finish_in, &list));
    if (what == 0) {
      assert_int_equal(list.n_epilogue, 3); // bias, factors, the scaled residual
      assert_int_equal(list.epilogue[1].kind, EPI_MUL_SPREAD);
      assert_int_equal(list.epilogue[1].act, SPREAD_ROWS);
      assert_int_equal(list.epilogue[1].operand, 3);
      assert_int_equal(list.epilogue[2].kind, EPI_ADD_SPREAD);
      assert_int_equal(list.epilogue[2].operand, 4);
      assert_true(list.epilogue[2].imm == b.graph.nodes[2].attrs.factor);
    }
    if (what == 1) {
      assert_int_equal(list.epilogue[1].kind, EPI_SAVE);
      assert_int_equal(list.epilogue[1].operand, 1);
      assert_int_equal(list.epilogue[2].kind, EPI_ACT);
      assert_int_equal(step->n_out, 2);
    }
    if (what == 4) assert_int_equal(list.epilogue[1].act, SPREAD_COLUMNS);
    bench_end(&b);
  }
}

// A row op that needs whole rows of the same tensor would read it again: both stay together.
static void finish_leaves_a_tensor_to_a_row_program_that_reads_it_anyway(void **state) {
  (void)state;
  struct bench b;
  bench_with_finish(&b);
  int32_t y = maker_linear(&b.m, maker_input(&b.m, ROWS_TOKENS, 8), 8, true);
  int32_t g = maker_unary(&b.m, OP_GELU, y), n = maker_layer_norm(&b.m, y);
  output_add(&b.graph, maker_binary(&b.m, OP_ADD, g, n));
  bench_plan(&b);
  EXPECT_STEPS(&b, "linear+bias", "gelu+layer_norm+add");
  expect_apart(&b, y, g, "whole rows of the same tensor");
  expect_apart(&b, y, n, "whole rows of the product");
  bench_end(&b);
}

// What is read from outside must not be computed from the product itself.
static void finish_never_needs_its_own_result_from_outside(void **state) {
  (void)state;
  struct bench b;
  bench_with_finish(&b);
  int32_t y = maker_linear(&b.m, maker_input(&b.m, ROWS_TOKENS, 8), 8, true);
  int32_t other = maker_linear(&b.m, y, 8, true); // through another product
  int32_t z = maker_binary(&b.m, OP_MUL, maker_unary(&b.m, OP_TANH, y), other);
  output_add(&b.graph, z);
  bench_plan(&b);
  EXPECT_STEPS(&b, "linear+bias+tanh", "linear+bias+mul");
  bench_end(&b);
}

// Two products that each want a result of the other's: one gets it.
static void finishes_of_two_products_do_not_wait_for_each_other(void **state) {
  (void)state;
  struct bench b;
  bench_with_finish(&b);
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 8);
  int32_t p = maker_linear(&b.m, x, 8, true), q = maker_linear(&b.m, x, 8, true);
  output_add(&b.graph, maker_binary(&b.m, OP_MUL, maker_unary(&b.m, OP_TANH, p), q));
  output_add(&b.graph, maker_binary(&b.m, OP_MUL, maker_unary(&b.m, OP_GELU, q), p));
  bench_plan(&b); // checks that what is read was written
  assert_true(b.plan->n_steps <= 3);
  bench_end(&b);
}

static void finish_of_an_attention(void **state) {
  (void)state;
  for (int able = 0; able < 2; able++) {
    struct bench b;
    bench_begin(&b);
    b.caps.attention_finish = able;
    int32_t x = maker_input(&b.m, ROWS_TOKENS, 8), g = maker_input(&b.m, ROWS_TOKENS, 8);
    int32_t o = maker_attention(&b.m, x, x, x, 2, 2, false);
    int32_t z = maker_binary(&b.m, OP_MUL, o, maker_unary(&b.m, OP_SIGMOID, g));
    output_add(&b.graph, z);
    bench_plan(&b);
    if (able)
      EXPECT_STEPS(&b, "attention+sigmoid+mul");
    else
      EXPECT_STEPS(&b, "attention", "sigmoid+mul");
    assert_int_equal(edge(&b, o, z)->fused, able);
    if (!able) expect_apart(&b, o, z, "by sequence and head");
    bench_end(&b);
  }
}

// ---- poolings ----
static void pooling_takes_what_makes_its_rows(void **state) {
  (void)state;
  for (int able = 0; able < 2; able++) {
    struct bench b;
    bench_begin(&b);
    b.caps.pool_before = able;
    int32_t x = maker_input(&b.m, ROWS_TOKENS, 8), n = maker_layer_norm(&b.m, x);
    int32_t p = maker_node(&b.m, OP_POOL, &n, 1, (struct node_attrs){.pool = POOL_MEAN});
    output_add(&b.graph, maker_unary(&b.m, OP_NORMALIZE, p));
    bench_plan(&b);
    if (able) {
      EXPECT_STEPS(&b, "layer_norm+pool+normalize");
      const struct step *step = &b.plan->steps[0];
      assert_int_equal(step->in[0].place, PLACE_STEP);
      assert_int_equal(step->before.n_inputs, 3);
      assert_int_equal(step->traffic.read.per_token, 8 * 4); // x, once
      assert_int_equal(step->traffic.read.per_seq, 0);
      assert_int_equal(step->traffic.write.per_seq, 8 * 4);
      assert_int_equal(step->traffic.write.per_token, 0);
    } else {
      EXPECT_STEPS(&b, "layer_norm", "pool+normalize");
      expect_apart(&b, n, p, "all tokens");
    }
    bench_end(&b);
  }
}

// x (and then the norm), gamma and beta: three values of a column, and the sum.
static void pooling_makes_no_rows_that_do_not_fit(void **state) {
  (void)state;
  for (int fits = 0; fits < 2; fits++) {
    struct bench b;
    bench_begin(&b);
    b.caps.pool_before = true;
    b.caps.rates = device_rates_gpu();
    b.caps.rates.pool_row_bytes = 4 * 8 * 4 - !fits;
    int32_t x = maker_input(&b.m, ROWS_TOKENS, 8), n = maker_layer_norm(&b.m, x);
    int32_t p = maker_node(&b.m, OP_POOL, &n, 1, (struct node_attrs){.pool = POOL_MEAN});
    output_add(&b.graph, p);
    bench_plan(&b);
    if (fits)
      EXPECT_STEPS(&b, "layer_norm+pool");
    else
      expect_apart(&b, n, p, "than fit");
    bench_end(&b);
  }
}

// Of the first tokens only those rows are made; a table is read for as many.
static void pooling_of_first_tokens_makes_no_others(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  b.caps.pool_before = true;
  b.m.ids = maker_tensor(&b.m, TENSOR_INPUT, DTYPE_I64, ROWS_TOKENS, 0, 1);
  int32_t e = maker_unary(&b.m, OP_TANH, maker_embedding(&b.m, b.m.ids, 64, 8));
  output_add(&b.graph, maker_node(&b.m, OP_POOL, &e, 1, (struct node_attrs){.pool = POOL_CLS}));
  bench_plan(&b);
  EXPECT_STEPS(&b, "embedding+tanh+pool");
  assert_int_equal(b.plan->steps[0].traffic.read.per_seq, 8 * 4);
  bench_end(&b);
}

static void pooling_leaves_rows_of_a_table_to_a_gather(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  b.caps.pool_before = true;
  b.m.ids = maker_tensor(&b.m, TENSOR_INPUT, DTYPE_I64, ROWS_TOKENS, 0, 1);
  int32_t e = maker_embedding(&b.m, b.m.ids, 64, 8);
  int32_t p = maker_node(&b.m, OP_POOL, &e, 1, (struct node_attrs){.pool = POOL_MEAN});
  output_add(&b.graph, p);
  bench_plan(&b);
  EXPECT_STEPS(&b, "embedding", "pool");
  expect_apart(&b, e, p, "rows of a table");
  bench_end(&b);
}

static void pooling_leaves_rows_that_others_read_or_that_come_from_a_tile(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  b.caps.pool_before = b.caps.row_chains = true;
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 8), g = maker_unary(&b.m, OP_GELU, x);
  int32_t p = maker_node(&b.m, OP_POOL, &g, 1, (struct node_attrs){.pool = POOL_MAX});
  int32_t y = maker_layer_norm(&b.m, maker_linear(&b.m, x, 8, true));
  int32_t q = maker_node(&b.m, OP_POOL, &y, 1, (struct node_attrs){.pool = POOL_MEAN});
  output_add(&b.graph, g);
  output_add(&b.graph, p);
  output_add(&b.graph, q);
  bench_plan(&b);
  expect_apart(&b, g, p, "other readers");
  expect_apart(&b, y, q, "from a tile in cache");
  bench_end(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(finish_takes_factors_of_columns_and_of_the_residual),
      cmocka_unit_test(finish_takes_what_makes_its_operand_when_nothing_else_reads_it),
      cmocka_unit_test(finish_writes_results_that_others_read),
      cmocka_unit_test(finish_of_a_device_that_runs_lists),
      cmocka_unit_test(finish_leaves_a_tensor_to_a_row_program_that_reads_it_anyway),
      cmocka_unit_test(finish_never_needs_its_own_result_from_outside),
      cmocka_unit_test(finishes_of_two_products_do_not_wait_for_each_other),
      cmocka_unit_test(finish_of_an_attention),
      cmocka_unit_test(pooling_takes_what_makes_its_rows),
      cmocka_unit_test(pooling_makes_no_rows_that_do_not_fit),
      cmocka_unit_test(pooling_of_first_tokens_makes_no_others),
      cmocka_unit_test(pooling_leaves_rows_of_a_table_to_a_gather),
      cmocka_unit_test(pooling_leaves_rows_that_others_read_or_that_come_from_a_tile),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
