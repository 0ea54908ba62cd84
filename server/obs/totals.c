#include "obs/totals.h"

#include <string.h>

static uint64_t load(const _Atomic uint64_t *value) {
  return atomic_load_explicit(value, memory_order_relaxed);
}

// What has finished is read before what was accepted, so that a snapshot never shows more answers
// than questions.
static void totals_add(struct model_totals *totals, const struct model_metrics *metrics) {
  for (int code = 0; code < STATUS_COUNT; code++)
    totals->finished[code] += atomic_load_explicit(&metrics->finished[code], memory_order_acquire);
  totals->in_flight += atomic_load_explicit(&metrics->in_flight, memory_order_relaxed);
  totals->accepted += load(&metrics->accepted);
  totals->rows += load(&metrics->rows);
  totals->batches += load(&metrics->batches);
  totals->total_ns += load(&metrics->total_ns.sum);
  totals->failed_ns += load(&metrics->failed_ns);
  totals->cancelled_ns += load(&metrics->cancelled_ns);
  totals->queue_ns += load(&metrics->queue_ns.sum);
  totals->copy_in_ns += load(&metrics->copy_in_ns.sum);
  totals->compute_ns += load(&metrics->compute_ns.sum);
  totals->copy_out_ns += load(&metrics->copy_out_ns.sum);
  int64_t last_ns = atomic_load_explicit(&metrics->last_ns, memory_order_relaxed);
  if (last_ns > totals->last_ns) totals->last_ns = last_ns;
}

static bool is_of(const struct model_metrics *metrics, const char *model, const char *version) {
  return strcmp(metrics->labels.model, model) == 0 && strcmp(metrics->labels.version, version) == 0;
}

static int n_models(void) {
  return series_count(&metrics_registry.models);
}

static const struct model_metrics *model_at(int index) {
  return series_at(&metrics_registry.models, index);
}

uint64_t totals_failed(const struct model_totals *totals) {
  uint64_t n = 0;
  for (int code = 0; code < STATUS_COUNT; code++)
    if (code != STATUS_OK && code != STATUS_CANCELLED) n += totals->finished[code];
  return n;
}

int totals_fill(struct model_totals out[METRICS_MODELS]) {
  int n = 0;
  for (int m = 0, all = n_models(); m < all; m++) {
    const struct model_metrics *metrics = model_at(m);
    int at = 0;
    while (at < n && !is_of(out[at].first, metrics->labels.model, metrics->labels.version))
      at++;
    if (at == n) out[n++] = (struct model_totals){.first = metrics};
    totals_add(&out[at], metrics);
  }
  return n;
}

void totals_of(const char *model, const char *version, struct model_totals *out) {
  *out = (struct model_totals){0};
  for (int m = 0, all = n_models(); m < all; m++) {
    const struct model_metrics *metrics = model_at(m);
    if (!is_of(metrics, model, version)) continue;
    if (!out->first) out->first = metrics;
    totals_add(out, metrics);
  }
}

static void batch_add(struct batch_totals *totals, const struct batch_metrics *batch) {
  totals->runs += load(&batch->runs);
  totals->copy_in_ns += load(&batch->copy_in_ns);
  totals->compute_ns += load(&batch->compute_ns);
  totals->copy_out_ns += load(&batch->copy_out_ns);
}

int totals_batches(const char *model, const char *version,
                   struct batch_totals out[METRICS_BATCH_ROWS]) {
  int n = 0, all = n_models();
  for (int i = 0; i < METRICS_BATCH_ROWS; i++) {
    struct batch_totals totals = {.rows = (uint64_t)i + 1};
    for (int m = 0; m < all; m++)
      if (is_of(model_at(m), model, version)) batch_add(&totals, &model_at(m)->batch_rows[i]);
    if (totals.runs > 0) out[n++] = totals;
  }
  return n;
}
