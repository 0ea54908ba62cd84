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

static void header(FILE *out) {
  fputs("model,mode,callers,rate,fusion,ok,failed,seconds,calls_per_s,tokens_per_s", out);
  for (int p = 0; p < REPORT_PERCENTILES; p++)
    fprintf(out, ",latency_%s_us", report_fraction_names[p]);
  fputs(",latency_max_us,latency_mean_us", out);
  for (int c = 0; c < COST_COUNT; c++)
    fprintf(out, ",%s_mean", cost_name((enum cost)c));
  for (int s = 0; s < RESULT_STAGES; s++)
    fprintf(out, ",%s_p50,%s_p99", cost_name((enum cost)s), cost_name((enum cost)s));
  fputs(",bytes_moved_mean\n", out);
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
