// Fused attention, compiled once for each instruction set. See kernels/cpu/attention.h.
//
// Scores lie transposed, [key][query], and vectors run over queries: maximum, exp and sum of the
// softmax are then plain vector arithmetic without sums across lanes, whatever the number of keys.
// Only the queries are transposed, once a call. For the product with the values vectors run over
// the head's columns.
#include "kernels/cpu/simd/attention_parts.h"

#include <math.h>

#define QUERY_VECTORS (ATTENTION_QUERIES / VL)
// Keys x 2 vectors of queries: sums in registers, of which AVX-512 has 32 and the others 16.
#if SIMD_BYTES == 64
#define KEY_GROUP 8
#else
#define KEY_GROUP 6
#endif

struct softmax { // of every query, so far
  _Alignas(64) float maximum[ATTENTION_QUERIES], total[ATTENTION_QUERIES];
  _Alignas(64) int32_t valid[ATTENTION_QUERIES]; // keys of this block that the query sees
  const float *keys;                             // of the block: packed, or where they are
  int64_t keys_stride;
};

// q[c][r] <- scaled query r, column c; zeros up to the next whole vector of queries.
static void transpose_queries(struct work *w) {
  const struct attention_call *c = w->call;
  const float *src = token_at(&c->q, w->base + c->first, (int64_t)c->head * w->d);
  int64_t stride = c->q.stride;
  if (c->q.dtype != DTYPE_F32) { // the values' buffer is free at this time
    for (int32_t r = 0; r < c->count; r++)
      load_floats(w->values + r * w->padded,
                  token_at(&c->q, w->base + c->first + r, (int64_t)c->head * w->d), c->q.dtype,
                  w->d);
    src = w->values, stride = w->padded;
  }
  transpose_floats(w->q, ATTENTION_QUERIES, src, stride, c->count, w->d);
  vf scale = vf_set(c->problem->scale);
  int32_t wide = (c->count + VL - 1) / VL * VL;
  for (int32_t col = 0; col < w->d; col++)
    for (int32_t r = 0; r < wide; r += VL) {
      float *at = w->q + col * ATTENTION_QUERIES + r;
      vf_store(at, vf_load(at) * scale);
    }
}

static void find_keys(struct work *w, struct softmax *s, int32_t first, int32_t n) {
  const struct view *k = &w->call->k;
  int64_t col = (int64_t)kv_head(w) * w->d;
  if (k->dtype == DTYPE_F32) {
    s->keys = token_at(k, w->base + first, col), s->keys_stride = k->stride;
    return;
  }
  for (int32_t j = 0; j < n; j++)
    load_floats(w->keys + j * w->padded, token_at(k, w->base + first + j, col), k->dtype, w->d);
  s->keys = w->keys, s->keys_stride = w->padded;
}

// ---- scores[j][r] = q[r] . k[j], and each query's maximum ----
// `masked`: some query does not see some key.
INLINE void scores_tile(const struct work *w, struct softmax *s, int32_t j, const int keys,
                        int32_t r, const int vectors, const bool masked) {
  vf acc[KEY_GROUP][2];
  for (int i = 0; i < keys; i++)
    for (int x = 0; x < vectors; x++)
      acc[i][x] = (vf){0};
  const float *q = w->q + r, *k = s->keys + j * s->keys_stride;
  for (int32_t c = 0; c < w->d; c++, q += ATTENTION_QUERIES) {
    vf q0 = vf_load(q), q1 = vectors > 1 ? vf_load(q + VL) : q0;
    for (int i = 0; i < keys; i++) {
      vf x = vf_set(k[i * s->keys_stride + c]);
      acc[i][0] += x * q0;
      if (vectors > 1) acc[i][1] += x * q1;
    }
  }
  for (int x = 0; x < vectors; x++) {
    vf top = vf_load(s->maximum + r + x * VL);
    vi valid;
    memcpy(&valid, s->valid + r + x * VL, sizeof valid);
    for (int i = 0; i < keys; i++) {
      vf score = acc[i][x];
      if (masked) score = vf_select(valid > j + i, score, vf_set(-INFINITY));
      top = vf_larger(score, top); // a NaN is left out here; its exp spreads it
      vf_store(w->scores + (j + i) * ATTENTION_QUERIES + r + x * VL, score);
    }
    vf_store(s->maximum + r + x * VL, top);
  }
}

INLINE void scores_keys(const struct work *w, struct softmax *s, int32_t j, const int keys,
                        const bool masked) {
  int32_t r = 0, count = w->call->count;
  for (; r + VL < count; r += 2 * VL)
    scores_tile(w, s, j, keys, r, 2, masked);
  if (r < count) scores_tile(w, s, j, keys, r, 1, masked);
}

INLINE void scores_block(const struct work *w, struct softmax *s, int32_t n, const bool masked) {
#if SIMD_BYTES == 64
  int32_t j = 0;
  for (; j + KEY_GROUP <= n; j += KEY_GROUP)
    scores_keys(w, s, j, KEY_GROUP, masked);
  if (n - j >= 4) scores_keys(w, s, j, 4, masked), j += 4;
  if (n - j >= 2) scores_keys(w, s, j, 2, masked), j += 2;
  if (n - j >= 1) scores_keys(w, s, j, 1, masked);
#else
  int32_t groups = (n + KEY_GROUP - 1) / KEY_GROUP;
  for (int32_t g = 0, j = 0; g < groups; g++) { // as even as can be
    int32_t keys = n * (g + 1) / groups - j;
    switch (keys) {
    case 6:
      scores_keys(w, s, j, 6, masked);
      break;
    case 5:
      scores_keys(w, s, j, 5, masked);
      break;
    case 4:
      scores_keys(w, s, j, 4, masked);
      break;
    case 3:
      scores_keys(w, s, j, 3, masked);
      break;
    case 2:
      scores_keys(w, s, j, 2, masked);
      break;
    default:
      scores_keys(w, s, j, 1, masked);
      break;
    }
    j += keys;
  }
#endif
}

// ---- softmax ----
// Scores of one vector of queries -> exp(score - maximum); earlier sums shrink by the returned
// factors. Where nothing is seen yet the maximum is minus infinity: every weight is 0 then.
INLINE vf softmax_vector(const struct work *w, struct softmax *s, int32_t r, int32_t n, vf before) {
  vf top = vf_load(s->maximum + r), none = vf_set(-INFINITY);
  vf origin = vf_select(top == none, (vf){0}, top);
  vf sum0 = {0}, sum1 = {0};
  float *p = w->scores + r;
  int32_t j = 0;
  for (; j + 2 <= n; j += 2, p += 2 * ATTENTION_QUERIES) {
    vf a = vf_exp_negative(vf_load(p) - origin);
    vf b = vf_exp_negative(vf_load(p + ATTENTION_QUERIES) - origin);
    vf_store(p, a), vf_store(p + ATTENTION_QUERIES, b);
    sum0 += a, sum1 += b;
  }
  if (j < n) {
    vf a = vf_exp_negative(vf_load(p) - origin);
    vf_store(p, a);
    sum0 += a;
  }
  vf shrink = vf_exp_negative(before - origin);
  vf_store(s->total + r, vf_load(s->total + r) * shrink + (sum0 + sum1));
  return shrink;
}

static void softmax_block(const struct work *w, struct softmax *s, int32_t n, const float *before,
                          bool first) {
  int32_t count = w->call->count;
  _Alignas(64) float shrink[ATTENTION_QUERIES];
  for (int32_t r = 0; r < count; r += VL)
    vf_store(shrink + r, softmax_vector(w, s, r, n, vf_load(before + r)));
  for (int32_t r = 0; r < count && !first; r++)
    if (shrink[r] != 1) scale_floats(w->result + r * w->padded, shrink[r], w->padded);
}

void SIMD_NAME(attention_run)(const struct attention_call *call) {
  struct work w = begin(call);
  struct softmax s = {.keys = NULL};
  _Alignas(64) float before[ATTENTION_QUERIES];
  for (int32_t r = 0; r < ATTENTION_QUERIES; r++)
    s.maximum[r] = -INFINITY, s.valid[r] = ATTENTION_KEYS;
  memset(w.result, 0, (size_t)call->count * (size_t)w.padded * sizeof(float));
  transpose_queries(&w);
  if (call->finish)
    finish_fetch(call->finish, w.base + call->first, call->count, (int64_t)call->head * w.d, w.d);
  for (int32_t first = 0; first < w.length; first += ATTENTION_KEYS) {
    int32_t n = w.length - first < ATTENTION_KEYS ? w.length - first : ATTENTION_KEYS;
    n = visible_keys(&w, first, n, s.valid);
    if (n == 0) break;
    find_keys(&w, &s, first, n);
    memcpy(before, s.maximum, sizeof before);
    if (call->problem->causal)
      scores_block(&w, &s, n, true);
    else
      scores_block(&w, &s, n, false);
    softmax_block(&w, &s, n, before, first == 0);
    pack_values(&w, first, n);
    block_context(&w, BY_KEY, s.valid);
  }
  store_result(&w, s.total);
}
