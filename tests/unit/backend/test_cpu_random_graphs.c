// Random graphs (all ops, trees, several readers and outputs) through the CPU back end, fused and
// unfused, against the double reference node by node: whatever the planner may legally hand over,
// the back end runs.
#include "backend/backend.h"
#include "unit/graph/world.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct setup {
  const struct graph *graph;
  const struct world *world;
  struct device *device;
  struct weight_table table;
};

static void check_output(const struct setup *s, struct lane *lane, struct bound_plan *bound, int i,
                         const char *what, double tolerance) {
  int32_t t = s->graph->outputs[i];
  const struct tensor *tensor = &s->graph->tensors[t];
  int64_t rows = tensor_rows(s->world, t), count = rows * tensor->cols;
  void *typed = malloc((size_t)count * 8 + 8);
  double *found = malloc((size_t)count * sizeof *found + 8);
  backend_cpu.copy_out(lane, bound, i, 0, rows, typed);
  for (int64_t e = 0; e < count; e++)
    found[e] = typed_get(typed, tensor->dtype, e);
  double off = distance(found, s->world->values[t], count);
  if (!(off < tolerance)) fail_msg("%s: output %d is off by %g", what, i, off);
  free(typed), free(found);
}

static int n_finished[2]; // products and attentions that go on with a row program
static int n_before;      // poolings of what they make

static void count_finishes(const struct plan *plan) {
  for (int32_t s = 0; s < plan->n_steps; s++) {
    const struct step *step = &plan->steps[s];
    if (step->kind == STEP_LINEAR) n_finished[0] += step->finish.n_insts > 0;
    n_before += step->kind == STEP_ROW && step->before.n_insts > 0;
    if (step->kind == STEP_ATTENTION) n_finished[1] += step->finish.n_insts > 0;
  }
}

static void run_mode(const struct setup *s, enum fusion_mode mode, const struct plan_limits *limits,
                     uint8_t outputs, const char *what, double tolerance) {
  struct plan *plan;
  struct bound_plan *bound;
  struct lane *lane;
  struct error err = {0};
  static uint32_t odd; // what FUSION_AUTO goes by: other constants each time
  struct plan_caps caps = backend_cpu.caps(s->device)->plan;
  caps.rates = odd_rates(odd++ * 2654435761u >> 8);
  caps.row_chains = odd % 3 != 0; // without chains more is left to the kernels themselves
  if (plan_build(s->graph, mode, &caps, limits, &plan, &err)) fail_msg("%s: %s", what, err.message);
  count_finishes(plan);
  if (backend_cpu.load(s->device, plan, &s->table, &bound, &err))
    fail_msg("%s: %s", what, err.message);
  assert_int_equal(backend_cpu.lane_open(s->device,
                                         &(struct lane_sizes){.arena_bytes = plan->arena_bytes},
                                         &lane, &err),
                   STATUS_OK);
  for (int round = 0; round < 2; round++) { // the second run meets the first one's leavings
    for (int32_t t = 0; t < s->graph->n_tensors; t++) {
      const struct tensor *tensor = &s->graph->tensors[t];
      if (tensor->kind == TENSOR_INPUT && plan->inputs[tensor->index].place != PLACE_NONE)
        backend_cpu.copy_in(lane, bound, tensor->index, 0, tensor_rows(s->world, t),
                            s->world->typed[t]);
    }
    assert_int_equal(backend_cpu.run(lane, bound, &s->world->geometry, outputs), STATUS_OK);
    for (int i = 0; i < plan->n_outputs; i++)
      if (outputs >> i & 1) check_output(s, lane, bound, i, what, tolerance);
  }
  backend_cpu.lane_close(s->device, lane);
  backend_cpu.unload(s->device, bound);
  plan_free(plan);
}

static void run_round(struct device *device, enum dtype dtype, bool narrow, int round,
                      double tolerance) {
  struct rng rng = {.state = (uint64_t)round * 104729 + 3 + (uint64_t)dtype};
  struct graph graph;
  struct graph_maker maker;
  struct world world;
  maker_init(&maker, &graph, &rng, dtype);
  maker.narrow = narrow;
  maker_random(&maker, 1 + rng_below(&rng, 40));
  world_init(&world, &graph, &rng);
  world_run_nodes(&world);
  struct weight *weights = world_weights(&world);
  struct setup s = {
      .graph = &graph, .world = &world, .device = device, .table = {weights, graph.n_tensors}};
  struct plan_limits limits = world_limits(&world, &rng);
  for (int mode = 0; mode < FUSION_MODES; mode++) {
    char what[96];
    snprintf(what, sizeof what, "%s%s round %d, fusion %s", narrow ? "narrow " : "",
             dtype_name(dtype), round, fusion_name((enum fusion_mode)mode));
    run_mode(&s, (enum fusion_mode)mode, &limits, 0xff, what, tolerance);
    run_mode(&s, (enum fusion_mode)mode, &limits, (uint8_t)(1u << rng_below(&rng, graph.n_outputs)),
             what, tolerance);
  }
  free(weights);
  world_deinit(&world);
  graph_deinit(&graph);
}

static void run_rounds(enum dtype dtype, bool narrow, int threads, int rounds, double tolerance) {
  struct backend_options options = {.threads = threads};
  struct device *device;
  struct error err = {0};
  assert_int_equal(backend_cpu.open(&options, &device, &err), STATUS_OK);
  bool able = backend_cpu.caps(device)->plan.dtype_ok[dtype];
  for (int round = 0; able && round < rounds; round++)
    run_round(device, dtype, narrow, round, tolerance);
  backend_cpu.close(device);
  if (!able) {
    printf("skipped: this processor does not compute in %s\n", dtype_name(dtype));
    skip();
  }
}

static void random_fp32_graphs_on_one_thread(void **state) {
  (void)state;
  run_rounds(DTYPE_F32, false, 1, 120, 1e-3);
}

static void random_fp32_graphs_on_three_threads(void **state) {
  (void)state;
  run_rounds(DTYPE_F32, false, 3, 60, 1e-3);
}

static void random_bf16_graphs(void **state) {
  (void)state;
  run_rounds(DTYPE_BF16, false, 2, 40, 0.15);
}

static void random_graphs_of_one_column(void **state) {
  (void)state;
  run_rounds(DTYPE_F32, true, 2, 200, 1e-3);
}

static void they_had_what_they_are_for(void **state) {
  (void)state;
  printf("  %d products, %d attentions with a finish, %d poolings of rows made for them\n",
         n_finished[0], n_finished[1], n_before);
  assert_true(n_finished[0] > 50 && n_finished[1] > 10 && n_before > 10);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_fp32_graphs_on_one_thread),
      cmocka_unit_test(random_fp32_graphs_on_three_threads),
      cmocka_unit_test(random_bf16_graphs),
      cmocka_unit_test(random_graphs_of_one_column),
      cmocka_unit_test(they_had_what_they_are_for),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
