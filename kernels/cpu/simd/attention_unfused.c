// Unfused attention, compiled once for each instruction set: each step reads and writes the whole
// matrix of scores. Vectors of scores run over keys (keys are transposed once per block), 8 or 6
// queries in registers.
#include "kernels/cpu/simd/attention_parts.h"

#include <math.h>

// Queries x 2 vectors of keys: sums in registers, of which AVX-512 has 32 and the others 16.
#if SIMD_BYTES == 64
#define QUERY_GROUP 8
#else
#define QUERY_GROUP 6
#endif

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
#if SIMD_BYTES == 64
      SCORES_CASE(6)
      SCORES_CASE(7)
#endif
    default:
      SCORES_CASE(QUERY_GROUP)
    }
  }
}

// ---- the steps ----
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
    block_context(&w, BY_QUERY, valid);
  }
  store_result(&w, NULL);
}
