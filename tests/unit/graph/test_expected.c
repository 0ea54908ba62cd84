// Expected bytes behind a cache: nothing cached is docs/TRAFFIC.md's count, everything cached is
// none, what lies between is bounded by both; products read again what does not fit. The counts
// themselves are held to a card's counters by bench_audit.
#include "blocks.h"
#include "graph/expected.h"

#include "bounds.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <time.h>

#include <cmocka.h>

#define MB 1e6
static const struct cache_facts none = {0, 0}, all = {-1, 1e18};

static void about(double found, double expected, double part, const char *what) {
  if (!(fabs(found - expected) <= part * fabs(expected) + 1))
    fail_msg("%s: found %.17g, expected %.17g", what, found, expected);
}

static struct plan *plan_of(const struct graph *graph, enum fusion_mode mode) {
  struct plan_caps caps = {.epilogue_max = 4, .epilogue_kinds = 0x1f};
  for (int d = 0; d < DTYPE_COUNT; d++)
    caps.dtype_ok[d] = true;
  struct plan_limits limits = {16384, 64, 512};
  struct plan *plan;
  struct error err = {0};
  if (plan_build(graph, mode, &caps, &limits, &plan, &err) != STATUS_OK)
    fail_msg("%s", err.message);
  return plan;
}

static struct expected behind(const struct plan *plan, const struct cache_facts *cache,
                              const struct product_walk *walks, int64_t tokens, int64_t seqs) {
  struct expected_batch batch = {.n_tokens = tokens,
                                 .n_seqs = seqs,
                                 .sum_sq = tokens * tokens / seqs,
                                 .outputs = 0xff,
                                 .n_arenas = 2};
  struct expected total;
  assert_int_equal(plan_expected(plan, cache, walks, &batch, NULL, &total), STATUS_OK);
  return total;
}

static void encoder(struct graph *graph) {
  struct graph_maker m;
  maker_init(&m, graph, NULL, DTYPE_BF16);
  output_add(graph, block_encoder_post(&m, maker_input(&m, ROWS_TOKENS, 768), 12, 3072));
}

static void without_a_cache_every_compulsory_byte_moves(void **state) {
  (void)state;
  struct graph graph;
  encoder(&graph);
  for (int mode = 0; mode < FUSION_MODES; mode++) {
    if (mode != FUSION_ON && mode != FUSION_OFF) continue;
    struct plan *plan = plan_of(&graph, (enum fusion_mode)mode);
    struct traffic_total want = plan_traffic(plan, 0xff, 16384, 32, 16384 * 512);
    struct expected found = behind(plan, &none, NULL, 16384, 32);
    about(found.read, want.read_bytes, 0.002, "read");
    about(found.write, want.write_bytes, 0.002, "written");
    plan_free(plan);
  }
  graph_deinit(&graph);
}

static void what_all_fits_never_moves_again(void **state) {
  (void)state;
  struct graph graph;
  encoder(&graph);
  struct plan *plan = plan_of(&graph, FUSION_ON);
  struct expected found = behind(plan, &all, NULL, 16384, 32);
  about(found.read, 0, 0, "read");
  about(found.write, 0, 0, "written");
  plan_free(plan);
  graph_deinit(&graph);
}

static void a_larger_cache_moves_no_more(void **state) {
  (void)state;
  struct graph graph;
  encoder(&graph);
  struct plan *plan = plan_of(&graph, FUSION_OFF);
  struct expected before = behind(plan, &none, NULL, 4096, 32);
  for (int mb = 8; mb <= 512; mb *= 2) {
    struct cache_facts cache = {(int64_t)(mb * MB), 0};
    struct expected now = behind(plan, &cache, NULL, 4096, 32);
    assert_true(now.read <= before.read * 1.001);
    assert_true(now.write <= before.write * 1.001);
    before = now;
  }
  about(before.read, 0, 0, "what fits into 512 MB is read once");
  plan_free(plan);
  graph_deinit(&graph);
}

// Two passes over [T, 1024] bf16 in one arena, that is 2 KiB a token: the second reads what the
// first wrote, if that is still there.
static void a_tensor_is_found_while_it_fits(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_BF16);
  int32_t x = maker_unary(&m, OP_GELU, maker_input(&m, ROWS_TOKENS, 1024));
  output_add(&graph, maker_unary(&m, OP_RELU, x));
  struct plan *plan = plan_of(&graph, FUSION_OFF);
  struct cache_facts cache = {(int64_t)(20 * MB), 0};
  double few = 2048.0 * 2048, many = 16384.0 * 2048;
  assert_true(behind(plan, &cache, NULL, 2048, 4).read < 1.3 * few);
  about(behind(plan, &cache, NULL, 16384, 32).read, 2 * many, 0.002, "both passes");
  about(behind(plan, &cache, NULL, 16384, 32).write, 2 * many, 0.002, "both results");
  plan_free(plan);
  graph_deinit(&graph);
}

// 25 MB, written between two other tensors of 25, by a cache of 46 MB: in strict order none of it
// would be there when it is read from its beginning. The card finds a fair part.
static void a_tensor_that_was_just_written_is_found_in_part(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_BF16);
  int32_t x = maker_input(&m, ROWS_TOKENS, 768), y = maker_input(&m, ROWS_TOKENS, 768);
  int32_t sum = maker_binary(&m, OP_ADD, x, y);
  output_add(&graph, maker_layer_norm(&m, sum));
  struct plan *plan = plan_of(&graph, FUSION_OFF);
  struct cache_facts cache = {(int64_t)(46 * MB), 0};
  struct expected_batch batch = {
      .n_tokens = 16384, .n_seqs = 32, .sum_sq = 16384 * 512, .outputs = 0xff, .n_arenas = 2};
  struct expected steps[4], total;
  assert_int_equal(plan->n_steps, 2);
  assert_int_equal(plan_expected(plan, &cache, NULL, &batch, steps, &total), STATUS_OK);
  double found = 1 - steps[1].read / (16384.0 * 768 * 2);
  print_message("%.2f of the sum is found\n", found);
  assert_true(found > 0.1 && found < 0.6);
  assert_int_equal(plan_expected(plan, &cache, NULL, &batch, steps + 2, &total), STATUS_OK);
  assert_true(steps[3].read == steps[1].read); // the same lots are drawn again
  plan_free(plan);
  graph_deinit(&graph);
}

// What streams through a kernel goes before what it writes: of 19 MB, the sum of two others, the
// norm behind it finds most (the card: 89 %), although up to 57 MB lie between. By a cache of 46 MB
// that goes by use alone it would be less than a half.
static void what_was_written_outlasts_what_was_read(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_BF16);
  int32_t x = maker_input(&m, ROWS_TOKENS, 1024), y = maker_input(&m, ROWS_TOKENS, 1024);
  output_add(&graph, maker_layer_norm(&m, maker_binary(&m, OP_ADD, x, y)));
  struct plan *plan = plan_of(&graph, FUSION_OFF);
  struct cache_facts cache = {(int64_t)(46 * MB), 0};
  struct expected_batch batch = {
      .n_tokens = 9216, .n_seqs = 24, .sum_sq = 9216 * 384, .outputs = 0xff, .n_arenas = 2};
  struct expected steps[2], total;
  assert_int_equal(plan->n_steps, 2);
  assert_int_equal(plan_expected(plan, &cache, NULL, &batch, steps, &total), STATUS_OK);
  double found = 1 - steps[1].read / (9216.0 * 1024 * 2);
  print_message("%.2f of the sum is found\n", found);
  assert_true(found > 0.6);
  about(steps[0].read, 2 * 9216.0 * 1024 * 2, 0.03, "what was read a batch ago");
  plan_free(plan);
  graph_deinit(&graph);
}

// Weights of 134 MB, batch after batch, and little else: none of them stays, and what is written is
// not kept for ever because nothing but reads comes after it.
// The mean of 256 rows of 768, 256 times: 0.4 MB, overwritten two batches later, while 100 MB are
// read in each. A card counts 1.007 of them written.
static void a_small_result_is_written_while_much_is_read(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_BF16);
  int32_t x = maker_input(&m, ROWS_TOKENS, 768);
  output_add(&graph, maker_node(&m, OP_POOL, &x, 1, (struct node_attrs){.pool = POOL_MEAN}));
  struct plan *plan = plan_of(&graph, FUSION_ON);
  struct device_rates rates = device_rates_gpu();
  rates.cache_bytes = 62914560;
  struct cache_facts card = cache_facts_of(&rates);
  struct expected found = behind(plan, &card, NULL, 65536, 256);
  about(found.read, 65536 * 768 * 2, 0.01, "read");
  about(found.write, 256 * 768 * 2, 0.03, "written");
  plan_free(plan);
  graph_deinit(&graph);
}

static void what_streams_by_finds_nothing_of_itself(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_BF16);
  int32_t x = maker_input(&m, ROWS_TOKENS, 4096);
  for (int i = 0; i < 4; i++)
    x = maker_linear(&m, x, 4096, false);
  output_add(&graph, x);
  struct plan *plan = plan_of(&graph, FUSION_OFF);
  struct cache_facts cache = {(int64_t)(46 * MB), 1e12};
  double w = 4096.0 * 4096 * 2, x_bytes = 64.0 * 4096 * 2;
  struct expected found = behind(plan, &cache, NULL, 64, 1);
  assert_true(found.read >= 0.98 * 4 * w && found.read <= 1.02 * (4 * w + x_bytes));
  assert_true(found.write > 0);
  plan_free(plan);
  graph_deinit(&graph);
}

// 16384 tokens gather from 512 rows and from 30522: of the first there are no more than 512.
static void a_table_is_read_once(void **state) {
  (void)state;
  const double row = 768 * 2, index = 8;
  for (int32_t words = 512; words <= 30522; words += 30522 - 512) {
    struct graph graph;
    struct graph_maker m;
    maker_init(&m, &graph, NULL, DTYPE_BF16);
    int32_t ids = maker_tensor(&m, TENSOR_INPUT, DTYPE_I64, ROWS_TOKENS, 0, 1);
    output_add(&graph, maker_embedding(&m, ids, words, 768));
    struct plan *plan = plan_of(&graph, FUSION_ON);
    struct cache_facts cache = {(int64_t)(10 * MB), 0};
    double rows = words < 16384 ? words : 16384;
    about(behind(plan, &cache, NULL, 16384, 32).read, rows * row + 16384 * index, 0.01, "gathered");
    about(behind(plan, &none, NULL, 16384, 32).read, 16384 * (row + index), 0.002, "no cache");
    plan_free(plan);
    graph_deinit(&graph);
  }
}

// x of 25 MB fits: the library reads a fifth of it again for each 768 columns beyond the first, if
// the result of 101 MB drives it out; one of 75 MB does not.
static void the_library_reads_x_again_where_its_result_is_large(void **state) {
  (void)state;
  struct cache_facts cache = {(int64_t)(46 * MB), 30 * MB};
  struct product_walk library = {.cols = 768, .roughly = true};
  struct product_sizes sizes = {.m = 16384, .n = 3072, .k = 768, .x_bytes = 2, .y_bytes = 2};
  double x = 16384.0 * 768 * 2;
  about(product_read_again(&sizes, &library, &cache), 3 * 0.2 * x, 0.1, "large");
  sizes.n = 2304;
  assert_true(product_read_again(&sizes, &library, &cache) < 0.1 * x);
  sizes.y_bytes = 4; // as large as one of 4608 columns
  about(product_read_again(&sizes, &library, &cache), 2 * 0.2 * x, 0.1, "in fp32");
  about(product_read_again(&sizes, &library, &none), 2 * x, 1e-9, "without a cache");
}

// 16384 x 4096 -> 4096 bf16: x and y of 134 MB, W of 34 MB.
static void a_product_reads_again_what_does_not_fit(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_BF16);
  output_add(&graph, maker_linear(&m, maker_input(&m, ROWS_TOKENS, 4096), 4096, false));
  struct plan *plan = plan_of(&graph, FUSION_ON);
  double w = 4096.0 * 4096 * 2, x = 16384.0 * 4096 * 2;
  struct cache_facts small = {(int64_t)(46 * MB), 10 * MB}, large = {(int64_t)(140 * MB), 1e12};
  struct product_walk rows = {.rows = 2048}, cols = {.cols = 512},
                      library = {.cols = 512, .roughly = true};
  assert_int_equal(plan->n_steps, 1);
  about(behind(plan, &small, NULL, 16384, 32).read, x + w, 0.002, "read once");
  about(behind(plan, &small, &rows, 16384, 32).read, x + 8 * w, 0.01, "W by 8 groups of rows");
  about(behind(plan, &small, &cols, 16384, 32).read, 8 * x + w, 0.002, "x by 8 groups of columns");
  // 134 MB of x and three times 512 columns of W are 3.2 caches: all that is ever lost, 0.63
  about(behind(plan, &small, &library, 16384, 32).read, (1 + 7 * 0.63) * x + w, 0.01, "library");
  about(behind(plan, &large, &rows, 16384, 32).read, x, 0.01, "W stays, also between batches");
  about(behind(plan, &small, &rows, 16384, 32).write, x, 0.002, "written");
  plan_free(plan);
  graph_deinit(&graph);
}

static void steps_that_nobody_needs_move_nothing(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_F32);
  int32_t x = maker_input(&m, ROWS_TOKENS, 64);
  output_add(&graph, maker_unary(&m, OP_SOFTMAX, x));
  output_add(&graph, maker_layer_norm(&m, x));
  struct plan *plan = plan_of(&graph, FUSION_OFF);
  struct expected_batch batch = {
      .n_tokens = 4096, .n_seqs = 8, .sum_sq = 4096 * 512, .outputs = 1, .n_arenas = 1};
  struct expected steps[8], total;
  assert_int_equal(plan_expected(plan, &none, NULL, &batch, steps, &total), STATUS_OK);
  double sum = 0;
  for (int32_t s = 0; s < plan->n_steps; s++) {
    if (!(plan->steps[s].needed_by & 1)) assert_true(steps[s].read == 0 && steps[s].write == 0);
    sum += steps[s].read;
  }
  about(total.read, 4096.0 * 64 * 4, 0.01, "one of two outputs");
  about(sum, total.read, 1e-9, "the sum of the steps");
  plan_free(plan);
  graph_deinit(&graph);
}

// A model file may ask for a million tokens of LIMIT_DIM columns, and for plans that are weighed
// by another size. It is told what that moves as soon as anyone else: these took minutes once.
static void the_largest_batch_is_walked_as_fast_as_any(void **state) {
  (void)state;
  const int32_t tokens = 1 << 20;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_F32);
  int32_t x = maker_input(&m, ROWS_TOKENS, LIMIT_DIM);
  for (int i = 0; i < 6; i++)
    x = maker_unary(&m, i % 2 ? OP_GELU : OP_SOFTMAX, x);
  output_add(&graph, maker_linear(&m, maker_linear(&m, x, 8, false), LIMIT_DIM, true));
  for (int how = 0; how < 4; how++) {
    struct plan_caps caps = {.epilogue_max = 4, .epilogue_kinds = 0x1f, .row_chains = how & 1};
    caps.tile_rows = 32, caps.tile_bytes = 1 << 19, caps.dtype_ok[DTYPE_F32] = true;
    caps.usual_tokens = how & 2 ? 16 : 0;
    struct plan_limits limits = {tokens, tokens, tokens};
    struct plan *plan;
    struct error err = {0};
    clock_t began = clock();
    assert_int_equal(plan_build(&graph, FUSION_OFF, &caps, &limits, &plan, &err), STATUS_OK);
    assert_true((double)(clock() - began) / CLOCKS_PER_SEC < 5);
    struct traffic_total want = plan_traffic(plan, 0xff, tokens, 1, (int64_t)tokens * tokens);
    struct cache_facts cache = {(int64_t)(46 * MB), 20 * MB};
    struct expected found = behind(plan, &cache, NULL, tokens, 1);
    about(found.read, want.read_bytes, 0.01, "read");
    about(found.write, want.write_bytes, 0.01, "written");
    plan_free(plan);
  }
  graph_deinit(&graph);
}

// The audit rounds sizes, also up: past what the plan has memory for there is nothing to touch.
static void a_batch_may_be_larger_than_the_plan_has_memory_for(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_F32);
  int32_t x = maker_unary(&m, OP_SOFTMAX, maker_input(&m, ROWS_TOKENS, 64));
  output_add(&graph, maker_unary(&m, OP_SOFTMAX, x));
  struct plan *plan = plan_of(&graph, FUSION_OFF);
  int64_t tokens = 32 * 16384; // plan_of: 16384
  struct traffic_total want = plan_traffic(plan, 0xff, tokens, 4, tokens * tokens / 4);
  struct expected found = behind(plan, &none, NULL, tokens, 4);
  about(found.read, want.read_bytes, 0.002, "read");
  assert_true(found.write <= want.write_bytes * 1.002); // some of it into the same bytes
  plan_free(plan);
  graph_deinit(&graph);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(without_a_cache_every_compulsory_byte_moves),
      cmocka_unit_test(what_all_fits_never_moves_again),
      cmocka_unit_test(a_larger_cache_moves_no_more),
      cmocka_unit_test(a_tensor_is_found_while_it_fits),
      cmocka_unit_test(a_tensor_that_was_just_written_is_found_in_part),
      cmocka_unit_test(what_was_written_outlasts_what_was_read),
      cmocka_unit_test(a_small_result_is_written_while_much_is_read),
      cmocka_unit_test(what_streams_by_finds_nothing_of_itself),
      cmocka_unit_test(a_table_is_read_once),
      cmocka_unit_test(the_library_reads_x_again_where_its_result_is_large),
      cmocka_unit_test(a_product_reads_again_what_does_not_fit),
      cmocka_unit_test(steps_that_nobody_needs_move_nothing),
      cmocka_unit_test(the_largest_batch_is_walked_as_fast_as_any),
      cmocka_unit_test(a_batch_may_be_larger_than_the_plan_has_memory_for),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
