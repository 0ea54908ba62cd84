// One self-contained page: the tables as text and what they say as charts. No script, nothing
// fetched.
#include "client/file.h"
#include "client/report.h"
#include "client/svg.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char style[] =
    "<style>\n"
    ":root{--bg:#fff;--fg:#1c2430;--dim:#66707f;--grid:#e3e7ed;--c0:#2f6fde;--c1:#e07b39;--c2:#"
    "3b9c6e;--c3:#8a5fc9;"
    "--c4:#c8458a}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#12161c;--fg:#e6eaf0;--dim:#98a3b3;--grid:#"
    "2a323d}}\n"
    "body{background:var(--bg);color:var(--fg);font:15px/1.5 "
    "system-ui,sans-serif;max-width:1080px;margin:32px auto;"
    "padding:0 20px}\n"
    "h1{font-size:22px;margin:0}p{color:var(--dim);margin:4px 0 20px}\n"
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(440px,1fr));gap:28px}\n"
    "pre{overflow-x:auto;font:12px/1.45 ui-monospace,monospace;border-top:1px solid "
    "var(--grid);padding-top:14px}\n"
    "svg{width:100%;height:auto}svg text{fill:var(--fg)}.title{font-size:16px;font-weight:600}\n"
    ".tick{font-size:12px;fill:var(--dim)!important}.end{text-anchor:end}.mid{text-anchor:middle}\n"
    ".grid{stroke:var(--grid)}.one{stroke:var(--dim);stroke-dasharray:4 4}polyline{fill:none}\n"
    ".s0{fill:var(--c0)}.s1{fill:var(--c1)}.s2{fill:var(--c2)}.s3{fill:var(--c3)}.s4{fill:var(--c4)"
    "}\n"
    ".l0,.l1,.l2,.l3,.l4{stroke-width:2.5}.l0{stroke:var(--c0)}.l1{stroke:var(--c1)}.l2{stroke:var("
    "--c2)}"
    ".l3{stroke:var(--c3)}.l4{stroke:var(--c4)}\n"
    "</style>\n";

static void level_label(const struct report *report, const struct level *level, int variant,
                        char *out, size_t bytes) {
  char point[24];
  if (level->rate_per_s > 0)
    snprintf(point, sizeof point, "%.6g/s", level->rate_per_s);
  else
    snprintf(point, sizeof point, "%d", level->callers);
  if (variant < 0)
    snprintf(out, bytes, "%s", point);
  else
    snprintf(out, bytes, "%s %.12s", point, report_variant_name(report, variant));
}

// One category per level and variant; `fill` puts the values of one into the chart's series.
typedef void (*fill_column)(struct svg_chart *chart, int column, struct variant_result *variant);

static void fill_all(struct report *report, struct svg_chart *chart, fill_column fill) {
  chart->n_categories = 0;
  for (int i = 0; i < report->n_levels; i++) {
    struct result *result = &report->levels[i].result;
    for (int v = 0; v < result->n_variants && chart->n_categories < SVG_CATEGORIES; v++) {
      level_label(report, &report->levels[i], result->n_variants > 1 ? v : -1,
                  chart->category[chart->n_categories], SVG_LABEL_BYTES);
      fill(chart, chart->n_categories++, &result->variant[v]);
    }
  }
}

static void fill_latency(struct svg_chart *chart, int column, struct variant_result *variant) {
  for (int p = 0; p < REPORT_PERCENTILES; p++) {
    chart->value[p][column] = samples_percentile(&variant->latency_us, report_fractions[p]) / 1e3;
  }
}

static void fill_rate(struct svg_chart *chart, int column, struct variant_result *variant) {
  chart->value[0][column] = report_calls_per_s(variant);
}

static void fill_stages(struct svg_chart *chart, int column, struct variant_result *variant) {
  for (int s = 0; s < COST_TOTAL_US; s++)
    chart->value[s][column] = result_cost_mean(variant, (enum cost)s);
}

static void fill_traffic(struct svg_chart *chart, int column, struct variant_result *variant) {
  chart->value[0][column] = result_bytes_moved(variant) / 1e6;
  chart->value[1][column] = result_cost_mean(variant, COST_UNFUSED_BYTES) / 1e6;
}

static void charts(struct report *report, struct svg_chart *chart, FILE *out) {
  const bool many = report->n_levels > 1;
  *chart = (struct svg_chart){.title = many ? "Latency by callers or rate" : "Latency",
                              .unit = "ms",
                              .n_series = REPORT_PERCENTILES};
  for (int p = 0; p < REPORT_PERCENTILES; p++)
    chart->series[p] = report_fraction_names[p];
  fill_all(report, chart, fill_latency);
  if (many && !report->ab)
    svg_lines(out, chart);
  else
    svg_bars(out, chart, false);
  *chart = (struct svg_chart){
      .title = "Throughput", .unit = "calls/s", .series = {"answered"}, .n_series = 1};
  fill_all(report, chart, fill_rate);
  svg_bars(out, chart, false);
  *chart = (struct svg_chart){
      .title = "Where the time goes in the server", .unit = "us, mean", .n_series = COST_TOTAL_US};
  for (int s = 0; s < COST_TOTAL_US; s++)
    chart->series[s] = cost_name((enum cost)s);
  fill_all(report, chart, fill_stages);
  svg_bars(out, chart, true);
  *chart = (struct svg_chart){.title = "Memory traffic of a call",
                              .unit = "MB",
                              .series = {"moved", "unfused plan"},
                              .n_series = 2};
  fill_all(report, chart, fill_traffic);
  svg_bars(out, chart, false);
}

static void ratios(const struct report *report, FILE *out) {
  static const char *const names[AB_METRICS] = {"latency", "compute_us", "bytes moved", "calls/s"};
  static struct svg_ratio rows[SPEC_LIST_MAX * AB_METRICS];
  int n = 0;
  for (int i = 0; i < report->n_levels; i++) {
    for (int m = 0; m < AB_METRICS; m++) {
      char point[SVG_LABEL_BYTES];
      level_label(report, &report->levels[i], -1, point, sizeof point);
      snprintf(rows[n].label, sizeof rows[n].label, "%s, %s caller%s", names[m], point,
               report->levels[i].callers == 1 ? "" : "s");
      rows[n++].estimate = report->levels[i].result.estimate[m];
    }
  }
  svg_ratios(out, "Fused against unfused: ratio, above 1 means fused is better", rows, n);
}

static void tables(struct report *report, FILE *out) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *memory = open_memstream(&text, &bytes);
  if (!memory) return;
  report_table(report, memory);
  report_errors(report, memory);
  fclose(memory);
  fputs("<pre>", out);
  svg_escape(out, text);
  fputs("</pre>\n", out);
  free(text);
}

enum status report_html(struct report *report, const char *path, struct error *err) {
  char *text = NULL;
  size_t bytes = 0;
  struct svg_chart *chart = malloc(sizeof *chart);
  FILE *out = open_memstream(&text, &bytes);
  if (!chart || !out) {
    free(chart);
    if (out) fclose(out);
    free(text);
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for the HTML report");
  }
  fputs("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>", out);
  svg_escape(out, report->model);
  fprintf(out, " load test</title>\n%s</head><body>\n<h1>", style);
  svg_escape(out, report->model);
  fputs("</h1>\n<p>", out);
  svg_escape(out, report->input);
  fputs(", ", out);
  svg_escape(out, report->url);
  fputs("</p>\n<div class=\"charts\">\n", out);
  if (report->ab) ratios(report, out);
  charts(report, chart, out);
  fputs("</div>\n", out);
  tables(report, out);
  fputs("</body></html>\n", out);
  const bool failed = fclose(out) != 0;
  free(chart);
  const struct slice part = {(const uint8_t *)text, bytes};
  const enum status status =
      failed ? error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for the HTML report")
             : file_write(path, &part, 1, err);
  free(text);
  return status;
}
