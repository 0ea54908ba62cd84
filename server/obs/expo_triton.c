// Triton's metric names as an alias, switched on by metrics.triton_names. Its labels are model and
// version, so both fusion modes of a model are added up; its durations are counters of
// microseconds.
#include "obs/expo.h"
#include "obs/totals.h"

#include <stdio.h>
#include <string.h>

// What Triton calls the reason of a failure.
enum reason { REJECTED, CANCELED, BACKEND, OTHER, REASONS };
static const char *const reason_names[REASONS] = {"REJECTED", "CANCELED", "BACKEND", "OTHER"};

static enum reason reason_of(int code) {
  switch (code) {
  case STATUS_CANCELLED:
    return CANCELED;
  case STATUS_RESOURCE_EXHAUSTED:
  case STATUS_DEADLINE_EXCEEDED:
    return REJECTED;
  case STATUS_INTERNAL:
  case STATUS_UNAVAILABLE:
    return BACKEND;
  default:
    return OTHER;
  }
}

static double failures(const struct model_totals *totals, enum reason reason) {
  uint64_t n = 0;
  for (int code = 0; code < STATUS_COUNT; code++)
    if (code != STATUS_OK && reason_of(code) == reason) n += totals->finished[code];
  return (double)n;
}

static void line(struct expo *expo, const char *name, const struct model_totals *totals,
                 const char *reason, double value) {
  char model[520], version[72];
  expo_text(expo, "%s{model=\"%s\",version=\"%s\"%s%s%s} %.15g\n", name,
            expo_escaped(totals->first->labels.model, model, sizeof model),
            expo_escaped(totals->first->labels.version, version, sizeof version),
            *reason ? ",reason=\"" : "", reason, *reason ? "\"" : "", value);
}

static void family(struct expo *expo, const struct model_totals *totals, int n, const char *name,
                   const char *type, const char *help,
                   double (*value)(const struct model_totals *totals)) {
  expo_family(expo, name, type, help);
  for (int i = 0; i < n; i++)
    line(expo, name, &totals[i], "", value(&totals[i]));
}

static double success(const struct model_totals *totals) {
  return (double)totals->finished[STATUS_OK];
}
static double rows(const struct model_totals *totals) {
  return (double)totals->rows;
}
static double batches(const struct model_totals *totals) {
  return (double)totals->batches;
}
static double pending(const struct model_totals *totals) {
  return (double)totals->in_flight;
}
static double total_us(const struct model_totals *totals) {
  return (double)totals->total_ns / 1e3;
}
static double queue_us(const struct model_totals *totals) {
  return (double)totals->queue_ns / 1e3;
}
static double input_us(const struct model_totals *totals) {
  return (double)totals->copy_in_ns / 1e3;
}
static double infer_us(const struct model_totals *totals) {
  return (double)totals->compute_ns / 1e3;
}
static double output_us(const struct model_totals *totals) {
  return (double)totals->copy_out_ns / 1e3;
}

void triton_families(struct expo *expo) {
  struct model_totals totals[METRICS_MODELS];
  int n = totals_fill(totals);
  family(expo, totals, n, "nv_inference_request_success", "counter", "Requests answered OK.",
         success);
  expo_family(expo, "nv_inference_request_failure", "counter", "Requests that failed, by reason.");
  for (int i = 0; i < n; i++)
    for (int reason = 0; reason < REASONS; reason++)
      line(expo, "nv_inference_request_failure", &totals[i], reason_names[reason],
           failures(&totals[i], (enum reason)reason));
  family(expo, totals, n, "nv_inference_count", "counter",
         "Inferences: rows of the batch dimension.", rows);
  family(expo, totals, n, "nv_inference_exec_count", "counter", "Batches run.", batches);
  family(expo, totals, n, "nv_inference_pending_request_count", "gauge",
         "Requests without an answer yet.", pending);
  family(expo, totals, n, "nv_inference_request_duration_us", "counter",
         "Time of requests, in all.", total_us);
  family(expo, totals, n, "nv_inference_queue_duration_us", "counter", "Time queued, in all.",
         queue_us);
  family(expo, totals, n, "nv_inference_compute_input_duration_us", "counter",
         "Time of copies in, in all.", input_us);
  family(expo, totals, n, "nv_inference_compute_infer_duration_us", "counter",
         "Time of computing, in all.", infer_us);
  family(expo, totals, n, "nv_inference_compute_output_duration_us", "counter",
         "Time of copies out, in all.", output_us);
}
