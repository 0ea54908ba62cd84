// The cost model against what was measured: every measurement of bench/results that it predicts,
// with the constants of the machine that measured: a GPU's both with the defaults and with those
// that `fusewired tune` found on such a card. Prints what it compares (`ctest -V`), and holds the
// model to bands that docs/PLANNER.md states. Needs no GPU: plans and predictions are arithmetic.
// Here the experiments of bench/fusion.h and whole stacks; test_recorded_kernels.c has the rest.
#include "recorded.h"

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
int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(experiments_on_the_gpu),
      cmocka_unit_test(experiments_on_the_cpu),
      cmocka_unit_test(encoder_stacks),
      cmocka_unit_test(steps_of_stacks),
  };
  const char *path = getenv("FUSEWIRE_PREDICTIONS");
  if (path && !(predictions = fopen(path, "w"))) return 1;
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  if (predictions) fclose(predictions);
  return failed;
}
