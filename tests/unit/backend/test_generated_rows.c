// Whatever row program the planner makes for a device without tiles, the generator of CUDA kernels
// takes: random graphs, and the largest groups that fusion allows.
#include "graph/plan.h"
#include "harness/cmocka_all.h"
#include "kernels/codegen/codegen.h"
#include "unit/graph/world.h"

#include <time.h>

static const struct plan_caps caps = {
    .epilogue_kinds =
        1u << EPI_BIAS | 1u << EPI_ACT | 1u << EPI_SCALE | 1u << EPI_ADD | 1u << EPI_MUL,
    .epilogue_max = EPILOGUE_MAX,
    .pool_before = true,
    .dtype_ok = {false, true, true, true, true, true},
};
static int largest, n_before;

static int check_plan(const struct graph *graph, enum fusion_mode mode) {
  struct plan_limits limits = {.max_tokens = 100, .max_seqs = 10, .max_seqlen = 100};
  struct plan *plan;
  struct error err = {0};
  int n = 0;
  if (plan_build(graph, mode, &caps, &limits, &plan, &err) != STATUS_OK)
    fail_msg("%s", err.message);
  for (int32_t s = 0; s < plan->n_steps; s++) {
    const struct step *step = &plan->steps[s];
    for (int i = 0; i < step->n_in + step->n_out; i++) {
      const struct operand *o = i < step->n_in ? &step->in[i] : &step->out[i - step->n_in];
      assert_int_not_equal(o->place, PLACE_TILE);
    }
    if (step->kind != STEP_ROW) continue;
    static struct row_ir ir, before_ir;
    struct row_tile tiles[ROW_VARIANTS];
    if (!row_ir_build(&step->row, &ir)) fail_msg("step %s: refused", step->label);
    if (step->before.n_insts > 0) {
      uint8_t made = 0;
      while (step->in[made].place != PLACE_STEP)
        made++;
      if (!row_ir_build_before(&step->before, step->before_in, made, &before_ir, &ir))
        fail_msg("step %s: what it pools is refused", step->label);
      n_before++;
    }
    assert_true(row_source_all(&ir, tiles, NULL, 0) > 0);
    assert_true(tiles[ROW_VARIANT_SCALAR].threads > 0); // there is one for any alignment
    if (ir.n > largest) largest = ir.n;
    n++;
  }
  plan_free(plan);
  return n;
}

static void random_graphs_are_taken(void **state) {
  (void)state;
  uint64_t seed = (uint64_t)time(NULL);
  printf("  seed %llu\n", (unsigned long long)seed);
  struct rng rng = {.state = seed};
  int n = 0;
  for (int round = 0; round < 400; round++) {
    struct graph graph;
    struct graph_maker maker;
    maker_init(&maker, &graph, &rng, (enum dtype)(DTYPE_F32 + round % 3));
    maker_random(&maker, 1 + rng_below(&rng, 60));
    for (int mode = 0; mode < FUSION_MODES; mode++)
      n += check_plan(&graph, (enum fusion_mode)mode);
    graph_deinit(&graph);
  }
  printf("  %d programs, the largest of %d operations of %d; %d make what they pool\n", n, largest,
         ROW_IR_MAX, n_before);
  assert_true(n > 1000 && n_before > 5);
}

// Chains of the op with the most operations of its kind, longer than one kernel may be.
static void the_largest_groups_are_taken(void **state) {
  (void)state;
  static const enum op ops[] = {OP_LAYER_NORM, OP_SOFTMAX, OP_NORMALIZE, OP_GELU, OP_ADD};
  for (size_t o = 0; o < sizeof ops / sizeof *ops; o++) {
    struct graph graph;
    struct graph_maker maker;
    struct rng rng = {.state = 1};
    maker_init(&maker, &graph, &rng, DTYPE_F32);
    int32_t x = maker_input(&maker, ROWS_TOKENS, 96), first = x;
    int32_t gamma = maker_weight(&maker, 1, 96), beta = maker_weight(&maker, 1, 96);
    for (int i = 0; i < 40; i++) {
      struct node_attrs attrs = {.eps = 0.1f};
      if (ops[o] == OP_LAYER_NORM)
        x = maker_node(&maker, OP_LAYER_NORM, (int32_t[]){x, gamma, beta}, 3, attrs);
      else if (ops[o] == OP_ADD)
        x = maker_binary(&maker, OP_ADD, x, first);
      else
        x = maker_unary(&maker, ops[o], x);
    }
    graph.outputs[0] = x, graph.n_outputs = 1;
    assert_true(check_plan(&graph, FUSION_ON) >= 2);
    graph_deinit(&graph);
  }
  printf("  the largest has %d operations of %d\n", largest, ROW_IR_MAX);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_graphs_are_taken),
      cmocka_unit_test(the_largest_groups_are_taken),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
