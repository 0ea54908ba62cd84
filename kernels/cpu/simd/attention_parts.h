// What the fused and the unfused attention kernels share: where things lie, packed values, the
// product of weights and values.
#ifndef KERNELS_CPU_SIMD_ATTENTION_PARTS_H
#define KERNELS_CPU_SIMD_ATTENTION_PARTS_H

#include "kernels/cpu/attention.h"
#include "kernels/cpu/epilogue.h"
#include "kernels/cpu/simd/convert.h"
#include "kernels/cpu/simd/lines.h"
#include "kernels/cpu/simd/table.h"
#include "kernels/cpu/simd/transpose.h"

// Rows and vectors of sums in registers, of which AVX-512 has 32 and the others 16.
#define CONTEXT_VECTORS 4
#if SIMD_BYTES == 64
#define CONTEXT_GROUP 8
#define CONTEXT_WIDE_ROWS 4 // up to so many rows go through all four vectors, more through two
#else
#define CONTEXT_GROUP 6
#define CONTEXT_WIDE_ROWS 2
#endif

struct work {
  const struct attention_call *call;
  int32_t d, padded;                          // head_dim, and rounded up to 16
  int32_t base, length;                       // first token and tokens of the sequence
  float *q, *keys, *values, *scores, *result; // result [queries, padded]
  const float *v;                             // values of the block: packed, or where they are
  int64_t v_stride;
};

INLINE const void *token_at(const struct view *v, int64_t token, int64_t col) {
  return (const char *)v->data + (token * v->stride + col) * element_bytes(v->dtype);
}

static inline struct work begin(const struct attention_call *call) {
  struct work w = {.call = call, .d = call->problem->head_dim};
  w.padded = (w.d + 15) & ~15;
  w.base = call->geometry->cu_seqlens[call->seq];
  w.length = call->geometry->cu_seqlens[call->seq + 1] - w.base;
  w.q = call->scratch;
  w.keys = w.q + ATTENTION_QUERIES * w.padded;
  w.values = w.keys + ATTENTION_KEYS * w.padded;
  w.scores = w.values + ATTENTION_KEYS * w.padded;
  w.result = w.scores + ATTENTION_QUERIES * ATTENTION_KEYS;
  return w;
}

static inline int32_t kv_head(const struct work *w) {
  const struct attention_problem *p = w->call->problem;
  return w->call->head / (p->heads / p->kv_heads);
}

// ---- packing ----
static inline void pack_values(struct work *w, int32_t first, int32_t n) {
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

// ---- result[r] += sum of p[r][j] v[j] over j in [j0, j1) ----
// Weights p lie as [query][key], or the other way round.
enum weight_order { BY_QUERY, BY_KEY };

INLINE void context_tile(const struct work *w, const enum weight_order order, int32_t row,
                         const int rows, int32_t col, const int vectors, int32_t j0, int32_t j1) {
  const int64_t per_row = order == BY_KEY ? 1 : ATTENTION_KEYS,
                per_key = order == BY_KEY ? ATTENTION_QUERIES : 1;
  vf acc[CONTEXT_GROUP][CONTEXT_VECTORS]; // all rows with two vectors, or few with four
  float *out = w->result + row * w->padded + col;
  for (int r = 0; r < rows; r++)
    for (int x = 0; x < vectors; x++)
      acc[r][x] = vf_load(out + r * w->padded + x * VL);
  const float *p = w->scores + row * per_row + j0 * per_key, *v = w->v + j0 * w->v_stride + col;
  for (int32_t j = j0; j < j1; j++, v += w->v_stride, p += per_key) {
    vf line[CONTEXT_VECTORS];
    for (int x = 0; x < vectors; x++)
      line[x] = vf_load(v + x * VL);
    for (int r = 0; r < rows; r++) {
      vf weight = vf_set(p[r * per_row]);
      for (int x = 0; x < vectors; x++)
        acc[r][x] += weight * line[x];
    }
  }
  for (int r = 0; r < rows; r++)
    for (int x = 0; x < vectors; x++)
      vf_store(out + r * w->padded + x * VL, acc[r][x]);
}

INLINE void context_columns(const struct work *w, const enum weight_order order, int32_t row,
                            const int rows, int32_t j0, int32_t j1) {
  int32_t col = 0, end = (w->d + VL - 1) / VL * VL;
  if (rows <= CONTEXT_WIDE_ROWS)
    for (; col + 4 * VL <= end; col += 4 * VL)
      context_tile(w, order, row, rows, col, 4, j0, j1);
  for (; col + 2 * VL <= end; col += 2 * VL)
    context_tile(w, order, row, rows, col, 2, j0, j1);
  if (col < end) context_tile(w, order, row, rows, col, 1, j0, j1);
}

// Rows [row, row + rows): what all of them see together, then what only some do.
INLINE void context_rows(const struct work *w, const enum weight_order order, const int32_t *valid,
                         int32_t row, const int rows) {
  int32_t common = valid[row];
  for (int r = 1; r < rows; r++)
    common = valid[row + r] < common ? valid[row + r] : common;
  context_columns(w, order, row, rows, 0, common);
  for (int r = 0; r < rows; r++)
    if (valid[row + r] > common) context_columns(w, order, row + r, 1, common, valid[row + r]);
}

// `valid[r]`: keys of this block that query r may see. What a query may not see is not even
// multiplied by zero, so that a NaN there stays there.
INLINE void block_context(const struct work *w, const enum weight_order order,
                          const int32_t *valid) {
  int32_t count = w->call->count;
#if SIMD_BYTES == 64
  int32_t row = 0;
  if (w->d <= 2 * VL) // two vectors a row: eight rows of sums fit the registers
    for (; row + 8 <= count; row += 8)
      context_rows(w, order, valid, row, 8);
  for (; row + 4 <= count; row += 4)
    context_rows(w, order, valid, row, 4);
  if (count - row == 3)
    context_rows(w, order, valid, row, 3);
  else if (count - row == 2)
    context_rows(w, order, valid, row, 2);
  else if (count - row == 1)
    context_rows(w, order, valid, row, 1);
#else
  int32_t groups = (count + CONTEXT_GROUP - 1) / CONTEXT_GROUP;
  for (int32_t g = 0, row = 0; g < groups; g++) { // as even as can be
    int32_t rows = count * (g + 1) / groups - row;
    switch (rows) {
    case 6:
      context_rows(w, order, valid, row, 6);
      break;
    case 5:
      context_rows(w, order, valid, row, 5);
      break;
    case 4:
      context_rows(w, order, valid, row, 4);
      break;
    case 3:
      context_rows(w, order, valid, row, 3);
      break;
    case 2:
      context_rows(w, order, valid, row, 2);
      break;
    default:
      context_rows(w, order, valid, row, 1);
      break;
    }
    row += rows;
  }
#endif
}

// Keys of block [first, first + n) that each query sees. Returns the most.
static inline int32_t visible_keys(const struct work *w, int32_t first, int32_t n, int32_t *valid) {
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

static inline void store_result(const struct work *w, const float *total) {
  const struct attention_call *c = w->call;
  for (int32_t r = 0; r < c->count; r++) {
    float *line = w->result + r * w->padded;
    if (total) scale_floats(line, total[r] == 0 ? 0 : 1.0f / total[r], w->d);
    if (c->finish) continue;
    store_floats((void *)token_at(&c->o, w->base + c->first + r, (int64_t)c->head * w->d),
                 c->o.dtype, line, w->d);
  }
  if (c->finish)
    finish_run(c->finish, w->result, w->padded, w->base + c->first, c->count,
               (int64_t)c->head * w->d, w->d);
}

#endif
