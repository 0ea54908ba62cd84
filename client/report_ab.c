// What A/B adds to the tables: ratios with their intervals, what was predicted beside what was
// measured, and how far the answers differ.
#include "client/report.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

static void interval_cell(double value, double low, double high, int64_t n, FILE *out) {
  if (n == 0)
    fprintf(out, "  %22s", "-");
  else
    fprintf(out, "  %6.3f [%6.3f, %6.3f]", value, low, high);
}

static void estimate_cell(const struct ab_estimate *e, FILE *out) {
  interval_cell(e->ratio, e->low, e->high, e->n_pairs, out);
}

static void ratio_table(const struct report *report, FILE *out) {
  fprintf(out,
          "\nfusion=%s (A) against fusion=%s (B): B / A, above 1 means A is better. Geometric mean "
          "over pairs of\n"
          "slices [%.0f %% interval by paired bootstrap, %d resamples]; A and B alternate with the "
          "server drained\n"
          "between them, the same requests in both.\n",
          report_variant_name(report, 0), report_variant_name(report, 1), 100 * AB_CONFIDENCE,
          AB_RESAMPLES);
  fprintf(out, "%9s %8s  %-22s  %-22s  %-22s  %-22s\n", report_level_word(report), "pairs",
          "latency", "compute_us", "bytes moved", "calls/s (A / B)");
  for (int i = 0; i < report->n_levels; i++) {
    const struct level *level = &report->levels[i];
    fprintf(out, "%9d %8" PRId64, level->callers, level->result.pairs.n);
    for (int m = 0; m < AB_METRICS; m++)
      estimate_cell(&level->result.estimate[m], out);
    fputc('\n', out);
  }
}

// "  1.234  1.300 [ 1.290,  1.310]   -5.1 %": predicted, measured, how far off the first is.
static void beside_cell(double predicted, const struct ab_estimate *measured, FILE *out) {
  fprintf(out, "  %9.3f", predicted);
  estimate_cell(measured, out);
  if (measured->n_pairs > 0)
    fprintf(out, " %+6.1f %%", 100 * (predicted / measured->ratio - 1));
  else
    fprintf(out, " %8s", "-");
}

static void prediction_table(const struct report *report, FILE *out) {
  const struct prediction *first = &report->levels[0].prediction;
  if (!first->present) {
    fprintf(out, "\nNo prediction to hold against this: %s\n", first->note);
    return;
  }
  fprintf(
      out,
      "\nB / A as the server's planner predicts it for a batch of the run's mean size, beside "
      "what was measured,\nand how far off the prediction is; by %s.\n"
      "It is of whole plans, also where --output asks for less. Saved: 1 - A / B of the time.\n",
      first->measured_rates ? "rates that were measured on its device"
                            : "default rates of its device, which `fusewired tune` would measure");
  fprintf(out, "%9s %13s  %9s  %-22s %8s  %9s  %-22s %8s  %s\n", report_level_word(report),
          "tokens/seqs", "time", "measured (compute_us)", "off", "bytes", "measured", "off",
          "saved: predicted, measured");
  for (int i = 0; i < report->n_levels; i++) {
    const struct level *level = &report->levels[i];
    const struct prediction *p = &level->prediction;
    const struct ab_estimate *time = &level->result.estimate[AB_COMPUTE];
    char batch[48];
    if (!p->present) continue;
    snprintf(batch, sizeof batch, "%" PRId64 "/%" PRId64, p->tokens, p->sequences);
    fprintf(out, "%9d %13s", level->callers, batch);
    beside_cell(prediction_time_ratio(p), time, out);
    beside_cell(prediction_bytes_ratio(p), &level->result.estimate[AB_BYTES], out);
    fprintf(out, "  %5.1f %%", 100 * (1 - 1 / prediction_time_ratio(p)));
    if (time->n_pairs > 0) fprintf(out, " %5.1f %%", 100 * (1 - 1 / time->ratio));
    fputc('\n', out);
  }
}

static void difference_table(const struct report *report, FILE *out) {
  const struct difference *difference = &report->difference;
  if (difference->n_requests == 0) {
    fprintf(out, "\nThe answers were not compared: %s\n",
            difference->note[0] ? difference->note : "not asked for");
    return;
  }
  int width = 32;
  for (int i = 0; i < difference->n_outputs; i++) {
    const int bytes = (int)strlen(difference->outputs[i].name);
    if (bytes > width) width = bytes;
  }
  fprintf(
      out,
      "\nAnswers of A and B to the same %d request%s: largest difference of two elements, and |A "
      "- B| / |B| of a\nrequest's tensor, mean [%.0f %% interval by bootstrap over requests] and "
      "largest\n%-*s %12s %12s  %-34s %12s %11s\n",
      difference->n_requests, difference->n_requests == 1 ? "" : "s", 100 * AB_CONFIDENCE, width,
      "output", "elements", "max abs", "relative L2", "largest", "not finite");
  for (int i = 0; i < difference->n_outputs; i++) {
    const struct difference_output *output = &difference->outputs[i];
    const struct ab_mean *mean = &output->relative_l2;
    char text[64];
    snprintf(text, sizeof text, "%9.3g [%9.3g, %9.3g]", mean->mean, mean->low, mean->high);
    fprintf(out, "%-*s %12" PRId64 " %12.3g  %-34s %12.3g %11" PRId64 "\n", width, output->name,
            output->elements, output->max_abs, text, output->relative.max, output->not_finite);
  }
  if (difference->note[0]) fprintf(out, "Then the comparison ended: %s\n", difference->note);
}

void report_ab(const struct report *report, FILE *out) {
  ratio_table(report, out);
  prediction_table(report, out);
  difference_table(report, out);
}
