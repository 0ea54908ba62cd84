// Attention kernels, compiled once for each instruction set. See kernels/cpu/attention.h.
//
// scores: vectors run over keys (keys are transposed once per block), 8 queries in registers.
// context: vectors run over the head's columns, 4 or 8 queries in registers.
#include "kernels/cpu/attention.h"
#include "kernels/cpu/simd/convert.h"
#include "kernels/cpu/simd/lines.h"
#include "kernels/cpu/simd/table.h"
#include "kernels/cpu/simd/transpose.h"

#include <math.h>

#define QUERY_GROUP 8
#define CONTEXT_GROUP 8
#define CONTEXT_VECTORS 4

struct work {
  const struct attention_call *call;
  int32_t d, padded;    // head_dim, and rounded up to 16
  int32_t base, length; // first token and tokens of the sequence
  float *q, *keys, *values, *scores, *result;
  const float *v; // values of the block: packed, or where they are
  int64_t v_stride;
};

static const void *token_at(const struct view *v, int64_t token, int64_t col) {
  return (const char *)v->data + (token * v->stride + col) * element_bytes(v->dtype);
}

static struct work begin(const struct attention_call *call) {
  struct work w = {.call = call, .d = call->problem->head_dim};
  w.padded = (w.d + 15) & ~15;
  w.base = call->geometry->cu_seqlens[call->seq];
  w.length = call->geometry->cu_seqlens[call->seq + 1] - w.base;
  w.q = call->scratch;
  w.keys = w.q + ATTENTION_QUERIES * w.padded;
  w.values = w.keys + w.d * ATTENTION_KEYS;
  w.scores = w.values + ATTENTION_KEYS * w.padded;
  w.result = w.scores + ATTENTION_QUERIES * ATTENTION_KEYS;
  return w;
}

static int32_t kv_head(const struct work *w) {
  const struct attention_problem *p = w->call->problem;
  return w->call->head / (p->heads / p->kv_heads);
}

// ---- packing ----
static void pack_queries(struct work *w, float scale) {
  const struct attention_call *c = w->call;
  for (int32_t r = 0; r < c->count; r++) {
    float *out = w->q + r * w->d;
    const void *src = token_at(&c->q, w->base + c->first + r, (int64_t)c->head * w->d);
    load_floats(out, src, c->q.dtype, w->d);
    scale_floats(out, scale, w->d);
  }
}

// keys[c][j] <- k[first + j][c]; columns up to the next multiple of VL are zero.
static void pack_keys(struct work *w, int32_t first, int32_t n) {
  const struct view *k = &w->call->k;
  int64_t col = (int64_t)kv_head(w) * w->d;
  const float *src = token_at(k, w->base + first, col);
  int64_t stride = k->stride;
  if (k->dtype != DTYPE_F32) { // the values' buffer is free at this time
    for (int32_t j = 0; j < n; j++)
      load_floats(w->values + j * w->padded, token_at(k, w->base + first + j, col), k->dtype, w->d);
    src = w->values, stride = w->padded;
  }
  transpose_floats(w->keys, ATTENTION_KEYS, src, stride, n, w->d);
}

static void pack_values(struct work *w, int32_t first, int32_t n) {
  const struct view *v = &w->call->v;
  int64_t col = (int64_t)kv_head(w) * w->d;
  if (v->dtype == DTYPE_F32 && w->d % VL == 0) {
    w->v = token_at(v, w->base + first, col), w->v_stride = v->stride;
    return;
  }
  for (int32_t j = 0; j < n; j++) {
    float *out = w->values + j * w->padded;
    load_floats(out, token_at(v, w->base + first + j, col), v->dtype, w->d);
    for (int32_t c = w->d; c < w->padded; c++)
      out[c] = 0;
  }
  w->v = w->values, w->v_stride = w->padded;
}

// ---- scores[r][j] = q[r] . k[j] ----
INLINE void scores_tile(const struct work *w, int32_t row, const int rows, int32_t j,
                        const int vectors) {
  vf acc[QUERY_GROUP][2];
  for (int r = 0; r < rows; r++)
    for (int x = 0; x < vectors; x++)
      acc[r][x] = (vf){0};
  const float *q = w->q + row * w->d, *k = w->keys + j;
  for (int32_t c = 0; c < w->d; c++, k += ATTENTION_KEYS) {
    vf k0 = vf_load(k), k1 = vectors > 1 ? vf_load(k + VL) : k0;
    for (int r = 0; r < rows; r++) {
      vf x = vf_set(q[r * w->d + c]);
      acc[r][0] += x * k0;
      if (vectors > 1) acc[r][1] += x * k1;
    }
  }
  for (int r = 0; r < rows; r++)
    for (int x = 0; x < vectors; x++)
      vf_store(w->scores + (row + r) * ATTENTION_KEYS + j + x * VL, acc[r][x]);
}

#define SCORES_CASE(n)                                                                             \
  case n:                                                                                          \
    for (; j + VL < keys; j += 2 * VL)                                                             \
      scores_tile(w, row, n, j, 2);                                                                \
    if (j < keys) scores_tile(w, row, n, j, 1);                                                    \
    break;

static void block_scores(const struct work *w, int32_t keys) {
  for (int32_t row = 0; row < w->call->count; row += QUERY_GROUP) {
    int32_t left = w->call->count - row, j = 0;
    switch (left < QUERY_GROUP ? left : QUERY_GROUP) {
      SCORES_CASE(1)
      SCORES_CASE(2)
      SCORES_CASE(3)
      SCORES_CASE(4)
      SCORES_CASE(5)
      SCORES_CASE(6)
      SCORES_CASE(7)
    default:
      SCORES_CASE(8)
    }
  }
}

// ---- result[r] += sum of p[r][j] v[j] over j in [j0, j1) ----
INLINE void context_tile(const struct work *w, int32_t row, const int rows, int32_t col,
                         const int vectors, int32_t j0, int32_t j1) {
  vf acc[CONTEXT_GROUP][CONTEXT_VECTORS]; // 8 x 2 or 4 x 4 of them are used
  float *out = w->result + row * w->padded + col;
  for (int r = 0; r < rows; r++)
    for (int x = 0; x < vectors; x++)
      acc[r][x] = vf_load(out + r * w->padded + x * VL);
  const float *p = w->scores + row * ATTENTION_KEYS, *v = w->v + j0 * w->v_stride + col;
  for (int32_t j = j0; j < j1; j++, v += w->v_stride) {
    vf line[CONTEXT_VECTORS];
    for (int x = 0; x < vectors; x++)
      line[x] = vf_load(v + x * VL);
    for (int r = 0; r < rows; r++) {
      vf weight = vf_set(p[r * ATTENTION_KEYS + j]);
      for (int x = 0; x < vectors; x++)
        acc[r][x] += weight * line[x];
    }
  }
  for (int r = 0; r < rows; r++)
    for (int x = 0; x < vectors; x++)
      vf_store(out + r * w->padded + x * VL, acc[r][x]);
}

INLINE void context_columns(const struct work *w, int32_t row, const int rows, int32_t j0,
                            int32_t j1) {
  int32_t col = 0, end = (w->d + VL - 1) / VL * VL;
  if (rows <= 4)
    for (; col + 4 * VL <= end; col += 4 * VL)
      context_tile(w, row, rows, col, 4, j0, j1);
  if (col + 2 * VL <= end) context_tile(w, row, rows, col, 2, j0, j1), col += 2 * VL;
  if (col < end) context_tile(w, row, rows, col, 1, j0, j1);
}

// Rows [row, row + rows): what all of them see together, then what only some do.
INLINE void context_rows(const struct work *w, const int32_t *valid, int32_t row, const int rows) {
  int32_t common = valid[row];
  for (int r = 1; r < rows; r++)
    common = valid[row + r] < common ? valid[row + r] : common;
  context_columns(w, row, rows, 0, common);
  for (int r = 0; r < rows; r++)
    if (valid[row + r] > common) context_columns(w, row + r, 1, common, valid[row + r]);
}

// `valid[r]`: keys of this block that query r may see. What a query may not see is not even
// multiplied by zero, so that a NaN there stays there.
static void block_context(const struct work *w, const int32_t *valid) {
  int32_t row = 0, count = w->call->count;
  if (w->d <= 2 * VL) // two vectors a row: eight rows of sums fit the registers
    for (; row + 8 <= count; row += 8)
      context_rows(w, valid, row, 8);
  for (; row + 4 <= count; row += 4)
    context_rows(w, valid, row, 4);
  for (; row < count; row++)
    context_columns(w, row, 1, 0, valid[row]);
}

// Keys of block [first, first + n) that each query sees. Returns the most.
static int32_t visible_keys(const struct work *w, int32_t first, int32_t n, int32_t *valid) {
  int32_t most = 0;
  for (int32_t r = 0; r < w->call->count; r++) {
    int32_t seen = n;
    if (w->call->problem->causal) {
      seen = w->call->first + r + 1 - first;
      seen = seen < 0 ? 0 : seen > n ? n : seen;
    }
    valid[r] = seen;
    most = seen > most ? seen : most;
  }
  return most;
}

static void store_result(const struct work *w, const float *total) {
  const struct attention_call *c = w->call;
  for (int32_t r = 0; r < c->count; r++) {
    float *line = w->result + r * w->padded;
    if (total) scale_floats(line, total[r] == 0 ? 0 : 1.0f / total[r], w->d);
    store_floats((void *)token_at(&c->o, w->base + c->first + r, (int64_t)c->head * w->d),
                 c->o.dtype, line, w->d);
  }
}

// One row's share of the online softmax: scores -> exp(score - maximum), earlier sums rescaled.
static void softmax_step(const struct work *w, int32_t row, int32_t n, float *maximum,
                         float *total) {
  if (n == 0) return;
  float *line = w->scores + row * ATTENTION_KEYS;
  float block = max_of(line, n), top = block > *maximum || block != block ? block : *maximum;
  if (top == -INFINITY) {
    memset(line, 0, (size_t)n * sizeof *line);
    return;
  }
  if (*total != 0 && top != *maximum) {
    float shrink = expf(*maximum - top);
    scale_floats(w->result + row * w->padded, shrink, w->padded);
    *total *= shrink;
  }
  *total += exp_floats(line, line, top, n);
  *maximum = top;
}

void SIMD_NAME(attention_run)(const struct attention_call *call) {
  struct work w = begin(call);
  float maximum[ATTENTION_QUERIES], total[ATTENTION_QUERIES];
  int32_t valid[ATTENTION_QUERIES];
  for (int32_t r = 0; r < call->count; r++)
    maximum[r] = -INFINITY, total[r] = 0;
  memset(w.result, 0, (size_t)call->count * (size_t)w.padded * sizeof(float));
  pack_queries(&w, call->problem->scale);
  for (int32_t first = 0; first < w.length; first += ATTENTION_KEYS) {
    int32_t n = w.length - first < ATTENTION_KEYS ? w.length - first : ATTENTION_KEYS;
    n = visible_keys(&w, first, n, valid);
    if (n == 0) break;
    pack_keys(&w, first, n);
    block_scores(&w, n);
    for (int32_t r = 0; r < call->count; r++)
      softmax_step(&w, r, valid[r], &maximum[r], &total[r]);
    pack_values(&w, first, n);
    block_context(&w, valid);
  }
  store_result(&w, total);
}

// ---- unfused: each step reads and writes the whole matrix ----
static float *score_row(const struct work *w, int32_t r) {
  const struct attention_call *c = w->call;
  int64_t at = c->problem->heads * c->geometry->scores_offset[c->seq] +
               ((int64_t)c->head * w->length + c->first + r) * w->length;
  return (float *)c->scores + at;
}

void SIMD_NAME(scores_run)(const struct attention_call *call) {
  struct work w = begin(call);
  pack_queries(&w, 1.0f);
  for (int32_t first = 0; first < w.length; first += ATTENTION_KEYS) {
    int32_t n = w.length - first < ATTENTION_KEYS ? w.length - first : ATTENTION_KEYS;
    pack_keys(&w, first, n);
    block_scores(&w, n);
    for (int32_t r = 0; r < call->count; r++)
      memcpy(score_row(&w, r) + first, w.scores + r * ATTENTION_KEYS, (size_t)n * sizeof(float));
  }
}

void SIMD_NAME(scale_run)(const struct attention_call *call) {
  struct work w = begin(call);
  for (int32_t r = 0; r < call->count; r++) {
    int32_t seen = call->problem->causal ? call->first + r + 1 : w.length;
    float *row = score_row(&w, r);
    scale_floats(row, call->problem->scale, w.length);
    for (int32_t j = seen; j < w.length; j++)
      row[j] = -INFINITY;
  }
}

void SIMD_NAME(softmax_run)(const struct attention_call *call) {
  struct work w = begin(call);
  for (int32_t r = 0; r < call->count; r++) {
    float *row = score_row(&w, r);
    softmax_floats(row, row, w.length);
  }
}

void SIMD_NAME(context_run)(const struct attention_call *call) {
  struct work w = begin(call);
  int32_t valid[ATTENTION_QUERIES];
  memset(w.result, 0, (size_t)call->count * (size_t)w.padded * sizeof(float));
  for (int32_t first = 0; first < w.length; first += ATTENTION_KEYS) {
    int32_t n = w.length - first < ATTENTION_KEYS ? w.length - first : ATTENTION_KEYS;
    n = visible_keys(&w, first, n, valid);
    if (n == 0) break;
    for (int32_t r = 0; r < call->count; r++)
      memcpy(w.scores + r * ATTENTION_KEYS, score_row(&w, r) + first, (size_t)n * sizeof(float));
    pack_values(&w, first, n);
    block_context(&w, valid);
  }
  store_result(&w, NULL);
}
