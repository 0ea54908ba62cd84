// The registries behind obs/metrics.h. They only grow, by the control thread; readers see a count
// that was published after what it counts.
#include "obs/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rpc_metrics rpc_metrics;
struct trace_metrics trace_metrics;
struct metrics_registry metrics_registry;

struct model_metrics *metrics_model_add(const char *model, const char *version, const char *fusion,
                                        const char *device) {
  int n = atomic_load_explicit(&metrics_registry.n_models, memory_order_relaxed);
  for (int i = 0; i < n; i++) {
    struct model_metrics *old = metrics_registry.models[i];
    if (strcmp(old->model, model) == 0 && strcmp(old->version, version) == 0 &&
        strcmp(old->fusion, fusion) == 0 && strcmp(old->device, device) == 0)
      return old;
  }
  if (n == METRICS_MODELS) return NULL;
  struct model_metrics *metrics = calloc(1, sizeof *metrics);
  if (!metrics) return NULL;
  snprintf(metrics->model, sizeof metrics->model, "%s", model);
  snprintf(metrics->version, sizeof metrics->version, "%s", version);
  snprintf(metrics->fusion, sizeof metrics->fusion, "%s", fusion);
  snprintf(metrics->device, sizeof metrics->device, "%s", device);
  metrics_registry.models[n] = metrics;
  atomic_store_explicit(&metrics_registry.n_models, n + 1, memory_order_release);
  return metrics;
}

struct memory_metrics *metrics_memory_add(const char *model, const char *version,
                                          const char *device) {
  int n = atomic_load_explicit(&metrics_registry.n_memories, memory_order_relaxed);
  for (int i = 0; i < n; i++) {
    struct memory_metrics *old = metrics_registry.memories[i];
    if (strcmp(old->model, model) == 0 && strcmp(old->version, version) == 0 &&
        strcmp(old->device, device) == 0)
      return old;
  }
  if (n == METRICS_MEMORIES) return NULL;
  struct memory_metrics *metrics = calloc(1, sizeof *metrics);
  if (!metrics) return NULL;
  snprintf(metrics->model, sizeof metrics->model, "%s", model);
  snprintf(metrics->version, sizeof metrics->version, "%s", version);
  snprintf(metrics->device, sizeof metrics->device, "%s", device);
  metrics_registry.memories[n] = metrics;
  atomic_store_explicit(&metrics_registry.n_memories, n + 1, memory_order_release);
  return metrics;
}

static void fade(_Atomic double *sum, double value) {
  double old = atomic_load_explicit(sum, memory_order_relaxed);
  atomic_store_explicit(sum, old * (1 - 1.0 / METRICS_MEAN_BATCHES) + value, memory_order_relaxed);
}

void metrics_batch_work(struct model_metrics *metrics, double bytes, double flops, int64_t ns) {
  atomic_fetch_add_explicit(&metrics->batch_bytes, (uint64_t)bytes, memory_order_relaxed);
  atomic_fetch_add_explicit(&metrics->batch_flops, (uint64_t)flops, memory_order_relaxed);
  atomic_fetch_add_explicit(&metrics->batch_compute_ns, (uint64_t)ns, memory_order_relaxed);
  fade(&metrics->recent.bytes, bytes);
  fade(&metrics->recent.flops, flops);
  fade(&metrics->recent.ns, (double)ns);
}

void metrics_gauge_add(const char *name, const char *help, const char *labels,
                       double (*read)(void *arg), void *arg) {
  int n = atomic_load_explicit(&metrics_registry.n_gauges, memory_order_relaxed);
  if (n == METRICS_GAUGES) return;
  metrics_registry.gauges[n] = (struct gauge){name, help, labels, read, arg};
  atomic_store_explicit(&metrics_registry.n_gauges, n + 1, memory_order_release);
}

void metrics_writer_add(void (*write)(struct expo *expo)) {
  int n = atomic_load_explicit(&metrics_registry.n_writers, memory_order_relaxed);
  if (n == METRICS_WRITERS) return;
  metrics_registry.writers[n] = write;
  atomic_store_explicit(&metrics_registry.n_writers, n + 1, memory_order_release);
}
