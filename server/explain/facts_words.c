// Words and figures that the formats share.
#include "explain/facts.h"

#include <stdio.h>

const char *facts_point_name(enum side mode, int32_t point, char *name) {
  if (mode == SIDE_FUSED) {
    snprintf(name, FACTS_POINT, "%d", point + 1);
    return name;
  }
  char letters[FACTS_POINT];
  int n = 0;
  for (int32_t rest = point; rest >= 0 && n < FACTS_POINT - 1; rest = rest / 26 - 1)
    letters[n++] = (char)('a' + rest % 26);
  for (int i = 0; i < n; i++)
    name[i] = letters[n - 1 - i];
  name[n] = '\0';
  return name;
}

const char *facts_label(const struct step *step, char *label) {
  if (step->kind == STEP_LINEAR)
    snprintf(label, FACTS_LABEL, "%s %d->%d", step->label, step->linear.k, step->linear.n);
  else
    snprintf(label, FACTS_LABEL, "%s", step->label);
  return label;
}

const char *facts_rows_word(enum row_kind rows) {
  static const char *const words[] = {"tokens", "sequences", "scores", "fixed"};
  return (unsigned)rows < sizeof words / sizeof *words ? words[rows] : "?";
}

double facts_moved(const struct cost *cost) {
  return cost->read.compulsory + cost->write.compulsory;
}

double facts_expected(const struct cost *cost) {
  return cost->read.expected + cost->write.expected;
}

double facts_lower(const struct cost *cost) {
  return cost->read.lower + cost->write.lower;
}

double facts_upper(const struct cost *cost) {
  return cost->read.upper + cost->write.upper;
}

struct cost facts_mean(const struct fact_plan *plan, const struct fold *fold, int32_t at) {
  struct cost mean = plan->kernels[fold->first + at].cost;
  for (int32_t t = 1; t < fold->times; t++)
    cost_add(&mean, &plan->kernels[fold->first + t * fold->period + at].cost);
  double n = fold->times;
  mean.read.compulsory /= n, mean.read.expected /= n;
  mean.write.compulsory /= n, mean.write.expected /= n;
  mean.read.lower /= n, mean.read.upper /= n;
  mean.write.lower /= n, mean.write.upper /= n;
  mean.flops /= n, mean.us /= n;
  mean.memory_us /= n, mean.compute_us /= n, mean.launch_us /= n;
  mean.bound = plan->kernels[fold->first + at].cost.bound;
  return mean;
}

double facts_point_rate(const struct fact_plan *plan, const struct fact_point *point) {
  double flops = plan->kernels[point->kernel].cost.flops * point->count;
  return point->us > 0 ? flops / point->us * 1e6 : 0;
}

double facts_bandwidth(const struct facts *facts) {
  return facts->rates->copy;
}

double facts_peak(const struct facts *facts, const struct step *step) {
  double product = 0;
  if (step->kind == STEP_LINEAR) product = facts->rates->product[step->linear.w_dtype];
  if (step->kind == STEP_ATTENTION || step->kind == STEP_SCORES || step->kind == STEP_CONTEXT)
    product = facts->rates->product[step->attention.dtype];
  return product > 0 ? product : facts->rates->vector;
}

double facts_roof(const struct facts *facts, const struct fact_kernel *kernel) {
  double memory = kernel->intensity * facts_bandwidth(facts);
  double peak = facts_peak(facts, kernel->step);
  return memory < peak ? memory : peak;
}
