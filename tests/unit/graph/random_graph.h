// Random but valid graphs for planner tests: trees and meshes of all ops, several readers, several
// outputs.
#ifndef TESTS_UNIT_GRAPH_RANDOM_GRAPH_H
#define TESTS_UNIT_GRAPH_RANDOM_GRAPH_H

#include "graph/graph.h"
#include "graph/rates.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POOL_MAX_TENSORS 128

struct rng {
  uint64_t state;
};

static inline uint32_t rng_next(struct rng *rng) {
  rng->state = rng->state * 6364136223846793005ull + 1442695040888963407ull;
  uint32_t x = (uint32_t)(((rng->state >> 18) ^ rng->state) >> 27),
           turn = (uint32_t)(rng->state >> 59);
  return (x >> turn) | (x << (-turn & 31));
}
static inline int rng_below(struct rng *rng, int n) {
  return (int)(rng_next(rng) % (uint32_t)n);
}
static inline bool rng_chance(struct rng *rng, int percent) {
  return rng_below(rng, 100) < percent;
}
static inline double rng_uniform(struct rng *rng) {
  return rng_next(rng) / 2147483648.0 - 1.0;
}

// Constants of a device that no one would build: each is on its limits or in between, so that the
// planner finds reasons for and against everything. `how` picks.
static inline struct device_rates odd_rates(uint32_t how) {
  struct device_rates rates = device_rates_gpu();
  const double slow[] = {1, 1e-3, 1e-6, 1e3};
  rates.epilogue *= slow[how & 3], rates.epilogue_f32 *= slow[how & 3];
  rates.vector *= slow[how >> 2 & 3];
  rates.special *= slow[how >> 2 & 3];
  rates.reduced *= slow[how >> 2 & 3];
  rates.fused_product = how & 16 ? 0.1 : 1;
  rates.finish = rates.attention_finish = how & 256 ? 1e9 : 0;
  rates.library_epilogues = how & 32 ? 1u << EPI_BIAS | 1u << EPI_ACT : 0;
  rates.launch_us = how & 64 ? 0 : 0.9;
  rates.row_bytes = how & 128 ? 16 : 1 << 20;
  rates.cache_bytes = how & 256 ? 4096 : 60 << 20;
  rates.cache = how & 512 ? rates.copy : 2 * rates.copy;
  return rates;
}

struct graph_maker {
  struct graph *graph;
  struct rng *rng;
  enum dtype dtype;
  bool casts;  // random graphs hold casts between fp32 and bf16
  bool narrow; // rows of one column, which are rows and row scalars at once; attention aside
  int32_t pool[POOL_MAX_TENSORS]; // floating activations made so far
  int n_pool, n_weights, n_names, n_inputs;
  int32_t ids, positions;
};

static inline int32_t maker_tensor(struct graph_maker *m, enum tensor_kind kind, enum dtype dtype,
                                   enum row_kind rows, int32_t n_rows, int32_t cols) {
  struct tensor tensor = {
      .kind = kind, .dtype = dtype, .rows = rows, .n_rows = n_rows, .cols = cols, .index = -1};
  if (kind == TENSOR_INPUT) tensor.index = m->n_inputs++;
  if (kind == TENSOR_WEIGHT) tensor.index = m->n_weights++;
  snprintf(tensor.name, sizeof tensor.name, "%c%d",
           kind == TENSOR_WEIGHT  ? 'w'
           : kind == TENSOR_INPUT ? 'x'
                                  : 'p',
           m->n_names++);
  return graph_add_tensor(m->graph, &tensor);
}

static inline int32_t maker_weight(struct graph_maker *m, int32_t rows, int32_t cols) {
  return maker_tensor(m, TENSOR_WEIGHT, m->dtype, ROWS_FIXED, rows, cols);
}

static inline int32_t maker_input(struct graph_maker *m, enum row_kind rows, int32_t cols) {
  int32_t tensor = maker_tensor(m, TENSOR_INPUT, m->dtype, rows, 0, cols);
  m->pool[m->n_pool++] = tensor;
  return tensor;
}

// Adds the node; its output joins the pool. Aborts when the graph refuses it: makers only make
// valid nodes.
static inline int32_t maker_node(struct graph_maker *m, enum op op, const int32_t *in, int n_in,
                                 struct node_attrs attrs) {
  struct node node = {
      .op = op, .n_in = (uint8_t)n_in, .attrs = attrs, .line = m->graph->n_nodes + 1};
  memcpy(node.in, in, (size_t)n_in * sizeof *in);
  char name[16];
  snprintf(name, sizeof name, "t%d", m->n_names++);
  struct error err = {0};
  int32_t out = -1;
  if (graph_add_node(m->graph, &node, name, m->dtype, &out, &err) != STATUS_OK) {
    fprintf(stderr, "maker: %s\n", err.message);
    abort();
  }
  if (m->n_pool < POOL_MAX_TENSORS) m->pool[m->n_pool++] = out;
  return out;
}

static inline int32_t maker_linear(struct graph_maker *m, int32_t x, int32_t n, bool bias) {
  const struct tensor *t = &m->graph->tensors[x];
  enum dtype dtype = t->dtype; // a product's operands are of one dtype
  int32_t in[3] = {x, -1, -1};
  in[1] = maker_tensor(m, TENSOR_WEIGHT, dtype, ROWS_FIXED, n, t->cols);
  if (bias) in[2] = maker_weight(m, 1, n);
  return maker_node(m, OP_LINEAR, in, bias ? 3 : 2, (struct node_attrs){0});
}

static inline int32_t maker_unary(struct graph_maker *m, enum op op, int32_t x) {
  return maker_node(m, op, &x, 1,
                    (struct node_attrs){.factor = 0.5f, .eps = 1e-2f, .to = DTYPE_F32});
}

static inline int32_t maker_binary(struct graph_maker *m, enum op op, int32_t a, int32_t b) {
  return maker_node(m, op, (int32_t[]){a, b}, 2, (struct node_attrs){0});
}

static inline int32_t maker_layer_norm(struct graph_maker *m, int32_t x) {
  int32_t cols = m->graph->tensors[x].cols;
  return maker_node(m, OP_LAYER_NORM,
                    (int32_t[]){x, maker_weight(m, 1, cols), maker_weight(m, 1, cols)}, 3,
                    (struct node_attrs){.eps = 0.1f});
}

static inline int32_t maker_attention(struct graph_maker *m, int32_t q, int32_t k, int32_t v,
                                      int heads, int kv_heads, bool causal) {
  return maker_node(m, OP_ATTENTION, (int32_t[]){q, k, v}, 3,
                    (struct node_attrs){.heads = heads, .kv_heads = kv_heads, .causal = causal});
}

static inline int32_t maker_embedding(struct graph_maker *m, int32_t ids, int32_t rows,
                                      int32_t cols) {
  return maker_node(m, OP_EMBEDDING, (int32_t[]){ids, maker_weight(m, rows, cols)}, 2,
                    (struct node_attrs){0});
}

// A pool tensor, mostly a late one so that chains grow long; -1 when none fits. cols 0: any.
static inline int32_t maker_pick(struct graph_maker *m, enum row_kind rows, int32_t cols) {
  for (int attempt = 0; attempt < 40; attempt++) {
    int back = rng_chance(m->rng, 60) ? rng_below(m->rng, m->n_pool < 4 ? m->n_pool : 4)
                                      : rng_below(m->rng, m->n_pool);
    int32_t tensor = m->pool[m->n_pool - 1 - back];
    const struct tensor *t = &m->graph->tensors[tensor];
    if (t->rows == rows && (cols == 0 || t->cols == cols)) return tensor;
  }
  return -1;
}

static inline void maker_random_attention(struct graph_maker *m) {
  int32_t x = maker_pick(m, ROWS_TOKENS, 0), heads = 2, kv_heads = rng_chance(m->rng, 50) ? 2 : 1,
          d = 4;
  if (x < 0) return;
  bool bias = rng_chance(m->rng, 70);
  int32_t q = maker_linear(m, x, heads * d, bias);
  if (rng_chance(m->rng, 20)) q = maker_unary(m, OP_SCALE, q);
  int32_t k = maker_linear(m, x, kv_heads * d, bias);
  int32_t other = maker_pick(m, ROWS_TOKENS, 0);
  int32_t v = maker_linear(m, rng_chance(m->rng, 70) ? x : other, kv_heads * d, bias);
  maker_attention(m, q, k, v, heads, kv_heads, rng_chance(m->rng, 40));
}

static inline void maker_random_binary(struct graph_maker *m, enum op op, int32_t a) {
  const struct tensor *t = &m->graph->tensors[a];
  int32_t cols = t->cols, b = -1;
  switch (rng_below(m->rng, 4)) {
  case 0:
    b = maker_weight(m, 1, cols);
    break;
  case 1:
    b = maker_weight(m, 1, 1);
    break;
  case 2:
    b = maker_pick(m, t->rows, 1);
    break;
  default:
    break;
  }
  if (b < 0) b = maker_pick(m, t->rows, cols);
  if (b >= 0) maker_binary(m, op, a, b);
}

static inline int32_t maker_width(struct graph_maker *m) {
  static const int32_t widths[] = {1, 8, 8, 12};
  int pick = rng_below(m->rng, 4);
  return m->narrow ? 1 : widths[pick];
}

// Which case of maker_random_node. Narrow graphs have more reductions, norms and what follows them.
static inline int maker_kind(struct graph_maker *m) {
  static const int narrow[] = {3, 5, 7, 8, 8, 12};
  int kind = rng_below(m->rng, 13);
  return m->narrow && rng_chance(m->rng, 70) ? narrow[rng_below(m->rng, 6)] : kind;
}

static inline void maker_random_node(struct graph_maker *m) {
  static const enum op unary[] = {OP_GELU,    OP_RELU,  OP_SILU,    OP_TANH,
                                  OP_SIGMOID, OP_SCALE, OP_SOFTMAX, OP_NORMALIZE};
  int32_t x = maker_pick(m, rng_chance(m->rng, 80) ? ROWS_TOKENS : ROWS_SEQS, 0);
  if (x < 0) return;
  const struct tensor *t = &m->graph->tensors[x];
  int32_t cols = t->cols;
  if (m->casts && rng_chance(m->rng, 20)) {
    enum dtype to = rng_chance(m->rng, 50) ? DTYPE_F32 : DTYPE_BF16;
    maker_node(m, OP_CAST, &x, 1, (struct node_attrs){.to = to});
    return;
  }
  switch (maker_kind(m)) {
  case 0:
  case 1:
  case 2:
    maker_linear(m, x, maker_width(m), rng_chance(m->rng, 60));
    break;
  case 3:
  case 4:
    maker_unary(m, unary[rng_below(m->rng, 8)], x);
    break;
  case 5:
    maker_layer_norm(m, x);
    break;
  case 6:
    maker_random_binary(m, OP_ADD, x);
    break;
  case 7:
    maker_random_binary(m, OP_MUL, x);
    break;
  case 8:
    maker_node(m, OP_REDUCE, &x, 1,
               (struct node_attrs){.reduce = (enum reduce_kind)rng_below(m->rng, 3)});
    break;
  case 9:
    maker_random_attention(m);
    break;
  case 10:
    maker_embedding(m, rng_chance(m->rng, 50) ? m->ids : m->positions, 64, maker_width(m));
    break;
  case 11:
    if (t->rows == ROWS_TOKENS)
      maker_node(m, OP_POOL, &x, 1,
                 (struct node_attrs){.pool = (enum pool_kind)rng_below(m->rng, 3)});
    break;
  default:
    if (rng_chance(m->rng, 30))
      maker_unary(m, OP_IDENTITY, x);
    else if (rng_chance(m->rng, 50))
      maker_node(m, OP_RMS_NORM, (int32_t[]){x, maker_weight(m, 1, cols)}, 2,
                 (struct node_attrs){.eps = 0.1f});
    else
      maker_node(m, OP_BIAS, (int32_t[]){x, maker_weight(m, 1, cols)}, 2, (struct node_attrs){0});
  }
}

static inline void maker_init(struct graph_maker *m, struct graph *graph, struct rng *rng,
                              enum dtype dtype) {
  *m = (struct graph_maker){.graph = graph, .rng = rng, .dtype = dtype};
  if (graph_init(graph) != STATUS_OK) abort();
  graph->has_sequences = true;
}

static inline void maker_random(struct graph_maker *m, int n_nodes) {
  maker_input(m, ROWS_TOKENS, m->narrow ? 1 : 8);
  maker_input(m, ROWS_TOKENS, m->narrow ? 1 : 12);
  maker_input(m, ROWS_TOKENS, 1);
  maker_input(m, ROWS_SEQS, m->narrow ? 1 : 8);
  m->ids = maker_tensor(m, TENSOR_INPUT, DTYPE_I64, ROWS_TOKENS, 0, 1);
  m->positions = maker_tensor(m, TENSOR_POSITIONS, DTYPE_I32, ROWS_TOKENS, 0, 1);
  while (m->graph->n_nodes < n_nodes && m->n_pool < POOL_MAX_TENSORS - 8)
    maker_random_node(m);
  m->graph->n_outputs = 1 + rng_below(m->rng, 4);
  for (int i = 0; i < m->graph->n_outputs; i++) {
    int back = rng_chance(m->rng, 70) ? rng_below(m->rng, m->n_pool < 6 ? m->n_pool : 6)
                                      : rng_below(m->rng, m->n_pool);
    m->graph->outputs[i] = m->pool[m->n_pool - 1 - back];
  }
}

#endif
