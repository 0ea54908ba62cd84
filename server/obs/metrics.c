// The registries behind obs/metrics.h. They only grow, by the control thread; readers see a count
// that was published after what it counts.
#include "obs/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rpc_metrics rpc_metrics;
struct trace_metrics trace_metrics;
struct metrics_registry metrics_registry = {.models = SERIES(METRICS_MODELS),
                                            .memories = SERIES(METRICS_MEMORIES)};

struct model_metrics *metrics_model_add(const char *model, const char *version, const char *fusion,
                                        const char *device) {
  const struct series_labels labels = series_labels(model, version, fusion, device);
  return series_add(&metrics_registry.models, sizeof(struct model_metrics), &labels);
}

struct memory_metrics *metrics_memory_add(const char *model, const char *version,
                                          const char *device) {
  const struct series_labels labels = series_labels(model, version, NULL, device);
  return series_add(&metrics_registry.memories, sizeof(struct memory_metrics), &labels);
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
