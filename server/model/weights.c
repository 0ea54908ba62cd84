// See weights.h.
#include "model/weights.h"
#include "conf/yaml.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct weights {
  bool synthetic;
  struct safetensors *file; // NULL: synthetic, or let go
  uint64_t seed;
  double scale;
  struct weight *table; // [capacity]
  enum weight_form *forms;
  int32_t n_weights, capacity;
  int64_t synthetic_bytes;
  void *memory; // data of all synthetic weights, or of the file's that plans read in place
  int64_t memory_bytes;
};

static enum status no_memory(struct error *err) {
  return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory");
}

enum status weights_open_file(const char *path, struct weights **out, struct error *err) {
  struct weights *weights = calloc(1, sizeof *weights);
  if (weights == NULL) return no_memory(err);
  enum status code = safetensors_open(path, &weights->file, err);
  if (code == STATUS_OK)
    *out = weights;
  else
    free(weights);
  return code;
}

enum status weights_open_synthetic(uint64_t seed, double scale, struct weights **out,
                                   struct error *err) {
  struct weights *weights = calloc(1, sizeof *weights);
  if (weights == NULL) return no_memory(err);
  weights->synthetic = true;
  weights->seed = seed;
  weights->scale = scale;
  *out = weights;
  return STATUS_OK;
}

void weights_close(struct weights *weights) {
  if (weights == NULL) return;
  for (int32_t i = 0; i < weights->n_weights; i++)
    free((char *)weights->table[i].name);
  safetensors_close(weights->file);
  free(weights->table);
  free(weights->forms);
  free(weights->memory);
  free(weights);
}

bool weights_synthetic(const struct weights *weights) {
  return weights->synthetic;
}

// ---- shapes ---------------------------------------------------------------------------------

// A vector [n] is 1 x n; so is [1, n].
static bool entry_shape(const struct safetensors_entry *entry, int32_t *rows, int32_t *cols) {
  if (entry->rank < 1 || entry->rank > 2) return false;
  int64_t r = entry->rank == 2 ? entry->dims[0] : 1, c = entry->dims[entry->rank - 1];
  if (r < 1 || r > LIMIT_DIM || c < 1 || c > LIMIT_DIM) return false;
  *rows = (int32_t)r;
  *cols = (int32_t)c;
  return true;
}

bool weights_shape(const struct weights *weights, const char *name, int32_t *rows, int32_t *cols) {
  if (weights->synthetic) return false;
  const struct safetensors_entry *entry = safetensors_find(weights->file, name);
  return entry != NULL && entry_shape(entry, rows, cols);
}

static const char *shape_text(const struct safetensors_entry *entry, char *out, size_t size) {
  size_t used = (size_t)snprintf(out, size, "[");
  for (int32_t i = 0; i < entry->rank && used < size; i++)
    used += (size_t)snprintf(out + used, size - used, "%s%lld", i != 0 ? ", " : "",
                             (long long)entry->dims[i]);
  if (used < size) snprintf(out + used, size - used, "]");
  return out;
}

// "bert.layer.0.weight" for "layer.0.weight", and the other way round: prefixes come and go with
// what a file was saved from.
static bool is_tail(const char *text, const char *tail) {
  size_t bytes = strlen(text), tail_bytes = strlen(tail);
  return bytes > tail_bytes && text[bytes - tail_bytes - 1] == '.' &&
         memcmp(text + bytes - tail_bytes, tail, tail_bytes) == 0;
}

static enum status not_there(const struct weights *weights, const char *name, struct error *err) {
  const char *best = NULL;
  size_t bytes = strlen(name);
  int best_distance = 3 + (int)bytes / 4; // farther than any that is near
  for (int32_t i = 0; i < safetensors_count(weights->file) && i < LIMIT_WEIGHTS; i++) {
    const char *other = safetensors_at(weights->file, i)->name;
    int distance = is_tail(other, name) || is_tail(name, other)
                       ? 0
                       : conf_distance_within(name, bytes, other, strlen(other), best_distance - 1);
    if (distance >= best_distance) continue;
    best_distance = distance;
    best = other;
  }
  return error_set(err, STATUS_NOT_FOUND, "weight \"%s\" is not in the weights file%s%.200s%s%s",
                   name, best ? "; the nearest is \"" : "", best ? best : "", best ? "\"" : "",
                   is_tail(name, "bias") ? "; `bias: false` says that there is none" : "");
}

static bool has_rows(enum weight_form form) {
  return form == WEIGHT_MATRIX || form == WEIGHT_TABLE;
}

static enum status check_entry(const struct safetensors_entry *entry, enum weight_form form,
                               int32_t rows, int32_t cols, struct error *err) {
  char found[200], expected[64];
  int32_t r = 0, c = 0;
  if (rows == 0)
    snprintf(expected, sizeof expected, "a matrix of at most 2^24 rows and columns");
  else if (has_rows(form))
    snprintf(expected, sizeof expected, "[%d, %d]", rows, cols);
  else
    snprintf(expected, sizeof expected, "[%d]", cols);
  bool right = entry_shape(entry, &r, &c) && r == rows && c == cols;
  if (has_rows(form) && entry->rank != 2) right = false;
  if (!right)
    return error_set(err, STATUS_INVALID_ARGUMENT, "weight \"%s\" has the shape %s; expected %s",
                     entry->name, shape_text(entry, found, sizeof found), expected);
  if (entry->dtype == DTYPE_INVALID)
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "weight \"%s\" has the dtype %s; expected F32, F16 or BF16", entry->name,
                     entry->dtype_word);
  return STATUS_OK;
}

// ---- table ----------------------------------------------------------------------------------

static enum status grow(struct weights *weights, struct error *err) {
  if (weights->n_weights < weights->capacity) return STATUS_OK;
  if (weights->capacity >= LIMIT_WEIGHTS)
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "more than %d weights", LIMIT_WEIGHTS);
  size_t capacity = weights->capacity == 0 ? 64 : 2 * (size_t)weights->capacity;
  struct weight *table = realloc(weights->table, capacity * sizeof *table);
  if (table == NULL) return no_memory(err);
  weights->table = table;
  enum weight_form *forms = realloc(weights->forms, capacity * sizeof *forms);
  if (forms == NULL) return no_memory(err);
  weights->forms = forms;
  weights->capacity = (int32_t)capacity;
  return STATUS_OK;
}

static int32_t find_added(const struct weights *weights, const char *name) {
  for (int32_t i = 0; i < weights->n_weights; i++)
    if (strcmp(weights->table[i].name, name) == 0) return i;
  return -1;
}

static enum status account_synthetic(struct weights *weights, const char *name, int32_t rows,
                                     int32_t cols, struct error *err) {
  int64_t bytes = (int64_t)rows * cols * 4; // both are at most LIMIT_DIM = 2^24
  bytes = (bytes + 63) & ~(int64_t)63;
  if (bytes > LIMIT_SYNTHETIC_BYTES - weights->synthetic_bytes)
    return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                     "weight \"%s\" of [%d, %d] brings the synthetic weights above %lld bytes",
                     name, rows, cols, (long long)LIMIT_SYNTHETIC_BYTES);
  weights->synthetic_bytes += bytes;
  return STATUS_OK;
}

enum status weights_add(struct weights *weights, const char *name, enum weight_form form,
                        int32_t rows, int32_t cols, int32_t *id, struct error *err) {
  int32_t known = find_added(weights, name);
  if (known >= 0) {
    const struct weight *w = &weights->table[known];
    *id = known;
    if (form == WEIGHT_TABLE) weights->forms[known] = form; // of a product as well: it stays
    if (w->rows == rows && w->cols == cols) return STATUS_OK;
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "weight \"%s\" is [%d, %d] here and [%d, %d] elsewhere in the graph", name,
                     rows, cols, w->rows, w->cols);
  }
  struct weight weight = {.stored_dtype = DTYPE_F32, .rows = rows, .cols = cols};
  enum status code = grow(weights, err);
  if (code != STATUS_OK) return code;
  if (weights->synthetic) {
    code = account_synthetic(weights, name, rows, cols, err);
  } else {
    const struct safetensors_entry *entry = safetensors_find(weights->file, name);
    if (entry == NULL) return not_there(weights, name, err);
    code = check_entry(entry, form, rows, cols, err);
    weight.stored_dtype = entry->dtype;
    weight.data = entry->data;
  }
  if (code != STATUS_OK) return code;
  weight.name = strdup(name);
  if (weight.name == NULL) return no_memory(err);
  *id = weights->n_weights++;
  weights->table[*id] = weight;
  weights->forms[*id] = form;
  return STATUS_OK;
}

struct weight_table weights_table(const struct weights *weights) {
  if (weights == NULL) return (struct weight_table){0};
  return (struct weight_table){weights->table, weights->n_weights};
}

// ---- synthetic data -------------------------------------------------------------------------

// A bijective mixer of 64 bits: multiply, shift, twice. Good enough that neighbouring counters look
// unrelated.
static uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
  return x ^ (x >> 32);
}

static uint64_t key_of(uint64_t seed, const char *name) {
  uint64_t key = mix(seed + 0x9e3779b97f4a7c15u);
  for (; *name != '\0'; name++)
    key = mix(key ^ (uint8_t)*name);
  return key;
}

static void fill_one(float *out, int64_t n, uint64_t key, float center, double scale) {
  // Four 16-bit uniform variates: mean 4 * 65535 / 2, variance 4 * (65536^2 - 1) / 12.
  float factor = (float)(scale / sqrt(4.0 * (65536.0 * 65536.0 - 1) / 12));
  for (int64_t i = 0; i < n; i++) {
    uint64_t x = mix(key + (uint64_t)i);
    int32_t sum = (int32_t)((x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48));
    out[i] = center + (float)(sum - 2 * 65535) * factor;
  }
}

static enum status fill_synthetic(struct weights *weights, struct error *err) {
  weights->memory = aligned_alloc(64, (size_t)weights->synthetic_bytes);
  if (weights->memory == NULL)
    return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                     "no memory for %lld bytes of synthetic weights",
                     (long long)weights->synthetic_bytes);
  weights->memory_bytes = weights->synthetic_bytes;
  char *at = weights->memory;
  for (int32_t i = 0; i < weights->n_weights; i++) {
    struct weight *weight = &weights->table[i];
    int64_t n = (int64_t)weight->rows * weight->cols;
    weight->data = at;
    fill_one((float *)(void *)at, n, key_of(weights->seed, weight->name),
             weights->forms[i] == WEIGHT_GAIN ? 1.0F : 0.0F, weights->scale);
    at += (n * 4 + 63) & ~(int64_t)63;
  }
  return STATUS_OK;
}

// ---- data of a file -------------------------------------------------------------------------

static size_t stored_bytes(const struct weight *weight) {
  return (size_t)weight->rows * (size_t)weight->cols * dtype_bytes(weight->stored_dtype);
}

// What plans read in place must not depend on the file any more: somebody may write into it (other
// answers, silently) or cut it short (SIGBUS). Product matrices are packed anew when they are
// bound.
static enum status copy_kept(struct weights *weights, struct error *err) {
  size_t bytes = 0;
  for (int32_t i = 0; i < weights->n_weights; i++)
    if (weights->forms[i] != WEIGHT_MATRIX)
      bytes += (stored_bytes(&weights->table[i]) + 63) & ~(size_t)63;
  if (bytes == 0) return STATUS_OK;
  weights->memory = aligned_alloc(64, bytes);
  if (weights->memory == NULL)
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for %zu bytes of weights", bytes);
  weights->memory_bytes = (int64_t)bytes;
  char *at = weights->memory;
  for (int32_t i = 0; i < weights->n_weights; i++) {
    struct weight *weight = &weights->table[i];
    if (weights->forms[i] == WEIGHT_MATRIX) continue;
    memcpy(at, weight->data, stored_bytes(weight));
    weight->data = at;
    at += (stored_bytes(weight) + 63) & ~(size_t)63;
  }
  return STATUS_OK;
}

enum status weights_fill(struct weights *weights, struct error *err) {
  if (weights == NULL || weights->memory != NULL || weights->n_weights == 0) return STATUS_OK;
  return weights->synthetic ? fill_synthetic(weights, err) : copy_kept(weights, err);
}

int64_t weights_bytes(const struct weights *weights) {
  return weights == NULL ? 0 : weights->memory_bytes;
}

void weights_let_go(struct weights *weights) {
  if (weights == NULL || weights->file == NULL) return;
  for (int32_t i = 0; i < weights->n_weights; i++)
    if (weights->forms[i] == WEIGHT_MATRIX) weights->table[i].data = NULL;
  safetensors_close(weights->file);
  weights->file = NULL;
}
