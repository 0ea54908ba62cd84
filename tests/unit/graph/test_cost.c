// The cost model: what it predicts for kernels and plans worked out by hand, and what must hold of
// its byte bounds for any plan.
#include "blocks.h"
#include "graph/cost.h"
#include "round_rates.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define ALL 0xff
#define MB 1e6

static struct plan *plan_with(const struct graph *graph, enum fusion_mode mode, bool chains,
                              int32_t max_tokens) {
  struct plan_caps caps = {.row_chains = chains,
                           .tile_rows = 32,
                           .tile_bytes = 1 << 24,
                           .epilogue_max = 4,
                           .epilogue_kinds = 0x1f,
                           .rates = round_rates()};
  for (int d = 0; d < DTYPE_COUNT; d++)
    caps.dtype_ok[d] = true;
  struct plan_limits limits = {max_tokens, max_tokens, 512};
  struct plan *plan;
  struct error err = {0};
  if (plan_build(graph, mode, &caps, &limits, &plan, &err) != STATUS_OK)
    fail_msg("%s", err.message);
  return plan;
}

static void near(double found, double expected, double tolerance, const char *what) {
  if (!(fabs(found - expected) <= tolerance * fabs(expected)))
    fail_msg("%s: found %.17g, expected %.17g", what, found, expected);
}

// ---- one kernel ----
static void batches_of_equal_sequences(void **state) {
  (void)state;
  struct batch_size batch = batch_of(300, 128);
  assert_int_equal(batch.n_seqs, 3);
  assert_int_equal(batch.sum_sq, 2 * 128 * 128 + 44 * 44);
  batch = batch_of(7, 128);
  assert_int_equal(batch.n_seqs, 1);
  assert_int_equal(batch.sum_sq, 49);
}

// 2^20 rows of 64 floats, read and written: 537 MB at 1 TB/s.
static void element_wise_kernel_takes_its_bytes_over_the_bandwidth(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_F32);
  output_add(&graph, maker_unary(&m, OP_RELU, maker_input(&m, ROWS_TOKENS, 64)));
  struct plan *plan = plan_with(&graph, FUSION_ON, false, 1 << 20);
  struct cost cost = plan->steps[0].cost;
  near(cost.memory_us, 2.0 * (1 << 20) * 64 * 4 / 1e6, 1e-9, "us");
  near(cost.us, cost.memory_us + 1, 1e-9, "and the launch");
  assert_int_equal(cost.bound, BOUND_MEMORY);
  near(cost.intensity, 1.0 / 8, 1e-9, "one operation for each eight bytes");
  plan_free(plan);
  graph_deinit(&graph);
}

// In fp32 a product's rate is its own, an attention's products' and an epilogue's another where the
// device says so. All else stays.
static void fp32_has_rates_of_its_own(void **state) {
  (void)state;
  struct batch_size batch = batch_of(16384, 16384);
  for (int d = 0; d < 2; d++) {
    const bool wide = d == 0;
    struct kernel_work product = {.kind = STEP_LINEAR,
                                  .dtype = wide ? DTYPE_F32 : DTYPE_BF16,
                                  .launches = 1,
                                  .n = 4096,
                                  .k = 4096};
    struct kernel_work attention = product;
    product.product_flops.per_token = 2.0 * 4096 * 4096;
    attention.kind = STEP_ATTENTION, attention.product_flops.per_token = 2.0 * 4096 * 4096;
    struct kernel_work acts = product;
    acts.epilogue_flops.per_token = acts.epilogue_special.per_token = 8 * 4096;
    acts.traffic.flops.per_token = acts.epilogue_flops.per_token; // beside it: none
    product.traffic.flops = product.product_flops, attention.traffic.flops = product.product_flops;
    acts.traffic.flops.per_token += product.product_flops.per_token;
    struct device_rates rates = round_rates();
    double product_us = work_cost(&product, &rates, &batch).compute_us,
           attention_us = work_cost(&attention, &rates, &batch).compute_us,
           acts_us = work_cost(&acts, &rates, &batch).compute_us - product_us;
    near(attention_us, product_us, 1e-9, "no rate of its own");
    rates.attention_f32 = rates.product[DTYPE_F32] / 4;
    rates.epilogue_f32 = rates.epilogue / 8;
    near(work_cost(&product, &rates, &batch).compute_us, product_us, 1e-9, "product");
    near(work_cost(&attention, &rates, &batch).compute_us, (wide ? 4 : 1) * attention_us, 1e-9,
         "attention");
    near(work_cost(&acts, &rates, &batch).compute_us - product_us, (wide ? 8 : 1) * acts_us, 1e-6,
         "epilogue");
  }
}

// The same model is bound by its launch at one token, by the weights' bytes at 64, by arithmetic at
// 65,536.
static void product_moves_along_the_roofline_with_the_batch(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_BF16);
  int32_t x = maker_input(&m, ROWS_TOKENS, 64);
  output_add(&graph, maker_linear(&m, x, 64, false));
  x = maker_input(&m, ROWS_TOKENS, 8192);
  output_add(&graph, maker_linear(&m, x, 8192, false));
  struct plan *plan = plan_with(&graph, FUSION_ON, false, 65536);
  struct device_rates rates = round_rates();
  struct cost steps[2], total;
  struct batch_size batch = batch_of(1, 1);
  assert_int_equal(plan_cost(plan, &rates, &batch, ALL, steps, &total), STATUS_OK);
  assert_int_equal(steps[0].bound, BOUND_LAUNCH);
  assert_int_equal(steps[1].bound, BOUND_MEMORY);
  near(steps[1].memory_us, 8192.0 * 8192 * 2 / 1e6, 1e-3, "the weights");
  batch = batch_of(65536, 128);
  assert_int_equal(plan_cost(plan, &rates, &batch, ALL, steps, &total), STATUS_OK);
  assert_int_equal(steps[1].bound, BOUND_COMPUTE);
  near(steps[1].compute_us, 2.0 * 65536 * 8192 * 8192 / 100e6, 1e-3, "the operations");
  assert_int_equal(plan_cost(plan, &rates, &batch, 1, steps, &total), STATUS_OK);
  near(total.us, steps[0].us, 1e-9, "what nobody asks for costs nothing");
  assert_true(steps[1].us == 0);
  plan_free(plan);
  graph_deinit(&graph);
}

// Measured on an H200 by its counters: 596 MB read for 168 MB compulsory.
static void large_product_reads_its_weights_again(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_BF16);
  output_add(&graph, maker_linear(&m, maker_input(&m, ROWS_TOKENS, 4096), 4096, false));
  struct plan *plan = plan_with(&graph, FUSION_ON, false, 16384);
  struct device_rates rates = device_rates_gpu();
  struct cost cost;
  assert_int_equal(plan_cost(plan, &rates, &plan->batch, ALL, NULL, &cost), STATUS_OK);
  near(cost.read.compulsory, 167.8 * MB, 1e-3, "compulsory");
  near(cost.read.expected, 596 * MB, 0.25, "expected");
  assert_true(cost.read.upper > cost.read.expected);
  struct batch_size batch = batch_of(512, 512); // one group of tiles: nothing is read again
  assert_int_equal(plan_cost(plan, &rates, &batch, ALL, NULL, &cost), STATUS_OK);
  assert_true(cost.read.expected <= cost.read.compulsory);
  plan_free(plan);
  graph_deinit(&graph);
}

// ---- operations ----
static struct cost cost_of(struct graph *graph, int32_t output, const struct device_rates *rates,
                           int32_t tokens) {
  output_add(graph, output);
  struct plan *plan = plan_with(graph, FUSION_ON, false, tokens);
  struct cost cost;
  assert_int_equal(plan_cost(plan, rates, &plan->batch, ALL, NULL, &cost), STATUS_OK);
  plan_free(plan);
  graph_deinit(graph);
  return cost;
}

// Two sums and a GELU on [1024, 1024]: 2 plain operations an element, 8 special ones.
static void activations_have_a_rate_of_their_own(void **state) {
  (void)state;
  for (int narrow = 0; narrow < 2; narrow++) {
    struct graph graph;
    struct graph_maker m;
    struct device_rates rates = round_rates();
    rates.vector = 10e12, rates.special = 1e12, rates.special_16 = 4e12;
    maker_init(&m, &graph, NULL, narrow ? DTYPE_BF16 : DTYPE_F32);
    int32_t x = maker_input(&m, ROWS_TOKENS, 1024), y = maker_binary(&m, OP_ADD, x, x);
    y = maker_binary(&m, OP_ADD, maker_unary(&m, OP_GELU, y), x);
    struct cost cost = cost_of(&graph, y, &rates, 1024);
    double n = 1024 * 1024 / 1e6;
    near(cost.compute_us, n * 2 / 10 + n * 8 / (narrow ? 4 : 1), 1e-9, "operations");
  }
}

// 100 units of 1 TFLOP/s: a tile of 128 x 128 x 1024 takes 33.6 us. 100 of them are one round, 101
// two.
static void attention_of_a_cpu_computes_in_fp32(void **state) {
  (void)state;
  struct batch_size batch = batch_of(512, 512);
  struct device_rates rates = round_rates();
  rates.units = 0, rates.attention_f32 = 0;
  rates.product[DTYPE_BF16] = 4 * rates.product[DTYPE_F32];
  for (int d = 0; d < 2; d++) {
    bool wide = d == 0;
    struct kernel_work work = {
        .kind = STEP_LINEAR, .dtype = wide ? DTYPE_F32 : DTYPE_BF16, .n = 1024, .k = 1024};
    work.product_flops.per_token = work.traffic.flops.per_token = 2.0 * 1024 * 1024;
    double product_us = work_cost(&work, &rates, &batch).compute_us;
    work.kind = STEP_ATTENTION;
    near(work_cost(&work, &rates, &batch).compute_us, (wide ? 1 : 4) * product_us, 1e-9,
         "attention");
    rates.units = 100, rates.unit_load = 1e15; // a GPU's tensor cores take 16 bits
    double on_gpu = work_cost(&work, &rates, &batch).compute_us;
    rates.units = 0;
    near(on_gpu, product_us, 1e-9, "a GPU's");
  }
}

static void tiles_of_a_product_come_in_rounds(void **state) {
  (void)state;
  static const int32_t rows[] = {128 * 100, 128 * 101};
  double us[2];
  for (int i = 0; i < 2; i++) {
    struct graph graph;
    struct graph_maker m;
    struct device_rates rates = round_rates();
    rates.units = 100, rates.unit_load = 1e15;
    maker_init(&m, &graph, NULL, DTYPE_F32);
    int32_t y = maker_linear(&m, maker_input(&m, ROWS_TOKENS, 1024), 128, false);
    us[i] = cost_of(&graph, y, &rates, rows[i]).compute_us;
  }
  near(us[0], 2.0 * 128 * 128 * 1024 / 1e6, 1e-9, "one round");
  assert_true(us[1] > us[0] * 1.1 && us[1] <= us[0] * 2); // of smaller tiles, perhaps
}

// 1 row of 4096 -> 64: its weights pass through one unit or two, whatever the card has beside them.
static void a_row_takes_as_long_as_its_weights_are_loaded(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  struct device_rates rates = round_rates();
  rates.units = 100, rates.unit_load = 100e9, rates.product[DTYPE_BF16] = 1e18;
  maker_init(&m, &graph, NULL, DTYPE_BF16);
  int32_t y = maker_linear(&m, maker_input(&m, ROWS_TOKENS, 4096), 64, false);
  struct cost cost = cost_of(&graph, y, &rates, 1);
  near(cost.compute_us, (64 + 32) * 4096.0 * 2 / 100e9 * 1e6, 1e-9, "the smallest tile's operands");
  rates.units = 0;
  maker_init(&m, &graph, NULL, DTYPE_BF16);
  y = maker_linear(&m, maker_input(&m, ROWS_TOKENS, 4096), 64, false);
  assert_true(cost_of(&graph, y, &rates, 1).compute_us < 0.01);
}

// A product in fp32 on a GPU goes by the tiles of its one kernel (kernels/gemm/x3_tiles.h), whose
// epilogues hide behind nothing; its rate is that of the device.
static void fp32_products_go_by_the_tiles_of_their_kernel(void **state) {
  (void)state;
  static const struct {
    int32_t m, n, k;
    double rows, cols, start, us; // of the tiles of the busiest of 132 units
  } cases[] = {
      {2048, 1536, 384, 3 * 128, 64, 3.7, 384 * 3 * 0.03},
      {2048, 384, 384, 2 * 64, 64, 1.2, 384 * 2 * 0.0178},
      {16, 1536, 384, 32, 32, 0, 384 * 0.0075},
      {16384, 3072, 768, 47 * 128, 64, 3.7, 768 * 47 * 0.03},
  };
  for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
    struct device_rates rates = round_rates();
    size_t c = i / 2;
    double m = cases[c].m, n = cases[c].n, values = cases[c].rows * cases[c].cols;
    double faster = i % 2 ? 2 : 1;
    rates.units = 132, rates.plain_dtypes = 1u << DTYPE_F32, rates.epilogue_f32 = 1e12;
    rates.product[DTYPE_F32] = faster * 74e12;
    struct kernel_work work = {
        .kind = STEP_LINEAR, .dtype = DTYPE_F32, .launches = 1, .n = cases[c].n, .k = cases[c].k};
    struct batch_size batch = batch_of((int64_t)m, (int64_t)m);
    double us = cases[c].start + cases[c].us / faster;
    near(work_cost(&work, &rates, &batch).compute_us, us, 1e-9, "tiles");
    work.epilogue_flops.per_token = work.epilogue_special.per_token = 8 * n;
    work.traffic.flops = work.epilogue_flops;
    near(work_cost(&work, &rates, &batch).compute_us, us + values * 8 / (1e12 / 132) * 1e6, 1e-9,
         "and a GELU for each value of a unit's tiles");
    work.epilogue_kinds = 1u << EPI_ADD;
    near(work_cost(&work, &rates, &batch).compute_us,
         us + values * 8 / (1e12 / 132) * 1e6 + values * 0.28e-3, 1e-9, "and a residual");
  }
}

// Our own kernel for 16 bits passes fp32 through registers while it computes nothing; the library
// does not, and has smaller tiles.
static void results_and_residuals_in_fp32_take_time_of_a_tile(void **state) {
  (void)state;
  struct batch_size batch = batch_of(1024, 1024); // 8 x 8 tiles of 128 x 128
  struct device_rates rates = round_rates();
  rates.units = 64, rates.unit_load = 1e12, rates.library_epilogues = 1u << EPI_BIAS;
  struct kernel_work work = {.kind = STEP_LINEAR,
                             .dtype = DTYPE_BF16,
                             .launches = 1,
                             .n = 1024,
                             .k = 4096,
                             .y_bytes = 2,
                             .add_bytes = 2,
                             .epilogue_kinds = 1u << EPI_ADD};
  double product = 2.0 * 1024 * 1024 * 4096 / 100e12 * 1e6;
  near(work_cost(&work, &rates, &batch).compute_us, product, 1e-9, "all in 16 bits");
  work.y_bytes = 4;
  near(work_cost(&work, &rates, &batch).compute_us, product + 128 * 128 * 4 / 40e3, 1e-9, "result");
  work.add_bytes = 4;
  near(work_cost(&work, &rates, &batch).compute_us,
       product + 128 * 128 * 4 / 40e3 + 128 * 128 * 4 / 25e3, 1e-9, "and residual");
  work.epilogue_kinds = 0, work.add_bytes = 0; // the library's
  near(work_cost(&work, &rates, &batch).compute_us, product, 1e-9, "the library");
  rates.units = 88; // 8 x 11 tiles of 128 x 96 fill them
  near(work_cost(&work, &rates, &batch).compute_us, 2.0 * 128 * 96 * 4096 / 100e12 * 88 * 1e6, 1e-9,
       "its own tiles");
}

static void bytes_and_arithmetic_of_a_product_hide_in_part(void **state) {
  (void)state;
  for (int p = 0; p <= 2; p++) {
    struct graph graph;
    struct graph_maker m;
    struct device_rates rates = round_rates();
    rates.overlap = p;
    maker_init(&m, &graph, NULL, DTYPE_F32);
    int32_t y = maker_linear(&m, maker_input(&m, ROWS_TOKENS, 256), 4096, false);
    struct cost cost = cost_of(&graph, y, &rates, 65536);
    double a = cost.compute_us, b = cost.memory_us;
    near(cost.us - cost.launch_us,
         p == 0   ? fmax(a, b)
         : p == 1 ? a + b
                  : hypot(a, b),
         1e-9, "time");
  }
}

// Tiles of 128 queries over the keys of their sequence and 128 more, 100 at a time.
static void attention_goes_by_tiles_of_queries(void **state) {
  (void)state;
  static const int32_t tokens[] = {1024, 64, 256};
  for (int i = 0; i < 6; i++) {
    struct graph graph;
    struct graph_maker m;
    struct device_rates rates = round_rates();
    bool plain = i >= 3; // fp32 by a kernel of its own
    rates.units = 100, rates.start_us = 3, rates.attention_f32 = plain ? 100e12 : 0;
    maker_init(&m, &graph, NULL, DTYPE_F32);
    int32_t q = maker_input(&m, ROWS_TOKENS, 1600), k = maker_input(&m, ROWS_TOKENS, 1600),
            v = maker_input(&m, ROWS_TOKENS, 1600);
    int32_t y = maker_attention(&m, q, k, v, 25, 0, false);
    output_add(&graph, y);
    struct plan *plan = plan_with(&graph, FUSION_ON, false, 1024);
    struct batch_size batch = batch_of(tokens[i % 3], 512);
    struct cost cost;
    assert_int_equal(plan_cost(plan, &rates, &batch, ALL, NULL, &cost), STATUS_OK);
    double score = (4.0 * 64 / 100e12 + 6 / 10e12) * 100 * 1e6; // of one unit, us
    // 2 sequences of 512: 25 heads x 8 tiles, in two rounds; 64 tokens: 25 tiles in one, 256: 50
    double want[] = {
        2 * 128 * (512 + 128) * score, 128 * (64 + 128) * score, 128 * (256 + 128) * score,
        // its tiles are half as long: twice as many rounds; or twice as many blocks of
        // half a tile, of which a unit has one, or two, and 32 keys more instead of 64
        4 * 64 * (512 + 48) * score, 1.2 * 64 * (64 + 32) * score, 1.57 * 64 * (256 + 32) * score};
    near(cost.compute_us, want[i], 1e-9, "tiles");
    near(cost.launch_us, 1 + 3, 1e-9, "its start");
    plan_free(plan);
    graph_deinit(&graph);
  }
}

// The kernels of an unfused attention in fp32 by tiles of 64 x 64, 100 at a time: 4 sequences of
// 128 have 16 for each head of 64, and of the results half as many.
static void unfused_attention_in_fp32_goes_by_tiles(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  struct device_rates rates = round_rates();
  rates.units = 100, rates.start_us = 3, rates.attention_f32 = 10e12;
  maker_init(&m, &graph, NULL, DTYPE_F32);
  int32_t x[3];
  for (int i = 0; i < 3; i++)
    x[i] = maker_input(&m, ROWS_TOKENS, 25 * 64);
  output_add(&graph, maker_attention(&m, x[0], x[1], x[2], 25, 0, false));
  struct plan *plan = plan_with(&graph, FUSION_OFF, false, 1024);
  struct batch_size batch = batch_of(512, 128);
  struct cost steps[4], total;
  assert_int_equal(plan->n_steps, 4);
  assert_int_equal(plan_cost(plan, &rates, &batch, ALL, steps, &total), STATUS_OK);
  double tile =
      2.0 * 64 * 64 * 64 / 10e12 * 100 * 1e6; // us of one unit, for 64 of its inner columns
  near(steps[0].compute_us, 4 * tile, 1e-9, "scores: 400 tiles");
  near(steps[0].us, steps[0].memory_us + steps[0].compute_us + steps[0].launch_us, 1e-9,
       "they are written afterwards");
  near(steps[0].launch_us, 1 + 3 + 1.3, 1e-9, "their start, and the writing of a tile");
  near(steps[3].compute_us, 2 * 2 * tile, 1e-9, "results: 200 tiles over 128 keys");
  near(steps[3].us, fmax(steps[3].memory_us, steps[3].compute_us) + steps[3].launch_us, 1e-9,
       "memory and arithmetic side by side");
  plan_free(plan);
  graph_deinit(&graph);
}

// On a GPU a step that only reads, computes and writes takes less of a launch than one with
// reductions.
static void small_steps_take_a_share_of_a_launch(void **state) {
  (void)state;
  struct batch_size batch = batch_of(1, 1);
  struct kernel_work plain = {.kind = STEP_ROW, .launches = 1}, reduces = plain;
  reduces.reduced_flops.per_token = 7, reduces.traffic.flops.per_token = 7;
  struct device_rates rates = round_rates();
  near(work_cost(&plain, &rates, &batch).launch_us, 1, 1e-9, "a CPU");
  near(work_cost(&reduces, &rates, &batch).launch_us, 1, 1e-9, "a CPU");
  rates.units = 100;
  near(work_cost(&plain, &rates, &batch).launch_us, LAUNCH_PLAIN, 1e-9, "element-wise");
  near(work_cost(&reduces, &rates, &batch).launch_us, LAUNCH_REDUCES, 1e-9, "a norm");
}

// ---- a plan's steps together ----
// gelu, then a norm over other columns cannot fuse: 4 MB between them are found in a cache of 40,
// 4 GB are not.
static void small_intermediate_is_found_in_the_cache(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_F32);
  int32_t h = maker_unary(&m, OP_GELU, maker_input(&m, ROWS_TOKENS, 1024));
  output_add(&graph, maker_linear(&m, h, 8, false));
  struct plan *plan = plan_with(&graph, FUSION_OFF, false, 1 << 20);
  struct device_rates rates = round_rates();
  struct cost steps[2], total;
  struct batch_size batch = batch_of(1024, 128);
  assert_int_equal(plan_cost(plan, &rates, &batch, ALL, steps, &total), STATUS_OK);
  assert_true(steps[1].read.expected < 0.02 * steps[1].read.compulsory);
  assert_true(steps[0].write.lower == 0);
  batch = batch_of(1 << 20, 128);
  assert_int_equal(plan_cost(plan, &rates, &batch, ALL, steps, &total), STATUS_OK);
  assert_true(steps[1].read.expected > 0.99 * steps[1].read.compulsory);
  assert_true(steps[0].write.expected > 0.99 * steps[0].write.compulsory);
  plan_free(plan);
  graph_deinit(&graph);
}

static void bounds_hold(const struct byte_bounds *bounds, const char *what) {
  double slack = 1e-9 * bounds->upper + 1e-6;
  if (!(bounds->lower <= bounds->expected + slack && bounds->expected <= bounds->upper + slack &&
        bounds->lower <= bounds->compulsory + slack &&
        bounds->compulsory <= bounds->upper + slack && bounds->lower >= -slack))
    fail_msg("%s: lower %g, compulsory %g, expected %g, upper %g", what, bounds->lower,
             bounds->compulsory, bounds->expected, bounds->upper);
}

static void check_costs(const struct plan *plan, const struct batch_size *batch) {
  struct device_rates rates[] = {round_rates(), device_rates_gpu(), device_rates_cpu(4)};
  struct cost *steps = calloc((size_t)plan->n_steps + 1, sizeof *steps), total;
  struct traffic_total traffic =
      plan_traffic(plan, ALL, batch->n_tokens, batch->n_seqs, batch->sum_sq);
  for (int r = 0; r < 3; r++) {
    assert_int_equal(plan_cost(plan, &rates[r], batch, ALL, steps, &total), STATUS_OK);
    near(total.read.compulsory, traffic.read_bytes, 1e-9, "reads");
    near(total.write.compulsory, traffic.write_bytes, 1e-9, "writes");
    near(total.flops, traffic.flops, 1e-9, "operations");
    assert_int_equal(total.launches, traffic.kernels);
    for (int32_t s = 0; s < plan->n_steps; s++) {
      bounds_hold(&steps[s].read, plan->steps[s].label);
      bounds_hold(&steps[s].write, plan->steps[s].label);
      assert_true(steps[s].us > 0);
    }
  }
  free(steps);
}

// Nodes weighed one by one make the same kernel as the step that was built from them.
static int check_decisions(const struct plan *plan, const struct batch_size *batch) {
  int n_fused = 0;
  for (int32_t d = 0; d < plan->n_decisions; d++) {
    const struct decision *decision = &plan->decisions[d];
    assert_int_equal(decision->first.launches, 1);
    assert_int_equal(decision->second.launches, 1);
    assert_int_equal(decision->both.launches, decision->legal);
    if (!decision->fused) continue;
    for (int32_t s = 0; s < plan->n_steps; s++) {
      const struct step *step = &plan->steps[s];
      for (int i = 0; i < step->n_nodes; i++) {
        if (step->nodes[i] != decision->consumer) continue;
        near(traffic_at(&decision->both.traffic.read, batch),
             traffic_at(&step->traffic.read, batch), 1e-9, step->label);
        near(traffic_at(&decision->both.traffic.write, batch),
             traffic_at(&step->traffic.write, batch), 1e-9, step->label);
        assert_int_equal(decision->both.kind, step->kind);
        n_fused++;
      }
    }
    struct cost apart, fused;
    decision_cost(decision, &plan->rates, batch, &apart, &fused);
    assert_int_equal(apart.launches, 2);
    assert_int_equal(fused.launches, 1);
  }
  return n_fused;
}

static void costs_of_random_plans_agree_with_their_traffic(void **state) {
  (void)state;
  int n_fused = 0;
  for (int round = 0; round < 120; round++) {
    struct rng rng = {.state = (uint64_t)round * 977 + 5};
    struct graph graph;
    struct graph_maker maker;
    maker_init(&maker, &graph, &rng, round % 2 ? DTYPE_BF16 : DTYPE_F32);
    maker_random(&maker, 1 + rng_below(&rng, 45));
    struct batch_size batch = batch_of(1 + rng_below(&rng, 3000), 1 + rng_below(&rng, 200));
    for (int mode = 0; mode < FUSION_MODES; mode++) {
      for (int chains = 0; chains < 2; chains++) {
        struct plan *plan = plan_with(&graph, (enum fusion_mode)mode, chains, 4096);
        check_costs(plan, &batch);
        n_fused += check_decisions(plan, &batch);
        plan_free(plan);
      }
    }
    graph_deinit(&graph);
  }
  if (n_fused < 300) fail_msg("only %d fused edges were looked at", n_fused);
}

// What the GPU's library takes: bias and residual, the result in 16 bits or, without a residual, in
// fp32. Of a kernel that is thought of and of a step.
static void products_are_of_the_kernels_that_take_them(void **state) {
  (void)state;
  enum { ADD = 1, GELU = 2, CAST = 4 };
  static const struct {
    enum dtype dtype;
    int behind;
    enum product_class want;
  } cases[] = {{DTYPE_BF16, 0, CLASS_LIBRARY},       {DTYPE_BF16, ADD, CLASS_LIBRARY},
               {DTYPE_BF16, CAST, CLASS_LIBRARY},    {DTYPE_BF16, GELU, CLASS_OWN},
               {DTYPE_BF16, GELU | CAST, CLASS_OWN}, {DTYPE_BF16, ADD | CAST, CLASS_OWN},
               {DTYPE_F16, ADD | CAST, CLASS_OWN},   {DTYPE_F32, ADD, CLASS_PLAIN},
               {DTYPE_F32, GELU, CLASS_PLAIN}};
  struct device_rates rates = device_rates_gpu();
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct graph graph;
    struct graph_maker m;
    maker_init(&m, &graph, NULL, cases[i].dtype);
    int32_t x = maker_input(&m, ROWS_TOKENS, 64), y = maker_linear(&m, x, 64, true);
    if (cases[i].behind & GELU) y = maker_unary(&m, OP_GELU, y);
    if (cases[i].behind & ADD) y = maker_binary(&m, OP_ADD, y, x);
    if (cases[i].behind & CAST) {
      struct node cast = {.op = OP_CAST, .in = {y}, .n_in = 1, .attrs = {.to = DTYPE_F32}};
      struct error err = {0};
      assert_int_equal(graph_add_node(&graph, &cast, "wide", DTYPE_F32, &y, &err), STATUS_OK);
    }
    output_add(&graph, y);
    struct plan *plan = plan_with(&graph, FUSION_ON, false, 512);
    assert_int_equal(plan->n_steps, 1);
    struct kernel_work work = step_work(&plan->steps[0]);
    if (product_class_of(&work, &rates) != cases[i].want)
      fail_msg("case %zu: %d", i, product_class_of(&work, &rates));
    if (plan->n_decisions > 0) { // the last edge: all of it thought of
      work = plan->decisions[plan->n_decisions - 1].both;
      assert_int_equal(product_class_of(&work, &rates), cases[i].want);
    }
    plan_free(plan);
    graph_deinit(&graph);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(batches_of_equal_sequences),
      cmocka_unit_test(products_are_of_the_kernels_that_take_them),
      cmocka_unit_test(element_wise_kernel_takes_its_bytes_over_the_bandwidth),
      cmocka_unit_test(product_moves_along_the_roofline_with_the_batch),
      cmocka_unit_test(large_product_reads_its_weights_again),
      cmocka_unit_test(activations_have_a_rate_of_their_own),
      cmocka_unit_test(fp32_has_rates_of_its_own),
      cmocka_unit_test(attention_of_a_cpu_computes_in_fp32),
      cmocka_unit_test(tiles_of_a_product_come_in_rounds),
      cmocka_unit_test(a_row_takes_as_long_as_its_weights_are_loaded),
      cmocka_unit_test(bytes_and_arithmetic_of_a_product_hide_in_part),
      cmocka_unit_test(attention_goes_by_tiles_of_queries),
      cmocka_unit_test(unfused_attention_in_fp32_goes_by_tiles),
      cmocka_unit_test(small_steps_take_a_share_of_a_launch),
      cmocka_unit_test(fp32_products_go_by_the_tiles_of_their_kernel),
      cmocka_unit_test(results_and_residuals_in_fp32_take_time_of_a_tile),
      cmocka_unit_test(small_intermediate_is_found_in_the_cache),
      cmocka_unit_test(costs_of_random_plans_agree_with_their_traffic),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
