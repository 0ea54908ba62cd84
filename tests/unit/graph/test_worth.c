// FUSION_AUTO: when not to fuse. Every case whose right answer is "no" has a sibling, as like it as
// can be, whose answer is "yes".
#include "blocks.h"
#include "graph/cost.h"
#include "plan_check.h"
#include "round_rates.h"

#include <math.h>

struct bench { // one graph and its plan
  struct graph graph;
  struct graph_maker m;
  struct plan_caps caps;
  struct plan *plan;
};

// The device of round numbers, with less room for rows that are kept on chip.
static void bench_begin(struct bench *b) {
  memset(b, 0, sizeof *b);
  maker_init(&b->m, &b->graph, NULL, DTYPE_F32);
  b->caps = (struct plan_caps){
      .tile_rows = 8, .tile_bytes = 1 << 20, .epilogue_max = 6, .epilogue_kinds = 0x1f};
  b->caps.rates = round_rates();
  b->caps.rates.row_bytes = 1 << 16;
  for (int d = 0; d < DTYPE_COUNT; d++)
    b->caps.dtype_ok[d] = true;
}

static void bench_plan(struct bench *b, int32_t tokens) {
  struct plan_limits limits = {tokens, tokens, 128};
  struct error err = {0};
  if (plan_build(&b->graph, FUSION_AUTO, &b->caps, &limits, &b->plan, &err) != STATUS_OK)
    fail_msg("%s", err.message);
  check_plan(&b->graph, b->plan, &b->caps, "case");
}

static void bench_end(struct bench *b) {
  plan_free(b->plan);
  graph_deinit(&b->graph);
}

// The decision about the edge between the nodes that make `from` and `to`; what it says must be the
// cheaper way by its own figures.
static const struct decision *edge(const struct bench *b, int32_t from, int32_t to) {
  for (int32_t i = 0; i < b->plan->n_decisions; i++) {
    const struct decision *d = &b->plan->decisions[i];
    if (b->graph.nodes[d->producer].out == from && b->graph.nodes[d->consumer].out == to) return d;
  }
  fail_msg("no decision about %d -> %d", from, to);
  return NULL;
}

static void expect_yes(const struct bench *b, int32_t from, int32_t to) {
  const struct decision *d = edge(b, from, to);
  if (!d->fused) fail_msg("apart: \"%s\", expected it to be fused", d->reason);
  assert_true(d->fused_cost.us <= d->apart_cost.us * 1.001);
}

static void expect_no(const struct bench *b, int32_t from, int32_t to, const char *part_of_reason) {
  const struct decision *d = edge(b, from, to);
  if (d->fused || !strstr(d->reason, part_of_reason))
    fail_msg("fused %d: \"%s\", expected \"%s\"", d->fused, d->reason, part_of_reason);
  assert_true(d->legal); // a product leaves the library for a gain of 1 % and more
  assert_true(d->fused_cost.us > 0.99 * d->apart_cost.us);
}

// ---- the library's product and a small kernel ----
// A gate that the library's product does not take: its own kernel reaches half the rate.
static void gate_on_a_slower_product_kernel(void **state) {
  (void)state;
  static const int32_t inner[] = {4096, 64}; // much arithmetic to lose; hardly any
  for (int yes = 0; yes < 2; yes++) {
    struct bench b;
    bench_begin(&b);
    b.caps.rates.library_epilogues = 1u << EPI_BIAS | 1u << EPI_ACT;
    b.caps.rates.fused_product = 0.5;
    int32_t x = maker_input(&b.m, ROWS_TOKENS, inner[yes]),
            g = maker_input(&b.m, ROWS_TOKENS, 4096);
    int32_t y = maker_linear(&b.m, x, 4096, true), z = maker_binary(&b.m, OP_MUL, y, g);
    output_add(&b.graph, z);
    bench_plan(&b, 32768);
    if (yes)
      expect_yes(&b, y, z);
    else
      expect_no(&b, y, z, "faster kernel");
    bench_end(&b);
  }
}

// An activation is one of the library's own epilogues: fused at any size.
static void activation_of_the_library(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  b.caps.rates.library_epilogues = 1u << EPI_BIAS | 1u << EPI_ACT;
  b.caps.rates.fused_product = 0.5;
  int32_t y = maker_linear(&b.m, maker_input(&b.m, ROWS_TOKENS, 4096), 4096, true);
  int32_t z = maker_unary(&b.m, OP_GELU, y);
  output_add(&b.graph, z);
  bench_plan(&b, 32768);
  expect_yes(&b, y, z);
  bench_end(&b);
}

// ---- both compute-bound ----
// Four activations are 32 operations an element; in the epilogue they run at a tenth of the rate.
static void arithmetic_that_the_saved_bytes_do_not_pay(void **state) {
  (void)state;
  for (int yes = 0; yes < 2; yes++) {
    struct bench b;
    bench_begin(&b);
    b.caps.rates.epilogue = 1e12;
    b.caps.rates.special = yes ? 10e12 : 3e12;
    int32_t y = maker_linear(&b.m, maker_input(&b.m, ROWS_TOKENS, 4096), 4096, true), h = y;
    for (int i = 0; i < (yes ? 1 : 4); i++)
      h = maker_unary(&b.m, i % 2 ? OP_TANH : OP_GELU, h);
    output_add(&b.graph, h);
    bench_plan(&b, 32768);
    int32_t first = b.graph.nodes[1].out;
    if (yes)
      expect_yes(&b, y, first);
    else
      expect_no(&b, y, first, "arithmetic");
    bench_end(&b);
  }
}

// ---- the last-level cache ----
// The same product and activation: 4 MB stay in the cache between them, 512 MB do not.
static void intermediate_that_stays_in_the_cache(void **state) {
  (void)state;
  static const int32_t tokens[] = {1024, 1 << 17};
  for (int yes = 0; yes < 2; yes++) {
    struct bench b;
    bench_begin(&b);
    b.caps.rates.epilogue = 1.4e12;
    b.caps.rates.launch_us = 0.1;
    int32_t y = maker_linear(&b.m, maker_input(&b.m, ROWS_TOKENS, 1024), 1024, true);
    int32_t z = maker_unary(&b.m, OP_GELU, y);
    output_add(&b.graph, z);
    bench_plan(&b, tokens[yes]);
    if (yes)
      expect_yes(&b, y, z);
    else
      expect_no(&b, y, z, "last-level cache");
    bench_end(&b);
  }
}

// ---- spills ----
// softmax(x) * normalize(x) holds two values of a row: of 16,384 columns they do not fit, of 1,024
// they do.
static void row_values_that_do_not_fit(void **state) {
  (void)state;
  static const int32_t cols[] = {16384, 1024};
  for (int yes = 0; yes < 2; yes++) {
    struct bench b;
    bench_begin(&b);
    b.caps.rates.row_bytes = 1 << 16;
    b.caps.rates.cache = 1e12;
    int32_t x = maker_input(&b.m, ROWS_TOKENS, cols[yes]);
    int32_t p = maker_unary(&b.m, OP_SOFTMAX, x), q = maker_unary(&b.m, OP_NORMALIZE, x);
    int32_t z = maker_binary(&b.m, OP_MUL, p, q);
    output_add(&b.graph, z);
    bench_plan(&b, 32768);
    if (yes)
      expect_yes(&b, p, z);
    else
      expect_no(&b, p, z, "more values of a row than fit");
    bench_end(&b);
  }
}

// ---- other readers ----
// h = f(x) feeds a norm and a product, and what comes of these meets h again: one kernel cannot do
// it all. Where f is cheap, h is computed a second time instead of being written and read.
static void result_with_other_readers_is_written_or_computed_again(void **state) {
  (void)state;
  for (int yes = 0; yes < 2; yes++) {
    struct bench b;
    bench_begin(&b);
    b.caps.rates.special = yes ? 10e12 : 0.5e12;
    int32_t x = maker_input(&b.m, ROWS_TOKENS, 512), h = maker_unary(&b.m, OP_GELU, x);
    int32_t y = maker_linear(&b.m, maker_layer_norm(&b.m, h), 512, false);
    output_add(&b.graph, maker_binary(&b.m, OP_MUL, maker_layer_norm(&b.m, y), h));
    bench_plan(&b, 1 << 17);
    assert_int_equal(b.plan->n_steps, 3);
    const struct step *last = &b.plan->steps[2];
    assert_int_equal(b.plan->steps[0].n_out, yes ? 1 : 2);
    assert_int_equal(last->n_nodes, yes ? 3 : 2);
    bool said = false, activates = false;
    for (int i = 0; i < last->n_nodes; i++)
      activates = activates || b.graph.nodes[last->nodes[i]].op == OP_GELU;
    assert_int_equal(activates, yes);
    for (int32_t i = 0; i < b.plan->n_decisions; i++)
      said = said || strstr(b.plan->decisions[i].reason, "computed again");
    assert_int_equal(said, yes);
    bench_end(&b);
  }
}

// The same result of a product: written, since another kernel reads it; in the epilogue, since none
// does. One kernel for both is not legal (a product writes one result), whatever it would save.
static void product_with_other_readers_is_kept_apart(void **state) {
  (void)state;
  for (int yes = 0; yes < 2; yes++) {
    struct bench b;
    bench_begin(&b);
    int32_t x = maker_input(&b.m, ROWS_TOKENS, 1024), y = maker_linear(&b.m, x, 1024, true);
    int32_t z = maker_unary(&b.m, OP_GELU, y);
    output_add(&b.graph, z);
    if (!yes) output_add(&b.graph, maker_linear(&b.m, y, 64, false));
    bench_plan(&b, 1 << 16);
    const struct decision *d = edge(&b, y, z);
    assert_int_equal(d->fused, yes);
    if (!yes) assert_non_null(strstr(d->reason, "other readers"));
    bench_end(&b);
  }
}

// ---- a real card ----
// gelu(x W + b), 8192 x K -> 4096 in bf16 on an H200: measured, one kernel is quicker up to K =
// 2048 and slower from 4096 on (bench/results/fusion-epilogue-cuda.csv).
static void epilogue_pays_up_to_where_it_was_measured_to(void **state) {
  (void)state;
  for (int32_t k = 32; k <= 8192; k *= 2) {
    struct bench b;
    bench_begin(&b);
    graph_deinit(&b.graph);
    maker_init(&b.m, &b.graph, NULL, DTYPE_BF16);
    b.caps.rates = device_rates_gpu();
    int32_t y = maker_linear(&b.m, maker_input(&b.m, ROWS_TOKENS, k), 4096, true);
    int32_t z = maker_unary(&b.m, OP_GELU, y);
    output_add(&b.graph, z);
    bench_plan(&b, 8192);
    if (k <= 2048)
      expect_yes(&b, y, z);
    else
      expect_no(&b, y, z, "faster kernel");
    bench_end(&b);
  }
}

// ---- measurements ----
// The same product and activation, which the model would fuse: a table decides against it or for it
// where it has the shape, and says nothing about others.
static void measurement_wins_over_the_model(void **state) {
  (void)state;
  static const struct {
    int32_t m, k;
    double fused_us, apart_us;
    bool yes;
  } cases[] = {{8192, 1024, 120, 100, false},
               {8192, 1024, 100, 120, true},
               {5000, 1024, 120, 100, false}, // the nearest row count
               {1024, 1024, 120, 100, true},  // too few rows to say anything
               {8192, 512, 120, 100, true}};  // another product
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct measured_shape shape = {.n = 1024,
                                   .k = cases[i].k,
                                   .m = cases[i].m,
                                   .x_dtype = DTYPE_F32,
                                   .y_dtype = DTYPE_F32,
                                   .epilogue = "bias,gelu",
                                   .fused_us = cases[i].fused_us,
                                   .apart_us = cases[i].apart_us};
    struct shape_table table = {&shape, 1};
    struct bench b;
    bench_begin(&b);
    b.caps.shapes = &table;
    int32_t y = maker_linear(&b.m, maker_input(&b.m, ROWS_TOKENS, 1024), 1024, true);
    int32_t z = maker_unary(&b.m, OP_GELU, y);
    output_add(&b.graph, z);
    bench_plan(&b, 8192);
    const struct decision *d = edge(&b, y, z);
    if (d->fused != cases[i].yes || (!d->fused && !strstr(d->reason, "measured")))
      fail_msg("case %zu: fused %d: %s", i, d->fused, d->reason);
    bench_end(&b);
  }
}

// ---- the rest ----
// With even constants all that is legal pays: auto is on.
static void encoder_comes_out_as_on(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  block_sentence_encoder(&b.m, 2, 384, 12, 1536, 30000);
  bench_plan(&b, 4096);
  struct plan_limits limits = {4096, 4096, 128};
  struct plan *on, *off;
  assert_int_equal(plan_build(&b.graph, FUSION_ON, &b.caps, &limits, &on, NULL), STATUS_OK);
  assert_int_equal(plan_build(&b.graph, FUSION_OFF, &b.caps, &limits, &off, NULL), STATUS_OK);
  assert_true(plan_same(b.plan, on));
  assert_false(plan_same(b.plan, off));
  plan_free(on), plan_free(off);
  bench_end(&b);
}

// Plans of random graphs for odd devices, from memory that held something else the second time.
static void random_plans_are_the_same_every_time(void **state) {
  (void)state;
  static char first[1 << 17], second[1 << 17];
  int n_apart = 0;
  for (uint32_t round = 0; round < 80; round++) {
    for (int again = 0; again < 2; again++) {
      struct bench b;
      struct rng rng = {.state = round * 7919 + 3};
      char *dirt = malloc(1 << 20);
      assert_non_null(dirt);
      memset(dirt, again ? 0xa5 : 0, 1 << 20);
      free(dirt);
      bench_begin(&b);
      graph_deinit(&b.graph);
      maker_init(&b.m, &b.graph, &rng, round % 2 ? DTYPE_BF16 : DTYPE_F32);
      maker_random(&b.m, 1 + rng_below(&rng, 40));
      b.caps.rates = odd_rates(round * 2654435761u >> 20), b.caps.row_chains = round % 3 == 0;
      b.caps.pool_before = round % 2;
      bench_plan(&b, 4096);
      plan_dump(b.plan, &b.graph, again ? second : first, sizeof first);
      for (int32_t d = 0; d < b.plan->n_decisions && !again; d++)
        n_apart += b.plan->decisions[d].legal && !b.plan->decisions[d].fused;
      bench_end(&b);
    }
    assert_string_equal(first, second);
  }
  if (n_apart < 3) fail_msg("only %d edges were left apart for what they cost", n_apart);
}

static void decisions_are_the_same_every_time(void **state) {
  (void)state;
  static char first[1 << 17], second[1 << 17];
  for (int round = 0; round < 2; round++) {
    struct bench b;
    bench_begin(&b);
    b.caps.rates.epilogue = 2e12;
    b.caps.rates.row_bytes = 4096;
    block_sentence_encoder(&b.m, 2, 384, 12, 1536, 30000);
    bench_plan(&b, 2048);
    plan_dump(b.plan, &b.graph, round ? second : first, sizeof first);
    bench_end(&b);
  }
  assert_string_equal(first, second);
}

// ---- finishes ----
// A factor a column behind a product, and four activations behind that: they cost more in the
// product than the bytes are worth. The factor alone does not.
static void finish_of_much_arithmetic(void **state) {
  (void)state;
  for (int yes = 0; yes < 2; yes++) {
    struct bench b;
    bench_begin(&b);
    b.caps.product_finish = true;
    b.caps.rates.epilogue = 1e12;
    b.caps.rates.special = 3e12;
    int32_t y = maker_linear(&b.m, maker_input(&b.m, ROWS_TOKENS, 4096), 4096, true);
    int32_t s = maker_binary(&b.m, OP_MUL, y, maker_weight(&b.m, 1, 4096)), h = s;
    for (int i = 0; i < (yes ? 0 : 4); i++)
      h = maker_unary(&b.m, i % 2 ? OP_TANH : OP_GELU, h);
    output_add(&b.graph, h);
    bench_plan(&b, 32768);
    if (yes)
      expect_yes(&b, y, s);
    else
      expect_no(&b, y, s, "arithmetic");
    bench_end(&b);
  }
}

// A finish of little arithmetic: its pieces cost more than a pass over whole rows that finds all in
// the cache, and less than one that does not.
static void finish_in_pieces(void **state) {
  (void)state;
  static const int32_t tokens[] = {1024, 1 << 16};
  for (int attention = 0; attention < 2; attention++)
    for (int yes = 0; yes < 2; yes++) {
      struct bench b;
      bench_begin(&b);
      b.caps.product_finish = b.caps.attention_finish = true;
      b.caps.rates.finish = b.caps.rates.attention_finish = 0.167e12;
      b.caps.rates.launch_us = 0.1;
      int32_t x = maker_input(&b.m, ROWS_TOKENS, 1024),
              y = attention ? maker_attention(&b.m, x, x, x, 16, 16, false)
                            : maker_linear(&b.m, x, 1024, true),
              z = maker_binary(&b.m, OP_MUL, y, maker_weight(&b.m, 1, 1024));
      output_add(&b.graph, z);
      bench_plan(&b, tokens[yes]);
      assert_int_equal(b.plan->n_steps, yes ? 1 : 2);
      if (yes)
        expect_yes(&b, y, z);
      else
        expect_no(&b, y, z, "on each piece of the result");
      bench_end(&b);
    }
}

// Half of a residual behind a product, where a norm follows that is a kernel in any case: with the
// norm it leaves the product to the library; where nothing follows the product does it.
static void finish_that_a_norm_would_do(void **state) {
  (void)state;
  for (int yes = 0; yes < 2; yes++) {
    struct bench b;
    bench_begin(&b);
    b.caps.product_finish = b.caps.finish_lists = true;
    b.caps.row_chains = false;
    b.caps.rates.library_epilogues = 1u << EPI_BIAS;
    b.caps.rates.fused_product = 0.7;
    int32_t x = maker_input(&b.m, ROWS_TOKENS, 1024), r = maker_input(&b.m, ROWS_TOKENS, 1024);
    int32_t y = maker_linear(&b.m, x, 1024, true), h = maker_unary(&b.m, OP_SCALE, r),
            z = maker_binary(&b.m, OP_ADD, y, h);
    output_add(&b.graph, yes ? z : maker_layer_norm(&b.m, z));
    bench_plan(&b, 8192);
    if (b.plan->n_steps != (yes ? 1 : 2) || edge(&b, y, z)->fused != yes)
      fail_msg("%d steps, product and sum fused: %d (%s)", b.plan->n_steps, edge(&b, y, z)->fused,
               edge(&b, y, z)->reason);
    bench_end(&b);
  }
}

// An activation and a factor a row. With the factor as a kernel of its own in any case the
// activation goes with it, and the product stays with the library; where a finish does both, all is
// one kernel.
static void epilogue_that_a_finish_goes_on_from(void **state) {
  (void)state;
  for (int yes = 0; yes < 2; yes++) {
    struct bench b;
    bench_begin(&b);
    b.caps.product_finish = b.caps.finish_lists = yes;
    b.caps.row_chains = false;
    b.caps.rates.library_epilogues = 1u << EPI_BIAS;
    b.caps.rates.fused_product = 0.9;
    int32_t x = maker_input(&b.m, ROWS_TOKENS, 1024),
            g = maker_unary(&b.m, OP_GELU, maker_linear(&b.m, x, 1024, true)),
            z = maker_binary(&b.m, OP_MUL, g, maker_input(&b.m, ROWS_TOKENS, 1));
    output_add(&b.graph, z);
    bench_plan(&b, 8192);
    assert_string_equal(b.plan->steps[0].label, yes ? "linear+bias+gelu+mul" : "linear+bias");
    assert_int_equal(b.plan->n_steps, yes ? 1 : 2);
    bench_end(&b);
  }
}

// This machine's own figures (bench/results/cpu-finish.txt, one core): `on` was 4 to 13 % slower.
static void finishes_that_were_measured_to_be_slower(void **state) {
  (void)state;
  for (int attention = 0; attention < 2; attention++) {
    struct bench b;
    bench_begin(&b);
    b.caps.product_finish = b.caps.attention_finish = b.caps.row_chains = true;
    b.caps.tile_rows = 32;
    b.caps.rates = device_rates_cpu(1);
    int32_t x = maker_input(&b.m, ROWS_TOKENS, 768), g = maker_input(&b.m, ROWS_TOKENS, 768),
            y = attention ? maker_attention(&b.m, x, x, x, 12, 12, false)
                          : maker_linear(&b.m, x, 768, true),
            z = attention ? maker_binary(&b.m, OP_MUL, y, maker_unary(&b.m, OP_SIGMOID, g))
                          : maker_unary(&b.m, OP_GELU, y);
    if (!attention) output_add(&b.graph, y);
    output_add(&b.graph, attention ? maker_binary(&b.m, OP_ADD, z, x) : z);
    bench_plan(&b, 512);
    expect_no(&b, y, z, "on each piece of the result");
    bench_end(&b);
  }
}

// ---- poolings that make their rows ----
// 100 units, of which one sequence keeps 8 busy: eight activations take 12.5 times as long there
// (7.9 us) as all units would for them (0.6), and the pooling of one sequence from memory 3.9. One
// activation is done by the time that the rows are there, and 32 sequences keep all units busy.
static void rows_of_few_sequences(void **state) {
  (void)state;
  static const struct {
    int n_acts, tokens;
    bool yes;
  } cases[] = {{8, 128, false}, {1, 128, true}, {8, 32 * 128, true}};
  for (int c = 0; c < 3; c++) {
    struct bench b;
    bench_begin(&b);
    b.caps.pool_before = true;
    b.caps.rates.units = 100, b.caps.rates.unit_load = 100e9, b.caps.rates.start_us = 1;
    b.caps.rates.pool_blocks = 8;
    int32_t h = maker_input(&b.m, ROWS_TOKENS, 768);
    for (int i = 0; i < cases[c].n_acts; i++)
      h = maker_unary(&b.m, OP_GELU, h);
    int32_t p = maker_node(&b.m, OP_POOL, &h, 1, (struct node_attrs){.pool = POOL_MEAN});
    output_add(&b.graph, p);
    bench_plan(&b, cases[c].tokens);
    if (cases[c].yes)
      expect_yes(&b, h, p);
    else
      expect_no(&b, h, p, "few sequences");
    if (c == 0) assert_true(fabs(edge(&b, h, p)->fused_cost.us - 8.7) < 0.1);
    if (c == 0) assert_true(fabs(edge(&b, h, p)->apart_cost.us - 6.1) < 0.1);
    bench_end(&b);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gate_on_a_slower_product_kernel),
      cmocka_unit_test(activation_of_the_library),
      cmocka_unit_test(arithmetic_that_the_saved_bytes_do_not_pay),
      cmocka_unit_test(intermediate_that_stays_in_the_cache),
      cmocka_unit_test(row_values_that_do_not_fit),
      cmocka_unit_test(result_with_other_readers_is_written_or_computed_again),
      cmocka_unit_test(product_with_other_readers_is_kept_apart),
      cmocka_unit_test(epilogue_pays_up_to_where_it_was_measured_to),
      cmocka_unit_test(measurement_wins_over_the_model),
      cmocka_unit_test(encoder_comes_out_as_on),
      cmocka_unit_test(decisions_are_the_same_every_time),
      cmocka_unit_test(finish_of_much_arithmetic),
      cmocka_unit_test(finish_in_pieces),
      cmocka_unit_test(finish_that_a_norm_would_do),
      cmocka_unit_test(epilogue_that_a_finish_goes_on_from),
      cmocka_unit_test(finishes_that_were_measured_to_be_slower),
      cmocka_unit_test(rows_of_few_sequences),
      cmocka_unit_test(random_plans_are_the_same_every_time),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
