// Properties of plans over random graphs: every node runs once, memory is never shared by what lives together, what is
// read was written, and executing a plan step by step gives what executing the graph node by node gives.
#include "interpreter.h"
#include "plan_check.h"
#include "random_graph.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define ROUNDS 1500

// ---- a batch and its data -----------------------------------------------------------------------------------------
static void world_fill(struct world *w, struct rng *rng, int32_t t) {
  const struct tensor *tensor = &w->graph->tensors[t];
  int64_t count = tensor_rows(w, t) * tensor->cols;
  double scale = tensor->kind == TENSOR_WEIGHT && tensor->n_rows > 1 ? 1 / sqrt((double)tensor->cols) : 1;
  w->values[t] = malloc((size_t)count * sizeof(double) + 8);
  w->typed[t] = malloc((size_t)count * 8 + 8);
  for (int64_t i = 0; i < count; i++) {
    double value = rng_uniform(rng) * scale;
    if (tensor->dtype == DTYPE_I64) value = rng_below(rng, 64);
    if (tensor->kind == TENSOR_POSITIONS) value = w->positions[i];
    typed_set(w->typed[t], tensor->dtype, i, value);
    w->values[t][i] = typed_get(w->typed[t], tensor->dtype, i);
  }
}

static void world_init(struct world *w, const struct graph *graph, struct rng *rng) {
  *w = (struct world){.graph = graph};
  int32_t n = 1 + rng_below(rng, 4), tokens = 0;
  for (int32_t b = 0; b < n; b++) {
    int32_t length = 1 + rng_below(rng, 9);
    for (int32_t i = 0; i < length; i++) w->positions[tokens + i] = i;
    tokens += length;
    w->cu_seqlens[b + 1] = tokens;
    w->scores_offset[b + 1] = w->scores_offset[b] + (int64_t)length * length;
    if (length > w->geometry.max_seqlen) w->geometry.max_seqlen = length;
  }
  w->geometry.n_tokens = tokens;
  w->geometry.n_seqs = n;
  w->geometry.sum_sq = w->scores_offset[n];
  w->geometry.cu_seqlens = w->cu_seqlens;
  w->geometry.positions = w->positions;
  w->geometry.scores_offset = w->scores_offset;
  w->values = calloc((size_t)graph->n_tensors, sizeof *w->values);
  w->typed = calloc((size_t)graph->n_tensors, sizeof *w->typed);
  for (int32_t t = 0; t < graph->n_tensors; t++)
    if (graph->tensors[t].kind != TENSOR_ACTIVATION) world_fill(w, rng, t);
}

static void world_deinit(struct world *w) {
  for (int32_t t = 0; t < w->graph->n_tensors; t++) free(w->values[t]), free(w->typed[t]);
  free(w->values), free(w->typed);
}

static struct plan_limits world_limits(const struct world *w, struct rng *rng) {
  return (struct plan_limits){.max_tokens = w->geometry.n_tokens + rng_below(rng, 5),
                              .max_seqs = w->geometry.n_seqs + rng_below(rng, 3), .max_seqlen = w->geometry.max_seqlen};
}

// ---- devices of unlike abilities ----------------------------------------------------------------------------------
static struct plan_caps caps_of(int kind) {
  struct plan_caps caps = {.row_chains = true, .tile_rows = 4, .tile_bytes = 1 << 20, .epilogue_max = 4};
  for (int d = 0; d < DTYPE_COUNT; d++) caps.dtype_ok[d] = true;
  caps.epilogue_kinds = 1u << EPI_BIAS | 1u << EPI_ACT | 1u << EPI_SCALE | 1u << EPI_ADD | 1u << EPI_MUL;
  if (kind == 1) caps.row_chains = false;
  if (kind == 2) caps.tile_bytes = 400;
  if (kind == 3) caps.epilogue_kinds = 1u << EPI_BIAS, caps.epilogue_max = 1;
  return caps;
}

// Relative L2 distance; 1 when either is not finite where the other is.
static double distance(const double *a, const double *b, int64_t n) {
  double difference = 0, size = 1e-12;
  for (int64_t i = 0; i < n; i++) {
    if (isfinite(a[i]) != isfinite(b[i])) return 1;
    if (!isfinite(b[i])) continue;
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return sqrt(difference / size);
}

static void check_results(const struct world *w, const struct plan *plan, const struct plan_caps *caps, uint8_t outputs,
                          const char *what, double tolerance) {
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

static void check_graph(const struct graph *graph, struct rng *rng, const char *what, double tolerance) {
  struct world w;
  world_init(&w, graph, rng);
  world_run_nodes(&w);
  for (int kind = 0; kind < 4; kind++) {
    struct plan_caps caps = caps_of(kind);
    for (int mode = FUSION_OFF; mode < FUSION_MODES; mode++) {
      struct plan_limits limits = world_limits(&w, rng);
      struct plan *plan;
      struct error err = {0};
      if (plan_build(graph, (enum fusion_mode)mode, &caps, &limits, &plan, &err) != STATUS_OK) fail_msg("%s: %s", what, err.message);
      char label[96];
      snprintf(label, sizeof label, "%s, caps %d, fusion %s", what, kind, fusion_name((enum fusion_mode)mode));
      check_plan(graph, plan, &caps, label);
      check_results(&w, plan, &caps, 0xff, label, tolerance);
      check_results(&w, plan, &caps, (uint8_t)(1u << rng_below(rng, graph->n_outputs)), label, tolerance);
      plan_free(plan);
    }
  }
  world_deinit(&w);
}

static void random_rounds(enum dtype dtype, int rounds, double tolerance) {
  for (int round = 0; round < rounds; round++) {
    struct rng rng = {.state = (uint64_t)round * 7919 + 17 + (uint64_t)dtype};
    struct graph graph;
    struct graph_maker maker;
    maker_init(&maker, &graph, &rng, dtype);
    maker_random(&maker, 1 + rng_below(&rng, 45));
    char what[64];
    snprintf(what, sizeof what, "%s round %d", dtype_name(dtype), round);
    check_graph(&graph, &rng, what, tolerance);
    graph_deinit(&graph);
  }
}

static void plans_of_random_fp32_graphs_compute_what_the_graph_says(void **state) {
  (void)state;
  random_rounds(DTYPE_F32, ROUNDS, 2e-4);
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
      cmocka_unit_test(same_graph_gives_the_same_plan_twice),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
