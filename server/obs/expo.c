// Prometheus text exposition 0.0.4. One family at a time, all its series together, every series
// from the start.
//
// Histogram edges are powers of two of the unit that was recorded, which are bucket edges of
// base/hist, so no value is counted on the wrong side; 16 us to 17 s for times, 1 to 1 Mi for
// counts.
#include "obs/expo.h"
#include "obs/process.h"
#include "obs/registry.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define TIME_FIRST_BIT 14
#define TIME_LAST_BIT 34
#define SIZE_FIRST_BIT 0
#define SIZE_LAST_BIT 20

void expo_text(struct expo *expo, const char *format, ...) {
  size_t room = expo->used < expo->bytes ? expo->bytes - expo->used : 0;
  char *at = room > 0 ? expo->out + expo->used : NULL;
  va_list args;
  va_start(args, format);
  int n = vsnprintf(at, room, format, args);
  va_end(args);
  if (n > 0) expo->used += (size_t)n;
}

void expo_family(struct expo *expo, const char *name, const char *type, const char *help) {
  expo_text(expo, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

const char *expo_escaped(const char *value, char *out, size_t out_bytes) {
  size_t used = 0;
  for (; *value && used + 3 < out_bytes; value++) {
    if (*value == '\\' || *value == '"' || *value == '\n') out[used++] = '\\';
    out[used++] = *value == '\n' ? 'n' : *value;
  }
  out[used] = 0;
  return out;
}

static void labels_of(const struct model_metrics *metrics, char *out, size_t out_bytes) {
  char model[520], version[72];
  snprintf(out, out_bytes, "model=\"%s\",version=\"%s\",fusion=\"%s\",device=\"%s\"",
           expo_escaped(metrics->labels.model, model, sizeof model),
           expo_escaped(metrics->labels.version, version, sizeof version), metrics->labels.fusion,
           metrics->labels.device);
}
#define LABELS_BYTES 720

static uint64_t load(const _Atomic uint64_t *value) {
  return atomic_load_explicit(value, memory_order_relaxed);
}

static double ratio(const _Atomic double *over, const _Atomic double *under) {
  double below = atomic_load_explicit(under, memory_order_relaxed);
  return below > 0 ? atomic_load_explicit(over, memory_order_relaxed) / below : 0;
}

static void histogram(struct expo *expo, const char *name, const char *labels,
                      const struct hist *hist, int first_bit, int last_bit, double unit) {
  // The count is read last, so that it is never less than a bucket that grew meanwhile.
  uint64_t below = 0;
  for (int bit = first_bit; bit <= last_bit; bit++) {
    uint64_t edge = UINT64_C(1) << bit;
    below = hist_count_le(hist, unit < 1.0 ? edge - 1 : edge);
    expo_text(expo, "%s_bucket{%s,le=\"%.9g\"} %llu\n", name, labels, (double)edge * unit,
              (unsigned long long)below);
  }
  uint64_t count = load(&hist->count);
  if (count < below) count = below;
  expo_text(expo, "%s_bucket{%s,le=\"+Inf\"} %llu\n", name, labels, (unsigned long long)count);
  expo_text(expo, "%s_sum{%s} %.9g\n", name, labels, (double)load(&hist->sum) * unit);
  expo_text(expo, "%s_count{%s} %llu\n", name, labels, (unsigned long long)count);
}

// ---- families with one series per model and fusion mode ----
#define FOR_EACH_MODEL(metrics, labels)                                                            \
  char labels[LABELS_BYTES];                                                                       \
  const struct model_metrics *metrics;                                                             \
  int n_models = series_count(&metrics_registry.models);                                           \
  for (int m = 0; m < n_models && (metrics = series_at(&metrics_registry.models, m),               \
                                  labels_of(metrics, labels, sizeof labels), 1);                   \
       m++)

static void finished_family(struct expo *expo) {
  expo_family(expo, "fusewire_infer_finished_total", "counter",
              "Accepted ModelInfer calls that ended, by gRPC status.");
  FOR_EACH_MODEL(metrics, labels)
  for (int code = 0; code < STATUS_COUNT; code++)
    expo_text(expo, "fusewire_infer_finished_total{%s,code=\"%s\"} %llu\n", labels,
              status_name((enum status)code), (unsigned long long)load(&metrics->finished[code]));
}

static void close_family(struct expo *expo) {
  static const char *const reasons[] = {"full", "delay", "idle", "deadline"}; // enum batch_close
  expo_family(expo, "fusewire_batch_close_total", "counter", "Batches by why they were closed.");
  FOR_EACH_MODEL(metrics, labels)
  for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
    expo_text(expo, "fusewire_batch_close_total{%s,reason=\"%s\"} %llu\n", labels, reasons[i],
              (unsigned long long)load(&metrics->batch_close[i]));
}

static void refused_family(struct expo *expo) {
  static const char *const reasons[REFUSED_COUNT] = {
      [REFUSED_QUEUE] = "queue",  [REFUSED_BUSY] = "busy",       [REFUSED_SLOW] = "slow",
      [REFUSED_LATE] = "late",    [REFUSED_EXPIRED] = "expired", [REFUSED_SIZE] = "size",
      [REFUSED_MEMORY] = "memory"};
  expo_family(expo, "fusewire_infer_refused_total", "counter",
              "Requests that never ran, by why: docs/OPERATIONS.md, Overload.");
  FOR_EACH_MODEL(metrics, labels)
  for (int why = 0; why < REFUSED_COUNT; why++)
    expo_text(expo, "fusewire_infer_refused_total{%s,reason=\"%s\"} %llu\n", labels, reasons[why],
              (unsigned long long)load(&metrics->refused[why]));
}

static void calls_family(struct expo *expo) {
  expo_family(expo, "fusewire_calls_finished_total", "counter",
              "gRPC calls of any method that ended, by status.");
  for (int code = 0; code < STATUS_COUNT; code++)
    expo_text(expo, "fusewire_calls_finished_total{code=\"%s\"} %llu\n",
              status_name((enum status)code),
              (unsigned long long)load(&rpc_metrics.calls_finished[code]));
}

static void calls_refused_family(struct expo *expo) {
  static const char *const reasons[CALL_REFUSED_COUNT] = {
      [CALL_REFUSED_HEADER_BYTES] = "header_bytes",
      [CALL_REFUSED_MESSAGE_BYTES] = "message_bytes",
      [CALL_REFUSED_CONNECTION_BYTES] = "connection_bytes",
      [CALL_REFUSED_TOTAL_BYTES] = "total_bytes",
      [CALL_REFUSED_REQUEST_TIMEOUT] = "request_timeout",
      [CALL_REFUSED_CALLS] = "calls"};
  expo_family(expo, "fusewire_calls_refused_total", "counter",
              "gRPC calls of any method that a limit refused, by its name under limits.");
  for (int why = 0; why < CALL_REFUSED_COUNT; why++)
    expo_text(expo, "fusewire_calls_refused_total{reason=\"%s\"} %llu\n", reasons[why],
              (unsigned long long)load(&rpc_metrics.calls_refused[why]));
}

static void table_families(struct expo *expo) {
#define MODEL_COUNTER(name, field, help)                                                           \
  {                                                                                                \
    expo_family(expo, #name, "counter", help);                                                     \
    FOR_EACH_MODEL(metrics, labels)                                                                \
    expo_text(expo, #name "{%s} %llu\n", labels, (unsigned long long)load(&metrics->field));       \
  }
#define MODEL_GAUGE(name, field, help)                                                             \
  {                                                                                                \
    expo_family(expo, #name, "gauge", help);                                                       \
    FOR_EACH_MODEL(metrics, labels)                                                                \
    expo_text(expo, #name "{%s} %lld\n", labels,                                                   \
              (long long)atomic_load_explicit(&metrics->field, memory_order_relaxed));             \
  }
#define MODEL_SECONDS(name, field, help)                                                           \
  {                                                                                                \
    expo_family(expo, #name, "counter", help);                                                     \
    FOR_EACH_MODEL(metrics, labels)                                                                \
    expo_text(expo, #name "{%s} %.15g\n", labels, (double)load(&metrics->field) / 1e9);            \
  }
#define MODEL_RATIO(name, over, under, help)                                                       \
  {                                                                                                \
    expo_family(expo, #name, "gauge", help);                                                       \
    FOR_EACH_MODEL(metrics, labels)                                                                \
    expo_text(expo, #name "{%s} %.9g\n", labels,                                                   \
              ratio(&metrics->recent.over, &metrics->recent.under));                               \
  }
#define MODEL_TIME(name, field, help)                                                              \
  {                                                                                                \
    expo_family(expo, #name, "histogram", help);                                                   \
    FOR_EACH_MODEL(metrics, labels)                                                                \
    histogram(expo, #name, labels, &metrics->field, TIME_FIRST_BIT, TIME_LAST_BIT, 1e-9);          \
  }
#define MODEL_SIZE(name, field, help)                                                              \
  {                                                                                                \
    expo_family(expo, #name, "histogram", help);                                                   \
    FOR_EACH_MODEL(metrics, labels)                                                                \
    histogram(expo, #name, labels, &metrics->field, SIZE_FIRST_BIT, SIZE_LAST_BIT, 1.0);           \
  }
#define RPC_COUNTER(name, field, help)                                                             \
  {                                                                                                \
    expo_family(expo, #name, "counter", help);                                                     \
    expo_text(expo, #name " %llu\n", (unsigned long long)load(&rpc_metrics.field));                \
  }
#define TRACE_COUNTER(name, field, help)                                                           \
  {                                                                                                \
    expo_family(expo, #name, "counter", help);                                                     \
    expo_text(expo, #name " %llu\n", (unsigned long long)load(&trace_metrics.field));              \
  }
#include "obs/metrics.def"
}

static void memory_family(struct expo *expo) {
  char model[520], version[72];
  int n = series_count(&metrics_registry.memories);
  expo_family(expo, "fusewire_model_memory_bytes", "gauge",
              "Memory of a loaded model. weights: as the device keeps them; device host: what is "
              "read in place. arena: what its largest plan needs of each lane's arena, which all "
              "models share. shadows: slots for inputs and outputs (ab.shadow).");
  for (int i = 0; i < n; i++) {
    const struct memory_metrics *m = series_at(&metrics_registry.memories, i);
    bool host = strcmp(m->labels.device, "host") == 0;
    const _Atomic int64_t *const values[] = {&m->weights, host ? &m->shadows : &m->arena};
    const char *const kinds[] = {"weights", host ? "shadows" : "arena"};
    expo_escaped(m->labels.model, model, sizeof model);
    expo_escaped(m->labels.version, version, sizeof version);
    for (int k = 0; k < 2; k++)
      expo_text(expo,
                "fusewire_model_memory_bytes{model=\"%s\",version=\"%s\",device=\"%s\",kind="
                "\"%s\"} %lld\n",
                model, version, m->labels.device, kinds[k],
                (long long)atomic_load_explicit(values[k], memory_order_relaxed));
  }
}

// ---- gauges that are read when asked ----
static void gauge_families(struct expo *expo) {
  int n = atomic_load_explicit(&metrics_registry.n_gauges, memory_order_acquire);
  const char *last = "";
  for (int i = 0; i < n; i++) {
    const struct gauge *gauge = &metrics_registry.gauges[i];
    if (strcmp(gauge->name, last) != 0) expo_family(expo, gauge->name, "gauge", gauge->help);
    last = gauge->name;
    double value = gauge->read(gauge->arg);
    if (gauge->labels && *gauge->labels)
      expo_text(expo, "%s{%s} %.15g\n", gauge->name, gauge->labels, value);
    else
      expo_text(expo, "%s %.15g\n", gauge->name, value);
  }
}

static void writer_parts(struct expo *expo) {
  int n = atomic_load_explicit(&metrics_registry.n_writers, memory_order_acquire);
  for (int i = 0; i < n; i++)
    metrics_registry.writers[i](expo);
}

size_t metrics_expose(char *out, size_t out_bytes, bool triton_names) {
  struct expo expo = {out, out_bytes, 0};
  expo_family(&expo, "fusewire_build_info", "gauge", "Always 1; the version is the label.");
  expo_text(&expo, "fusewire_build_info{version=\"%s\"} 1\n", FUSEWIRE_VERSION);
  finished_family(&expo);
  refused_family(&expo);
  close_family(&expo);
  table_families(&expo);
  shadow_families(&expo);
  calls_family(&expo);
  memory_family(&expo);
  calls_refused_family(&expo);
  gauge_families(&expo);
  writer_parts(&expo);
  process_families(&expo);
  if (triton_names) triton_families(&expo);
  return expo.used;
}
