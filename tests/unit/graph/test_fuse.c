// What fuses and what does not, case by case, with the reason that explain will print.
#include "blocks.h"
#include "graph/plan.h"
#include "plan_check.h"

struct bench { // one graph and its plan
  struct graph graph;
  struct graph_maker m;
  struct plan_caps caps;
  struct plan *plan;
};

static void bench_begin(struct bench *b) {
  memset(b, 0, sizeof *b);
  maker_init(&b->m, &b->graph, NULL, DTYPE_F32);
  b->caps = (struct plan_caps){
      .tile_rows = 8, .tile_bytes = 1 << 20, .epilogue_max = 4, .epilogue_kinds = 0x1f};
  for (int d = 0; d < DTYPE_COUNT; d++)
    b->caps.dtype_ok[d] = true;
}

static void bench_plan(struct bench *b) {
  struct plan_limits limits = {64, 8, 32};
  struct error err = {0};
  if (plan_build(&b->graph, FUSION_ON, &b->caps, &limits, &b->plan, &err) != STATUS_OK)
    fail_msg("%s", err.message);
  check_plan(&b->graph, b->plan, &b->caps, "case");
}

static void bench_end(struct bench *b) {
  plan_free(b->plan);
  graph_deinit(&b->graph);
}

static void expect_steps(const struct bench *b, int n, const char *const *labels) {
  if (b->plan->n_steps != n) {
    static char text[1 << 16];
    plan_dump(b->plan, &b->graph, text, sizeof text);
    fail_msg("%d steps, expected %d\n%s", b->plan->n_steps, n, text);
  }
  for (int i = 0; i < n; i++)
    assert_string_equal(b->plan->steps[i].label, labels[i]);
}
#define EXPECT_STEPS(b, ...)                                                                       \
  expect_steps(b, (int)(sizeof(const char *[]){__VA_ARGS__} / sizeof(const char *)),               \
               (const char *[]){__VA_ARGS__})

// The decision about the edge between the nodes that make `from` and `to`.
static const struct decision *edge(const struct bench *b, int32_t from, int32_t to) {
  for (int32_t i = 0; i < b->plan->n_decisions; i++) {
    const struct decision *d = &b->plan->decisions[i];
    if (b->graph.nodes[d->producer].out == from && b->graph.nodes[d->consumer].out == to) return d;
  }
  fail_msg("no decision about %d -> %d", from, to);
  return NULL;
}

static void expect_apart(const struct bench *b, int32_t from, int32_t to,
                         const char *part_of_reason) {
  const struct decision *d = edge(b, from, to);
  if (d->fused || !strstr(d->reason, part_of_reason))
    fail_msg("fused %d: \"%s\", expected \"%s\"", d->fused, d->reason, part_of_reason);
}

// ---- products ----
static void product_takes_bias_scale_gelu_residual_and_cast(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 16), r = maker_input(&b.m, ROWS_TOKENS, 8);
  int32_t y = maker_linear(&b.m, x, 8, false);
  y = maker_node(&b.m, OP_BIAS, (int32_t[]){y, maker_weight(&b.m, 1, 8)}, 2,
                 (struct node_attrs){0});
  y = maker_unary(&b.m, OP_GELU, maker_unary(&b.m, OP_SCALE, y));
  y = maker_binary(&b.m, OP_ADD, r, y); // the product may be either operand
  output_add(&b.graph, maker_node(&b.m, OP_CAST, &y, 1, (struct node_attrs){.to = DTYPE_BF16}));
  bench_plan(&b);
  EXPECT_STEPS(&b, "linear+bias+scale+gelu+add+cast");
  const struct linear_problem *linear = &b.plan->steps[0].linear;
  assert_int_equal(linear->n_epilogue, 4);
  assert_int_equal(linear->y_dtype, DTYPE_BF16);
  static const uint8_t kinds[] = {EPI_BIAS, EPI_SCALE, EPI_ACT, EPI_ADD};
  for (int i = 0; i < 4; i++)
    assert_int_equal(linear->epilogue[i].kind, kinds[i]);
  assert_int_equal(b.plan->steps[0].in[linear->epilogue[3].operand].tensor, r);
  bench_end(&b);
}

static void nothing_follows_a_rounding_in_the_epilogue(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  int32_t y = maker_linear(&b.m, maker_input(&b.m, ROWS_TOKENS, 16), 8, true);
  int32_t rounded = maker_node(&b.m, OP_CAST, &y, 1, (struct node_attrs){.to = DTYPE_BF16});
  int32_t z = maker_unary(&b.m, OP_GELU, rounded);
  output_add(&b.graph, z);
  bench_plan(&b);
  EXPECT_STEPS(&b, "linear+bias+cast", "gelu");
  expect_apart(&b, rounded, z, "narrower dtype");
  bench_end(&b);
}

static void epilogue_stops_at_what_the_device_can_do(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  b.caps.epilogue_kinds = 1u << EPI_BIAS | 1u << EPI_ACT;
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 8),
          h = maker_unary(&b.m, OP_RELU, maker_linear(&b.m, x, 8, true));
  int32_t y = maker_binary(&b.m, OP_ADD, h, x);
  output_add(&b.graph, y);
  bench_plan(&b);
  EXPECT_STEPS(&b, "linear+bias+relu", "add");
  expect_apart(&b, h, y, "cannot do it");
  bench_end(&b);
}

static void epilogue_stops_when_it_is_full(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  b.caps.epilogue_max = 2;
  int32_t h =
      maker_unary(&b.m, OP_RELU, maker_linear(&b.m, maker_input(&b.m, ROWS_TOKENS, 8), 8, true));
  int32_t y = maker_unary(&b.m, OP_TANH, h);
  output_add(&b.graph, y);
  bench_plan(&b);
  EXPECT_STEPS(&b, "linear+bias+relu", "tanh");
  expect_apart(&b, h, y, "full");
  bench_end(&b);
}

static void product_with_two_readers_is_written_before_them(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  int32_t y = maker_linear(&b.m, maker_input(&b.m, ROWS_TOKENS, 16), 8, true);
  int32_t p = maker_unary(&b.m, OP_GELU, y), q = maker_unary(&b.m, OP_TANH, y);
  output_add(&b.graph, maker_binary(&b.m, OP_MUL, p, q));
  bench_plan(&b);
  EXPECT_STEPS(&b, "linear+bias", "gelu+tanh+mul");
  expect_apart(&b, y, p, "other readers");
  bench_end(&b);
}

static void product_that_is_an_output_is_written_before_its_activation(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  int32_t y = maker_linear(&b.m, maker_input(&b.m, ROWS_TOKENS, 16), 8, true),
          z = maker_unary(&b.m, OP_GELU, y);
  output_add(&b.graph, y);
  output_add(&b.graph, z);
  bench_plan(&b);
  EXPECT_STEPS(&b, "linear+bias", "gelu");
  expect_apart(&b, y, z, "output of the model");
  assert_int_equal(b.plan->steps[0].needed_by, 3);
  assert_int_equal(b.plan->steps[1].needed_by, 2);
  bench_end(&b);
}

static void product_squared_is_not_its_own_residual(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  int32_t y = maker_linear(&b.m, maker_input(&b.m, ROWS_TOKENS, 16), 8, false),
          z = maker_binary(&b.m, OP_MUL, y, y);
  output_add(&b.graph, z);
  bench_plan(&b);
  EXPECT_STEPS(&b, "linear", "mul");
  bench_end(&b);
}

// The residual is made after the product in the graph: the product waits for it.
static void residual_made_later_still_fuses(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 8), y = maker_linear(&b.m, x, 8, true);
  int32_t r = maker_layer_norm(&b.m, x), z = maker_binary(&b.m, OP_ADD, y, r);
  output_add(&b.graph, z);
  bench_plan(&b);
  EXPECT_STEPS(&b, "layer_norm", "linear+bias+add");
  assert_true(edge(&b, y, z)->fused);
  bench_end(&b);
}

// Two products meet in an addition: one takes it, the other is its residual.
static void sum_of_two_products_is_one_epilogue(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 8);
  int32_t left = maker_linear(&b.m, x, 8, true), right = maker_linear(&b.m, x, 8, true);
  int32_t sum = maker_binary(&b.m, OP_ADD, left, right);
  output_add(&b.graph, sum);
  bench_plan(&b);
  EXPECT_STEPS(&b, "linear+bias", "linear+bias+add");
  assert_true(edge(&b, left, sum)->fused);
  expect_apart(&b, right, sum, "another product");
  bench_end(&b);
}

static void broadcast_operands_do_not_enter_an_epilogue_but_weights_as_bias_do(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 16), per_row = maker_input(&b.m, ROWS_TOKENS, 1);
  int32_t y = maker_binary(&b.m, OP_ADD, maker_linear(&b.m, x, 8, false), maker_weight(&b.m, 1, 8));
  int32_t z = maker_binary(&b.m, OP_MUL, y, per_row);
  output_add(&b.graph, maker_binary(&b.m, OP_MUL, z, maker_weight(&b.m, 1, 1)));
  bench_plan(&b);
  EXPECT_STEPS(&b, "linear+add", "mul*2");
  assert_int_equal(b.plan->steps[0].linear.epilogue[0].kind, EPI_BIAS);
  expect_apart(&b, y, z, "broadcast");
  assert_int_equal(b.plan->steps[1].row.inputs[1].cls, IN_PER_ROW);
  assert_int_equal(b.plan->steps[1].row.inputs[2].cls, IN_SCALAR);
  bench_end(&b);
}

// ---- products side by side ----
static void attention_inputs_of_one_tensor_become_one_product(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 12);
  int32_t q = maker_linear(&b.m, x, 16, true), k = maker_linear(&b.m, x, 8, true),
          v = maker_linear(&b.m, x, 8, true);
  output_add(&b.graph, maker_attention(&b.m, q, k, v, 4, 2, true));
  bench_plan(&b);
  EXPECT_STEPS(&b, "linear*3+bias", "attention");
  const struct step *product = &b.plan->steps[0], *attention = &b.plan->steps[1];
  assert_int_equal(product->linear.n, 32);
  assert_int_equal(product->in[1].n_parts, 3);
  assert_int_equal(product->in[2].cols, 32);
  static const int64_t columns[] = {0, 16, 24}, widths[] = {16, 8, 8};
  for (int i = 0; i < 3; i++) {
    assert_int_equal(attention->in[i].stride, 32);
    assert_int_equal(attention->in[i].offset_bytes, product->out[0].offset_bytes + 4 * columns[i]);
    assert_int_equal(attention->in[i].cols, widths[i]);
  }
  assert_int_equal(attention->attention.kv_heads, 2);
  assert_true(attention->attention.causal);
  bench_end(&b);
}

static void bias_nodes_go_side_by_side_like_biases(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 12), parts[3];
  for (int i = 0; i < 3; i++) {
    int32_t bias = maker_weight(&b.m, 1, 8);
    parts[i] = maker_linear(&b.m, x, 8, false);
    parts[i] = maker_node(&b.m, OP_BIAS, (int32_t[]){parts[i], bias}, 2, (struct node_attrs){0});
  }
  output_add(&b.graph, maker_attention(&b.m, parts[0], parts[1], parts[2], 2, 2, false));
  bench_plan(&b);
  assert_int_equal(b.plan->n_steps, 2);
  assert_int_equal(b.plan->steps[0].n_nodes, 6);
  assert_int_equal(b.plan->steps[0].linear.n_epilogue, 1);
  assert_int_equal(b.plan->steps[0].in[2].n_parts, 3);
  assert_int_equal(b.plan->steps[0].in[2].cols, 24);
  bench_end(&b);
}

static void only_alike_products_are_put_side_by_side(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 12), other = maker_input(&b.m, ROWS_TOKENS, 12);
  int32_t q = maker_linear(&b.m, other, 8, true), k = maker_linear(&b.m, x, 8, true),
          v = maker_linear(&b.m, x, 8, true);
  int32_t a = maker_attention(&b.m, q, k, v, 2, 2, false);
  q = maker_unary(&b.m, OP_SCALE, maker_linear(&b.m, a, 8, true));         // an epilogue of its own
  k = maker_linear(&b.m, a, 8, false), v = maker_linear(&b.m, a, 8, true); // one without bias
  output_add(&b.graph, maker_attention(&b.m, q, k, v, 2, 2, false));
  bench_plan(&b);
  EXPECT_STEPS(&b, "linear+bias", "linear*2+bias", "attention", "linear+bias+scale", "linear",
               "linear+bias", "attention");
  bench_end(&b);
}

static void key_that_is_also_an_output_keeps_its_own_product(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 12);
  int32_t q = maker_linear(&b.m, x, 8, true), k = maker_linear(&b.m, x, 8, true),
          v = maker_linear(&b.m, x, 8, true);
  output_add(&b.graph, maker_attention(&b.m, q, k, v, 2, 2, false));
  output_add(&b.graph, k);
  bench_plan(&b);
  EXPECT_STEPS(&b, "linear+bias", "linear*2+bias", "attention");
  bench_end(&b);
}

// ---- row programs ----
static void tree_of_element_wise_ops_and_norms_is_one_program(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 8), y = maker_input(&b.m, ROWS_TOKENS, 8);
  int32_t left = maker_unary(&b.m, OP_GELU, x), right = maker_unary(&b.m, OP_SILU, y);
  int32_t norm = maker_layer_norm(&b.m, maker_binary(&b.m, OP_MUL, left, right));
  int32_t mean = maker_node(&b.m, OP_REDUCE, &norm, 1, (struct node_attrs){.reduce = REDUCE_MEAN});
  int32_t gate = maker_unary(&b.m, OP_SIGMOID, mean); // a row scalar
  output_add(&b.graph, maker_unary(&b.m, OP_SOFTMAX, maker_binary(&b.m, OP_MUL, norm, gate)));
  bench_plan(&b);
  EXPECT_STEPS(&b, "gelu+silu+mul+layer_norm+reduce+sigmoid+mul+softmax");
  assert_int_equal(b.plan->steps[0].n_out, 1);
  bench_end(&b);
}

static void intermediate_with_other_readers_is_written_as_well(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 8), h = maker_unary(&b.m, OP_GELU, x);
  output_add(&b.graph, maker_unary(&b.m, OP_TANH, h));
  output_add(&b.graph, h);
  output_add(&b.graph, maker_linear(&b.m, h, 4, false));
  bench_plan(&b);
  EXPECT_STEPS(&b, "gelu+tanh", "linear");
  assert_int_equal(b.plan->steps[0].n_out, 2);
  assert_int_equal(b.plan->steps[0].needed_by, 7);
  bench_end(&b);
}

// Two branches of one input meet in a product each: together they read it once. Of different
// outputs they stay apart, since a request may want one of them only.
static void branches_that_read_one_tensor_share_a_program(void **state) {
  (void)state;
  for (int meet = 0; meet < 2; meet++) {
    struct bench b;
    bench_begin(&b);
    int32_t x = maker_input(&b.m, ROWS_TOKENS, 8);
    int32_t left = maker_linear(&b.m, maker_unary(&b.m, OP_GELU, x), 4, false);
    int32_t right = maker_linear(&b.m, maker_layer_norm(&b.m, x), 4, false);
    if (meet) {
      output_add(&b.graph, maker_binary(&b.m, OP_ADD, left, right));
      bench_plan(&b);
      EXPECT_STEPS(&b, "gelu+layer_norm", "linear", "linear+add");
      assert_int_equal(b.plan->steps[0].n_out, 2);
      assert_int_equal(b.plan->steps[0].row.n_inputs, 3); // x once, gamma, beta
    } else {
      output_add(&b.graph, left);
      output_add(&b.graph, right);
      bench_plan(&b);
      assert_int_equal(b.plan->n_steps, 4);
    }
    bench_end(&b);
  }
}

static void reductions_of_unlike_width_do_not_share_a_program(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 8);
  int32_t sum = maker_node(&b.m, OP_REDUCE, &x, 1, (struct node_attrs){.reduce = REDUCE_SUM});
  int32_t norm = maker_layer_norm(&b.m, sum); // over one column
  output_add(&b.graph, norm);
  bench_plan(&b);
  EXPECT_STEPS(&b, "reduce", "layer_norm");
  expect_apart(&b, sum, norm, "columns");
  bench_end(&b);
}

static void embedding_sum_and_norm_is_one_gather_program(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  block_sentence_encoder(&b.m, 0, 16, 2, 32, 100);
  bench_plan(&b);
  EXPECT_STEPS(&b, "embedding*2+add+embedding+add+layer_norm", "pool+normalize");
  assert_int_equal(b.plan->steps[0].row.inputs[2].index_operand, ROW_NONE);
  expect_apart(&b, b.graph.outputs[0], b.graph.nodes[b.graph.n_nodes - 2].out, "pooling");
  bench_end(&b);
}

static void two_embeddings_by_one_index_read_it_once(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  int32_t ids = maker_tensor(&b.m, TENSOR_INPUT, DTYPE_I32, ROWS_TOKENS, 0, 1);
  output_add(&b.graph, maker_binary(&b.m, OP_ADD, maker_embedding(&b.m, ids, 9, 8),
                                    maker_embedding(&b.m, ids, 9, 8)));
  bench_plan(&b);
  EXPECT_STEPS(&b, "embedding*2+add");
  assert_int_equal(b.plan->steps[0].n_in, 3);
  assert_int_equal(b.plan->steps[0].row.inputs[0].index_operand, 2);
  assert_int_equal(b.plan->steps[0].row.inputs[1].index_operand, 2);
  bench_end(&b);
}

// Nine tables and nine indices are more operands than a program has.
static void index_operands_count_as_inputs(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  int32_t sum = -1;
  for (int i = 0; i < 9; i++) {
    int32_t ids = maker_tensor(&b.m, TENSOR_INPUT, DTYPE_I64, ROWS_TOKENS, 0, 1);
    int32_t row = maker_embedding(&b.m, ids, 9, 8);
    sum = sum < 0 ? row : maker_binary(&b.m, OP_ADD, sum, row);
  }
  output_add(&b.graph, sum);
  bench_plan(&b);
  assert_int_equal(b.plan->n_steps, 2);
  expect_apart(&b, b.graph.nodes[14].out, b.graph.nodes[16].out, "too many inputs");
  bench_end(&b);
}

// a -> product -> c, and a -> c: one kernel for a and c would need the product in between.
static void no_kernel_waits_for_itself(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 8), a = maker_unary(&b.m, OP_GELU, x);
  int32_t p = maker_linear(&b.m, a, 8, true);
  int32_t c =
      maker_layer_norm(&b.m, maker_binary(&b.m, OP_MUL, maker_unary(&b.m, OP_SOFTMAX, p), a));
  output_add(&b.graph, c);
  bench_plan(&b);
  EXPECT_STEPS(&b, "gelu", "linear+bias", "softmax+mul+layer_norm");
  expect_apart(&b, a, b.graph.nodes[3].out, "in between");
  bench_end(&b);
}

static void long_chain_is_split_where_the_program_is_full(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 8);
  for (int i = 0; i < 60; i++)
    x = maker_unary(&b.m, i % 2 ? OP_TANH : OP_SCALE, x);
  output_add(&b.graph, x);
  bench_plan(&b);
  assert_int_equal(b.plan->n_steps, 2);
  assert_int_equal(b.plan->steps[0].n_nodes, STEP_MAX_NODES);
  assert_int_equal(b.plan->steps[1].n_nodes, 60 - STEP_MAX_NODES);
  expect_apart(&b, b.graph.nodes[STEP_MAX_NODES - 1].out, b.graph.nodes[STEP_MAX_NODES].out,
               "too many nodes");
  bench_end(&b);
}

static void program_with_too_many_inputs_is_split(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 8);
  for (int i = 0; i < 20; i++)
    x = maker_binary(&b.m, OP_ADD, x, maker_weight(&b.m, 1, 8));
  output_add(&b.graph, x);
  bench_plan(&b);
  EXPECT_STEPS(&b, "add*15", "add*5");
  expect_apart(&b, b.graph.nodes[14].out, b.graph.nodes[15].out, "too many inputs");
  bench_end(&b);
}

static void program_with_too_many_outputs_is_split(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 8), sum = -1;
  for (int i = 0; i < 10; i++) { // every link is also read by a product
    x = maker_unary(&b.m, OP_TANH, x);
    int32_t y = maker_linear(&b.m, x, 8, false);
    sum = sum < 0 ? y : maker_binary(&b.m, OP_ADD, y, sum);
  }
  output_add(&b.graph, sum);
  bench_plan(&b);
  assert_string_equal(b.plan->steps[0].label, "tanh*8");
  assert_int_equal(b.plan->steps[0].n_out, ROW_MAX_OUTPUTS);
  expect_apart(&b, b.graph.nodes[b.plan->steps[0].nodes[7]].out,
               b.graph.nodes[b.plan->steps[0].nodes[7] + 3].out, "too many outputs");
  bench_end(&b);
}

// ---- views, dead nodes, chains ----
static void identities_vanish_and_outputs_may_be_inputs(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 8), same = maker_unary(&b.m, OP_IDENTITY, x);
  output_add(&b.graph, same);
  output_add(&b.graph, maker_unary(&b.m, OP_GELU, maker_unary(&b.m, OP_IDENTITY, same)));
  bench_plan(&b);
  EXPECT_STEPS(&b, "gelu");
  assert_int_equal(b.plan->output_is_input[0], 0);
  assert_int_equal(b.plan->output_is_input[1], -1);
  assert_int_equal(b.plan->outputs[0].offset_bytes, b.plan->inputs[0].offset_bytes);
  bench_end(&b);
}

static void nodes_that_lead_nowhere_are_not_run_and_their_inputs_not_kept(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 8), unused = maker_input(&b.m, ROWS_TOKENS, 8);
  maker_unary(&b.m, OP_GELU, unused);
  output_add(&b.graph, maker_unary(&b.m, OP_TANH, x));
  bench_plan(&b);
  EXPECT_STEPS(&b, "tanh");
  assert_int_equal(b.plan->inputs[1].place, PLACE_NONE);
  assert_int_equal(b.plan->n_inputs, 2);
  bench_end(&b);
}

static void row_chain_keeps_its_intermediates_in_tiles(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  b.caps.row_chains = true;
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 8), y = x;
  for (int i = 0; i < 3; i++)
    y = maker_layer_norm(&b.m, maker_binary(&b.m, OP_ADD, block_mlp(&b.m, y, 32), y));
  output_add(&b.graph, y);
  bench_plan(&b);
  for (int i = 0; i < b.plan->n_steps; i++) {
    assert_int_equal(b.plan->steps[i].chain, 0);
    assert_int_equal(b.plan->steps[i].out[0].place,
                     i + 1 < b.plan->n_steps ? PLACE_TILE : PLACE_ARENA);
  }
  // 8 rows of x (32 bytes a row) and of the inner layer (128 bytes), the residual beside them, and
  // the result
  assert_int_equal(b.plan->tile_bytes, 8 * 32 * 2 + 8 * 128);
  assert_int_equal(b.plan->arena_bytes, 2 * 64 * 32);
  bench_end(&b);
}

static void chain_is_cut_where_the_tile_is_full(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  b.caps.row_chains = true;
  b.caps.tile_bytes = 8 * 64 * 4; // the inner layer of 128 columns does not fit
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 8);
  int32_t h = maker_layer_norm(&b.m, maker_linear(&b.m, x, 64, true));
  output_add(
      &b.graph,
      maker_linear(&b.m, maker_unary(&b.m, OP_GELU, maker_linear(&b.m, h, 128, true)), 8, true));
  bench_plan(&b);
  EXPECT_STEPS(&b, "linear+bias", "layer_norm", "linear+bias+gelu", "linear+bias");
  assert_int_equal(b.plan->steps[0].out[0].place, PLACE_TILE);
  assert_int_equal(b.plan->steps[1].out[0].place, PLACE_ARENA);
  assert_int_equal(b.plan->steps[2].out[0].place, PLACE_ARENA);
  bench_end(&b);
}

// ---- finishes ----
static void bench_with_finish(struct bench *b) {
  bench_begin(b);
  b->caps.product_finish = b->caps.attention_finish = true;
}

static void finish_takes_factors_of_columns_and_of_the_residual(void **state) {
  (void)state;
  for (int able = 0; able < 2; able++) {
    struct bench b;
    bench_begin(&b);
    b.caps.product_finish = able;
    int32_t x = maker_input(&b.m, ROWS_TOKENS, 16), r = maker_input(&b.m, ROWS_TOKENS, 8);
    int32_t y = maker_linear(&b.m, x, 8, true);
    int32_t s = maker_binary(&b.m, OP_MUL, y, maker_weight(&b.m, 1, 8)),
            t = maker_unary(&b.m, OP_SCALE, r), z = maker_binary(&b.m, OP_ADD, s, t);
    output_add(&b.graph, z);
    bench_plan(&b);
    if (able) {
      EXPECT_STEPS(&b, "linear+bias+mul+scale+add");
      const struct step *step = &b.plan->steps[0];
      assert_int_equal(step->linear.n_epilogue, 1);
      assert_int_equal(step->finish_in, 3);
      assert_int_equal(step->finish.n_inputs, 3); // the result, the factors, r
      assert_true(edge(&b, t, z)->fused && edge(&b, y, s)->fused);
    } else {
      EXPECT_STEPS(&b, "linear+bias", "mul+scale+add");
      expect_apart(&b, y, s, "broadcast");
    }
    bench_end(&b);
  }
}

// beta * r is taken along; r that is normalised first, or read elsewhere, is an operand.
static void finish_takes_what_makes_its_operand_when_nothing_else_reads_it(void **state) {
  (void)state;
  struct bench b;
  bench_with_finish(&b);
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 16), r = maker_input(&b.m, ROWS_TOKENS, 8);
  int32_t t = maker_unary(&b.m, OP_SCALE, r), u = maker_unary(&b.m, OP_TANH, r);
  int32_t z = maker_binary(&b.m, OP_ADD, maker_linear(&b.m, x, 8, true), t);
  output_add(&b.graph, maker_binary(&b.m, OP_ADD, maker_linear(&b.m, x, 8, true), u));
  output_add(&b.graph, z);
  output_add(&b.graph, u);
  bench_plan(&b);
  EXPECT_STEPS(&b, "tanh", "linear+bias+scale+add", "linear+bias+add");
  assert_int_equal(b.plan->steps[2].finish.n_insts, 0); // the list says it
  bench_end(&b);
}

static void finish_writes_results_that_others_read(void **state) {
  (void)state;
  struct bench b;
  bench_with_finish(&b);
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 8);
  int32_t y = maker_linear(&b.m, x, 8, true), g = maker_unary(&b.m, OP_GELU, y);
  int32_t z = maker_linear(&b.m, y, 8, true); // reads y from memory
  output_add(&b.graph, g);
  output_add(&b.graph, z);
  bench_plan(&b);
  EXPECT_STEPS(&b, "linear+bias+gelu", "linear+bias");
  assert_int_equal(b.plan->steps[0].n_out, 2);
  expect_apart(&b, y, z, "reads its operand from memory");
  bench_end(&b);
}

// A row op that needs whole rows of the same tensor would read it again: both stay together.
static void finish_leaves_a_tensor_to_a_row_program_that_reads_it_anyway(void **state) {
  (void)state;
  struct bench b;
  bench_with_finish(&b);
  int32_t y = maker_linear(&b.m, maker_input(&b.m, ROWS_TOKENS, 8), 8, true);
  int32_t g = maker_unary(&b.m, OP_GELU, y), n = maker_layer_norm(&b.m, y);
  output_add(&b.graph, maker_binary(&b.m, OP_ADD, g, n));
  bench_plan(&b);
  EXPECT_STEPS(&b, "linear+bias", "gelu+layer_norm+add");
  expect_apart(&b, y, g, "whole rows of the same tensor");
  expect_apart(&b, y, n, "whole rows of the product");
  bench_end(&b);
}

// What is read from outside must not be computed from the product itself.
static void finish_never_needs_its_own_result_from_outside(void **state) {
  (void)state;
  struct bench b;
  bench_with_finish(&b);
  int32_t y = maker_linear(&b.m, maker_input(&b.m, ROWS_TOKENS, 8), 8, true);
  int32_t other = maker_linear(&b.m, y, 8, true); // through another product
  int32_t z = maker_binary(&b.m, OP_MUL, maker_unary(&b.m, OP_TANH, y), other);
  output_add(&b.graph, z);
  bench_plan(&b);
  EXPECT_STEPS(&b, "linear+bias+tanh", "linear+bias+mul");
  bench_end(&b);
}

// Two products that each want a result of the other's: one gets it.
static void finishes_of_two_products_do_not_wait_for_each_other(void **state) {
  (void)state;
  struct bench b;
  bench_with_finish(&b);
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 8);
  int32_t p = maker_linear(&b.m, x, 8, true), q = maker_linear(&b.m, x, 8, true);
  output_add(&b.graph, maker_binary(&b.m, OP_MUL, maker_unary(&b.m, OP_TANH, p), q));
  output_add(&b.graph, maker_binary(&b.m, OP_MUL, maker_unary(&b.m, OP_GELU, q), p));
  bench_plan(&b); // checks that what is read was written
  assert_true(b.plan->n_steps <= 3);
  bench_end(&b);
}

static void finish_of_an_attention(void **state) {
  (void)state;
  for (int able = 0; able < 2; able++) {
    struct bench b;
    bench_begin(&b);
    b.caps.attention_finish = able;
    int32_t x = maker_input(&b.m, ROWS_TOKENS, 8), g = maker_input(&b.m, ROWS_TOKENS, 8);
    int32_t o = maker_attention(&b.m, x, x, x, 2, 2, false);
    int32_t z = maker_binary(&b.m, OP_MUL, o, maker_unary(&b.m, OP_SIGMOID, g));
    output_add(&b.graph, z);
    bench_plan(&b);
    if (able)
      EXPECT_STEPS(&b, "attention+sigmoid+mul");
    else
      EXPECT_STEPS(&b, "attention", "sigmoid+mul");
    assert_int_equal(edge(&b, o, z)->fused, able);
    if (!able) expect_apart(&b, o, z, "by sequence and head");
    bench_end(&b);
  }
}

// ---- poolings ----
static void pooling_takes_what_makes_its_rows(void **state) {
  (void)state;
  for (int able = 0; able < 2; able++) {
    struct bench b;
    bench_begin(&b);
    b.caps.pool_before = able;
    int32_t x = maker_input(&b.m, ROWS_TOKENS, 8), n = maker_layer_norm(&b.m, x);
    int32_t p = maker_node(&b.m, OP_POOL, &n, 1, (struct node_attrs){.pool = POOL_MEAN});
    output_add(&b.graph, maker_unary(&b.m, OP_NORMALIZE, p));
    bench_plan(&b);
    if (able) {
      EXPECT_STEPS(&b, "layer_norm+pool+normalize");
      const struct step *step = &b.plan->steps[0];
      assert_int_equal(step->in[0].place, PLACE_STEP);
      assert_int_equal(step->before.n_inputs, 3);
      assert_int_equal(step->traffic.read.per_token, 8 * 4); // x, once
      assert_int_equal(step->traffic.read.per_seq, 0);
      assert_int_equal(step->traffic.write.per_seq, 8 * 4);
      assert_int_equal(step->traffic.write.per_token, 0);
    } else {
      EXPECT_STEPS(&b, "layer_norm", "pool+normalize");
      expect_apart(&b, n, p, "all tokens");
    }
    bench_end(&b);
  }
}

// Of the first tokens only those rows are made; a table is read for as many.
static void pooling_of_first_tokens_makes_no_others(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  b.caps.pool_before = true;
  b.m.ids = maker_tensor(&b.m, TENSOR_INPUT, DTYPE_I64, ROWS_TOKENS, 0, 1);
  int32_t e = maker_unary(&b.m, OP_TANH, maker_embedding(&b.m, b.m.ids, 64, 8));
  output_add(&b.graph, maker_node(&b.m, OP_POOL, &e, 1, (struct node_attrs){.pool = POOL_CLS}));
  bench_plan(&b);
  EXPECT_STEPS(&b, "embedding+tanh+pool");
  assert_int_equal(b.plan->steps[0].traffic.read.per_seq, 8 * 4);
  bench_end(&b);
}

static void pooling_leaves_rows_that_others_read_or_that_come_from_a_tile(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  b.caps.pool_before = b.caps.row_chains = true;
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 8), g = maker_unary(&b.m, OP_GELU, x);
  int32_t p = maker_node(&b.m, OP_POOL, &g, 1, (struct node_attrs){.pool = POOL_MAX});
  int32_t y = maker_layer_norm(&b.m, maker_linear(&b.m, x, 8, true));
  int32_t q = maker_node(&b.m, OP_POOL, &y, 1, (struct node_attrs){.pool = POOL_MEAN});
  output_add(&b.graph, g);
  output_add(&b.graph, p);
  output_add(&b.graph, q);
  bench_plan(&b);
  expect_apart(&b, g, p, "other readers");
  expect_apart(&b, y, q, "from a tile in cache");
  bench_end(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(product_takes_bias_scale_gelu_residual_and_cast),
      cmocka_unit_test(nothing_follows_a_rounding_in_the_epilogue),
      cmocka_unit_test(epilogue_stops_at_what_the_device_can_do),
      cmocka_unit_test(epilogue_stops_when_it_is_full),
      cmocka_unit_test(product_with_two_readers_is_written_before_them),
      cmocka_unit_test(product_that_is_an_output_is_written_before_its_activation),
      cmocka_unit_test(product_squared_is_not_its_own_residual),
      cmocka_unit_test(residual_made_later_still_fuses),
      cmocka_unit_test(sum_of_two_products_is_one_epilogue),
      cmocka_unit_test(broadcast_operands_do_not_enter_an_epilogue_but_weights_as_bias_do),
      cmocka_unit_test(attention_inputs_of_one_tensor_become_one_product),
      cmocka_unit_test(bias_nodes_go_side_by_side_like_biases),
      cmocka_unit_test(only_alike_products_are_put_side_by_side),
      cmocka_unit_test(key_that_is_also_an_output_keeps_its_own_product),
      cmocka_unit_test(tree_of_element_wise_ops_and_norms_is_one_program),
      cmocka_unit_test(intermediate_with_other_readers_is_written_as_well),
      cmocka_unit_test(branches_that_read_one_tensor_share_a_program),
      cmocka_unit_test(reductions_of_unlike_width_do_not_share_a_program),
      cmocka_unit_test(embedding_sum_and_norm_is_one_gather_program),
      cmocka_unit_test(two_embeddings_by_one_index_read_it_once),
      cmocka_unit_test(index_operands_count_as_inputs),
      cmocka_unit_test(no_kernel_waits_for_itself),
      cmocka_unit_test(long_chain_is_split_where_the_program_is_full),
      cmocka_unit_test(program_with_too_many_inputs_is_split),
      cmocka_unit_test(program_with_too_many_outputs_is_split),
      cmocka_unit_test(identities_vanish_and_outputs_may_be_inputs),
      cmocka_unit_test(nodes_that_lead_nowhere_are_not_run_and_their_inputs_not_kept),
      cmocka_unit_test(row_chain_keeps_its_intermediates_in_tiles),
      cmocka_unit_test(chain_is_cut_where_the_tile_is_full),
      cmocka_unit_test(finish_takes_factors_of_columns_and_of_the_residual),
      cmocka_unit_test(finish_takes_what_makes_its_operand_when_nothing_else_reads_it),
      cmocka_unit_test(finish_writes_results_that_others_read),
      cmocka_unit_test(finish_leaves_a_tensor_to_a_row_program_that_reads_it_anyway),
      cmocka_unit_test(finish_never_needs_its_own_result_from_outside),
      cmocka_unit_test(finishes_of_two_products_do_not_wait_for_each_other),
      cmocka_unit_test(finish_of_an_attention),
      cmocka_unit_test(pooling_takes_what_makes_its_rows),
      cmocka_unit_test(pooling_of_first_tokens_makes_no_others),
      cmocka_unit_test(pooling_leaves_rows_that_others_read_or_that_come_from_a_tile),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
