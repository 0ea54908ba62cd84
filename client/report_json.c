// The whole result as one JSON object; docs/CLIENT.md describes it.
#include "base/clock.h"
#include "client/file.h"
#include "client/report.h"
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static json_t *number(double value) {
  return isfinite(value) ? json_real(value) : json_null();
}

static json_t *distribution(struct samples *samples) {
  json_t *out = json_object();
  json_object_set_new(out, "n", json_integer(samples->n_seen));
  json_object_set_new(out, "exact", json_boolean(samples->n_seen == samples->n));
  json_object_set_new(out, "mean", number(samples_mean(samples)));
  json_object_set_new(out, "deviation", number(samples_deviation(samples)));
  json_object_set_new(out, "min", number(samples->n ? samples->min : NAN));
  for (int p = 0; p < REPORT_PERCENTILES; p++) {
    json_object_set_new(out, report_fraction_names[p],
                        number(samples_percentile(samples, report_fractions[p])));
  }
  json_object_set_new(out, "max", number(samples->n ? samples->max : NAN));
  return out;
}

static json_t *variant_json(const struct report *report, struct variant_result *variant, int v) {
  json_t *out = json_object();
  json_t *server = json_object();
  json_object_set_new(out, "fusion", json_string(report_variant_name(report, v)));
  json_object_set_new(out, "device", json_string(variant->device));
  json_object_set_new(out, "ok", json_integer(variant->n_ok));
  json_object_set_new(out, "seconds", number(variant->seconds));
  json_object_set_new(out, "calls_per_s", number(report_calls_per_s(variant)));
  json_object_set_new(out, "tokens_per_s", number(report_tokens_per_s(variant)));
  json_object_set_new(out, "latency_us", distribution(&variant->latency_us));
  for (int c = 0; c < COST_COUNT; c++) {
    if (!variant->cost[c].n) continue;
    json_object_set_new(server, cost_name((enum cost)c),
                        c < RESULT_STAGES ? distribution(&variant->stage_us[c])
                                          : number(result_cost_mean(variant, (enum cost)c)));
  }
  json_object_set_new(out, "server", server);
  json_object_set_new(out, "bytes_moved", number(result_bytes_moved(variant)));
  return out;
}

static json_t *errors_json(const struct result *result) {
  json_t *out = json_object();
  for (int code = 1; code < STATUS_COUNT; code++) {
    const json_int_t n = result->status_count[code], n_warmup = result->warmup_status_count[code];
    if (n + n_warmup == 0) continue;
    json_t *entry = json_object();
    json_t *message = json_string(result->status_message[code]);
    json_object_set_new(entry, "count", json_integer(n));
    json_object_set_new(entry, "warmup", json_integer(n_warmup));
    json_object_set_new(entry, "first", message ? message : json_string("(not UTF-8)"));
    json_object_set_new(out, status_name((enum status)code), entry);
  }
  return out;
}

static json_t *mean_json(const struct ab_mean *mean, bool known) {
  json_t *out = json_object();
  json_object_set_new(out, "mean", number(known ? mean->mean : (double)NAN));
  json_object_set_new(out, "low", number(known ? mean->low : (double)NAN));
  json_object_set_new(out, "high", number(known ? mean->high : (double)NAN));
  return out;
}

static json_t *beside(double predicted, const struct ab_estimate *measured) {
  json_t *out = json_object();
  json_object_set_new(out, "predicted", number(predicted));
  json_object_set_new(out, "measured", number(measured->ratio));
  json_object_set_new(out, "low", number(measured->low));
  json_object_set_new(out, "high", number(measured->high));
  json_object_set_new(out, "off", number(predicted / measured->ratio - 1));
  return out;
}

static json_t *prediction_json(const struct level *level) {
  static const char *const plans[2] = {"a", "b"};
  const struct prediction *p = &level->prediction;
  json_t *out = json_object();
  if (!p->present) {
    json_object_set_new(out, "note", json_string(p->note));
    return out;
  }
  json_object_set_new(out, "tokens", json_integer(p->tokens));
  json_object_set_new(out, "sequences", json_integer(p->sequences));
  json_object_set_new(out, "measured_rates", json_boolean(p->measured_rates));
  for (int v = 0; v < 2; v++) {
    json_t *plan = json_object();
    json_object_set_new(plan, "us", number(p->us[v]));
    json_object_set_new(plan, "bytes", number(p->bytes[v]));
    json_object_set_new(out, plans[v], plan);
  }
  json_object_set_new(out, "time_ratio",
                      beside(prediction_time_ratio(p), &level->result.estimate[AB_COMPUTE]));
  json_object_set_new(out, "bytes_ratio",
                      beside(prediction_bytes_ratio(p), &level->result.estimate[AB_BYTES]));
  return out;
}

static json_t *difference_json(const struct difference *difference) {
  json_t *out = json_object(), *outputs = json_array();
  json_object_set_new(out, "requests", json_integer(difference->n_requests));
  if (difference->note[0]) json_object_set_new(out, "note", json_string(difference->note));
  for (int i = 0; i < difference->n_outputs; i++) {
    const struct difference_output *output = &difference->outputs[i];
    json_t *entry = json_object(), *name = json_string(output->name);
    json_t *relative = mean_json(&output->relative_l2, true);
    json_object_set_new(relative, "max", number(output->relative.max));
    json_object_set_new(entry, "name", name ? name : json_string("(not UTF-8)"));
    json_object_set_new(entry, "elements", json_integer(output->elements));
    json_object_set_new(entry, "max_abs", number(output->max_abs));
    json_object_set_new(entry, "relative_l2", relative);
    json_object_set_new(entry, "not_finite", json_integer(output->not_finite));
    json_array_append_new(outputs, entry);
  }
  json_object_set_new(out, "outputs", outputs);
  return out;
}

static json_t *ab_json(const struct level *level) {
  const struct result *result = &level->result;
  static const char *const names[AB_METRICS] = {"latency", "compute_us", "bytes", "calls_per_s"};
  json_t *out = json_object();
  json_object_set_new(out, "method",
                      json_string("paired bootstrap of slice means, geometric mean of B/A "
                                  "(calls_per_s: A/B)"));
  json_object_set_new(out, "confidence", json_real(AB_CONFIDENCE));
  json_object_set_new(out, "pairs", json_integer(result->pairs.n));
  for (int m = 0; m < AB_METRICS; m++) {
    const struct ab_estimate *estimate = &result->estimate[m];
    json_t *entry = json_object();
    json_object_set_new(entry, "ratio", number(estimate->ratio));
    json_object_set_new(entry, "low", number(estimate->low));
    json_object_set_new(entry, "high", number(estimate->high));
    json_object_set_new(entry, "pairs", json_integer(estimate->n_pairs));
    json_object_set_new(entry, "a", mean_json(&result->mean[m][0], estimate->n_pairs > 0));
    json_object_set_new(entry, "b", mean_json(&result->mean[m][1], estimate->n_pairs > 0));
    json_object_set_new(out, names[m], entry);
  }
  json_object_set_new(out, "prediction", prediction_json(level));
  return out;
}

static json_t *level_json(const struct report *report, struct level *level) {
  struct result *result = &level->result;
  json_t *out = json_object();
  json_t *variants = json_array();
  json_object_set_new(out, level->rate_per_s > 0 ? "max_in_flight" : "concurrency",
                      json_integer(level->callers));
  if (level->rate_per_s > 0) {
    json_object_set_new(out, "rate", json_real(level->rate_per_s));
    json_object_set_new(out, "send_lag_us", distribution(&result->lag_us));
    json_object_set_new(out, "late", json_integer(result->n_late));
    json_object_set_new(out, "unsent", json_integer(result->n_unsent));
  }
  json_object_set_new(out, "seconds", number(result->seconds));
  json_object_set_new(out, "failed", json_integer(result_failed(result)));
  json_object_set_new(out, "warmup_calls", json_integer(result->n_warmup));
  json_object_set_new(out, "warmup_failed", json_integer(result->n_warmup_failed));
  json_object_set_new(out, "resent", json_integer(result->n_resent));
  json_object_set_new(out, "interrupted", json_boolean(result->interrupted));
  json_object_set_new(out, "request_bytes", json_integer((json_int_t)result->request_bytes));
  json_object_set_new(out, "reply_bytes", json_integer((json_int_t)result->reply_bytes));
  json_object_set_new(out, "errors", errors_json(result));
  for (int v = 0; v < result->n_variants; v++) {
    json_array_append_new(variants, variant_json(report, &result->variant[v], v));
  }
  json_object_set_new(out, "variants", variants);
  if (report->ab) json_object_set_new(out, "ab", ab_json(level));
  return out;
}

enum status report_json(struct report *report, const char *path, struct error *err) {
  json_t *root = json_object();
  json_t *levels = json_array();
  json_object_set_new(root, "tool", json_string("fusewire bench " FUSEWIRE_VERSION));
  json_object_set_new(root, "url", json_string(report->url));
  json_object_set_new(root, "server", json_string(report->server));
  json_object_set_new(root, "model", json_string(report->model));
  json_object_set_new(root, "input", json_string(report->input));
  json_object_set_new(root, "requests", json_integer(report->n_payloads));
  json_object_set_new(root, "batch", json_integer(report->batch));
  json_object_set_new(root, "connections", json_integer(report->connections));
  json_object_set_new(root, "seed", json_integer(report->seed));
  json_object_set_new(root, "warmup_s", json_real((double)report->warmup_ns / NS_PER_S));
  json_object_set_new(root, "deadline_ms", json_integer(report->deadline_ns / NS_PER_MS));
  json_object_set_new(root, "complete", json_boolean(report_gaps(report, NULL) == 0));
  if (report->ab) json_object_set_new(root, "difference", difference_json(&report->difference));
  for (int i = 0; i < report->n_levels; i++)
    json_array_append_new(levels, level_json(report, &report->levels[i]));
  json_object_set_new(root, "levels", levels);
  char *text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
  json_decref(root);
  if (!text) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for the JSON report");
  const struct slice parts[2] = {{(const uint8_t *)text, strlen(text)}, {(const uint8_t *)"\n", 1}};
  const enum status status = file_write(path, parts, 2, err);
  free(text);
  return status;
}
