// The blocks of real models, as a model file would make them: for golden plans and fusion tests.
#ifndef TESTS_UNIT_GRAPH_BLOCKS_H
#define TESTS_UNIT_GRAPH_BLOCKS_H

#include "random_graph.h"

static inline int32_t block_mlp(struct graph_maker *m, int32_t x, int32_t inner) {
  int32_t h = maker_unary(m, OP_GELU, maker_linear(m, x, inner, true));
  return maker_linear(m, h, m->graph->tensors[x].cols, true);
}

static inline int32_t block_attention(struct graph_maker *m, int32_t x, int heads) {
  int32_t cols = m->graph->tensors[x].cols;
  int32_t q = maker_linear(m, x, cols, true), k = maker_linear(m, x, cols, true),
          v = maker_linear(m, x, cols, true);
  return maker_linear(m, maker_attention(m, q, k, v, heads, 0, false), cols, true);
}

static inline int32_t block_encoder_post(struct graph_maker *m, int32_t x, int heads,
                                         int32_t inner) {
  x = maker_layer_norm(m, maker_binary(m, OP_ADD, block_attention(m, x, heads), x));
  return maker_layer_norm(m, maker_binary(m, OP_ADD, block_mlp(m, x, inner), x));
}

static inline int32_t block_encoder_pre(struct graph_maker *m, int32_t x, int heads,
                                        int32_t inner) {
  x = maker_binary(m, OP_ADD, x, block_attention(m, maker_layer_norm(m, x), heads));
  return maker_binary(m, OP_ADD, x, block_mlp(m, maker_layer_norm(m, x), inner));
}

static inline void output_add(struct graph *graph, int32_t tensor) {
  graph->outputs[graph->n_outputs++] = tensor;
}

// Two outputs: the last hidden state, and its mean by sequence, normalised.
static inline void block_sentence_encoder(struct graph_maker *m, int layers, int32_t cols,
                                          int heads, int32_t inner, int32_t words) {
  int32_t ids = maker_tensor(m, TENSOR_INPUT, DTYPE_I64, ROWS_TOKENS, 0, 1);
  int32_t types = maker_tensor(m, TENSOR_INPUT, DTYPE_I64, ROWS_TOKENS, 0, 1);
  int32_t positions = maker_tensor(m, TENSOR_POSITIONS, DTYPE_I32, ROWS_TOKENS, 0, 1);
  int32_t x = maker_embedding(m, ids, words, cols);
  x = maker_binary(m, OP_ADD, x, maker_embedding(m, types, 2, cols));
  x = maker_binary(m, OP_ADD, x, maker_embedding(m, positions, 512, cols));
  x = maker_layer_norm(m, x);
  for (int i = 0; i < layers; i++)
    x = block_encoder_post(m, x, heads, inner);
  output_add(m->graph, x);
  int32_t pooled = maker_node(m, OP_POOL, &x, 1, (struct node_attrs){.pool = POOL_MEAN});
  output_add(m->graph, maker_unary(m, OP_NORMALIZE, pooled));
}

#endif
