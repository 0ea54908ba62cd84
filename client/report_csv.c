// One line per level and variant.
#include "client/file.h"
#include "client/report.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

static void number(FILE *out, double value) {
  fputc(',', out);
  if (!isnan(value)) fprintf(out, "%.6g", value);
}

// RFC 4180: quotes doubled inside quotes.
static void quoted(FILE *out, const char *text) {
  fputc('"', out);
  for (; *text; text++) {
    if (*text == '"') fputc('"', out);
    fputc(*text, out);
  }
  fputc('"', out);
}

static const char *const metric_names[AB_METRICS] = {"latency", "compute_us", "bytes",
                                                     "calls_per_s"};

static void header(FILE *out) {
  fputs("model,mode,callers,rate,fusion,ok,failed,seconds,calls_per_s,tokens_per_s", out);
  for (int p = 0; p < REPORT_PERCENTILES; p++)
    fprintf(out, ",latency_%s_us", report_fraction_names[p]);
  fputs(",latency_max_us,latency_mean_us", out);
  for (int c = 0; c < COST_COUNT; c++)
    fprintf(out, ",%s_mean", cost_name((enum cost)c));
  for (int s = 0; s < RESULT_STAGES; s++)
    fprintf(out, ",%s_p50,%s_p99", cost_name((enum cost)s), cost_name((enum cost)s));
  fputs(",bytes_moved_mean,ab_pairs", out);
  for (int m = 0; m < AB_METRICS; m++)
    fprintf(out, ",ab_%s,ab_%s_low,ab_%s_high", metric_names[m], metric_names[m], metric_names[m]);
  fputs(
      ",predicted_us,predicted_bytes,predicted_time_ratio,predicted_bytes_ratio,difference_output,"
      "difference_max_abs,difference_relative_l2,difference_relative_l2_low,"
      "difference_relative_l2_high\n",
      out);
}

// The output that differs most, relative to its size; NULL where none was compared.
static const struct difference_output *worst_output(const struct difference *difference) {
  const struct difference_output *worst = NULL;
  for (int i = 0; i < difference->n_outputs; i++) {
    const struct difference_output *output = &difference->outputs[i];
    if (!worst || output->relative_l2.mean > worst->relative_l2.mean) worst = output;
  }
  return worst;
}

static void ab_cells(const struct report *report, const struct level *level, int v, FILE *out) {
  const struct prediction *p = &level->prediction;
  const struct difference_output *worst = worst_output(&report->difference);
  fputc(',', out);
  if (report->ab) fprintf(out, "%" PRId64, level->result.pairs.n);
  for (int m = 0; m < AB_METRICS; m++) {
    const struct ab_estimate *e = &level->result.estimate[m];
    const bool known = report->ab && e->n_pairs > 0;
    number(out, known ? e->ratio : (double)NAN);
    number(out, known ? e->low : (double)NAN);
    number(out, known ? e->high : (double)NAN);
  }
  number(out, p->present ? p->us[v] : (double)NAN);
  number(out, p->present ? p->bytes[v] : (double)NAN);
  number(out, prediction_time_ratio(p));
  number(out, prediction_bytes_ratio(p));
  fputc(',', out);
  if (worst) quoted(out, worst->name);
  number(out, worst ? worst->max_abs : (double)NAN);
  number(out, worst ? worst->relative_l2.mean : (double)NAN);
  number(out, worst ? worst->relative_l2.low : (double)NAN);
  number(out, worst ? worst->relative_l2.high : (double)NAN);
}

static void line(const struct report *report, struct level *level, int v, FILE *out) {
  struct variant_result *variant = &level->result.variant[v];
  quoted(out, report->model);
  fprintf(out, ",%s,%d", level->rate_per_s > 0 ? "open" : "closed", level->callers);
  number(out, level->rate_per_s > 0 ? level->rate_per_s : NAN);
  fputc(',', out);
  quoted(out, report_variant_name(report, v));
  fprintf(out, ",%" PRId64 ",%" PRId64, variant->n_ok, result_failed(&level->result));
  number(out, variant->seconds);
  number(out, report_calls_per_s(variant));
  number(out, report_tokens_per_s(variant));
  for (int p = 0; p < REPORT_PERCENTILES; p++) {
    number(out, samples_percentile(&variant->latency_us, report_fractions[p]));
  }
  number(out, variant->latency_us.n ? variant->latency_us.max : NAN);
  number(out, samples_mean(&variant->latency_us));
  for (int c = 0; c < COST_COUNT; c++)
    number(out, result_cost_mean(variant, (enum cost)c));
  for (int s = 0; s < RESULT_STAGES; s++) {
    number(out, samples_percentile(&variant->stage_us[s], 0.5));
    number(out, samples_percentile(&variant->stage_us[s], 0.99));
  }
  number(out, result_bytes_moved(variant));
  ab_cells(report, level, v, out);
  fputc('\n', out);
}

enum status report_csv(struct report *report, const char *path, struct error *err) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  if (!out) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory");
  header(out);
  for (int i = 0; i < report->n_levels; i++) {
    for (int v = 0; v < report->levels[i].result.n_variants; v++)
      line(report, &report->levels[i], v, out);
  }
  fclose(out);
  const struct slice part = {(const uint8_t *)text, bytes};
  const enum status status = file_write(path, &part, 1, err);
  free(text);
  return status;
}
