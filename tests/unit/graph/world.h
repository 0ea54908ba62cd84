// A random batch of sequences, and random data for the inputs and weights of a graph.
#ifndef TESTS_UNIT_GRAPH_WORLD_H
#define TESTS_UNIT_GRAPH_WORLD_H

#include "graph/weights.h"
#include "interpreter.h"
#include "random_graph.h"

static inline void world_fill(struct world *w, struct rng *rng, int32_t t) {
  const struct tensor *tensor = &w->graph->tensors[t];
  int64_t count = tensor_rows(w, t) * tensor->cols;
  double scale =
      tensor->kind == TENSOR_WEIGHT && tensor->n_rows > 1 ? 1 / sqrt((double)tensor->cols) : 1;
  w->values[t] = malloc((size_t)count * sizeof(double) + 8);
  w->typed[t] = malloc((size_t)count * 8 + 8);
  for (int64_t i = 0; i < count; i++) {
    double value = rng_uniform(rng) * scale;
    if (tensor->dtype == DTYPE_I64) value = rng_below(rng, 64);
    if (tensor->kind == TENSOR_POSITIONS) value = w->positions[i];
    typed_set(w->typed[t], tensor->dtype, i, value);
    w->values[t][i] = typed_get(w->typed[t], tensor->dtype, i);
  }
}

static inline void world_init(struct world *w, const struct graph *graph, struct rng *rng) {
  *w = (struct world){.graph = graph};
  bool large = rng_chance(rng, 15); // several tiles of rows of any back end
  int32_t n = 1 + rng_below(rng, large ? WORLD_SEQS : 4), tokens = 0;
  for (int32_t b = 0; b < n; b++) {
    int32_t length = 1 + rng_below(rng, large ? WORLD_TOKENS / WORLD_SEQS : 9);
    for (int32_t i = 0; i < length; i++)
      w->positions[tokens + i] = i;
    tokens += length;
    w->cu_seqlens[b + 1] = tokens;
    w->scores_offset[b + 1] = w->scores_offset[b] + (int64_t)length * length;
    if (length > w->geometry.max_seqlen) w->geometry.max_seqlen = length;
  }
  w->geometry.n_tokens = tokens;
  w->geometry.n_seqs = n;
  w->geometry.sum_sq = w->scores_offset[n];
  w->geometry.cu_seqlens = w->cu_seqlens;
  w->geometry.positions = w->positions;
  w->geometry.scores_offset = w->scores_offset;
  w->values = calloc((size_t)graph->n_tensors, sizeof *w->values);
  w->typed = calloc((size_t)graph->n_tensors, sizeof *w->typed);
  for (int32_t t = 0; t < graph->n_tensors; t++)
    if (graph->tensors[t].kind != TENSOR_ACTIVATION) world_fill(w, rng, t);
}

static inline void world_deinit(struct world *w) {
  for (int32_t t = 0; t < w->graph->n_tensors; t++)
    free(w->values[t]), free(w->typed[t]);
  free(w->values), free(w->typed);
}

// The graph's weights by their index, to be freed; data is the world's.
static inline struct weight *world_weights(const struct world *w) {
  struct weight *weights = calloc((size_t)w->graph->n_tensors + 1, sizeof *weights);
  for (int32_t t = 0; t < w->graph->n_tensors; t++) {
    const struct tensor *tensor = &w->graph->tensors[t];
    if (tensor->kind == TENSOR_WEIGHT)
      weights[tensor->index] =
          (struct weight){tensor->name, tensor->dtype, tensor->n_rows, tensor->cols, w->typed[t]};
  }
  return weights;
}

static inline struct plan_limits world_limits(const struct world *w, struct rng *rng) {
  return (struct plan_limits){.max_tokens = w->geometry.n_tokens + rng_below(rng, 5),
                              .max_seqs = w->geometry.n_seqs + rng_below(rng, 3),
                              .max_seqlen = w->geometry.max_seqlen};
}

#endif
