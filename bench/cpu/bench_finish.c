// What a fusion of the CPU's planner gains: each graph is planned with it and without, and both run
// in turn on the same data. Microseconds are the least of all runs, since whatever else the machine
// does only lengthens one.
//
//   bench_finish [--chains] [--seconds S] [TOKENS ...]    (default: 16 512 4096, in sequences of up
//   to 128)
//
// Without --chains the fused plan has none, so that products do what a chain would do better.
#include "backend/cpu/cpu_device.h"
#include "base/clock.h"
#include "unit/graph/blocks.h"

#define H 768
#define SEQ 128

// ---- graphs ----
static void layer_scale(struct graph_maker *m) { // ViT's: x + gamma (x W^T + b)
  int32_t x = maker_input(m, ROWS_TOKENS, H), a = maker_linear(m, x, H, true);
  int32_t s = maker_binary(m, OP_MUL, a, maker_weight(m, 1, H));
  output_add(m->graph, maker_binary(m, OP_ADD, s, x));
}

static void alpha_beta(struct graph_maker *m) { // alpha x W^T + beta r
  int32_t x = maker_input(m, ROWS_TOKENS, H), r = maker_input(m, ROWS_TOKENS, H);
  int32_t a = maker_unary(m, OP_SCALE, maker_linear(m, x, H, false));
  output_add(m->graph, maker_binary(m, OP_ADD, a, maker_unary(m, OP_SCALE, r)));
}

static void second_result(struct graph_maker *m) { // x W^T + b and gelu of it, both wanted
  int32_t a = maker_linear(m, maker_input(m, ROWS_TOKENS, H), H, true);
  output_add(m->graph, a);
  output_add(m->graph, maker_unary(m, OP_GELU, a));
}

static void gated_attention(struct graph_maker *m) { // o sigmoid(g) + x
  int32_t x = maker_input(m, ROWS_TOKENS, H), g = maker_input(m, ROWS_TOKENS, H);
  int32_t o = maker_attention(m, x, x, x, 12, 12, false);
  int32_t z = maker_binary(m, OP_MUL, o, maker_unary(m, OP_SIGMOID, g));
  output_add(m->graph, maker_binary(m, OP_ADD, z, x));
}

static void pooled_norm(struct graph_maker *m) { // normalize(pool(layer_norm(x)))
  int32_t n = maker_layer_norm(m, maker_input(m, ROWS_TOKENS, H));
  n = maker_node(m, OP_POOL, &n, 1, (struct node_attrs){.pool = POOL_MEAN});
  output_add(m->graph, maker_unary(m, OP_NORMALIZE, n));
}

static void first_norm(struct graph_maker *m) { // pool of first tokens of layer_norm(x)
  int32_t n = maker_layer_norm(m, maker_input(m, ROWS_TOKENS, H));
  output_add(m->graph, maker_node(m, OP_POOL, &n, 1, (struct node_attrs){.pool = POOL_CLS}));
}

static const struct {
  const char *name;
  void (*make)(struct graph_maker *m);
} cases[] = {
    {"layer scale", layer_scale},     {"alpha, beta", alpha_beta},
    {"second result", second_result}, {"gated attention", gated_attention},
    {"pool(norm)", pooled_norm},      {"cls pool(norm)", first_norm},
};

// ---- running ----
static bool chains; // with the fusion too, as plans are made

struct way {
  struct plan *plan;
  struct bound_plan *bound;
  struct lane *lane;
  double us;
};

static void stop(const char *what) {
  fprintf(stderr, "bench_finish: %s\n", what);
  exit(1);
}

// Small numbers.
static void *fill(const struct tensor *t, int64_t rows, struct rng *rng) {
  int64_t n = rows * t->cols;
  void *data = malloc((size_t)n * 8 + 64);
  if (!data) stop("no memory");
  for (int64_t i = 0; i < n; i++)
    ((float *)data)[i] = (float)rng_below(rng, 1000) * 1e-3f - 0.5f;
  return data;
}

static void open_way(struct way *way, struct device *device, const struct graph *graph,
                     const struct weight_table *table, struct plan_caps *caps, int32_t tokens) {
  struct plan_limits limits = {tokens, (tokens + SEQ - 1) / SEQ, SEQ};
  struct error err = {0};
  if (plan_build(graph, FUSION_ON, caps, &limits, &way->plan, &err) ||
      backend_cpu.load(device, way->plan, table, &way->bound, &err) ||
      backend_cpu.lane_open(device, &(struct lane_sizes){.arena_bytes = way->plan->arena_bytes},
                            &way->lane, &err))
    stop(err.message);
  way->us = 1e12;
}

static void run_way(struct way *way, const struct batch_geometry *g) {
  int64_t start = clock_now_ns();
  if (backend_cpu.run(way->lane, way->bound, g, 0xff) != STATUS_OK) stop("a run failed");
  double us = (double)(clock_now_ns() - start) / 1e3;
  if (us < way->us) way->us = us;
}

static void close_way(struct way *way, struct device *device) {
  backend_cpu.lane_close(device, way->lane);
  backend_cpu.unload(device, way->bound);
  plan_free(way->plan);
}

static double bytes_of(const struct way *way, const struct batch_geometry *g) {
  struct traffic_total t = plan_traffic(way->plan, 0xff, g->n_tokens, g->n_seqs, g->sum_sq);
  return t.read_bytes + t.write_bytes;
}

static struct batch_geometry geometry_of(int32_t tokens) {
  int32_t n = (tokens + SEQ - 1) / SEQ, *cu = calloc((size_t)n + 1, sizeof *cu),
          *positions = calloc((size_t)tokens, sizeof *positions);
  int64_t *offsets = calloc((size_t)n + 1, sizeof *offsets);
  if (!cu || !positions || !offsets) stop("no memory");
  for (int32_t s = 0; s < n; s++) {
    cu[s + 1] = cu[s] + SEQ < tokens ? cu[s] + SEQ : tokens;
    int64_t length = cu[s + 1] - cu[s];
    offsets[s + 1] = offsets[s] + length * length;
    for (int32_t i = 0; i < length; i++)
      positions[cu[s] + i] = i;
  }
  return (struct batch_geometry){.n_tokens = tokens,
                                 .n_seqs = n,
                                 .max_seqlen = SEQ < tokens ? SEQ : tokens,
                                 .sum_sq = offsets[n],
                                 .cu_seqlens = cu,
                                 .positions = positions,
                                 .scores_offset = offsets};
}

static void run_case(struct device *device, int c, int32_t tokens, double seconds) {
  struct rng rng = {.state = 7};
  struct graph graph;
  struct graph_maker maker;
  struct way ways[2];
  maker_init(&maker, &graph, &rng, DTYPE_F32);
  cases[c].make(&maker);
  struct weight *weights = calloc((size_t)graph.n_tensors, sizeof *weights);
  struct batch_geometry g = geometry_of(tokens);
  for (int32_t t = 0; t < graph.n_tensors; t++) {
    const struct tensor *tensor = &graph.tensors[t];
    if (tensor->kind == TENSOR_WEIGHT)
      weights[tensor->index] = (struct weight){tensor->name, tensor->dtype, tensor->n_rows,
                                               tensor->cols, fill(tensor, tensor->n_rows, &rng)};
  }
  struct weight_table table = {weights, graph.n_tensors};
  for (int with = 0; with < 2; with++) {
    struct plan_caps caps = backend_cpu.caps(device)->plan;
    caps.product_finish = caps.attention_finish = caps.pool_before = with;
    caps.row_chains = chains || !with;
    open_way(&ways[with], device, &graph, &table, &caps, tokens);
    for (int32_t t = 0; t < graph.n_tensors; t++) {
      const struct tensor *tensor = &graph.tensors[t];
      if (tensor->kind != TENSOR_INPUT) continue;
      void *rows = fill(tensor, tokens, &rng);
      backend_cpu.copy_in(ways[with].lane, ways[with].bound, tensor->index, 0, tokens, rows);
      free(rows);
    }
  }
  int64_t end = clock_now_ns() + (int64_t)(seconds * 1e9);
  for (int n = 0; n < 5 || clock_now_ns() < end; n++)
    for (int with = 0; with < 2; with++)
      run_way(&ways[with], &g);
  printf("%-16s %6d %3d -> %d %9.2f %9.2f %10.1f %10.1f %6.3f\n", cases[c].name, tokens,
         ways[0].plan->n_steps, ways[1].plan->n_steps, bytes_of(&ways[0], &g) / 1e6,
         bytes_of(&ways[1], &g) / 1e6, ways[0].us, ways[1].us, ways[0].us / ways[1].us);
  for (int with = 0; with < 2; with++)
    close_way(&ways[with], device);
  for (int32_t t = 0; t < graph.n_tensors; t++)
    if (graph.tensors[t].kind == TENSOR_WEIGHT)
      free((void *)(uintptr_t)weights[graph.tensors[t].index].data);
  free(weights);
  free((void *)(uintptr_t)g.cu_seqlens), free((void *)(uintptr_t)g.positions);
  free((void *)(uintptr_t)g.scores_offset);
  graph_deinit(&graph);
}

int main(int argc, char **argv) {
  static const int32_t usual[] = {16, 512, 4096};
  struct backend_options options = {0};
  struct error err = {0};
  struct device *device;
  double seconds = 0.3;
  int first = 1;
  for (; first < argc && argv[first][0] == '-'; first++) {
    if (!strcmp(argv[first], "--chains"))
      chains = true;
    else if (!strcmp(argv[first], "--seconds") && first + 1 < argc)
      seconds = atof(argv[++first]);
  }
  if (backend_cpu.open(&options, &device, &err) != STATUS_OK) stop(err.message);
  printf("%s\n%-16s %6s %8s %9s %9s %10s %10s %6s\n", backend_cpu.caps(device)->description,
         "fp32, 768 wide", "tokens", "kernels", "MB apart", "MB fused", "us apart", "us fused",
         "gain");
  for (int c = 0; c < (int)(sizeof cases / sizeof *cases); c++) {
    for (int a = first; a < argc; a++)
      run_case(device, c, atoi(argv[a]), seconds);
    for (int i = 0; first == argc && i < 3; i++)
      run_case(device, c, usual[i], seconds);
  }
  backend_cpu.close(device);
  return 0;
}
