#include "client/report.h"
#include "base/clock.h"
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>

const double report_fractions[REPORT_PERCENTILES] = {0.5, 0.9, 0.95, 0.99, 0.999};
const char *const report_fraction_names[REPORT_PERCENTILES] = {"p50", "p90", "p95", "p99", "p99.9"};

const char *report_variant_name(const struct report *report, int variant) {
  if (report->fusion[variant]) return report->fusion[variant];
  const struct level *first = &report->levels[0];
  return report->n_levels && first->result.variant[variant].fusion[0]
             ? first->result.variant[variant].fusion
             : "default";
}

double report_calls_per_s(const struct variant_result *variant) {
  return variant->seconds > 0 ? (double)variant->n_ok_window / variant->seconds : NAN;
}

double report_tokens_per_s(const struct variant_result *variant) {
  return variant->seconds > 0 ? (double)variant->tokens_window / variant->seconds : NAN;
}

// A number in a column; "-" where there is none.
static void cell(FILE *out, int width, int decimals, double value) {
  if (isnan(value))
    fprintf(out, " %*s", width, "-");
  else
    fprintf(out, " %*.*f", width, decimals, value);
}

static void heading(const struct report *report, FILE *out) {
  const bool open = report->n_levels && report->levels[0].rate_per_s > 0;
  fprintf(out, "%s at %s%s%s%s\n", report->model, report->url, report->server[0] ? " (" : "",
          report->server, report->server[0] ? ")" : "");
  fprintf(out, "%s; %s, %d connection%s, seed %" PRId64 "\n", report->input,
          !open             ? "closed loop"
          : report->poisson ? "open loop, Poisson; latency from the scheduled send"
                            : "open loop, constant rate; latency from the scheduled send",
          report->connections, report->connections == 1 ? "" : "s", report->seed);
}

static void row_label(const struct report *report, const struct level *level, int variant,
                      FILE *out) {
  if (level->rate_per_s > 0)
    fprintf(out, "%9.1f", level->rate_per_s);
  else
    fprintf(out, "%9d", level->callers);
  fprintf(out, "  %-8.8s", report_variant_name(report, variant));
}

const char *report_level_word(const struct report *report) {
  return report->levels[0].rate_per_s > 0 ? "rate/s" : "callers";
}

static void latency_table(struct report *report, FILE *out) {
  fprintf(out, "\n%9s  %-8s %9s %7s %10s %10s", report_level_word(report), "fusion", "ok", "failed",
          "calls/s", "tokens/s");
  for (int p = 0; p < REPORT_PERCENTILES; p++)
    fprintf(out, " %9s", report_fraction_names[p]);
  fprintf(out, " %9s %9s  latency, ms\n", "max", "mean");
  for (int i = 0; i < report->n_levels; i++) {
    struct level *level = &report->levels[i];
    for (int v = 0; v < level->result.n_variants; v++) {
      struct variant_result *variant = &level->result.variant[v];
      row_label(report, level, v, out);
      fprintf(out, " %9" PRId64, variant->n_ok);
      if (v == 0)
        fprintf(out, " %7" PRId64, result_failed(&level->result));
      else
        fprintf(out, " %7s", "\""); // the failures of both variants are in the row above
      cell(out, 10, 1, report_calls_per_s(variant));
      cell(out, 10, 0, report_tokens_per_s(variant));
      for (int p = 0; p < REPORT_PERCENTILES; p++) {
        cell(out, 9, 3, samples_percentile(&variant->latency_us, report_fractions[p]) / 1e3);
      }
      cell(out, 9, 3, variant->latency_us.n ? variant->latency_us.max / 1e3 : NAN);
      cell(out, 9, 3, samples_mean(&variant->latency_us) / 1e3);
      fputc('\n', out);
    }
  }
}

static bool any_cost(const struct report *report) {
  for (int i = 0; i < report->n_levels; i++) {
    for (int v = 0; v < report->levels[i].result.n_variants; v++) {
      for (int c = 0; c < COST_COUNT; c++) {
        if (report->levels[i].result.variant[v].cost[c].n) return true;
      }
    }
  }
  return false;
}

static bool any_answer(const struct report *report) {
  for (int i = 0; i < report->n_levels; i++) {
    for (int v = 0; v < report->levels[i].result.n_variants; v++) {
      if (report->levels[i].result.variant[v].n_ok > 0) return true;
    }
  }
  return false;
}

static void stage_table(struct report *report, FILE *out) {
  fprintf(out, "\nIn the server, us (p50 / mean)\n%9s  %-8s", report_level_word(report), "fusion");
  for (int s = 0; s < RESULT_STAGES; s++)
    fprintf(out, " %19s", cost_name((enum cost)s));
  fprintf(out, " %9s %9s %8s  means of a call\n", "batch", "tokens", "kernels");
  for (int i = 0; i < report->n_levels; i++) {
    struct level *level = &report->levels[i];
    for (int v = 0; v < level->result.n_variants; v++) {
      struct variant_result *variant = &level->result.variant[v];
      row_label(report, level, v, out);
      for (int s = 0; s < RESULT_STAGES; s++) {
        cell(out, 8, 1, samples_percentile(&variant->stage_us[s], 0.5));
        fputs(" /", out);
        cell(out, 8, 1, result_cost_mean(variant, (enum cost)s));
      }
      cell(out, 9, 1, result_cost_mean(variant, COST_BATCH_REQUESTS));
      cell(out, 9, 1, result_cost_mean(variant, COST_BATCH_TOKENS));
      cell(out, 8, 0, result_cost_mean(variant, COST_KERNELS));
      fputc('\n', out);
    }
  }
}

static void traffic_table(struct report *report, FILE *out) {
  fprintf(out, "\nMemory traffic, MB a call\n%9s  %-8s %10s %10s %10s %14s %8s %8s\n",
          report_level_word(report), "fusion", "read", "written", "moved", "unfused plan", "saved",
          "GB/s");
  for (int i = 0; i < report->n_levels; i++) {
    struct level *level = &report->levels[i];
    for (int v = 0; v < level->result.n_variants; v++) {
      const struct variant_result *variant = &level->result.variant[v];
      const double moved = result_bytes_moved(variant);
      const double unfused = result_cost_mean(variant, COST_UNFUSED_BYTES);
      row_label(report, level, v, out);
      cell(out, 10, 3, result_cost_mean(variant, COST_READ_BYTES) / 1e6);
      cell(out, 10, 3, result_cost_mean(variant, COST_WRITE_BYTES) / 1e6);
      cell(out, 10, 3, moved / 1e6);
      cell(out, 14, 3, unfused / 1e6);
      const double saved = round(1000 * (1 - moved / unfused)) / 10;
      cell(out, 7, 1, saved + 0.0); // turns -0 into 0
      fputs(isnan(saved) ? " " : "%", out);
      cell(out, 8, 2, result_cost_mean(variant, COST_GBPS));
      fputc('\n', out);
    }
  }
}

static void notes(const struct report *report, FILE *out) {
  for (int i = 0; i < report->n_levels; i++) {
    const struct level *level = &report->levels[i];
    struct result *result = (struct result *)(uintptr_t)&level->result;
    if (result->interrupted) fprintf(out, "\nInterrupted: the figures are those up to then.\n");
    for (int v = 0; v < result->n_variants; v++) {
      const struct samples *latency = &result->variant[v].latency_us;
      if (latency->n_seen <= latency->n) continue;
      fprintf(out, "\nPercentiles are of a uniform sample of %" PRId64 " of %" PRId64 " calls.\n",
              latency->n, latency->n_seen);
    }
    if (result->lag_us.n > 0) {
      fprintf(out,
              "\nrate %.1f: sends left late by p50 %.1f us, p99 %.1f us, max %.1f us; %" PRId64
              " over 1 ms; %" PRId64 " never left\n",
              level->rate_per_s, samples_percentile(&result->lag_us, 0.5),
              samples_percentile(&result->lag_us, 0.99), result->lag_us.max, result->n_late,
              result->n_unsent);
    }
  }
}

void report_table(struct report *report, FILE *out) {
  heading(report, out);
  if (report->n_levels == 0) return;
  latency_table(report, out);
  if (any_cost(report)) {
    stage_table(report, out);
    traffic_table(report, out);
  } else if (any_answer(report)) {
    fprintf(out, "\nThe replies carry no cost parameters.\n");
  }
  if (report->ab) report_ab(report, out);
  notes(report, out);
}

static int PRINTF_LIKE(2, 3) gap(FILE *out, const char *format, ...) {
  va_list args;
  if (!out) return 1;
  fputs("not complete: ", out);
  va_start(args, format);
  vfprintf(out, format, args);
  va_end(args);
  fputc('\n', out);
  return 1;
}

static int level_gaps(const struct report *report, const struct level *level, FILE *out) {
  const struct result *result = &level->result;
  const bool open = level->rate_per_s > 0;
  char name[48];
  snprintf(name, sizeof name, "%.6g %s", open ? level->rate_per_s : (double)level->callers,
           open                  ? "calls/s"
           : level->callers == 1 ? "caller"
                                 : "callers");
  if (result->interrupted) return gap(out, "%s: interrupted", name);
  if (result_failed(result)) return 0; // which is told with its reasons
  int64_t n_ok = 0;
  for (int v = 0; v < result->n_variants; v++)
    n_ok += result->variant[v].n_ok;
  if (n_ok == 0) return gap(out, "%s: no call was measured; --duration is too short", name);
  if (!report->ab || result->pairs.n >= AB_PAIRS_LEAST) return 0;
  return gap(out,
             "%s: %" PRId64 " pair%s of slices, and an interval needs %d; more --duration or "
             "--requests, or a smaller --ab-slice",
             name, result->pairs.n, result->pairs.n == 1 ? "" : "s", AB_PAIRS_LEAST);
}

int report_gaps(const struct report *report, FILE *out) {
  const struct difference *difference = &report->difference;
  int n = 0;
  if (report->ab && difference->n_requests < report->compare)
    n += gap(out, "answers of %d of %d requests were compared%s%s", difference->n_requests,
             report->compare, difference->note[0] ? ": " : "", difference->note);
  for (int i = 0; i < report->n_levels; i++)
    n += level_gaps(report, &report->levels[i], out);
  if (report->n_levels < report->n_asked)
    n += gap(out, "%d of %d runs were made", report->n_levels, report->n_asked);
  n += report->cut_short; // whoever lost the server says so, with the reason
  return n;
}

void report_errors(const struct report *report, FILE *out) {
  for (int i = 0; i < report->n_levels; i++) {
    const struct result *result = &report->levels[i].result;
    for (int code = 1; code < STATUS_COUNT; code++) {
      const int64_t n = result->status_count[code], n_warmup = result->warmup_status_count[code];
      if (n + n_warmup == 0) continue;
      fprintf(out, "failed: %" PRId64 " x %s", n, status_name((enum status)code));
      if (n_warmup) fprintf(out, " (and %" PRId64 " while warming up)", n_warmup);
      fprintf(out, ", the first: %s\n", result->status_message[code]);
    }
    if (result->n_unsent) {
      fprintf(out,
              "failed: %" PRId64
              " scheduled calls never left: the rate is more than was answered\n",
              result->n_unsent);
    }
    if (result->n_resent) {
      fprintf(out,
              "note: %" PRId64
              " calls were sent again: a draining connection (GOAWAY) had not processed them\n",
              result->n_resent);
    }
    if (result->n_bad_cost) {
      fprintf(out, "note: %" PRId64 " replies had parameters that could not be read\n",
              result->n_bad_cost);
    }
  }
}
