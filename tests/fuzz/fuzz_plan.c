// Any bytes as a graph: what the graph accepts must plan, and plans must hold together.
// links: fw_graph fw_base cmocka
// max_len: 64
#include "unit/graph/plan_check.h"
#include "unit/graph/random_graph.h"

#include <stdio.h>

#define MAX_NODES 48
#define FW_FUZZ_REQUIRE(cond) ((cond) ? (void)0 : abort())

struct bytes {
  const uint8_t *at;
  size_t left;
};

static uint8_t take(struct bytes *bytes) {
  if (bytes->left == 0) return 0;
  bytes->left--;
  return *bytes->at++;
}

static void add_tensor(struct graph *graph, enum tensor_kind kind, enum dtype dtype,
                       enum row_kind rows, int32_t n_rows, int32_t cols, int32_t index) {
  struct tensor tensor = {
      .kind = kind, .dtype = dtype, .rows = rows, .n_rows = n_rows, .cols = cols, .index = index};
  snprintf(tensor.name, sizeof tensor.name, "t%d", graph->n_tensors);
  FW_FUZZ_REQUIRE(graph_add_tensor(graph, &tensor) >= 0);
}

static void add_leaves(struct graph *graph, struct bytes *bytes, bool huge) {
  const int32_t sizes[] = {1, 8, 8, 12, 64, huge ? 1 << 24 : 96};
  for (int32_t i = 0; i < 4; i++) {
    uint8_t how = take(bytes);
    add_tensor(graph, TENSOR_INPUT, how & 64 ? DTYPE_BF16 : DTYPE_F32,
               how & 128 ? ROWS_SEQS : ROWS_TOKENS, 0, sizes[how % 6], i);
  }
  add_tensor(graph, TENSOR_INPUT, DTYPE_I64, ROWS_TOKENS, 0, 1, 4);
  add_tensor(graph, TENSOR_POSITIONS, DTYPE_I32, ROWS_TOKENS, 0, 1, -1);
  for (int32_t i = 0; i < 8; i++) {
    uint8_t how = take(bytes);
    add_tensor(graph, TENSOR_WEIGHT, how & 128 ? DTYPE_BF16 : DTYPE_F32, ROWS_FIXED, sizes[how % 6],
               sizes[how / 6 % 6], i);
  }
}

static void add_node(struct graph *graph, struct bytes *bytes) {
  struct node node = {.op = (enum op)(take(bytes) % (OP_COUNT + 1))};
  const struct op_def *def = op_def_get(node.op);
  uint8_t n_in = take(bytes);
  // Mostly as many inputs as the op has, and half of them made a moment ago: long chains of few
  // bytes.
  node.n_in = def && n_in % 8 ? (uint8_t)(def->min_in + n_in / 8 % (def->max_in - def->min_in + 1))
                              : (uint8_t)(n_in / 8 % (NODE_MAX_INPUTS + 2));
  for (int i = 0; i < NODE_MAX_INPUTS && i < node.n_in; i++) {
    uint8_t which = take(bytes);
    node.in[i] =
        which & 1 ? graph->n_tensors - 1 - which / 2 % 4 : which / 2 % (graph->n_tensors + 1);
  }
  uint8_t how = take(bytes);
  node.attrs = (struct node_attrs){.eps = (float)(how % 5) - 1,
                                   .factor = how % 3,
                                   .approximate_tanh = how & 1,
                                   .causal = how & 2,
                                   .heads = how % 9,
                                   .kv_heads = how / 9 % 5,
                                   .reduce = (enum reduce_kind)(how % 4),
                                   .pool = (enum pool_kind)(how % 4),
                                   .to = (enum dtype)(how % DTYPE_COUNT)};
  char name[16];
  snprintf(name, sizeof name, "n%d", graph->n_nodes);
  int32_t nodes = graph->n_nodes, tensors = graph->n_tensors;
  struct error err = {0};
  enum status status = graph_add_node(
      graph, &node, name, (enum dtype)(how % 3 ? 0 : how / 16 % DTYPE_COUNT), NULL, &err);
  FW_FUZZ_REQUIRE(status == STATUS_OK ||
                  (err.message[0] && graph->n_nodes == nodes && graph->n_tensors == tensors));
}

// What is asked of the planner; comes first, so that it is there however short the input is.
struct wish {
  uint8_t how, rates, which, n_outputs, outputs[3];
  bool huge; // sizes up to what the types hold
};

static struct wish take_wish(struct bytes *bytes) {
  struct wish wish = {.how = take(bytes), .rates = take(bytes), .which = take(bytes)};
  wish.n_outputs = take(bytes) % 4;
  for (int i = 0; i < 3; i++)
    wish.outputs[i] = take(bytes);
  // A huge plan is walked in thousands of chunks, as long as fifty others take. By all bytes, so
  // that it is one in 64 however the fuzzer likes them.
  uint32_t hash = 2166136261u;
  for (size_t i = 0; i < bytes->left; i++)
    hash = (hash ^ bytes->at[i]) * 16777619u;
  wish.huge = (hash >> 16) % 64 == 1;
  return wish;
}

static void plan(const struct graph *graph, const struct wish *wish) {
  uint8_t how = wish->how, which = wish->which;
  struct plan_caps caps = {.row_chains = how & 1,
                           .tile_rows = 1 + how % 7,
                           .tile_bytes = how & 2 ? 1 << 20 : 512,
                           .epilogue_kinds = 1u << EPI_BIAS | (how >> 3),
                           .epilogue_max = 1 + how % 4};
  caps.product_finish = caps.attention_finish = caps.pool_before = how % 3 == 0;
  if (how % 5 == 0) {
    caps.product_norm[0] = (struct norm_columns){1 + how % 2, INT32_MAX};
    caps.product_norm_dtypes = ~0u;
  }
  if (how & 128) caps.rates = odd_rates((uint32_t)wish->rates << 2 | how >> 4);
  for (int d = 0; d < DTYPE_COUNT; d++)
    caps.dtype_ok[d] = true;
  // One mode a run. The words of a plan are many: these are for some runs only.
  struct plan_limits limits = {.max_tokens = wish->huge ? INT32_MAX : 1 + which,
                               .max_seqs = 1 + how % 5,
                               .max_seqlen = how & 4 ? 8 : INT32_MAX};
  static char text[1 << 17];
  struct plan *made;
  struct error err = {0};
  enum fusion_mode mode = (enum fusion_mode)(which / 16 % FUSION_MODES);
  if (plan_build(graph, mode, &caps, &limits, &made, &err) != STATUS_OK) {
    FW_FUZZ_REQUIRE(err.code != STATUS_INTERNAL && err.message[0] && !made);
    return;
  }
  check_plan(graph, made, &caps, "fuzz");
  if (which % 8 == 1) (void)plan_dump(made, graph, text, sizeof text);
  plan_free(made);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct bytes bytes = {data, size};
  struct graph graph;
  if (graph_init(&graph) != STATUS_OK) return 0;
  struct wish wish = take_wish(&bytes);
  add_leaves(&graph, &bytes, wish.huge);
  while (bytes.left > 0 && graph.n_nodes < MAX_NODES)
    add_node(&graph, &bytes);
  graph.n_outputs = wish.n_outputs;
  for (int i = 0; i < graph.n_outputs; i++)
    graph.outputs[i] =
        graph.n_tensors - 1 - wish.outputs[i] % (graph.n_tensors < 6 ? graph.n_tensors : 6);
  plan(&graph, &wish);
  graph_deinit(&graph);
  return 0;
}
