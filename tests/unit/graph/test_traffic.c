// Bytes and operations against formulas worked out by hand (docs/TRAFFIC.md).
#include "blocks.h"
#include "graph/plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define ALL 0xff

static void near(double found, double expected, const char *what) {
  if (!(fabs(found - expected) <= 1e-9 * fabs(expected)))
    fail_msg("%s: found %.17g, expected %.17g", what, found, expected);
}

static struct plan *plan_of(const struct graph *graph, enum fusion_mode mode, bool chains) {
  struct plan_caps caps = {.row_chains = chains,
                           .tile_rows = 32,
                           .tile_bytes = 1 << 24,
                           .epilogue_max = 4,
                           .epilogue_kinds = 0x1f};
  for (int d = 0; d < DTYPE_COUNT; d++)
    caps.dtype_ok[d] = true;
  struct plan_limits limits = {4096, 64, 512};
  struct plan *plan;
  struct error err = {0};
  if (plan_build(graph, mode, &caps, &limits, &plan, &err) != STATUS_OK)
    fail_msg("%s", err.message);
  return plan;
}

static struct traffic_total total_of(const struct graph *graph, enum fusion_mode mode, bool chains,
                                     int64_t t, int64_t b, int64_t s) {
  struct plan *plan = plan_of(graph, mode, chains);
  struct traffic_total total = plan_traffic(plan, ALL, t, b, s);
  plan_free(plan);
  return total;
}

// T tokens in sequences of s: 40 T H e unfused and 26 T H e fused, 11 T H e with row chains, beside
// the weights.
static void encoder_layer_moves_what_the_formula_says(void **state) {
  (void)state;
  const double H = 64, F = 256, h = 4, e = 4, T = 300, s = 100, S = T * s;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_F32);
  output_add(&graph, block_encoder_post(&m, maker_input(&m, ROWS_TOKENS, 64), 4, 256));
  double weights = (4 * H * H + 2 * H * F + 4 * H + F + H + 4 * H) * e;
  struct traffic_total off = total_of(&graph, FUSION_OFF, true, 300, 3, 30000);
  struct traffic_total on = total_of(&graph, FUSION_ON, false, 300, 3, 30000);
  struct traffic_total chained = total_of(&graph, FUSION_ON, true, 300, 3, 30000);
  near(off.read_bytes + off.write_bytes, 40 * T * H * e + 6 * h * S * e + weights, "unfused");
  near(on.read_bytes + on.write_bytes, 26 * T * H * e + weights, "fused");
  near(chained.read_bytes + chained.write_bytes, 11 * T * H * e + weights, "fused in row chains");
  near(on.write_bytes, (3 + 1 + 1 + 1 + 4 + 1 + 1) * T * H * e, "fused writes");
  near(chained.write_bytes, (3 + 1 + 1) * T * H * e, "chained writes");
  near(off.flops, on.flops, "fusion saves no operations");
  near(on.flops, chained.flops, "nor do chains");
  assert_int_equal(off.kernels, 15);
  assert_int_equal(on.kernels, 7);
  double products = T * (2 * 4 * H * H + 4 * H * F),
         epilogues = T * (4 * H + F + 8 * F + H + H + H);
  near(on.flops, products + epilogues + S * h * (4 * (H / h) + 6) + 2 * 7 * T * H, "operations");
  graph_deinit(&graph);
}

static void element_wise_chain_of_k_ops_saves_k_passes(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_BF16);
  int32_t x = maker_input(&m, ROWS_TOKENS, 1000);
  for (int i = 0; i < 16; i++)
    x = maker_unary(&m, OP_SCALE, x);
  output_add(&graph, x);
  struct traffic_total off = total_of(&graph, FUSION_OFF, true, 10, 1, 100),
                       on = total_of(&graph, FUSION_ON, true, 10, 1, 100);
  near(off.read_bytes + off.write_bytes, 16 * 2 * 10 * 1000 * 2.0, "16 passes");
  near(on.read_bytes + on.write_bytes, 2 * 10 * 1000 * 2.0, "one pass");
  near(on.flops, off.flops, "operations");
  graph_deinit(&graph);
}

static void work_on_one_value_a_row_counts_once_when_it_is_fused_with_rows(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_F32);
  int32_t x = maker_input(&m, ROWS_TOKENS, 80), y = maker_unary(&m, OP_TANH, x);
  int32_t r = maker_node(&m, OP_REDUCE, &y, 1, (struct node_attrs){.reduce = REDUCE_MEAN});
  output_add(&graph, maker_binary(&m, OP_MUL, y, maker_unary(&m, OP_SIGMOID, r)));
  struct traffic_total off = total_of(&graph, FUSION_OFF, false, 10, 1, 100),
                       on = total_of(&graph, FUSION_ON, false, 10, 1, 100);
  near(off.flops, 10 * (80 * (8 + 1 + 1) + 8), "one op at a time");
  assert_int_equal(on.kernels, 1);
  near(on.flops, off.flops, "fusion saves no operations, and adds none");
  graph_deinit(&graph);
}

static void tables_count_touched_rows_and_their_indices(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_F32);
  block_sentence_encoder(&m, 0, 16, 2, 32, 30000);
  struct traffic_total on = total_of(&graph, FUSION_ON, false, 50, 4, 700);
  double gather = 50 * (3 * 16 * 4 + 8 + 8 + 4), norm_weights = 2 * 16 * 4, pooled = 50 * 16 * 4;
  near(on.read_bytes, gather + norm_weights + pooled, "reads");
  near(on.write_bytes, 50 * 16 * 4 + 4 * 16 * 4,
       "writes: the hidden state, and one row a sequence");
  graph_deinit(&graph);
}

static void cls_pooling_reads_one_row_a_sequence(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_F32);
  int32_t x = maker_input(&m, ROWS_TOKENS, 8);
  output_add(&graph, maker_node(&m, OP_POOL, &x, 1, (struct node_attrs){.pool = POOL_CLS}));
  near(total_of(&graph, FUSION_ON, true, 90, 3, 2700).read_bytes, 3 * 8 * 4, "cls");
  graph_deinit(&graph);
}

static void operand_read_twice_by_a_kernel_moves_once(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_F32);
  int32_t x = maker_input(&m, ROWS_TOKENS, 8);
  output_add(&graph, maker_binary(&m, OP_ADD, maker_linear(&m, x, 8, false), x));
  near(total_of(&graph, FUSION_ON, true, 10, 1, 100).read_bytes, 10 * 8 * 4 + 8 * 8 * 4,
       "x and the weight");
  graph_deinit(&graph);
}

static void causal_attention_does_half_the_operations_when_fused(void **state) {
  (void)state;
  double flops[2][2];
  for (int causal = 0; causal < 2; causal++) {
    struct graph graph;
    struct graph_maker m;
    maker_init(&m, &graph, NULL, DTYPE_F32);
    int32_t q = maker_input(&m, ROWS_TOKENS, 8), k = maker_input(&m, ROWS_TOKENS, 4),
            v = maker_input(&m, ROWS_TOKENS, 4);
    output_add(&graph, maker_attention(&m, q, k, v, 2, 1, causal));
    for (int mode = 0; mode < 2; mode++)
      flops[causal][mode] = total_of(&graph, (enum fusion_mode)mode, true, 10, 1, 100).flops;
    near(total_of(&graph, FUSION_ON, true, 10, 1, 100).read_bytes, 10 * (8 + 4 + 4) * 4,
         "q, k and v once");
    graph_deinit(&graph);
  }
  near(flops[0][FUSION_ON], flops[0][FUSION_OFF], "full");
  near(flops[1][FUSION_OFF], flops[0][FUSION_OFF], "unfused: masked scores are computed too");
  near(flops[1][FUSION_ON] / flops[0][FUSION_ON], 55 / 100.0, "(s^2 + s) / 2 of s^2");
}

static void an_output_that_nobody_asks_for_costs_nothing(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_F32);
  block_sentence_encoder(&m, 1, 16, 2, 32, 100);
  struct plan *plan = plan_of(&graph, FUSION_ON, true);
  struct traffic_total both = plan_traffic(plan, 3, 50, 4, 700),
                       hidden = plan_traffic(plan, 1, 50, 4, 700);
  struct traffic_total sentence = plan_traffic(plan, 2, 50, 4, 700),
                       none = plan_traffic(plan, 4, 50, 4, 700);
  near(both.read_bytes, sentence.read_bytes, "the sentence needs the hidden state");
  near(both.read_bytes - hidden.read_bytes, 50 * 16 * 4, "pooling");
  assert_int_equal(both.kernels, hidden.kernels + 1);
  assert_true(none.read_bytes == 0 && none.write_bytes == 0 && none.flops == 0 &&
              none.kernels == 0);
  plan_free(plan);
  graph_deinit(&graph);
}

// What the requests of a batch are charged adds up to the batch.
static void shares_add_up_to_the_batch(void **state) {
  (void)state;
  static const int64_t lengths[] = {3, 17, 1, 29};
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_BF16);
  block_sentence_encoder(&m, 2, 32, 2, 64, 100);
  for (int mode = 0; mode < FUSION_MODES; mode++) {
    struct plan *plan = plan_of(&graph, (enum fusion_mode)mode, true);
    int64_t tokens = 0, squares = 0;
    for (int i = 0; i < 4; i++)
      tokens += lengths[i], squares += lengths[i] * lengths[i];
    struct traffic_total batch = plan_traffic(plan, ALL, tokens, 4, squares), sum = {0};
    for (int i = 0; i < 4; i++) {
      struct traffic_total one =
          plan_traffic_share(plan, ALL, lengths[i], 1, lengths[i] * lengths[i], tokens);
      sum.read_bytes += one.read_bytes, sum.write_bytes += one.write_bytes, sum.flops += one.flops;
      assert_int_equal(one.kernels, batch.kernels);
    }
    near(sum.read_bytes, batch.read_bytes, "reads");
    near(sum.write_bytes, batch.write_bytes, "writes");
    near(sum.flops, batch.flops, "operations");
    plan_free(plan);
  }
  graph_deinit(&graph);
}

// x W^T + b in bf16, the vector in fp32 as model files have it: 2 bytes a column of it where the
// device keeps it like the result, 4 where it does not, and where the result is cast to fp32.
static void bias_is_kept_as_the_result_where_the_device_asks(void **state) {
  (void)state;
  const int K = 40, N = 24, T = 100;
  for (int turn = 0; turn < 6; turn++) {
    bool asks = turn % 2, cast = turn / 2 == 1, parts = turn / 2 == 2;
    struct graph graph;
    struct graph_maker m;
    maker_init(&m, &graph, NULL, DTYPE_BF16);
    int32_t x = maker_input(&m, ROWS_TOKENS, K), y = -1;
    int32_t results[3];
    for (int i = 0; i < 1 + 2 * parts; i++) { // q, k and v are one kernel
      int32_t in[3] = {x, maker_weight(&m, N, K),
                       maker_tensor(&m, TENSOR_WEIGHT, DTYPE_F32, ROWS_FIXED, 1, N)};
      results[i] = y = maker_node(&m, OP_LINEAR, in, 3, (struct node_attrs){0});
    }
    if (cast) {
      struct node node = {
          .op = OP_CAST, .in = {y}, .n_in = 1, .attrs = {.to = DTYPE_F32}, .line = 9};
      struct error err = {0};
      assert_int_equal(graph_add_node(&graph, &node, "wide", DTYPE_F32, &y, &err), STATUS_OK);
    }
    if (parts) y = maker_attention(&m, results[0], results[1], results[2], 2, 0, false);
    output_add(&graph, y);
    struct plan_caps caps = {.epilogue_max = 4, .epilogue_kinds = 0x1f, .vectors_as_compute = asks};
    for (int d = 0; d < DTYPE_COUNT; d++)
      caps.dtype_ok[d] = true;
    struct plan_limits limits = {4096, 64, 512};
    struct plan *plan;
    struct error err = {0};
    assert_int_equal(plan_build(&graph, FUSION_ON, &caps, &limits, &plan, &err), STATUS_OK);
    assert_int_equal(plan->n_steps, 1 + parts);
    assert_int_equal(plan->steps[0].in[2].dtype, asks && !cast ? DTYPE_BF16 : DTYPE_F32);
    near(plan_traffic(plan, ALL, T, 1, T * T).read_bytes,
         T * K * 2 + (1 + 2 * parts) * N * (K * 2 + (asks && !cast ? 2 : 4)) +
             parts * 3 * T * N * 2,
         "read");
    plan_free(plan);
    graph_deinit(&graph);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(encoder_layer_moves_what_the_formula_says),
      cmocka_unit_test(element_wise_chain_of_k_ops_saves_k_passes),
      cmocka_unit_test(work_on_one_value_a_row_counts_once_when_it_is_fused_with_rows),
      cmocka_unit_test(tables_count_touched_rows_and_their_indices),
      cmocka_unit_test(cls_pooling_reads_one_row_a_sequence),
      cmocka_unit_test(operand_read_twice_by_a_kernel_moves_once),
      cmocka_unit_test(causal_attention_does_half_the_operations_when_fused),
      cmocka_unit_test(an_output_that_nobody_asks_for_costs_nothing),
      cmocka_unit_test(shares_add_up_to_the_batch),
      cmocka_unit_test(bias_is_kept_as_the_result_where_the_device_asks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
