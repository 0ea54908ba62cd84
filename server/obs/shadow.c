#include "obs/shadow.h"
#include "obs/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define METRICS_SHADOWS (LIMIT_MODELS * 2)

const double shadow_edges[SHADOW_EDGES] = {1e-8, 3e-8, 1e-7, 3e-7, 1e-6, 3e-6, 1e-5, 3e-5, 1e-4,
                                           3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1,  0.3,  1};

static struct series_family registry = SERIES(METRICS_SHADOWS);

const char *shadow_drop_name(enum shadow_drop drop) {
  static const char *const names[SHADOW_DROPS] = {"busy", "size", "late", "drain", "lost"};
  return drop < SHADOW_DROPS ? names[drop] : "unknown";
}

const struct shadow_metrics *metrics_shadow_at(int index) {
  return index < series_count(&registry) ? series_at(&registry, index) : NULL;
}

struct shadow_metrics *metrics_shadow_add(const char *model, const char *version,
                                          const char *device) {
  const struct series_labels labels = series_labels(model, version, NULL, device);
  return series_add(&registry, sizeof(struct shadow_metrics), &labels);
}

struct shadow_output_metrics *metrics_shadow_output(struct shadow_metrics *metrics,
                                                    const char *name) {
  int n = atomic_load_explicit(&metrics->n_outputs, memory_order_relaxed);
  for (int i = 0; i < n; i++)
    if (strcmp(metrics->outputs[i].name, name) == 0) return &metrics->outputs[i];
  if (n == SHADOW_OUTPUTS) return NULL;
  snprintf(metrics->outputs[n].name, sizeof metrics->outputs[n].name, "%s", name);
  atomic_store_explicit(&metrics->n_outputs, n + 1, memory_order_release);
  return &metrics->outputs[n];
}

// Executors of several devices may record at once.
static void sum_up(_Atomic double *sum, double value) {
  double old = atomic_load_explicit(sum, memory_order_relaxed);
  while (!atomic_compare_exchange_weak_explicit(sum, &old, old + value, memory_order_relaxed,
                                                memory_order_relaxed)) {
  }
}

static void keep_largest(_Atomic double *largest, double value) {
  double old = atomic_load_explicit(largest, memory_order_relaxed);
  while (value > old && !atomic_compare_exchange_weak_explicit(
                            largest, &old, value, memory_order_relaxed, memory_order_relaxed)) {
  }
}

void metrics_shadow_record(struct shadow_output_metrics *output, double relative, double max_abs,
                           bool exceeded) {
  int edge = 0;
  while (edge < SHADOW_EDGES && relative > shadow_edges[edge])
    edge++;
  atomic_fetch_add_explicit(&output->buckets[edge], 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&output->compared, 1, memory_order_relaxed);
  if (exceeded) atomic_fetch_add_explicit(&output->exceeded, 1, memory_order_relaxed);
  sum_up(&output->sum, relative);
  keep_largest(&output->max_relative, relative);
  keep_largest(&output->max_abs, max_abs);
}
