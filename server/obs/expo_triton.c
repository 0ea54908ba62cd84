// Triton's metric names as an alias, switched on by metrics.triton_names. Its labels are model and
// version, so both fusion modes of a model are added up; its durations are counters of
// microseconds.
#include "obs/expo.h"
#include "obs/registry.h"

#include <stdio.h>
#include <string.h>

struct sums {
  const struct model_metrics *first; // for the labels
  uint64_t success, failed_backend, failed_cancelled, failed_rejected, failed_other, rows, batches;
  uint64_t total_ns, queue_ns, copy_in_ns, compute_ns, copy_out_ns;
  int64_t pending;
};

static uint64_t load(const _Atomic uint64_t *value) {
  return atomic_load_explicit(value, memory_order_relaxed);
}

static void sums_add(struct sums *sums, const struct model_metrics *metrics) {
  for (int code = 0; code < STATUS_COUNT; code++) {
    uint64_t n = load(&metrics->finished[code]);
    if (code == STATUS_OK)
      sums->success += n;
    else if (code == STATUS_CANCELLED)
      sums->failed_cancelled += n;
    else if (code == STATUS_RESOURCE_EXHAUSTED || code == STATUS_DEADLINE_EXCEEDED)
      sums->failed_rejected += n;
    else if (code == STATUS_INTERNAL || code == STATUS_UNAVAILABLE)
      sums->failed_backend += n;
    else
      sums->failed_other += n;
  }
  sums->rows += load(&metrics->rows);
  sums->batches += load(&metrics->batches);
  sums->total_ns += load(&metrics->total_ns.sum);
  sums->queue_ns += load(&metrics->queue_ns.sum);
  sums->copy_in_ns += load(&metrics->copy_in_ns.sum);
  sums->compute_ns += load(&metrics->compute_ns.sum);
  sums->copy_out_ns += load(&metrics->copy_out_ns.sum);
  sums->pending += atomic_load_explicit(&metrics->in_flight, memory_order_relaxed);
}

static bool same_model(const struct model_metrics *a, const struct model_metrics *b) {
  return strcmp(a->model, b->model) == 0 && strcmp(a->version, b->version) == 0;
}

// One entry per model and version, in order of registration.
static int sums_fill(struct sums *out) {
  int n = 0, n_models = atomic_load_explicit(&metrics_registry.n_models, memory_order_acquire);
  for (int m = 0; m < n_models; m++) {
    const struct model_metrics *metrics = metrics_registry.models[m];
    int at = 0;
    while (at < n && !same_model(out[at].first, metrics))
      at++;
    if (at == n) out[n++] = (struct sums){.first = metrics};
    sums_add(&out[at], metrics);
  }
  return n;
}

static void line(struct expo *expo, const char *name, const struct sums *sums, const char *reason,
                 double value) {
  char model[520], version[72];
  expo_text(expo, "%s{model=\"%s\",version=\"%s\"%s%s%s} %.15g\n", name,
            expo_escaped(sums->first->model, model, sizeof model),
            expo_escaped(sums->first->version, version, sizeof version),
            *reason ? ",reason=\"" : "", reason, *reason ? "\"" : "", value);
}

static void family(struct expo *expo, const struct sums *sums, int n, const char *name,
                   const char *type, const char *help, double (*value)(const struct sums *sums)) {
  expo_family(expo, name, type, help);
  for (int i = 0; i < n; i++)
    line(expo, name, &sums[i], "", value(&sums[i]));
}

static double success(const struct sums *sums) {
  return (double)sums->success;
}
static double rows(const struct sums *sums) {
  return (double)sums->rows;
}
static double batches(const struct sums *sums) {
  return (double)sums->batches;
}
static double pending(const struct sums *sums) {
  return (double)sums->pending;
}
static double total_us(const struct sums *sums) {
  return (double)sums->total_ns / 1e3;
}
static double queue_us(const struct sums *sums) {
  return (double)sums->queue_ns / 1e3;
}
static double input_us(const struct sums *sums) {
  return (double)sums->copy_in_ns / 1e3;
}
static double infer_us(const struct sums *sums) {
  return (double)sums->compute_ns / 1e3;
}
static double output_us(const struct sums *sums) {
  return (double)sums->copy_out_ns / 1e3;
}

void triton_families(struct expo *expo) {
  struct sums sums[METRICS_MODELS];
  int n = sums_fill(sums);
  family(expo, sums, n, "nv_inference_request_success", "counter", "Requests answered OK.",
         success);
  expo_family(expo, "nv_inference_request_failure", "counter", "Requests that failed, by reason.");
  for (int i = 0; i < n; i++) {
    line(expo, "nv_inference_request_failure", &sums[i], "REJECTED",
         (double)sums[i].failed_rejected);
    line(expo, "nv_inference_request_failure", &sums[i], "CANCELED",
         (double)sums[i].failed_cancelled);
    line(expo, "nv_inference_request_failure", &sums[i], "BACKEND", (double)sums[i].failed_backend);
    line(expo, "nv_inference_request_failure", &sums[i], "OTHER", (double)sums[i].failed_other);
  }
  family(expo, sums, n, "nv_inference_count", "counter", "Inferences: rows of the batch dimension.",
         rows);
  family(expo, sums, n, "nv_inference_exec_count", "counter", "Batches run.", batches);
  family(expo, sums, n, "nv_inference_pending_request_count", "gauge",
         "Requests without an answer yet.", pending);
  family(expo, sums, n, "nv_inference_request_duration_us", "counter", "Time of requests, in all.",
         total_us);
  family(expo, sums, n, "nv_inference_queue_duration_us", "counter", "Time queued, in all.",
         queue_us);
  family(expo, sums, n, "nv_inference_compute_input_duration_us", "counter",
         "Time of copies in, in all.", input_us);
  family(expo, sums, n, "nv_inference_compute_infer_duration_us", "counter",
         "Time of computing, in all.", infer_us);
  family(expo, sums, n, "nv_inference_compute_output_duration_us", "counter",
         "Time of copies out, in all.", output_us);
}
