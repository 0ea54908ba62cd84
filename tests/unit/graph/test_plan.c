// Properties of plans over random graphs: every node runs once, memory is never shared by what
// lives together, what is read was written, and executing a plan step by step gives what executing
// the graph node by node gives.
#include "interpreter.h"
#include "plan_check.h"
#include "random_graph.h"
#include "world.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define ROUNDS 1000

// ---- devices of unlike abilities ----
#define KINDS 6
static struct plan_caps caps_of(int kind) {
  struct plan_caps caps = {
      .row_chains = true, .tile_rows = 4, .tile_bytes = 1 << 20, .epilogue_max = 4};
  for (int d = 0; d < DTYPE_COUNT; d++)
    caps.dtype_ok[d] = true;
  caps.epilogue_kinds =
      1u << EPI_BIAS | 1u << EPI_ACT | 1u << EPI_SCALE | 1u << EPI_ADD | 1u << EPI_MUL;
  caps.product_finish = caps.attention_finish = caps.pool_before = kind >= 3;
  if (kind == 1) caps.row_chains = false, caps.vectors_as_compute = true;
  if (kind == 2) caps.tile_bytes = 400;
  if (kind == 3) caps.epilogue_kinds = 1u << EPI_BIAS, caps.epilogue_max = 1;
  if (kind == 4) caps.row_chains = false;
  if (kind == 5) { // a GPU
    caps.row_chains = caps.attention_finish = false, caps.vectors_as_compute = true;
    caps.finish_lists = true, caps.epilogue_max = EPILOGUE_MAX;
  }
  if (kind % 2 == 0) { // of some widths
    caps.product_norm[0] = (struct norm_columns){kind == 2 ? 1 : 2, 64};
    caps.product_norm[1] = (struct norm_columns){3, 1 << 20};
    caps.product_norm_dtypes = kind == 4 ? 1u << DTYPE_BF16 : ~0u;
  }
  return caps;
}

static void check_results(const struct world *w, const struct plan *plan,
                          const struct plan_caps *caps, uint8_t outputs, const char *what,
                          double tolerance) {
  double *results[LIMIT_MODEL_OUTPUTS];
  world_run_plan(w, plan, outputs, caps->tile_rows, results);
  for (int i = 0; i < plan->n_outputs; i++) {
    if (!results[i]) continue;
    int32_t t = w->graph->outputs[i];
    double off = distance(results[i], w->values[t], tensor_rows(w, t) * w->graph->tensors[t].cols);
    if (!(off < tolerance)) {
      static char text[1 << 18];
      plan_dump(plan, w->graph, text, sizeof text);
      fail_msg("%s, outputs 0x%x: output %d is off by %g\n%s", what, outputs, i, off, text);
    }
    free(results[i]);
  }
}

static int n_refused, n_again; // by FUSION_AUTO
static int n_norms, n_sums;    // by products; those that write what they are made from

static void count_reasons(const struct plan *plan) {
  for (int32_t i = 0; i < plan->n_decisions; i++) {
    n_refused += strstr(plan->decisions[i].reason, "does not pay") != NULL;
    n_again += strstr(plan->decisions[i].reason, "computed again") != NULL;
  }
  for (int32_t i = 0; i < plan->n_steps; i++) {
    bool norm = plan->steps[i].kind == STEP_LINEAR && plan->steps[i].norm.kind != ROW_NORM_NONE;
    n_norms += norm, n_sums += norm && plan->steps[i].norm.sum;
  }
}

static void check_graph(const struct graph *graph, struct rng *rng, const char *what,
                        double tolerance) {
  struct world w;
  world_init(&w, graph, rng);
  world_run_nodes(&w);
  for (int kind = 0; kind < KINDS; kind++) {
    struct plan_caps caps = caps_of(kind);
    caps.rates = odd_rates(rng_next(rng));
    for (int mode = FUSION_OFF; mode < FUSION_MODES; mode++) {
      struct plan_limits limits = world_limits(&w, rng);
      struct plan *plan;
      struct error err = {0};
      if (plan_build(graph, (enum fusion_mode)mode, &caps, &limits, &plan, &err) != STATUS_OK)
        fail_msg("%s: %s", what, err.message);
      char label[96];
      snprintf(label, sizeof label, "%s, caps %d, fusion %s", what, kind,
               fusion_name((enum fusion_mode)mode));
      check_plan(graph, plan, &caps, label);
      count_reasons(plan);
      check_results(&w, plan, &caps, 0xff, label, tolerance);
      check_results(&w, plan, &caps, (uint8_t)(1u << rng_below(rng, graph->n_outputs)), label,
                    tolerance);
      plan_free(plan);
    }
  }
  world_deinit(&w);
}

static void random_rounds(enum dtype dtype, bool casts, int rounds, double tolerance) {
  for (int round = 0; round < rounds; round++) {
    struct rng rng = {.state = (uint64_t)round * 7919 + 17 + (uint64_t)dtype};
    struct graph graph;
    struct graph_maker maker;
    maker_init(&maker, &graph, &rng, dtype);
    maker.casts = casts;
    maker_random(&maker, 1 + rng_below(&rng, 45));
    char what[64];
    snprintf(what, sizeof what, "%s round %d", dtype_name(dtype), round);
    check_graph(&graph, &rng, what, tolerance);
    graph_deinit(&graph);
  }
}

static void plans_of_random_fp32_graphs_compute_what_the_graph_says(void **state) {
  (void)state;
  n_refused = n_again = n_norms = n_sums = interpreter_lists = 0;
  random_rounds(DTYPE_F32, false, ROUNDS, 2e-4);
  printf("  %d finishes compared with lists\n", interpreter_lists);
  assert_true(interpreter_lists > 100);
  if (n_refused < 50 || n_again < 2)
    fail_msg("auto: %d edges left apart, %d results computed again: too few", n_refused, n_again);
  if (n_norms < 80 || n_sums < 10)
    fail_msg("%d norms behind products, %d with their sum: too few", n_norms, n_sums);
}

// Storage rounds to bf16 at unlike places in the two modes, so the distance is that of a few
// roundings.
static void plans_of_random_bf16_graphs_compute_what_the_graph_says(void **state) {
  (void)state;
  random_rounds(DTYPE_BF16, false, 100, 0.12);
}

// A cast rounds in both modes. A value on the edge between two bf16 numbers may go either way.
static void casts_round_in_fused_kernels_too(void **state) {
  (void)state;
  interpreter_lists = 0;
  random_rounds(DTYPE_F32, true, 200, 3e-2);
  assert_true(interpreter_lists > 20);
}

static void a_wrong_instruction_in_a_plan_is_noticed(void **state) {
  (void)state; // the comparison above must be able to fail: a plan with one instruction changed is
               // noticed
  struct rng rng = {.state = 5};
  struct graph graph;
  struct graph_maker maker;
  maker_init(&maker, &graph, &rng, DTYPE_F32);
  int32_t x = maker_input(&maker, ROWS_TOKENS, 8);
  graph.outputs[graph.n_outputs++] = maker_unary(&maker, OP_TANH, maker_layer_norm(&maker, x));
  struct world w;
  world_init(&w, &graph, &rng);
  world_run_nodes(&w);
  struct plan_caps caps = caps_of(0);
  struct plan_limits limits = world_limits(&w, &rng);
  struct plan *plan;
  assert_int_equal(plan_build(&graph, FUSION_ON, &caps, &limits, &plan, NULL), STATUS_OK);
  plan->steps[0].row.insts[4].aux = ACT_SIGMOID;
  double *result;
  world_run_plan(&w, plan, 1, caps.tile_rows, &result);
  assert_true(distance(result, w.values[graph.outputs[0]], w.geometry.n_tokens * 8) > 0.01);
  free(result);
  plan_free(plan);
  world_deinit(&w);
  graph_deinit(&graph);
}

static void refused(const struct graph *graph, const struct plan_caps *caps,
                    struct plan_limits limits, enum status status, const char *part_of_message) {
  struct plan *plan = (struct plan *)&limits;
  struct error err = {0};
  enum status found = plan_build(graph, FUSION_ON, caps, &limits, &plan, &err);
  if (found != status || !strstr(err.message, part_of_message) || plan)
    fail_msg("status %d, message \"%s\", expected \"%s\"", found, err.message, part_of_message);
}

static void what_cannot_be_planned_is_refused(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_BF16);
  int32_t x = maker_input(&m, ROWS_TOKENS, 8);
  int32_t a = maker_attention(&m, x, x, x, 2, 2, false), weight = maker_weight(&m, 1, 8);
  struct plan_caps caps = caps_of(0);
  struct plan_limits limits = {64, 8, 32};
  refused(&graph, &caps, limits, STATUS_INVALID_ARGUMENT, "0 outputs");
  graph.n_outputs = 1;
  graph.outputs[0] = 77;
  refused(&graph, &caps, limits, STATUS_INVALID_ARGUMENT, "no tensor");
  graph.outputs[0] = weight;
  refused(&graph, &caps, limits, STATUS_INVALID_ARGUMENT, "no activation");
  graph.outputs[0] = a;
  refused(&graph, &caps, (struct plan_limits){0, 8, 32}, STATUS_INVALID_ARGUMENT, "at least 1");
  caps.dtype_ok[DTYPE_BF16] = false;
  refused(&graph, &caps, limits, STATUS_UNIMPLEMENTED, "bf16");
  caps.dtype_ok[DTYPE_BF16] = true;
  graph.tensors[x].index = LIMIT_MODEL_INPUTS;
  refused(&graph, &caps, limits, STATUS_INVALID_ARGUMENT, "signature index");
  graph.tensors[x].index = 0;
  graph.n_outputs = LIMIT_MODEL_OUTPUTS + 1;
  refused(&graph, &caps, limits, STATUS_INVALID_ARGUMENT, "9 outputs");
  graph_deinit(&graph);
}

static void absurd_batches_are_refused_before_sizes_overflow(void **state) {
  (void)state;
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_F32);
  int32_t x = maker_input(&m, ROWS_TOKENS, LIMIT_DIM);
  graph.outputs[graph.n_outputs++] = maker_attention(&m, x, x, x, LIMIT_DIM, LIMIT_DIM, false);
  struct plan_caps caps = caps_of(0);
  struct plan_limits limits = {INT32_MAX, INT32_MAX, INT32_MAX};
  struct plan *plan;
  struct error err = {0};
  assert_int_equal(plan_build(&graph, FUSION_OFF, &caps, &limits, &plan, &err),
                   STATUS_RESOURCE_EXHAUSTED);
  assert_non_null(strstr(err.message, "do not fit"));
  graph_deinit(&graph);
}

static void same_graph_gives_the_same_plan_twice(void **state) {
  (void)state;
  static char first[1 << 18], second[1 << 18];
  for (int round = 0; round < 20; round++) {
    struct rng rng = {.state = (uint64_t)round + 99};
    struct graph graph;
    struct graph_maker maker;
    maker_init(&maker, &graph, &rng, DTYPE_F32);
    maker_random(&maker, 40);
    struct plan_caps caps = caps_of(0);
    struct plan_limits limits = {100, 10, 20};
    for (int i = 0; i < 2; i++) {
      struct plan *plan;
      assert_int_equal(plan_build(&graph, FUSION_ON, &caps, &limits, &plan, NULL), STATUS_OK);
      plan_dump(plan, &graph, i ? second : first, sizeof first);
      plan_free(plan);
    }
    assert_string_equal(first, second);
    graph_deinit(&graph);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(plans_of_random_fp32_graphs_compute_what_the_graph_says),
      cmocka_unit_test(plans_of_random_bf16_graphs_compute_what_the_graph_says),
      cmocka_unit_test(casts_round_in_fused_kernels_too),
      cmocka_unit_test(a_wrong_instruction_in_a_plan_is_noticed),
      cmocka_unit_test(what_cannot_be_planned_is_refused),
      cmocka_unit_test(absurd_batches_are_refused_before_sizes_overflow),
      cmocka_unit_test(same_graph_gives_the_same_plan_twice),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
