// What the tests share that hold the cost model to bench/results (test_recorded.c,
// test_recorded_kernels.c): lines of recordings, predictions of graphs, and how far they are off.
#ifndef GRAPH_RECORDED_H
#define GRAPH_RECORDED_H

#include "blocks.h"
#include "graph/cost.h"
#include "graph/expected.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define LINE_BYTES 4096
#define RESULTS "bench/results/"
#define TUNED "gpu-tune-2026-11-30.rates"

// ---- lines of JSON ----
static inline bool number(const char *line, const char *key, double *out) {
  char quoted[64];
  snprintf(quoted, sizeof quoted, "\"%s\": ", key);
  const char *at = strstr(line, quoted);
  return at && sscanf(at + strlen(quoted), "%lf", out) == 1;
}

static inline double need(const char *line, const char *key) {
  double value = 0;
  if (!number(line, key, &value)) fail_msg("no \"%s\" in %s", key, line);
  return value;
}

static inline bool says(const char *line, const char *key, const char *value) {
  char text[128];
  snprintf(text, sizeof text, "\"%s\": \"%s\"", key, value);
  return strstr(line, text) != NULL;
}

static inline void every_line(const char *name, void (*take)(const char *line)) {
  char path[256], line[LINE_BYTES];
  snprintf(path, sizeof path, RESULTS "%s", name);
  FILE *file = fopen(path, "r");
  if (!file) fail_msg("%s is not there", path);
  while (fgets(line, sizeof line, file))
    take(line);
  fclose(file);
}

static void (*take_object)(const char *line);
static inline void take_if_object(const char *line) {
  if (line[0] == '{') take_object(line);
}
static inline void each_line(const char *name, void (*take)(const char *line)) {
  take_object = take;
  every_line(name, take_if_object);
}

// ---- predictions ----
static struct device_rates rates;
static bool on_gpu;
static enum { BY_DEFAULTS, BY_TUNE, SOURCES } source; // whose constants a GPU's rates are

static inline struct plan *plan_of(const struct graph *graph, enum fusion_mode mode,
                                   const struct batch_size *batch) {
  struct plan_caps caps = {.row_chains = !on_gpu,
                           .tile_rows = 32,
                           .tile_bytes = 384 << 10,
                           .epilogue_max = EPILOGUE_MAX,
                           .epilogue_kinds = 0x1f,
                           .product_finish = on_gpu,
                           .finish_lists = on_gpu,
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

static inline struct cost predict(struct graph *graph, int32_t output, enum fusion_mode mode,
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

static inline void compare(const char *what, double predicted, double measured) {
  double ratio = predicted / measured, far = ratio > 1 ? ratio : 1 / ratio;
  printf("  %-70s measured %9.1f predicted %9.1f  %5.2f\n", what, measured, predicted, ratio);
  if (far > farthest) farthest = far;
  n_compared++, n_far += far > FAR;
}

// A line of what `fusewired tune` keeps: a constant's name and its value.
static inline void take_constant(const char *line) {
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

static inline void gpu_rates(void) {
  rates = device_rates_gpu(), on_gpu = true;
  n_compared = 0;
  if (source == BY_TUNE) every_line(TUNED, take_constant);
  assert_int_equal(n_compared, source == BY_TUNE ? 18 : 0);
}

static inline void begin(const char *what) {
  gpu_rates();
  farthest = 1, n_compared = n_far = 0;
  rates.product[DTYPE_F32] = 34e12; // on the CUDA cores, all rows for two columns of tiles
  rates.walks[CLASS_PLAIN] = (struct product_walk){.cols = 256};
  printf("%s%s\n", what, source == BY_TUNE ? ", with the constants of " TUNED : "");
}

static inline void end(double most, int least_compared) {
  printf("  farthest off: %.2f times, of %d\n", farthest, n_compared);
  assert_true(n_compared >= least_compared);
  if (farthest > most) fail_msg("%.2f times off, at most %.2f is allowed", farthest, most);
}

// ---- graphs ----
static const struct node_attrs factor = {.factor = 1.001f, .eps = 1e-5f};

static inline int32_t stack_of(struct graph_maker *m, struct graph *graph, enum dtype dtype,
                               int32_t layers, int32_t cols, int32_t heads) {
  maker_init(m, graph, NULL, dtype);
  int32_t x = maker_input(m, ROWS_TOKENS, cols);
  for (int32_t i = 0; i < layers; i++)
    x = block_encoder_post(m, x, heads, 4 * cols);
  return x;
}

static inline struct cost stack(enum dtype dtype, int32_t layers, int32_t cols, int32_t heads,
                                enum fusion_mode mode, int64_t seqs, int64_t length) {
  struct graph graph;
  struct graph_maker m;
  int32_t x = stack_of(&m, &graph, dtype, layers, cols, heads);
  return predict(&graph, x, mode, seqs * length, length);
}

enum behind { BEHIND_NONE, BEHIND_GELU, BEHIND_RESIDUAL, BEHIND_GELU_AND_RELU };
static inline struct cost product(enum dtype dtype, int64_t rows, int32_t k, int32_t n,
                                  enum behind behind, enum fusion_mode mode) {
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, dtype);
  int32_t y = maker_linear(&m, maker_input(&m, ROWS_TOKENS, k), n, true);
  if (behind == BEHIND_GELU || behind == BEHIND_GELU_AND_RELU) y = maker_unary(&m, OP_GELU, y);
  if (behind == BEHIND_GELU_AND_RELU) {
    output_add(&graph, y);
    y = maker_unary(&m, OP_RELU, y);
  }
  if (behind == BEHIND_RESIDUAL) y = maker_binary(&m, OP_ADD, y, maker_input(&m, ROWS_TOKENS, n));
  return predict(&graph, y, mode, rows, rows);
}

static inline struct cost attention(enum dtype dtype, int64_t seqs, int64_t length, int heads,
                                    int dim, bool causal, enum fusion_mode mode) {
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, dtype);
  int32_t q = maker_input(&m, ROWS_TOKENS, heads * dim),
          k = maker_input(&m, ROWS_TOKENS, heads * dim),
          v = maker_input(&m, ROWS_TOKENS, heads * dim);
  return predict(&graph, maker_attention(&m, q, k, v, heads, 0, causal), mode, seqs * length,
                 length);
}

static inline struct cost chain(int k) {
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

static inline double layer_norm_part(int32_t cols, int part) {
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

static inline double gelu_sum(int32_t cols, enum fusion_mode mode) {
  static const struct node_attrs sum = {.reduce = REDUCE_SUM};
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_F32);
  int32_t y = maker_unary(&m, OP_GELU, maker_input(&m, ROWS_TOKENS, cols));
  y = maker_node(&m, OP_REDUCE, &y, 1, sum);
  return predict(&graph, y, mode, (1 << 25) / cols, (1 << 25) / cols).us;
}

#endif
