// What fuses and what does not, case by case, with the reason that explain will print.
#include "fuse_bench.h"

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
  assert_false(plan_runs(b.plan, 0));
  assert_true(plan_runs(b.plan, 1));
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

// The silu stands behind the attention in the graph, but what it reads is in the tile before that.
static void last_readers_of_a_chains_results_run_before_it_ends(void **state) {
  (void)state;
  struct bench b;
  bench_begin(&b);
  b.caps.row_chains = true;
  b.caps.product_finish = true;
  int32_t x = maker_input(&b.m, ROWS_TOKENS, 8);
  int32_t h = maker_unary(&b.m, OP_GELU, maker_linear(&b.m, x, 16, true));
  int32_t y = maker_linear(&b.m, h, 8, true);
  int32_t o = block_attention(&b.m, y, 2);
  int32_t s = maker_unary(&b.m, OP_SILU, h);
  output_add(&b.graph, maker_binary(&b.m, OP_ADD, o, y));
  output_add(&b.graph, s);
  bench_plan(&b);
  EXPECT_STEPS(&b, "linear+bias+gelu", "linear+bias", "linear*3+bias", "silu", "attention",
               "linear+bias+add");
  assert_int_equal(b.plan->steps[0].out[0].place, PLACE_TILE);
  assert_true(edge(&b, h, s)->chained);
  assert_int_equal(b.plan->steps[3].chain, 0);
  // y is read behind the attention as well, so it is in memory, whoever else reads it.
  assert_int_equal(b.plan->steps[1].out[0].place, PLACE_ARENA);
  expect_apart(&b, y, b.graph.nodes[b.graph.n_nodes - 1].out, "not all in the pass");
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
      cmocka_unit_test(last_readers_of_a_chains_results_run_before_it_ends),
      cmocka_unit_test(chain_is_cut_where_the_tile_is_full),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
