// Shadows in /metrics (obs/shadow.h): families that are there when a model has shadows.
#include "obs/expo.h"
#include "obs/shadow.h"

#include <math.h>
#include <stdio.h>

#define LABELS_BYTES 1300

static void labels_of(const struct shadow_metrics *metrics, char *out, size_t out_bytes) {
  char model[520], version[72];
  snprintf(out, out_bytes, "model=\"%s\",version=\"%s\",device=\"%s\"",
           expo_escaped(metrics->labels.model, model, sizeof model),
           expo_escaped(metrics->labels.version, version, sizeof version), metrics->labels.device);
}

static void output_labels(const struct shadow_metrics *metrics,
                          const struct shadow_output_metrics *output, char *out, size_t out_bytes) {
  char name[520], labels[700];
  labels_of(metrics, labels, sizeof labels);
  snprintf(out, out_bytes, "%s,output=\"%s\"", labels,
           expo_escaped(output->name, name, sizeof name));
}

static void number(struct expo *expo, const char *name, const char *labels, double value) {
  if (isinf(value))
    expo_text(expo, "%s{%s} +Inf\n", name, labels);
  else
    expo_text(expo, "%s{%s} %.15g\n", name, labels, value);
}

// ---- by model ----
struct family {
  const char *name, *type, *help;
  double (*value)(const struct shadow_metrics *metrics);
};

static double sampled(const struct shadow_metrics *m) {
  return (double)m->sampled;
}
static double compared(const struct shadow_metrics *m) {
  return (double)m->compared;
}
static double failed(const struct shadow_metrics *m) {
  return (double)m->failed;
}
static double pending(const struct shadow_metrics *m) {
  return (double)m->pending;
}
static double copy_seconds(const struct shadow_metrics *m) {
  return (double)m->copy_ns / 1e9;
}
static double compute_seconds(const struct shadow_metrics *m) {
  return (double)m->compute_ns / 1e9;
}

static const struct family families[] = {
    {"fusewire_shadow_sampled_total", "counter",
     "Answered requests whose other plan was to run behind. sampled = compared + failed + dropped "
     "+ pending.",
     sampled},
    {"fusewire_shadow_compared_total", "counter", "Shadows that ran and were compared.", compared},
    {"fusewire_shadow_failed_total", "counter", "Shadows whose run failed.", failed},
    {"fusewire_shadow_pending", "gauge", "Shadows that wait, run or are being compared.", pending},
    {"fusewire_shadow_copy_seconds_total", "counter",
     "Copying sampled requests and their answers, before their batch is answered.", copy_seconds},
    {"fusewire_shadow_compute_seconds_total", "counter", "Running shadows.", compute_seconds},
};

static void model_families(struct expo *expo) {
  char labels[LABELS_BYTES];
  const struct shadow_metrics *m;
  for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
    expo_family(expo, families[f].name, families[f].type, families[f].help);
    for (int i = 0; (m = metrics_shadow_at(i)); i++) {
      labels_of(m, labels, sizeof labels);
      number(expo, families[f].name, labels, families[f].value(m));
    }
  }
  expo_family(expo, "fusewire_shadow_dropped_total", "counter",
              "Sampled requests that got no shadow, by reason.");
  for (int i = 0; (m = metrics_shadow_at(i)); i++) {
    labels_of(m, labels, sizeof labels);
    for (int d = 0; d < SHADOW_DROPS; d++)
      expo_text(expo, "fusewire_shadow_dropped_total{%s,reason=\"%s\"} %llu\n", labels,
                shadow_drop_name((enum shadow_drop)d), (unsigned long long)m->dropped[d]);
  }
}

// ---- by output ----
static void exceeded_line(struct expo *expo, const char *name, const char *labels,
                          const struct shadow_output_metrics *output) {
  number(expo, name, labels, (double)output->exceeded);
}
static void max_abs_line(struct expo *expo, const char *name, const char *labels,
                         const struct shadow_output_metrics *output) {
  number(expo, name, labels, output->max_abs);
}
static void max_relative_line(struct expo *expo, const char *name, const char *labels,
                              const struct shadow_output_metrics *output) {
  number(expo, name, labels, output->max_relative);
}
static void histogram_lines(struct expo *expo, const char *name, const char *labels,
                            const struct shadow_output_metrics *output) {
  uint64_t below = 0;
  for (int e = 0; e < SHADOW_EDGES; e++) {
    below += output->buckets[e];
    expo_text(expo, "%s_bucket{%s,le=\"%.9g\"} %llu\n", name, labels, shadow_edges[e],
              (unsigned long long)below);
  }
  below += output->buckets[SHADOW_EDGES];
  expo_text(expo, "%s_bucket{%s,le=\"+Inf\"} %llu\n", name, labels, (unsigned long long)below);
  char sum[64];
  snprintf(sum, sizeof sum, "%s_sum", name);
  number(expo, sum, labels, output->sum);
  expo_text(expo, "%s_count{%s} %llu\n", name, labels, (unsigned long long)below);
}

static void output_family(struct expo *expo, const char *name, const char *type, const char *help,
                          void (*line)(struct expo *expo, const char *name, const char *labels,
                                       const struct shadow_output_metrics *output)) {
  char labels[LABELS_BYTES];
  const struct shadow_metrics *m;
  expo_family(expo, name, type, help);
  for (int i = 0; (m = metrics_shadow_at(i)); i++)
    for (int o = 0, n = atomic_load_explicit(&m->n_outputs, memory_order_acquire); o < n; o++) {
      output_labels(m, &m->outputs[o], labels, sizeof labels);
      line(expo, name, labels, &m->outputs[o]);
    }
}

void shadow_families(struct expo *expo) {
  if (!metrics_shadow_at(0)) return;
  model_families(expo);
  output_family(expo, "fusewire_shadow_exceeded_total", "counter",
                "Outputs of shadows that differed by more than ab.alarm.", exceeded_line);
  output_family(expo, "fusewire_shadow_max_abs", "gauge",
                "Largest difference of one element so far.", max_abs_line);
  output_family(expo, "fusewire_shadow_max_relative_l2", "gauge",
                "Largest relative L2 difference of an output so far.", max_relative_line);
  output_family(expo, "fusewire_shadow_relative_l2", "histogram",
                "Relative L2 difference of the two plans' outputs.", histogram_lines);
}
