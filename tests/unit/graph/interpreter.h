// Two executions of one graph over the reference kernels: node by node in double, and a plan step
// by step in its own arena and tile scratch, as a back end would do it. Memory is poisoned with
// NaN, tiles run in reverse order.
#ifndef TESTS_UNIT_GRAPH_INTERPRETER_H
#define TESTS_UNIT_GRAPH_INTERPRETER_H

#include "graph/plan.h"
#include "graph/finish_list.h"
#include "kernels/ref/ref.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORLD_TOKENS 256
#define WORLD_SEQS 8

struct world { // a batch, its data and the weights, all in double as well as in the tensors' dtypes
  const struct graph *graph;
  struct batch_geometry geometry;
  int32_t cu_seqlens[WORLD_SEQS + 1], positions[WORLD_TOKENS];
  int64_t scores_offset[WORLD_SEQS + 1];
  double **values; // [n_tensors] node by node results; inputs and weights filled first
  void **typed;    // [n_tensors] inputs and weights in their dtype
};

static inline double typed_get(const void *data, enum dtype dtype, int64_t at) {
  switch (dtype) {
  case DTYPE_F32:
    return (double)((const float *)data)[at];
  case DTYPE_F16:
    return (double)f16_to_f32(((const uint16_t *)data)[at]);
  case DTYPE_BF16:
    return (double)bf16_to_f32(((const uint16_t *)data)[at]);
  case DTYPE_I64:
    return (double)((const int64_t *)data)[at];
  default:
    return (double)((const int32_t *)data)[at];
  }
}

static inline void typed_set(void *data, enum dtype dtype, int64_t at, double value) {
  switch (dtype) {
  case DTYPE_F32:
    ((float *)data)[at] = (float)value;
    break;
  case DTYPE_F16:
    ((uint16_t *)data)[at] = f32_to_f16((float)value);
    break;
  case DTYPE_BF16:
    ((uint16_t *)data)[at] = f32_to_bf16((float)value);
    break;
  case DTYPE_I64:
    ((int64_t *)data)[at] = (int64_t)value;
    break;
  default:
    ((int32_t *)data)[at] = (int32_t)value;
  }
}

static inline int64_t world_rows(const struct world *w, enum row_kind rows, int32_t n_rows) {
  if (rows == ROWS_FIXED) return n_rows;
  return rows == ROWS_TOKENS ? w->geometry.n_tokens : w->geometry.n_seqs;
}

static inline int64_t tensor_rows(const struct world *w, int32_t t) {
  return world_rows(w, w->graph->tensors[t].rows, w->graph->tensors[t].n_rows);
}

// ---- node by node ----
static inline void node_row(struct world *w, const struct node *node, double *y) {
  const double *x = w->values[node->in[0]], *b = node->n_in > 1 ? w->values[node->in[1]] : NULL;
  int64_t rows = tensor_rows(w, node->out), cols = w->graph->tensors[node->in[0]].cols;
  const struct tensor *tb = node->n_in > 1 ? &w->graph->tensors[node->in[1]] : NULL;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < cols; c++) {
      double a = x[r * cols + c], other = 0;
      if (tb) other = b[(tb->kind == TENSOR_WEIGHT ? 0 : r * tb->cols) + (tb->cols == 1 ? 0 : c)];
      double *out = &y[r * cols + c];
      switch (node->op) {
      case OP_GELU:
        *out = ref_activate(node->attrs.approximate_tanh ? ACT_GELU_TANH : ACT_GELU_ERF, a);
        break;
      case OP_RELU:
        *out = ref_activate(ACT_RELU, a);
        break;
      case OP_SILU:
        *out = ref_activate(ACT_SILU, a);
        break;
      case OP_TANH:
        *out = ref_activate(ACT_TANH, a);
        break;
      case OP_SIGMOID:
        *out = ref_activate(ACT_SIGMOID, a);
        break;
      case OP_ADD:
      case OP_BIAS:
        *out = a + other;
        break;
      case OP_MUL:
        *out = a * other;
        break;
      case OP_SCALE:
        *out = a * (double)node->attrs.factor;
        break;
      default:
        *out = a; // cast (rounded below), identity
      }
    }
}

static inline void node_attention(struct world *w, const struct node *node, double *y) {
  int32_t q_cols = w->graph->tensors[node->in[0]].cols;
  struct attention_problem p = {.heads = node->attrs.heads,
                                .kv_heads = node->attrs.kv_heads,
                                .causal = node->attrs.causal,
                                .head_dim = q_cols / node->attrs.heads};
  p.scale = node->attrs.factor != 0 ? node->attrs.factor : (float)(1 / sqrt((double)p.head_dim));
  double work[WORLD_TOKENS];
  ref_attention(y, w->values[node->in[0]], w->values[node->in[1]], w->values[node->in[2]], &p,
                &w->geometry, work);
}

static inline void node_embedding(struct world *w, const struct node *node, double *y) {
  int64_t ids[WORLD_TOKENS], n = tensor_rows(w, node->in[0]);
  for (int64_t i = 0; i < n; i++)
    ids[i] = (int64_t)w->values[node->in[0]][i];
  const struct tensor *table = &w->graph->tensors[node->in[1]];
  ref_embedding(y, w->values[node->in[1]], ids, n, table->n_rows, table->cols);
}

static inline void node_run(struct world *w, const struct node *node, double *y) {
  const double *x = w->values[node->in[0]], *b = node->n_in > 1 ? w->values[node->in[1]] : NULL;
  const double *c = node->n_in > 2 ? w->values[node->in[2]] : NULL;
  int64_t rows = tensor_rows(w, node->out), cols = w->graph->tensors[node->in[0]].cols;
  double eps = (double)node->attrs.eps;
  switch (node->op) {
  case OP_LINEAR:
    ref_linear(y, x, b, c, rows, w->graph->tensors[node->out].cols, cols);
    break;
  case OP_LAYER_NORM:
    ref_layer_norm(y, x, b, c, rows, cols, eps);
    break;
  case OP_RMS_NORM:
    ref_rms_norm(y, x, b, rows, cols, eps);
    break;
  case OP_SOFTMAX:
    ref_softmax(y, x, rows, cols);
    break;
  case OP_NORMALIZE:
    ref_normalize(y, x, rows, cols, eps);
    break;
  case OP_REDUCE:
    ref_reduce(y, x, rows, cols, "smx"[node->attrs.reduce]);
    break;
  case OP_POOL:
    ref_pool(y, x, cols, &w->geometry, "mcx"[node->attrs.pool]);
    break;
  case OP_ATTENTION:
    node_attention(w, node, y);
    break;
  case OP_EMBEDDING:
    node_embedding(w, node, y);
    break;
  default:
    node_row(w, node, y);
  }
}

static inline void world_run_nodes(struct world *w) {
  for (int32_t n = 0; n < w->graph->n_nodes; n++) {
    const struct node *node = &w->graph->nodes[n];
    const struct tensor *out = &w->graph->tensors[node->out];
    int64_t count = tensor_rows(w, node->out) * out->cols;
    double *y = w->values[node->out] = malloc((size_t)count * sizeof *y + 8);
    node_run(w, node, y);
    for (int64_t i = 0; i < count && out->dtype != DTYPE_F32;
         i++) { // as stored: a cast must round here too
      int64_t bits;
      typed_set(&bits, out->dtype, 0, y[i]);
      y[i] = typed_get(&bits, out->dtype, 0);
    }
  }
}

// ---- a plan ----
struct runner {
  const struct world *world;
  const struct plan *plan;
  uint8_t *arena, *tile;
};

// Where row `row` of an operand is; for tiles `tile_row` is the first row of the tile.
static inline uint8_t *operand_at(const struct runner *run, const struct operand *operand,
                                  int64_t row, int64_t tile_row) {
  int64_t step = operand->stride * (int64_t)dtype_bytes(operand->dtype);
  if (operand->place == PLACE_TILE)
    return run->tile + operand->offset_bytes + (row - tile_row) * step;
  return run->arena + operand->offset_bytes + row * step;
}

static inline struct view operand_view(const struct runner *run, const struct operand *operand,
                                       int64_t row, int64_t tile_row) {
  struct view view = {.stride = operand->stride, .cols = operand->cols, .dtype = operand->dtype};
  if (operand->place == PLACE_WEIGHT)
    view.data = run->world->typed[operand->tensor];
  else
    view.data = operand_at(run, operand, row, tile_row);
  return view;
}

// Rows [row, row + n) of an operand as contiguous doubles.
static inline double *operand_read(const struct runner *run, const struct operand *operand,
                                   int64_t row, int64_t n, int64_t tile_row) {
  struct view view = operand_view(run, operand, row, tile_row);
  double *out = malloc((size_t)(n * operand->cols) * sizeof *out + 8);
  for (int64_t r = 0; r < n; r++)
    for (int64_t c = 0; c < operand->cols; c++)
      out[r * operand->cols + c] = typed_get(view.data, view.dtype, r * view.stride + c);
  return out;
}

static inline void operand_write(const struct runner *run, const struct operand *operand,
                                 int64_t row, int64_t n, int64_t tile_row, const double *values) {
  uint8_t *data = operand_at(run, operand, row, tile_row);
  for (int64_t r = 0; r < n; r++)
    for (int64_t c = 0; c < operand->cols; c++)
      typed_set(data, operand->dtype, r * operand->stride + c, values[r * operand->cols + c]);
}

// Weights side by side: [sum rows, cols], or one row of all their columns for biases.
static inline double *parts_read(const struct runner *run, const struct operand *operand,
                                 int64_t *elements) {
  const struct world *w = run->world;
  double *out = NULL;
  *elements = 0;
  for (int p = 0; p < operand->n_parts; p++)
    for (int32_t t = 0; t < w->graph->n_tensors; t++) {
      const struct tensor *tensor = &w->graph->tensors[t];
      if (tensor->kind != TENSOR_WEIGHT || tensor->index != operand->weight[p]) continue;
      int64_t count = (int64_t)tensor->n_rows * tensor->cols;
      out = realloc(out, (size_t)(*elements + count) * sizeof *out);
      memcpy(out + *elements, w->values[t], (size_t)count * sizeof *out);
      *elements += count;
    }
  return out;
}

// All rows of what a step pools, as its own program makes them.
static inline struct view run_before(const struct runner *run, const struct step *step) {
  const struct row_program *before = &step->before;
  int64_t rows = run->world->geometry.n_tokens, count = rows * before->cols;
  struct view inputs[STEP_MAX_IN];
  double regs[ROW_MAX_REGS * 16], *made = malloc((size_t)count * sizeof *made + 8);
  float *out = malloc((size_t)count * sizeof *out + 8);
  if (before->n_outputs != 1 || before->output_dtype[0] != DTYPE_F32) abort();
  for (int i = step->before_in; i < step->n_in; i++)
    inputs[i - step->before_in] = operand_view(run, &step->in[i], 0, 0);
  ref_row_program(before, inputs, &made, rows, &run->world->geometry, regs);
  for (int64_t i = 0; i < count; i++)
    out[i] = (float)made[i];
  free(made);
  return (struct view){out, before->cols, before->cols, DTYPE_F32};
}

static inline void run_row(const struct runner *run, const struct step *step, int64_t row,
                           int64_t n, int64_t tile_row) {
  struct view inputs[STEP_MAX_IN];
  double *outputs[STEP_MAX_OUT];
  double regs[ROW_MAX_REGS * 16];
  void *made = NULL;
  for (size_t i = 0; i < sizeof regs / sizeof *regs; i++)
    regs[i] = NAN;
  for (int i = 0; i < step->n_in; i++) {
    bool pooled = i < step->row.n_inputs && step->row.inputs[i].cls >= IN_POOL_MEAN;
    if (step->in[i].place == PLACE_STEP)
      inputs[i] = run_before(run, step), made = inputs[i].data;
    else
      inputs[i] = operand_view(run, &step->in[i], pooled ? 0 : row, tile_row);
  }
  for (int i = 0; i < step->n_out; i++)
    outputs[i] = malloc((size_t)(n * step->out[i].cols) * sizeof(double) + 8);
  struct batch_geometry geometry = run->world->geometry;
  geometry.positions += row;
  geometry.cu_seqlens += step->rows == ROWS_SEQS ? row : 0;
  ref_row_program(&step->row, inputs, outputs, n, &geometry, regs);
  free(made);
  for (int i = 0; i < step->n_out; i++) {
    operand_write(run, &step->out[i], row, n, tile_row, outputs[i]);
    free(outputs[i]);
  }
}

// Relative L2 distance; 1 when either is not finite where the other is.
static inline double distance(const double *a, const double *b, int64_t n) {
  double difference = 0, size = 1e-12;
  for (int64_t i = 0; i < n; i++) {
    if (isfinite(a[i]) != isfinite(b[i])) return 1;
    if (!isfinite(b[i])) continue;
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return sqrt(difference / size);
}

static int interpreter_lists; // finishes that a list can say, and that were compared with one

static inline void run_epilogue(const struct runner *run, const struct step *step,
                                const struct epilogue_op *op, double *y, int64_t row, int64_t n,
                                int64_t tile_row) {
  int64_t cols = step->linear.n, elements;
  double *other = NULL;
  if (op->kind == EPI_BIAS) other = parts_read(run, &step->in[op->operand], &elements);
  if (op->kind == EPI_ADD || op->kind == EPI_MUL)
    other = operand_read(run, &step->in[op->operand], row, n, tile_row);
  for (int64_t i = 0; i < n * cols; i++)
    switch (op->kind) {
    case EPI_BIAS:
      y[i] += other[i % cols];
      break;
    case EPI_ACT:
      y[i] = ref_activate((enum activation)op->act, y[i]);
      break;
    case EPI_SCALE:
      y[i] *= (double)op->imm;
      break;
    case EPI_ADD:
      y[i] += other[i];
      break;
    default:
      y[i] *= other[i];
    }
  free(other);
}

// What an operand that is spread has for an element.
static inline double spread_value(const struct view *v, uint8_t spread, int64_t row, int64_t col) {
  return typed_get(v->data, v->dtype,
                   (spread == SPREAD_NONE || spread == SPREAD_COLUMNS ? row * v->stride : 0) +
                       (spread <= SPREAD_ROWS ? col : 0));
}

// Where a list can say what the finish does, it must say the same: y, [n, cols], through the list
// against the program's outputs.
static inline void check_list(const struct step *step, const struct view *inputs, double *y,
                              int64_t n, double *const *outputs) {
  struct linear_problem list = {0};
  int64_t cols = step->linear.n;
  if (!finish_as_list(&step->finish, 1, &list)) return;
  for (int o = 0; o < list.n_epilogue; o++)
    for (int64_t i = 0; i < n * cols; i++) {
      const struct epilogue_op *op = &list.epilogue[o];
      const struct view *in = &inputs[op->operand];
      uint8_t spread = op->kind == EPI_BIAS                         ? SPREAD_ROWS
                       : op->kind == EPI_ADD || op->kind == EPI_MUL ? SPREAD_NONE
                                                                    : op->act;
      double other = epilogue_reads(op->kind) ? spread_value(in, spread, i / cols, i % cols) : 0;
      uint64_t stored;
      if (op->kind == EPI_ACT) y[i] = ref_activate((enum activation)op->act, y[i]);
      if (op->kind == EPI_SCALE) y[i] *= (double)op->imm;
      if (op->kind == EPI_BIAS || op->kind == EPI_ADD) y[i] += other;
      if (op->kind == EPI_MUL || op->kind == EPI_MUL_SPREAD) y[i] *= other;
      if (op->kind == EPI_ADD_SPREAD) y[i] += (double)op->imm * other;
      if (op->kind == EPI_SAVE && !(distance(&y[i], &outputs[op->operand - 1][i], 1) < 1e-6))
        abort();
      if (op->kind == EPI_ROUND) {
        typed_set(&stored, (enum dtype)op->act, 0, y[i]);
        y[i] = typed_get(&stored, (enum dtype)op->act, 0);
      }
    }
  if (list.y_dtype != step->out[step->n_out - 1].dtype) abort();
  if (!(distance(outputs[step->n_out - 1], y, n * cols) < 1e-6)) abort();
  interpreter_lists++;
}

// The step's result, [n, cols], through its finish and into its outputs; or into its output.
static inline void run_finish(const struct runner *run, const struct step *step, double *y,
                              int32_t cols, int64_t row, int64_t n, int64_t tile_row) {
  if (step->finish.n_insts == 0) {
    operand_write(run, &step->out[0], row, n, tile_row, y);
    return;
  }
  struct view inputs[STEP_MAX_IN];
  double *outputs[STEP_MAX_OUT], regs[ROW_MAX_REGS * 16];
  float *result = malloc((size_t)(n * cols) * sizeof *result + 8);
  for (int64_t i = 0; i < n * cols; i++)
    result[i] = (float)y[i];
  inputs[0] = (struct view){result, cols, cols, DTYPE_F32};
  if (step->finish.cols != cols || step->finish.inputs[0].dtype != DTYPE_F32) abort();
  for (int i = 1; i < step->finish.n_inputs; i++)
    inputs[i] = operand_view(run, &step->in[step->finish_in + i - 1], row, tile_row);
  for (int i = 0; i < step->n_out; i++)
    outputs[i] = malloc((size_t)(n * cols) * sizeof(double) + 8);
  ref_row_program(&step->finish, inputs, outputs, n, &run->world->geometry, regs);
  if (step->kind == STEP_LINEAR) {
    for (int64_t i = 0; i < n * cols; i++)
      y[i] = (double)result[i];
    check_list(step, inputs, y, n, outputs);
  }
  for (int i = 0; i < step->n_out; i++) {
    operand_write(run, &step->out[i], row, n, tile_row, outputs[i]);
    free(outputs[i]);
  }
  free(result);
}

// A product's result, [n, cols], rounded as it would be in memory; its norm into the step's first
// output, itself into the second where it is wanted.
static inline void run_norm(const struct runner *run, const struct step *step, double *y,
                            int64_t row, int64_t n, int64_t tile_row) {
  const struct norm_problem *norm = &step->norm;
  int64_t elements, cols = step->linear.n;
  uint64_t stored;
  double *gamma = parts_read(run, &step->in[norm->gamma], &elements), *beta = NULL;
  if (norm->beta != ROW_NONE) beta = parts_read(run, &step->in[norm->beta], &elements);
  for (int64_t i = 0; i < n * cols; i++) {
    typed_set(&stored, step->linear.y_dtype, 0, y[i]);
    y[i] = typed_get(&stored, step->linear.y_dtype, 0);
  }
  if (norm->sum != (step->n_out == 2)) abort();
  if (norm->sum) operand_write(run, &step->out[1], row, n, tile_row, y);
  if (norm->kind == ROW_NORM_RMS)
    ref_rms_norm(y, y, gamma, n, cols, (double)norm->eps);
  else
    ref_layer_norm(y, y, gamma, beta, n, cols, (double)norm->eps);
  operand_write(run, &step->out[0], row, n, tile_row, y);
  free(gamma), free(beta);
}

static inline void run_linear(const struct runner *run, const struct step *step, int64_t row,
                              int64_t n, int64_t tile_row) {
  int64_t elements;
  double *x = operand_read(run, &step->in[0], row, n, tile_row),
         *w = parts_read(run, &step->in[1], &elements);
  if (elements != (int64_t)step->linear.n * step->linear.k || step->out[0].cols != step->linear.n)
    abort();
  double *y = malloc((size_t)(n * step->linear.n) * sizeof *y + 8);
  ref_linear(y, x, w, NULL, n, step->linear.n, step->linear.k);
  for (int i = 0; i < step->linear.n_epilogue; i++)
    run_epilogue(run, step, &step->linear.epilogue[i], y, row, n, tile_row);
  if (step->norm.kind != ROW_NORM_NONE)
    run_norm(run, step, y, row, n, tile_row);
  else
    run_finish(run, step, y, step->linear.n, row, n, tile_row);
  free(x), free(w), free(y);
}

static inline void run_attention(const struct runner *run, const struct step *step) {
  int64_t rows = run->world->geometry.n_tokens;
  double *in[3], work[WORLD_TOKENS],
      *o = malloc((size_t)(rows * step->attention.heads * step->attention.head_dim) * sizeof *o);
  for (int i = 0; i < 3; i++)
    in[i] = operand_read(run, &step->in[i], 0, rows, 0);
  ref_attention(o, in[0], in[1], in[2], &step->attention, &run->world->geometry, work);
  run_finish(run, step, o, step->attention.heads * step->attention.head_dim, 0, rows, 0);
  for (int i = 0; i < 3; i++)
    free(in[i]);
  free(o);
}

// One sequence and head of the unfused steps; `scores` [s, s].
static inline void run_scores_block(const struct runner *run, const struct step *step, int b, int h,
                                    uint8_t *scores) {
  const struct attention_problem *p = &step->attention;
  int64_t first = run->world->cu_seqlens[b], s = run->world->cu_seqlens[b + 1] - first,
          d = p->head_dim;
  int64_t kv = h / (p->heads / p->kv_heads);
  enum dtype dtype = p->dtype;
  double rows[WORLD_TOKENS];
  for (int64_t i = 0; i < s; i++) {
    for (int64_t j = 0; j < s; j++)
      rows[j] = typed_get(scores, dtype, i * s + j);
    if (step->kind == STEP_SCORES) {
      struct view q = operand_view(run, &step->in[0], first + i, 0),
                  k = operand_view(run, &step->in[1], first, 0);
      for (int64_t j = 0; j < s; j++) {
        rows[j] = 0;
        for (int64_t c = 0; c < d; c++)
          rows[j] += typed_get(q.data, q.dtype, h * d + c) *
                     typed_get(k.data, k.dtype, j * k.stride + kv * d + c);
      }
    } else if (step->kind == STEP_SCORES_SCALE) {
      for (int64_t j = 0; j < s; j++)
        rows[j] = p->causal && j > i ? -INFINITY : rows[j] * (double)p->scale;
    } else if (step->kind == STEP_SCORES_SOFTMAX) {
      ref_softmax(rows, rows, 1, s);
    } else {
      struct view v = operand_view(run, &step->in[1], first, 0),
                  o = operand_view(run, &step->out[0], first + i, 0);
      for (int64_t c = 0; c < d; c++) {
        double sum = 0;
        for (int64_t j = 0; j < s; j++)
          sum += rows[j] * typed_get(v.data, v.dtype, j * v.stride + kv * d + c);
        typed_set(o.data, o.dtype, h * d + c, sum);
      }
      continue;
    }
    for (int64_t j = 0; j < s; j++)
      typed_set(scores, dtype, i * s + j, rows[j]);
  }
}

static inline void run_scores(const struct runner *run, const struct step *step) {
  const struct operand *scores = step->kind == STEP_SCORES ? &step->out[0] : &step->in[0];
  for (int b = 0; b < run->world->geometry.n_seqs; b++)
    for (int h = 0; h < step->attention.heads; h++) {
      int64_t s = run->world->cu_seqlens[b + 1] - run->world->cu_seqlens[b];
      int64_t at = step->attention.heads * run->world->scores_offset[b] + h * s * s;
      run_scores_block(run, step, b, h,
                       run->arena + scores->offset_bytes +
                           at * (int64_t)dtype_bytes(scores->dtype));
    }
}

static inline void run_step(const struct runner *run, const struct step *step, int64_t row,
                            int64_t n) {
  if (step->kind == STEP_ROW)
    run_row(run, step, row, n, row);
  else if (step->kind == STEP_LINEAR)
    run_linear(run, step, row, n, row);
  else if (step->kind == STEP_ATTENTION)
    run_attention(run, step);
  else
    run_scores(run, step);
}

// Steps [first, end) of one chain, tile by tile, the last tile first.
static inline void run_chain(const struct runner *run, int32_t first, int32_t end, uint8_t outputs,
                             int tile_rows) {
  int64_t rows = world_rows(run->world, run->plan->steps[first].rows, 0);
  if (end - first == 1) tile_rows = (int)rows;
  for (int64_t tile = (rows - 1) / tile_rows; tile >= 0; tile--) {
    int64_t row = tile * tile_rows, n = rows - row < tile_rows ? rows - row : tile_rows;
    memset(run->tile, 0xff, (size_t)run->plan->tile_bytes);
    for (int32_t s = first; s < end; s++)
      if (run->plan->steps[s].needed_by & outputs) run_step(run, &run->plan->steps[s], row, n);
  }
}

// Runs what `outputs` needs; results[i] gets a malloc'ed copy of output i when asked for, else
// NULL.
static inline void world_run_plan(const struct world *w, const struct plan *plan, uint8_t outputs,
                                  int tile_rows, double **results) {
  struct runner run = {.world = w,
                       .plan = plan,
                       .arena = malloc((size_t)plan->arena_bytes + 64),
                       .tile = malloc((size_t)plan->tile_bytes + 64)};
  memset(run.arena, 0xff, (size_t)plan->arena_bytes);
  for (int32_t t = 0; t < w->graph->n_tensors; t++) {
    const struct tensor *tensor = &w->graph->tensors[t];
    if (tensor->kind == TENSOR_INPUT && plan->inputs[tensor->index].place == PLACE_ARENA)
      operand_write(&run, &plan->inputs[tensor->index], 0, tensor_rows(w, t), 0, w->values[t]);
  }
  for (int32_t s = 0, end; s < plan->n_steps; s = end) {
    for (end = s + 1; end < plan->n_steps && plan->steps[end].chain == plan->steps[s].chain;)
      end++;
    run_chain(&run, s, end, outputs, tile_rows);
  }
  for (int i = 0; i < plan->n_outputs; i++)
    results[i] = outputs >> i & 1 ? operand_read(&run, &plan->outputs[i], 0,
                                                 world_rows(w, plan->outputs[i].rows, 0), 0)
                                  : NULL;
  free(run.arena), free(run.tile);
}

#endif
