#include "obs/series.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put(char *out, size_t out_bytes, const char *text) {
  snprintf(out, out_bytes, "%s", text ? text : "");
}

struct series_labels series_labels(const char *model, const char *version, const char *fusion,
                                   const char *device) {
  struct series_labels labels;
  put(labels.model, sizeof labels.model, model);
  put(labels.version, sizeof labels.version, version);
  put(labels.fusion, sizeof labels.fusion, fusion);
  put(labels.device, sizeof labels.device, device);
  return labels;
}

static bool same(const struct series_labels *a, const struct series_labels *b) {
  return strcmp(a->model, b->model) == 0 && strcmp(a->version, b->version) == 0 &&
         strcmp(a->fusion, b->fusion) == 0 && strcmp(a->device, b->device) == 0;
}

void *series_add(struct series_family *series, size_t bytes, const struct series_labels *labels) {
  int n = atomic_load_explicit(&series->n, memory_order_relaxed);
  for (int i = 0; i < n; i++)
    if (same(series->entries[i], labels)) return series->entries[i];
  if (n == series->most) return NULL;
  struct series_labels *entry = calloc(1, bytes);
  if (!entry) return NULL;
  *entry = *labels;
  series->entries[n] = entry;
  atomic_store_explicit(&series->n, n + 1, memory_order_release);
  return entry;
}

int series_count(const struct series_family *series) {
  return atomic_load_explicit(&series->n, memory_order_acquire);
}

void *series_at(const struct series_family *series, int index) {
  return series->entries[index];
}
