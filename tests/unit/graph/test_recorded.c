// The cost model against what was measured: every measurement of bench/results that it predicts,
// with the constants of the machine that measured: a GPU's both with the defaults and with those
// that `fusewired tune` found on such a card. Prints what it compares (`ctest -V`), and holds the
// model to bands that docs/PLANNER.md states. Needs no GPU: plans and predictions are arithmetic.
#include "blocks.h"
#include "graph/cost.h"
#include "graph/expected.h"
#include "kernels/gemm/x3_tiles.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define LINE_BYTES 4096
#define RESULTS "bench/results/"
#define TUNED "gpu-tune-2026-11-30.rates"

// ---- lines of JSON ----
static bool number(const char *line, const char *key, double *out) {
  char quoted[64];
  snprintf(quoted, sizeof quoted, "\"%s\": ", key);
  const char *at = strstr(line, quoted);
  return at && sscanf(at + strlen(quoted), "%lf", out) == 1;
}

static double need(const char *line, const char *key) {
  double value = 0;
  if (!number(line, key, &value)) fail_msg("no \"%s\" in %s", key, line);
  return value;
}

static bool says(const char *line, const char *key, const char *value) {
  char text[128];
  snprintf(text, sizeof text, "\"%s\": \"%s\"", key, value);
  return strstr(line, text) != NULL;
}

static void every_line(const char *name, void (*take)(const char *line)) {
  char path[256], line[LINE_BYTES];
  snprintf(path, sizeof path, RESULTS "%s", name);
  FILE *file = fopen(path, "r");
  if (!file) fail_msg("%s is not there", path);
  while (fgets(line, sizeof line, file))
    take(line);
  fclose(file);
}

static void (*take_object)(const char *line);
static void take_if_object(const char *line) {
  if (line[0] == '{') take_object(line);
}
static void each_line(const char *name, void (*take)(const char *line)) {
  take_object = take;
  every_line(name, take_if_object);
}

// ---- predictions ----
static struct device_rates rates;
static bool on_gpu;
static enum { BY_DEFAULTS, BY_TUNE, SOURCES } source; // whose constants a GPU's rates are

static struct plan *plan_of(const struct graph *graph, enum fusion_mode mode,
                            const struct batch_size *batch) {
  struct plan_caps caps = {.row_chains = !on_gpu,
                           .tile_rows = 32,
                           .tile_bytes = 384 << 10,
                           .epilogue_max = EPILOGUE_MAX,
                           .epilogue_kinds = 0x1f,
                           .rates = rates};
  for (int d = 0; d < DTYPE_COUNT; d++)
    caps.dtype_ok[d] = true;
  int32_t tokens = (int32_t)batch->n_tokens;
  struct plan_limits limits = {tokens, (int32_t)batch->n_seqs, (int32_t)(tokens / batch->n_seqs)};
  struct plan *plan;
  struct error err = {0};
  if (plan_build(graph, mode, &caps, &limits, &plan, &err) != STATUS_OK)
    fail_msg("%s", err.message);
  return plan;
}

static struct cost predict(struct graph *graph, int32_t output, enum fusion_mode mode,
                           int64_t tokens, int64_t length) {
  struct batch_size batch = batch_of(tokens, length);
  output_add(graph, output);
  struct plan *plan = plan_of(graph, mode, &batch);
  struct cost total;
  assert_int_equal(plan_cost(plan, &rates, &batch, 0xff, NULL, &total), STATUS_OK);
  plan_free(plan);
  graph_deinit(graph);
  return total;
}

// ---- what was compared ----
#define FAR 1.25
static double farthest;
static int n_compared, n_far;

static void compare(const char *what, double predicted, double measured) {
  double ratio = predicted / measured, far = ratio > 1 ? ratio : 1 / ratio;
  printf("  %-70s measured %9.1f predicted %9.1f  %5.2f\n", what, measured, predicted, ratio);
  if (far > farthest) farthest = far;
  n_compared++, n_far += far > FAR;
}

// A line of what `fusewired tune` keeps: a constant's name and its value.
static void take_constant(const char *line) {
#define OF(name, member)                                                                           \
  { name, offsetof(struct device_rates, member) }
  static const struct {
    const char *name;
    size_t offset;
  } fields[] = {OF("read", read),
                OF("triad", triad),
                OF("copy", copy),
                OF("write", write),
                OF("cache", cache),
                OF("vector", vector),
                OF("reduced", reduced),
                OF("special", special),
                OF("special_16", special_16),
                OF("softmax", softmax),
                OF("attention_fp32", attention_f32),
                OF("epilogue", epilogue),
                OF("epilogue_fp32", epilogue_f32),
                OF("fused_product", fused_product),
                OF("launch_us", launch_us),
                OF("product_fp32", product[DTYPE_F32]),
                OF("product_fp16", product[DTYPE_F16]),
                OF("product_bf16", product[DTYPE_BF16])};
#undef OF
  char name[64];
  double value;
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
    if (sscanf(line, "%63s %lf", name, &value) == 2 && !strcmp(name, fields[i].name))
      *(double *)(void *)((char *)&rates + fields[i].offset) = value, n_compared++;
}

static void gpu_rates(void) {
  rates = device_rates_gpu(), on_gpu = true;
  n_compared = 0;
  if (source == BY_TUNE) every_line(TUNED, take_constant);
  assert_int_equal(n_compared, source == BY_TUNE ? 18 : 0);
}

static void begin(const char *what) {
  gpu_rates();
  farthest = 1, n_compared = n_far = 0;
  rates.product[DTYPE_F32] = 34e12; // on the CUDA cores, all rows for two columns of tiles
  rates.walks[CLASS_PLAIN] = (struct product_walk){.cols = 256};
  printf("%s%s\n", what, source == BY_TUNE ? ", with the constants of " TUNED : "");
}

static void end(double most, int least_compared) {
  printf("  farthest off: %.2f times, of %d\n", farthest, n_compared);
  assert_true(n_compared >= least_compared);
  if (farthest > most) fail_msg("%.2f times off, at most %.2f is allowed", farthest, most);
}

// ---- graphs ----
static const struct node_attrs factor = {.factor = 1.001f, .eps = 1e-5f};

static int32_t stack_of(struct graph_maker *m, struct graph *graph, enum dtype dtype,
                        int32_t layers, int32_t cols, int32_t heads) {
  maker_init(m, graph, NULL, dtype);
  int32_t x = maker_input(m, ROWS_TOKENS, cols);
  for (int32_t i = 0; i < layers; i++)
    x = block_encoder_post(m, x, heads, 4 * cols);
  return x;
}

static struct cost stack(enum dtype dtype, int32_t layers, int32_t cols, int32_t heads,
                         enum fusion_mode mode, int64_t seqs, int64_t length) {
  struct graph graph;
  struct graph_maker m;
  int32_t x = stack_of(&m, &graph, dtype, layers, cols, heads);
  return predict(&graph, x, mode, seqs * length, length);
}

enum behind { BEHIND_NONE, BEHIND_GELU, BEHIND_RESIDUAL };
static struct cost product(enum dtype dtype, int64_t rows, int32_t k, int32_t n, enum behind behind,
                           enum fusion_mode mode) {
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, dtype);
  int32_t y = maker_linear(&m, maker_input(&m, ROWS_TOKENS, k), n, true);
  if (behind == BEHIND_GELU) y = maker_unary(&m, OP_GELU, y);
  if (behind == BEHIND_RESIDUAL) y = maker_binary(&m, OP_ADD, y, maker_input(&m, ROWS_TOKENS, n));
  return predict(&graph, y, mode, rows, rows);
}

static struct cost attention(enum dtype dtype, int64_t seqs, int64_t length, int heads, int dim,
                             bool causal, enum fusion_mode mode) {
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, dtype);
  int32_t q = maker_input(&m, ROWS_TOKENS, heads * dim),
          k = maker_input(&m, ROWS_TOKENS, heads * dim),
          v = maker_input(&m, ROWS_TOKENS, heads * dim);
  return predict(&graph, maker_attention(&m, q, k, v, heads, 0, causal), mode, seqs * length,
                 length);
}

static struct cost chain(int k) {
  enum { COLS = 4096, FLOATS = 1 << 25 };
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_F32);
  int32_t v = maker_input(&m, ROWS_TOKENS, COLS), shift = maker_weight(&m, 1, 1);
  for (int i = 0; i < k; i++) {
    v = maker_node(&m, OP_SCALE, &v, 1, factor);
    v = maker_binary(&m, OP_ADD, v, shift);
  }
  return predict(&graph, v, FUSION_ON, FLOATS / COLS, FLOATS / COLS);
}

static double layer_norm_part(int32_t cols, int part) {
  static const struct node_attrs mean = {.reduce = REDUCE_MEAN}, minus = {.factor = -1};
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_F32);
  int32_t x = maker_input(&m, ROWS_TOKENS, cols), y, rows = (1 << 25) / cols;
  if (part == 0) {
    y = maker_layer_norm(&m, x);
  } else if (part == 1) {
    y = maker_node(&m, OP_REDUCE, &x, 1, mean);
    y = maker_node(&m, OP_SCALE, &y, 1, minus);
  } else {
    int32_t in[2] = {maker_binary(&m, OP_ADD, x, maker_input(&m, ROWS_TOKENS, 1)),
                     maker_weight(&m, 1, cols)};
    in[0] = maker_node(&m, OP_RMS_NORM, in, 2, factor), in[1] = maker_weight(&m, 1, cols);
    y = maker_node(&m, OP_BIAS, in, 2, factor);
  }
  return predict(&graph, y, FUSION_ON, rows, rows).us;
}

static double gelu_sum(int32_t cols, enum fusion_mode mode) {
  static const struct node_attrs sum = {.reduce = REDUCE_SUM};
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_F32);
  int32_t y = maker_unary(&m, OP_GELU, maker_input(&m, ROWS_TOKENS, cols));
  y = maker_node(&m, OP_REDUCE, &y, 1, sum);
  return predict(&graph, y, mode, (1 << 25) / cols, (1 << 25) / cols).us;
}

// ---- the experiments of bench/fusion.h ----
static const char *wanted, *recording;
static FILE *predictions; // of the experiments, for bench/fusion.py; NULL: nobody wants them

static int32_t shortest; // points of fewer tokens are another comparison's

static void take_experiment(const char *line) {
  char what[2][80];
  double fused = 0, apart = 0;
  if (!says(line, "experiment", wanted)) return;
  const char *x_name = strstr(line, "\"cols\"") ? "cols" : strstr(line, "\"s\"") ? "s" : "k";
  int x = (int)need(line, x_name);
  enum dtype dtype = on_gpu ? DTYPE_BF16 : DTYPE_F32;
  if (x < shortest) return;
  if (!strcmp(wanted, "chain")) {
    fused = chain(x).us, apart = x * chain(1).us;
  } else if (!strcmp(wanted, "layer_norm")) {
    fused = layer_norm_part(x, 0), apart = layer_norm_part(x, 1) + layer_norm_part(x, 2);
  } else if (!strcmp(wanted, "gelu_sum")) {
    fused = gelu_sum(x, FUSION_ON), apart = gelu_sum(x, FUSION_OFF);
  } else if (!strcmp(wanted, "epilogue")) {
    int m = on_gpu ? 8192 : 1024, n = on_gpu ? 4096 : 2048;
    fused = product(dtype, m, x, n, BEHIND_GELU, FUSION_ON).us;
    apart = product(dtype, m, x, n, BEHIND_GELU, FUSION_OFF).us;
    // there the fused product, replayed back to back, runs at 0.85 of the rate that it had with
    // pauses
    if (on_gpu && x != 2048 && x != 4096)
      assert_int_equal(fused < apart, need(line, "fused_us") < need(line, "separate_us"));
  } else {
    int heads = on_gpu ? 64 : 12;
    fused = attention(dtype, 1, x, heads, 64, false, FUSION_ON).us;
    apart = attention(dtype, 1, x, heads, 64, false, FUSION_OFF).us;
  }
  snprintf(what[0], sizeof what[0], "%s %s %d fused", wanted, x_name, x);
  snprintf(what[1], sizeof what[1], "%s %s %d separate", wanted, x_name, x);
  if (predictions && source == BY_DEFAULTS)
    fprintf(predictions,
            "{\"recording\": \"%s\", \"experiment\": \"%s\", \"%s\": %d, "
            "\"fused_predicted_us\": %.2f, \"separate_predicted_us\": %.2f}\n",
            recording, wanted, x_name, x, fused, apart);
  compare(what[0], fused, need(line, "fused_us"));
  compare(what[1], apart, need(line, "separate_us"));
}

static void experiments_on_the_gpu(void **state) {
  (void)state;
  static const struct {
    const char *name;
    int32_t shortest, least;
    double most[SOURCES];
  } parts[] = {
      {"chain", 0, 10, {1.1, 1.1}},
      {"layer_norm", 0, 8, {1.15, 1.15}},
      // the early file has reductions at an eighth of their rate, and a launch twice as long
      {"gelu_sum", 0, 8, {1.12, 1.17}},
      {"epilogue", 0, 18, {1.17, 1.18}},
      {"attention", 512, 10, {1.17, 1.17}},
      {"attention", 0, 16, {1.17, 1.35}},
  };
  for (size_t i = 0; i < SOURCES * sizeof parts / sizeof *parts; i++) {
    source = i % SOURCES;
    size_t part = i / SOURCES;
    begin("bench/results/fusion-cuda.jsonl: us");
    wanted = parts[part].name, shortest = parts[part].shortest;
    recording = "fusion-cuda.jsonl";
    each_line(recording, take_experiment);
    end(parts[part].most[source], parts[part].least);
  }
  source = BY_DEFAULTS;
}

// The rates of the processor that measured are in the file's first line. What is farther off there:
// two kernels of a norm by columns of 256 (one value a row between them), and unfused attention.
static void take_rates(const char *line) {
  static const struct {
    const char *name;
    size_t offset;
    double unit;
  } fields[] = {{"copy_gbps", offsetof(struct device_rates, copy), 1e9},
                {"read_gbps", offsetof(struct device_rates, read), 1e9},
                {"triad_gbps", offsetof(struct device_rates, triad), 1e9},
                {"write_gbps", offsetof(struct device_rates, write), 1e9},
                {"cache_gbps", offsetof(struct device_rates, cache), 1e9},
                {"vector_gflops", offsetof(struct device_rates, vector), 1e9},
                {"reduced_gflops", offsetof(struct device_rates, reduced), 1e9},
                {"special_gflops", offsetof(struct device_rates, special), 1e9},
                {"special_16_gflops", offsetof(struct device_rates, special_16), 1e9},
                {"softmax_gflops", offsetof(struct device_rates, softmax), 1e9},
                {"epilogue_gflops", offsetof(struct device_rates, epilogue), 1e9},
                {"launch_us", offsetof(struct device_rates, launch_us), 1},
                {"product_gflops", offsetof(struct device_rates, product[DTYPE_F32]), 1e9}};
  if (!says(line, "backend", "cpu")) return;
  on_gpu = false;
  rates = device_rates_cpu((int)need(line, "threads"));
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
    *(double *)(void *)((char *)&rates + fields[i].offset) =
        need(line, fields[i].name) * fields[i].unit;
  rates.cache_bytes = (int64_t)need(line, "cache_bytes");
  rates.row_bytes = (int64_t)need(line, "row_bytes");
}

static void take_cpu_run(const char *run, const char *experiment, int least, double most) {
  begin(run);
  recording = run, wanted = experiment, shortest = 0;
  each_line(run, take_rates);
  assert_false(on_gpu);
  each_line(run, take_experiment);
  end(most, least);
}

static void experiments_on_the_cpu(void **state) {
  (void)state;
  static const struct {
    const char *name;
    int32_t least;
    double most;
  } parts[] = {{"chain", 10, 1.35},
               {"layer_norm", 8, 1.7},
               {"gelu_sum", 8, 1.7},
               {"epilogue", 14, 1.5},
               {"attention", 12, 1.8}};
  static const char *const runs[] = {"fusion-cpu.jsonl", "fusion-cpu-2.jsonl"};
  for (size_t i = 0; i < 2 * sizeof parts / sizeof *parts; i++)
    take_cpu_run(runs[i % 2], parts[i / 2].name, parts[i / 2].least, parts[i / 2].most);
  // A guest whose last-level cache, the kernel says, is 300 MiB: those of its host.
  take_cpu_run("fusion-cpu-3.jsonl", "chain", 10, 1.75);
  take_cpu_run("fusion-cpu-4.jsonl", "chain", 10, 1.75);
  take_cpu_run("fusion-cpu-5.jsonl", "chain", 10, 1.75);
}

// ---- encoder stacks ----

// Both plans of one batch: what fusing saves.
static struct batch_way {
  int32_t cols;
  int64_t tokens, seqs;
  enum dtype dtype;
  double measured[2], predicted[2]; // fused, unfused: the last of each
} ways[16];
static int n_ways;

static struct batch_way *way_of(int32_t cols, int64_t tokens, int64_t seqs, enum dtype dtype) {
  int i = 0;
  while (i < n_ways && (ways[i].cols != cols || ways[i].tokens != tokens || ways[i].seqs != seqs ||
                        ways[i].dtype != dtype))
    i++;
  assert_true(i < 16);
  if (i == n_ways)
    ways[n_ways++] =
        (struct batch_way){.cols = cols, .tokens = tokens, .seqs = seqs, .dtype = dtype};
  return &ways[i];
}

static void take_plan(const char *line) {
  char what[80];
  double layers, us;
  if (!says(line, "bench", "plan") || !number(line, "layers", &layers) || layers == 0) return;
  bool fused = says(line, "fusion", "on");
  int64_t tokens = (int64_t)need(line, "tokens"), seqs = (int64_t)need(line, "seqs");
  int32_t cols = (int32_t)need(line, "hidden");
  enum dtype dtype = says(line, "dtype", "bf16") ? DTYPE_BF16 : DTYPE_F16;
  us = need(line, "us");
  if (tokens == 128 && (us == 565.2 || us == 800.4))
    return; // before there were products of few rows
  struct cost cost = stack(dtype, (int32_t)layers, cols, cols == 384 ? 12 : cols / 64,
                           fused ? FUSION_ON : FUSION_OFF, seqs, tokens / seqs);
  snprintf(what, sizeof what, "%g layers of %d, %s, %d tokens in %d, %s", layers, cols,
           dtype_name(dtype), (int)tokens, (int)seqs, fused ? "fused" : "unfused");
  compare(what, cost.us, us);
  struct batch_way *way = way_of(cols, tokens, seqs, dtype);
  way->measured[!fused] = us, way->predicted[!fused] = cost.us;
}

static void predict_stacks(double most, double most_saved) {
  n_ways = 0;
  begin("encoder stacks: us");
  each_line("gpu-plan-2026-11-30.txt", take_plan);
  each_line("gpu-linear-2026-11-30.jsonl", take_plan);
  each_line("gpu-2026-11-30-2.jsonl", take_plan);
  end(most, 16);
  begin("encoder stacks: us that fusing saves");
  for (int i = 0; i < n_ways; i++) {
    const struct batch_way *way = &ways[i];
    char what[80];
    if (way->measured[0] == 0 || way->measured[1] == 0) continue;
    snprintf(what, sizeof what, "%d columns, %d tokens in %d", way->cols, (int)way->tokens,
             (int)way->seqs);
    compare(what, way->predicted[1] - way->predicted[0], way->measured[1] - way->measured[0]);
  }
  end(most_saved, 3);
}

static void encoder_stacks(void **state) {
  (void)state;
  source = BY_DEFAULTS;
  predict_stacks(1.12, 1.1);
  source = BY_TUNE;
  predict_stacks(1.25, 1.25);
  source = BY_DEFAULTS;
}

// ---- the steps of stacks ----
#define REPLAY_US 2.6 // that a replay of the steps of one kind has of its own

// A line of `cuda_bench_plan` is followed by those of its kinds of steps.
static bool kinds; // these are compared, not the whole stacks
static struct stack_steps {
  struct plan *plan;
  struct cost costs[256];
  char what[80];
} steps;

static void take_stack(const char *line) {
  plan_free(steps.plan), steps.plan = NULL;
  if (!strstr(line, "\"layers\"")) return; // a model file's
  struct graph graph;
  struct graph_maker m;
  struct cost total;
  enum dtype dtype = says(line, "dtype", "bf16") ? DTYPE_BF16 : DTYPE_F32;
  int32_t cols = (int32_t)need(line, "hidden"), tokens = (int32_t)need(line, "tokens"),
          seqs = (int32_t)need(line, "seqs");
  // the one ragged batch: 8, 16, .. 64 tokens
  struct batch_size batch = batch_of(tokens, tokens / seqs);
  if (tokens == 288) batch.sum_sq = 64 * 204;
  enum fusion_mode mode = says(line, "fusion", "on") ? FUSION_ON : FUSION_OFF;
  int32_t x = stack_of(&m, &graph, dtype, (int32_t)need(line, "layers"), cols, 12);
  output_add(&graph, x);
  steps.plan = plan_of(&graph, mode, &batch);
  graph_deinit(&graph);
  assert_in_range(steps.plan->n_steps, 1, 256);
  assert_int_equal(plan_cost(steps.plan, &rates, &batch, 0xff, steps.costs, &total), STATUS_OK);
  snprintf(steps.what, sizeof steps.what, "%d x %d, %s, %s", tokens, cols, dtype_name(dtype),
           fusion_name(mode));
  if (!kinds) compare(steps.what, total.us, need(line, "us") - REPLAY_US);
}

static void take_step(const char *line) {
  char label[64], shape[32], what[192];
  int count, n = 0, k = 0, columns = 0;
  double us, predicted = 0;
  if (line[0] == '{') take_stack(line);
  if (line[0] != ' ' || !steps.plan) return;
  if (sscanf(line, "%63s %dx%d %d %lf", label, &k, &columns, &count, &us) != 5) {
    k = columns = 0;
    if (sscanf(line, "%63s %d %lf", label, &count, &us) != 3) return;
  }
  for (int32_t i = 0; i < steps.plan->n_steps; i++) {
    const struct step *step = &steps.plan->steps[i];
    bool linear = step->kind == STEP_LINEAR;
    if (strcmp(step->label, label) != 0 || linear != (k > 0) ||
        (linear && (step->linear.k != k || step->linear.n != columns)))
      continue;
    predicted += steps.costs[i].us, n++;
  }
  if (n != count) fail_msg("%d steps are planned as %d in %s", count, n, line);
  shape[0] = 0;
  if (k > 0) snprintf(shape, sizeof shape, " %dx%d", k, columns);
  snprintf(what, sizeof what, "%s: %s%s", steps.what, label, shape);
  if (kinds) compare(what, predicted / n, us - REPLAY_US / n);
}

static void steps_of_stacks(void **state) {
  (void)state;
  static const double most[SOURCES][2] = {{1.16, 1.42}, {1.36, 2.4}}; // whole, kinds
  for (int i = 0; i < 2 * SOURCES; i++) {
    source = i / 2, kinds = i % 2;
    begin(kinds ? "steps of encoder stacks: us each" : "the same stacks: us");
    gpu_rates();
    n_compared = 0;
    every_line("gpu-plan-2026-11-30-2.txt", take_step);
    plan_free(steps.plan), steps.plan = NULL;
    end(most[source][kinds], kinds ? 192 : 24);
  }
  source = BY_DEFAULTS;
}

// ---- single kernels ----
static void take_kernel(const char *line) {
  char what[80];
  double us, b;
  if (says(line, "work", "linear")) {
    int m = (int)need(line, "m"), k = (int)need(line, "k"), n = (int)need(line, "n");
    snprintf(what, sizeof what, "%dx%d->%d, library", m, k, n);
    compare(what, product(DTYPE_BF16, m, k, n, BEHIND_NONE, FUSION_ON).us,
            need(line, "product_us"));
    snprintf(what, sizeof what, "%dx%d->%d, gelu", m, k, n);
    if (m > 512 && number(line, "bias_erf_us", &us))
      compare(what, product(DTYPE_BF16, m, k, n, BEHIND_GELU, FUSION_ON).us, us);
  } else if (says(line, "work", "few rows")) {
    int m = (int)need(line, "m"), k = (int)need(line, "k"), n = (int)need(line, "n");
    double least = fmin(need(line, "32x1"), need(line, "64x1"));
    snprintf(what, sizeof what, "%dx%d->%d, few rows, gelu", m, k, n);
    compare(what, product(DTYPE_BF16, m, k, n, BEHIND_GELU, FUSION_ON).us, least);
  } else if (says(line, "work", "attention") && number(line, "b", &b)) {
    double slots = b;
    number(line, "slots", &slots);
    if (slots > b) return; // more than the batch was made room for
    enum dtype dtype = says(line, "dtype", "fp32") ? DTYPE_F32 : DTYPE_BF16;
    int h = (int)need(line, "h"), s = (int)need(line, "s"), d = (int)need(line, "d");
    bool causal = need(line, "causal") > 0;
    snprintf(what, sizeof what, "attention %d of %d, %d heads of %d%s", (int)b, s, h, d,
             causal ? ", causal" : "");
    compare(what, attention(dtype, (int64_t)b, s, h, d, causal, FUSION_ON).us, need(line, "us"));
  }
}

static void single_kernels(void **state) {
  (void)state;
  for (source = BY_DEFAULTS; source < SOURCES; source++) {
    begin("single kernels, us");
    each_line("gpu-kernels-2026-11-30.jsonl", take_kernel);
    each_line("gpu-2026-11-30-2.jsonl", take_kernel);
    printf("  %d are more than %g times off\n", n_far, FAR);
    if (n_far > n_compared / 7)
      fail_msg("%d of %d are more than %g times off", n_far, n_compared, FAR);
    end(1.55, 80); // shapes that no tile fits: 128 rows of 4096 -> 16384, sequences of 20
  }
  source = BY_DEFAULTS;
}

// ---- products fused and apart, as `fusewired tune` measured them ----
#define SURELY 1.03  // by more than this one way is faster; the planner says so, too
#define AT_FAULT 1.1 // a fused kernel slower than that has a fault, which no model predicts

static int n_lost; // of which the model alone would choose the slower way

static void take_shape(const char *line) {
  char x[16], y[16], behind[32], what[100];
  int n, k, m;
  double fused_us, apart_us;
  if (sscanf(line, "shape %d %d %d %15s %15s %31s %lf %lf", &n, &k, &m, x, y, behind, &fused_us,
             &apart_us) != 8 ||
      strcmp(x, y) != 0 || fused_us > AT_FAULT * apart_us)
    return;
  bool gelu = !strcmp(behind, "bias,gelu");
  assert_true(gelu || !strcmp(behind, "bias,add"));
  enum behind of = gelu ? BEHIND_GELU : BEHIND_RESIDUAL;
  enum dtype dtype = strcmp(x, "fp32") ? DTYPE_BF16 : DTYPE_F32;
  struct cost fused = product(dtype, m, k, n, of, FUSION_ON),
              apart = product(dtype, m, k, n, of, FUSION_OFF),
              chosen = product(dtype, m, k, n, of, FUSION_AUTO);
  snprintf(what, sizeof what, "%dx%d->%d, %s, %s, fused", m, k, n, x, behind);
  compare(what, fused.us + rates.batch_us, fused_us);
  snprintf(what, sizeof what, "%dx%d->%d, %s, %s, apart", m, k, n, x, behind);
  compare(what, apart.us + rates.batch_us, apart_us);
  n_lost += chosen.launches == 1 ? fused_us > SURELY * apart_us : apart_us > SURELY * fused_us;
}

static void products_both_ways(void **state) {
  (void)state;
  static const struct {
    double most;
    int lost;
  } bands[SOURCES] = {{1.22, 0}, {1.27, 0}};
  for (source = BY_DEFAULTS; source < SOURCES; source++) {
    begin("products as tune measured them, us of a batch");
    gpu_rates(); // with the products of today
    n_lost = n_compared = 0;
    every_line(TUNED, take_shape);
    printf("  the slower way would be taken %d times\n", n_lost);
    assert_in_range(n_lost, 0, bands[source].lost);
    end(bands[source].most, 58);
  }
  source = BY_DEFAULTS;
}

// ---- the tiles of products in fp32 ----
static struct x3_product {
  int64_t m;
  int32_t n, k;
  double us[X3_TILES], bias_us[X3_TILES];
} x3_product; // m 0: none

// Of a product whose lines are all read: the tile that is chosen is the fastest, and its time.
static void compare_x3(void) {
  const struct x3_product *p = &x3_product;
  if (p->m == 0) return;
  enum x3_tile_size tile = x3_pick(p->m, p->n, p->k, 132);
  const struct x3_tile *of = &x3_tiles[tile];
  char what[80];
  snprintf(what, sizeof what, "%dx%d->%d by %d x %d", (int)p->m, p->k, p->n, of->rows, of->cols);
  compare(what, of->start_us + p->k * x3_us_of_k(of, x3_rounds(of, p->m, p->n, 132)),
          p->bias_us[tile]);
  for (int i = 0; i < X3_TILES; i++)
    if (p->us[i] < 0.98 * p->us[tile])
      fail_msg("%s takes %.1f us, by another tile %.1f", what, p->us[tile], p->us[i]);
}

// Lines of `cuda_bench_gemm fp32`: a product, and each tile's time below it.
static void take_x3(const char *line) {
  static const char *const names[X3_TILES] = {"x3_32", "x3_64", "x3_128x64"};
  struct x3_product *p = &x3_product;
  if (strstr(line, "\"work\"")) {
    compare_x3();
    *p = (struct x3_product){0};
    if (says(line, "work", "linear fp32"))
      p->m = (int64_t)need(line, "m"), p->n = (int32_t)need(line, "n"),
      p->k = (int32_t)need(line, "k");
  }
  for (int i = 0; i < X3_TILES; i++) {
    char key[32];
    snprintf(key, sizeof key, "\"%s\": {", names[i]);
    const char *at = strstr(line, key);
    if (at) p->us[i] = need(at, "us"), p->bias_us[i] = need(at, "bias_us");
  }
}

// m n k, what was chosen, us by each tile: today's choice is the fastest, or nearly.
static void take_x3_line(const char *line) {
  struct x3_product p;
  char chosen[32];
  long m;
  if (sscanf(line, "%ld %d %d %31s %lf %lf %lf", &m, &p.n, &p.k, chosen, &p.us[0], &p.us[1],
             &p.us[2]) != 7)
    return;
  enum x3_tile_size tile = x3_pick(m, p.n, p.k, 132);
  for (int i = 0; i < X3_TILES; i++)
    if (p.us[i] < 0.98 * p.us[tile])
      fail_msg("%ld x %d x %d takes %.1f us, by another tile %.1f", m, p.n, p.k, p.us[tile],
               p.us[i]);
  n_compared++;
}

static void tiles_of_products_in_fp32(void **state) {
  (void)state;
  begin("products in fp32 by tiles: us");
  every_line("gpu-mixed-2026-11-30.txt", take_x3);
  compare_x3();
  end(1.1, 14);
  n_compared = 0;
  every_line("gpu-f32-products-2026-11-30-2.txt", take_x3_line);
  assert_int_equal(n_compared, 14);
}

// ---- what fusing gains of the shipped models, as served ----
static int32_t cast(struct graph_maker *m, int32_t x, enum dtype dtype) {
  return maker_node(m, OP_CAST, &x, 1, (struct node_attrs){.to = dtype});
}

// As config/models has them: inputs and outputs of all but the sentence models in fp32.
static void shipped_graph(struct graph_maker *m, const char *name, bool narrow) {
  int32_t cols = strncmp(name, "chain", 5) ? 768 : 4096, x, y;
  if (!strncmp(name, "minilm", 6)) {
    block_sentence_encoder(m, 6, 384, 12, 1536, 30522);
    return;
  }
  if (!strncmp(name, "bert", 4)) {
    block_sentence_encoder(m, 12, 768, 12, 3072, 30522);
    return;
  }
  x = maker_tensor(m, TENSOR_INPUT, DTYPE_F32, ROWS_TOKENS, 0, cols);
  if (narrow) x = cast(m, x, DTYPE_BF16);
  if (!strncmp(name, "mlp", 3)) {
    y = maker_binary(m, OP_ADD, x, block_mlp(m, maker_layer_norm(m, x), 3072));
  } else if (cols == 768) {
    y = maker_layer_norm(m, maker_binary(m, OP_ADD, x, block_attention(m, x, 12)));
  } else {
    y = x;
    for (int i = 0; i < 8; i++) {
      int32_t in[2] = {maker_node(m, OP_SCALE, &y, 1, factor), maker_weight(m, 1, cols)};
      y = maker_node(m, OP_BIAS, in, 2, factor);
    }
  }
  output_add(m->graph, narrow ? cast(m, y, DTYPE_F32) : y);
}

static double served_us(const char *name, bool narrow, const struct batch_size *batch,
                        uint8_t outputs, enum fusion_mode mode) {
  struct graph graph;
  struct graph_maker m;
  struct cost total;
  maker_init(&m, &graph, NULL, narrow ? DTYPE_BF16 : DTYPE_F32);
  shipped_graph(&m, name, narrow);
  struct plan *plan = plan_of(&graph, mode, batch);
  assert_int_equal(plan_cost(plan, &rates, batch, outputs, NULL, &total), STATUS_OK);
  plan_free(plan);
  graph_deinit(&graph);
  return total.us + rates.batch_us;
}

static int n_bert;
static bool measured_rates; // lines of a daemon with measured constants follow

static void take_served(const char *line) {
  // the mean batches that each line's clients made, about
  static const struct {
    const char *line;
    int64_t tokens, length;
    uint8_t outputs;
    bool narrow;
  } cases[] = {{"minilm --tokens 8..64", 240, 40, 2, false},
               {"minilm --tokens 128", 1920, 128, 2, false},
               {"bert-base ", 1920, 128, 2, false},
               {"bert-base ", 128, 128, 2, false}, // the second such line
               {"mlp --batch 256", 335, 1, 1, false},
               {"mlp16 --batch 16 ", 16, 1, 1, true},
               {"mlp16 --batch 256", 335, 1, 1, true},
               {"mlp16 --batch 2048", 2048, 1, 1, true},
               {"attention --tokens 256", 340, 256, 1, false},
               {"attention16 --tokens 256", 340, 256, 1, true},
               {"chain --batch 2048", 2048, 1, 1, false},
               {"bert16 ", 2048, 128, 2, true}};
  double on, off;
  const char *at = strstr(line, " on ");
  measured_rates |= !strncmp(line, "After", 5);
  if (measured_rates || !at || sscanf(at, " on %lf off %lf", &on, &off) != 2) return;
  size_t i = 0, n = sizeof cases / sizeof *cases;
  while (i < n && strncmp(line, cases[i].line, strlen(cases[i].line)) != 0)
    i++;
  assert_true(i < n);
  if (!strcmp(cases[i].line, "bert-base ")) i += (size_t)n_bert++;
  struct batch_size batch = batch_of(cases[i].tokens, cases[i].length);
  double fused = served_us(line, cases[i].narrow, &batch, cases[i].outputs, FUSION_ON),
         unfused = served_us(line, cases[i].narrow, &batch, cases[i].outputs, FUSION_OFF);
  compare(cases[i].line, 100 * unfused / fused, 100 * off / on);
}

static void served_models(void **state) {
  (void)state;
  static const char *const runs[] = {"gpu-ab-2026-11-30-3.txt", "gpu-ab-2026-11-30-4.txt"};
  for (int i = 0; i < 2; i++) {
    begin("unfused over fused, as fusewire bench --ab measured it: percent");
    gpu_rates();
    n_compared = n_bert = 0, measured_rates = false;
    every_line(runs[i], take_served);
    end(1.15, 11 + i);
  }
}

// ---- bytes ----
static const struct byte_case {
  const char *name;
  enum dtype dtype;
  int kind; // 0 product, 1 product and gelu, 2 attention, 3 stack
  int64_t seqs, length;
  int32_t k, n; // of a stack: columns, layers; of an attention: columns, heads
  enum fusion_mode mode;
} byte_cases[] = {
    {"linear 16384x768->3072", DTYPE_BF16, 0, 32, 512, 768, 3072, FUSION_ON},
    {"linear 16384x3072->768", DTYPE_BF16, 0, 32, 512, 3072, 768, FUSION_ON},
    {"linear 16384x1024->4096", DTYPE_BF16, 0, 32, 512, 1024, 4096, FUSION_ON},
    {"linear 8192x4096->16384", DTYPE_BF16, 0, 16, 512, 4096, 16384, FUSION_ON},
    {"linear 16384x4096->4096", DTYPE_BF16, 0, 32, 512, 4096, 4096, FUSION_ON},
    {"linear 24576x1280->5120", DTYPE_BF16, 0, 48, 512, 1280, 5120, FUSION_ON},
    {"linear 20480x1536->6144", DTYPE_BF16, 0, 40, 512, 1536, 6144, FUSION_ON},
    {"linear 8192x2048->8192", DTYPE_BF16, 0, 16, 512, 2048, 8192, FUSION_ON},
    {"linear+gelu 16384x768->3072", DTYPE_BF16, 1, 32, 512, 768, 3072, FUSION_ON},
    {"linear+gelu 16384x1024->4096", DTYPE_BF16, 1, 32, 512, 1024, 4096, FUSION_ON},
    {"linear+gelu 8192x4096->16384", DTYPE_BF16, 1, 16, 512, 4096, 16384, FUSION_ON},
    {"linear+gelu 65536x256->1024", DTYPE_BF16, 1, 128, 512, 256, 1024, FUSION_ON},
    {"linear+gelu 64x4096->16384", DTYPE_BF16, 1, 1, 64, 4096, 16384, FUSION_ON},
    {"linear+gelu 8192x1024->4096", DTYPE_F32, 1, 16, 512, 1024, 4096, FUSION_ON},
    {"linear+gelu 24576x1280->5120", DTYPE_BF16, 1, 48, 512, 1280, 5120, FUSION_ON},
    {"linear+gelu 12288x2048->8192", DTYPE_BF16, 1, 24, 512, 2048, 8192, FUSION_ON},
    {"attention 64x512, 12 of 64", DTYPE_BF16, 2, 64, 512, 768, 12, FUSION_ON},
    {"attention 16x2048, 16 of 128", DTYPE_BF16, 2, 16, 2048, 2048, 16, FUSION_ON},
    {"attention 4x8192, 16 of 128", DTYPE_BF16, 2, 4, 8192, 2048, 16, FUSION_ON},
    {"attention 64x512, 12 of 64", DTYPE_F32, 2, 64, 512, 768, 12, FUSION_ON},
    {"unfused attention 32x512, 12 of 64", DTYPE_BF16, 2, 32, 512, 768, 12, FUSION_OFF},
    {"linear+gelu 16384x512->2048", DTYPE_F32, 1, 32, 512, 512, 2048, FUSION_ON},
    {"bert-large 24x384", DTYPE_BF16, 3, 24, 384, 1024, 8, FUSION_ON},
    {"bert-large unfused 24x384", DTYPE_BF16, 3, 24, 384, 1024, 8, FUSION_OFF},
    {"bert-base 1x128", DTYPE_BF16, 3, 1, 128, 768, 12, FUSION_ON},
    {"bert-base 32x128", DTYPE_BF16, 3, 32, 128, 768, 12, FUSION_ON},
    {"bert-base 32x512", DTYPE_BF16, 3, 32, 512, 768, 12, FUSION_ON},
    {"bert-base 128x128", DTYPE_BF16, 3, 128, 128, 768, 12, FUSION_ON},
    {"bert-base unfused 1x128", DTYPE_BF16, 3, 1, 128, 768, 12, FUSION_OFF},
    {"bert-base unfused 32x128", DTYPE_BF16, 3, 32, 128, 768, 12, FUSION_OFF},
    {"bert-base unfused 32x512", DTYPE_BF16, 3, 32, 512, 768, 12, FUSION_OFF},
};

static struct cost byte_cost(const struct byte_case *c) {
  int64_t rows = c->seqs * c->length;
  if (c->kind == 3) return stack(c->dtype, c->n, c->k, c->k / 64, c->mode, c->seqs, c->length);
  if (c->kind == 2)
    return attention(c->dtype, c->seqs, c->length, c->n, c->k / c->n, false, c->mode);
  return product(c->dtype, rows, c->k, c->n, c->kind == 1 ? BEHIND_GELU : BEHIND_NONE, c->mode);
}

static void take_bytes(const char *line) {
  for (size_t i = 0; i < sizeof byte_cases / sizeof *byte_cases; i++) {
    const struct byte_case *c = &byte_cases[i];
    char what[80];
    if (!says(line, "line", c->name) || !says(line, "dtype", dtype_name(c->dtype))) continue;
    struct cost cost = byte_cost(c);
    const char *write = strstr(line, "\"write\"");
    assert_non_null(write);
    snprintf(what, sizeof what, "%s read", c->name);
    compare(what, cost.read.expected / 1e6, need(line, "counted") / 1e6);
    snprintf(what, sizeof what, "%s written", c->name);
    if (need(write, "counted") > 5e6)
      compare(what, cost.write.expected / 1e6, need(write, "counted") / 1e6);
  }
}

static void bytes_by_the_cards_counters(void **state) {
  (void)state;
  begin("bytes through memory: MB");
  gpu_rates(); // recorded with the products of today
  n_compared = 0;
  each_line("gpu-audit-2026-11-30-4.jsonl", take_bytes);
  end(1.25, 50);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(experiments_on_the_gpu),
      cmocka_unit_test(experiments_on_the_cpu),
      cmocka_unit_test(encoder_stacks),
      cmocka_unit_test(steps_of_stacks),
      cmocka_unit_test(single_kernels),
      cmocka_unit_test(products_both_ways),
      cmocka_unit_test(tiles_of_products_in_fp32),
      cmocka_unit_test(served_models),
      cmocka_unit_test(bytes_by_the_cards_counters),
  };
  const char *path = getenv("FUSEWIRE_PREDICTIONS");
  if (path && !(predictions = fopen(path, "w"))) return 1;
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  if (predictions) fclose(predictions);
  return failed;
}
