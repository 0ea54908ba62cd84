// Work on a result before it is written (step.finish), and on rows before they are pooled
// (step.before), on the CPU, at widths that fill vectors and leave some over: against the double
// reference, by both kinds of products, and the same bits for a sequence alone as among others.
#include "backend/backend.h"
#include "backend/cpu/cpu_device.h"
#include "unit/graph/blocks.h"
#include "unit/graph/world.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define WIDE 160
#define NARROW 77

struct rig {
  struct graph graph;
  struct graph_maker m;
  struct world world;
  struct weight *weights;
  struct device *device;
  struct plan *plan;
  struct bound_plan *bound;
  struct lane *lane;
};

// ---- graphs ----
// alpha, a factor a column, beta of the residual; a result that is also an output.
static void scaled_residual(struct graph_maker *m, int32_t n) {
  int32_t x = maker_input(m, ROWS_TOKENS, 96), r = maker_input(m, ROWS_TOKENS, n);
  int32_t a = maker_unary(m, OP_SCALE, maker_linear(m, x, n, true));
  int32_t s = maker_binary(m, OP_MUL, a, maker_weight(m, 1, n));
  int32_t z = maker_binary(m, OP_ADD, s, maker_unary(m, OP_SCALE, maker_unary(m, OP_TANH, r)));
  output_add(m->graph, z);
  output_add(m->graph, s);
}

// x W^T times its own activation, and one value a row.
static void own_gate(struct graph_maker *m, int32_t n) {
  int32_t x = maker_input(m, ROWS_TOKENS, 96), one = maker_input(m, ROWS_TOKENS, 1);
  int32_t a = maker_linear(m, x, n, false);
  int32_t z = maker_binary(m, OP_MUL, a, maker_unary(m, OP_GELU, a));
  output_add(m->graph,
             maker_binary(m, OP_ADD, maker_binary(m, OP_MUL, z, one), maker_weight(m, 1, 1)));
}

// A gated attention with a residual.
static void gated_attention(struct graph_maker *m, int32_t n) {
  int32_t x = maker_input(m, ROWS_TOKENS, 96), r = maker_input(m, ROWS_TOKENS, n);
  int heads = n % 5 == 0 ? 5 : 7;
  int32_t q = maker_linear(m, x, n, true), k = maker_linear(m, x, n, true),
          v = maker_linear(m, x, n, true);
  int32_t o = maker_attention(m, q, k, v, heads, heads, true);
  int32_t z = maker_binary(m, OP_ADD, maker_binary(m, OP_MUL, o, maker_unary(m, OP_SIGMOID, r)), r);
  output_add(m->graph, z);
  output_add(m->graph, o);
}

// Poolings of what is made for them: of whole rows, of a table at each sequence's first token.
static void pooled_rows(struct graph_maker *m, int32_t n) {
  int32_t x = maker_input(m, ROWS_TOKENS, n), one = maker_input(m, ROWS_TOKENS, 1);
  m->ids = maker_tensor(m, TENSOR_INPUT, DTYPE_I64, ROWS_TOKENS, 0, 1);
  int32_t a = maker_layer_norm(m, maker_unary(m, OP_GELU, maker_binary(m, OP_MUL, x, one)));
  a = maker_node(m, OP_POOL, &a, 1, (struct node_attrs){.pool = POOL_MEAN});
  output_add(m->graph, maker_unary(m, OP_NORMALIZE, a));
  int32_t b = maker_embedding(m, m->ids, 64, n);
  output_add(m->graph, maker_node(m, OP_POOL, &b, 1, (struct node_attrs){.pool = POOL_CLS}));
  int32_t c = maker_binary(m, OP_MUL, maker_unary(m, OP_SOFTMAX, x), maker_weight(m, 1, n));
  output_add(m->graph, maker_node(m, OP_POOL, &c, 1, (struct node_attrs){.pool = POOL_MAX}));
}

// ---- running ----
static void rig_open(struct rig *rig, void (*make)(struct graph_maker *, int32_t), int32_t n,
                     enum dtype dtype, enum product_kind kind, int threads) {
  static struct rng rng;
  struct error err = {0};
  struct backend_options options = {.threads = threads};
  memset(rig, 0, sizeof *rig);
  rng.state = 4711;
  maker_init(&rig->m, &rig->graph, &rng, dtype);
  make(&rig->m, n);
  world_init(&rig->world, &rig->graph, &rng);
  world_run_nodes(&rig->world);
  rig->weights = world_weights(&rig->world);
  assert_int_equal(backend_cpu.open(&options, &rig->device, &err), STATUS_OK);
  cpu_device_set_products(rig->device, kind);
  const struct batch_geometry *g = &rig->world.geometry;
  struct plan_limits limits = {g->n_tokens, g->n_seqs, g->max_seqlen};
  struct plan_caps caps = backend_cpu.caps(rig->device)->plan;
  caps.row_chains = false; // a chain would keep the result in a tile
  assert_int_equal(plan_build(&rig->graph, FUSION_ON, &caps, &limits, &rig->plan, &err), STATUS_OK);
  struct weight_table table = {rig->weights, rig->graph.n_tensors};
  assert_int_equal(backend_cpu.load(rig->device, rig->plan, &table, &rig->bound, &err), STATUS_OK);
  struct lane_sizes sizes = {.arena_bytes = rig->plan->arena_bytes};
  assert_int_equal(backend_cpu.lane_open(rig->device, &sizes, &rig->lane, &err), STATUS_OK);
}

static void rig_close(struct rig *rig) {
  backend_cpu.lane_close(rig->device, rig->lane);
  backend_cpu.unload(rig->device, rig->bound);
  plan_free(rig->plan);
  backend_cpu.close(rig->device);
  free(rig->weights);
  world_deinit(&rig->world);
  graph_deinit(&rig->graph);
}

// Sequences [first, first + n) of the world as a batch of their own; results of output `i`.
static void *run_part(struct rig *rig, int first, int n, int i, int64_t *bytes) {
  const struct world *w = &rig->world;
  int32_t base = w->cu_seqlens[first], cu[WORLD_SEQS + 1];
  int64_t offsets[WORLD_SEQS + 1];
  for (int s = 0; s <= n; s++) {
    cu[s] = w->cu_seqlens[first + s] - base;
    offsets[s] = w->scores_offset[first + s] - w->scores_offset[first];
  }
  struct batch_geometry g = w->geometry;
  g.n_tokens = cu[n], g.n_seqs = n, g.sum_sq = offsets[n];
  g.cu_seqlens = cu, g.positions = w->positions + base, g.scores_offset = offsets;
  for (int32_t t = 0; t < rig->graph.n_tensors; t++) {
    const struct tensor *tensor = &rig->graph.tensors[t];
    if (tensor->kind != TENSOR_INPUT) continue;
    int64_t row = (int64_t)tensor->cols * (int64_t)dtype_bytes(tensor->dtype);
    backend_cpu.copy_in(rig->lane, rig->bound, tensor->index, 0, g.n_tokens,
                        (const char *)w->typed[t] + base * row);
  }
  assert_int_equal(backend_cpu.run(rig->lane, rig->bound, &g, 0xff), STATUS_OK);
  const struct operand *out = &rig->plan->outputs[i];
  int64_t n_rows = out->rows == ROWS_SEQS ? n : g.n_tokens;
  *bytes = n_rows * out->cols * (int64_t)dtype_bytes(out->dtype);
  void *rows = malloc((size_t)*bytes);
  backend_cpu.copy_out(rig->lane, rig->bound, i, 0, n_rows, rows);
  return rows;
}

static void check_values(struct rig *rig, const void *rows, int i, double tolerance) {
  int32_t t = rig->graph.outputs[i];
  const struct tensor *tensor = &rig->graph.tensors[t];
  int64_t count = tensor_rows(&rig->world, t) * tensor->cols;
  double *found = malloc((size_t)count * sizeof *found);
  for (int64_t e = 0; e < count; e++)
    found[e] = typed_get(rows, tensor->dtype, e);
  double off = distance(found, rig->world.values[t], count);
  if (!(off < tolerance)) fail_msg("output %d is off by %g", i, off);
  free(found);
}

static void check_graph(void (*make)(struct graph_maker *, int32_t), int32_t n, int n_steps,
                        enum dtype dtype, enum product_kind kind, int threads) {
  struct rig rig;
  rig_open(&rig, make, n, dtype, kind, threads);
  assert_int_equal(rig.plan->n_steps, n_steps);
  const struct step *last = &rig.plan->steps[n_steps - 1];
  assert_true(last->kind == STEP_ROW ? last->before.n_insts > 0 : last->finish.n_insts > 0);
  for (int i = 0; i < rig.plan->n_outputs; i++) {
    int64_t bytes, part_bytes;
    char *all = run_part(&rig, 0, rig.world.geometry.n_seqs, i, &bytes), *at = all;
    check_values(&rig, all, i, dtype == DTYPE_F32 ? 1e-5 : 2e-2);
    for (int s = 0; s < rig.world.geometry.n_seqs; s++) {
      char *part = run_part(&rig, s, 1, i, &part_bytes);
      assert_memory_equal(part, at, (size_t)part_bytes);
      at += part_bytes;
      free(part);
    }
    free(all);
  }
  rig_close(&rig);
}

static void check_all(void (*make)(struct graph_maker *, int32_t), int n_steps) {
  static const int32_t widths[] = {WIDE, NARROW};
  for (int w = 0; w < 2; w++)
    for (int dtype = 0; dtype < 2; dtype++)
      for (int kind = 0; kind < 2; kind++)
        check_graph(make, widths[w], n_steps, dtype ? DTYPE_BF16 : DTYPE_F32,
                    kind ? PRODUCT_LIBRARY : PRODUCT_OWN, 1 + 2 * w);
}

static void factors_residuals_and_second_results(void **state) {
  (void)state;
  check_all(scaled_residual, 1);
}

static void a_result_times_its_own_activation(void **state) {
  (void)state;
  check_all(own_gate, 1);
}

static void gated_attention_with_residual(void **state) {
  (void)state;
  check_all(gated_attention, 2);
}

static void poolings_of_rows_made_for_them(void **state) {
  (void)state;
  check_all(pooled_rows, 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(factors_residuals_and_second_results),
      cmocka_unit_test(a_result_times_its_own_activation),
      cmocka_unit_test(gated_attention_with_residual),
      cmocka_unit_test(poolings_of_rows_made_for_them),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
