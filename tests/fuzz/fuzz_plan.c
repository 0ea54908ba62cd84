// Any bytes as a graph: what the graph accepts must plan, and plans must hold together.
// links: fw_graph fw_base cmocka
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

static void add_leaves(struct graph *graph, struct bytes *bytes) {
  static const int32_t sizes[] = {1, 8, 8, 12, 64, 1 << 24};
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
  struct node node = {.op = (enum op)(take(bytes) % (OP_COUNT + 1)),
                      .n_in = take(bytes) % (NODE_MAX_INPUTS + 2)};
  for (int i = 0; i < NODE_MAX_INPUTS; i++)
    node.in[i] = take(bytes) % (graph->n_tensors + 1);
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

static void plan(const struct graph *graph, struct bytes *bytes) {
  uint8_t how = take(bytes);
  struct plan_caps caps = {.row_chains = how & 1,
                           .tile_rows = 1 + how % 7,
                           .tile_bytes = how & 2 ? 1 << 20 : 512,
                           .epilogue_kinds = 1u << EPI_BIAS | (how >> 3),
                           .epilogue_max = 1 + how % 4};
  caps.product_finish = caps.attention_finish = caps.pool_before = how % 3 == 0;
  if (how & 128) caps.rates = odd_rates((uint32_t)take(bytes) << 2 | how >> 4);
  for (int d = 0; d < DTYPE_COUNT; d++)
    caps.dtype_ok[d] = true;
  struct plan_limits limits = {.max_tokens = how & 4 ? 20 : INT32_MAX,
                               .max_seqs = 1 + how % 5,
                               .max_seqlen = how & 4 ? 8 : INT32_MAX};
  static char text[1 << 17];
  for (int mode = 0; mode < FUSION_MODES; mode++) {
    struct plan *made;
    struct error err = {0};
    if (plan_build(graph, (enum fusion_mode)mode, &caps, &limits, &made, &err) != STATUS_OK) {
      FW_FUZZ_REQUIRE(err.code != STATUS_INTERNAL && err.message[0] && !made);
      continue;
    }
    check_plan(graph, made, &caps, "fuzz");
    (void)plan_dump(made, graph, text, sizeof text);
    plan_free(made);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct bytes bytes = {data, size};
  struct graph graph;
  if (graph_init(&graph) != STATUS_OK) return 0;
  add_leaves(&graph, &bytes);
  while (bytes.left > 4 && graph.n_nodes < MAX_NODES)
    add_node(&graph, &bytes);
  graph.n_outputs = take(&bytes) % 4;
  for (int i = 0; i < graph.n_outputs; i++)
    graph.outputs[i] =
        graph.n_tensors - 1 - take(&bytes) % (graph.n_tensors < 6 ? graph.n_tensors : 6);
  plan(&graph, &bytes);
  graph_deinit(&graph);
  return 0;
}
