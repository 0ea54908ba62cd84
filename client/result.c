#include "client/result.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void result_init(struct result *result, int n_variants, uint64_t seed) {
  memset(result, 0, sizeof *result);
  result->n_variants = n_variants;
  result->lag_us.rng.state = seed;
  for (int v = 0; v < RESULT_VARIANTS; v++) {
    result->variant[v].latency_us.rng.state = seed + (uint64_t)v + 1;
    for (int s = 0; s < RESULT_STAGES; s++) {
      result->variant[v].stage_us[s].rng.state = seed + (uint64_t)(v * RESULT_STAGES + s + 10);
    }
  }
}

void result_free(struct result *result) {
  samples_free(&result->lag_us);
  for (int v = 0; v < RESULT_VARIANTS; v++) {
    samples_free(&result->variant[v].latency_us);
    for (int s = 0; s < RESULT_STAGES; s++)
      samples_free(&result->variant[v].stage_us[s]);
    for (int m = 0; m < AB_METRICS; m++)
      free(result->pairs.value[m][v]);
  }
  result->pairs = (struct ab_pairs){0};
}

static void add_cost(struct variant_result *variant, const struct reply_cost *cost) {
  for (int i = 0; i < COST_COUNT; i++) {
    if (!(cost->present & 1u << i)) continue;
    variant->cost[i].sum += cost->value[i];
    variant->cost[i].n++;
    if (i < RESULT_STAGES) samples_add(&variant->stage_us[i], cost->value[i]);
  }
  if (cost->fusion[0]) {
    const bool other = variant->fusion[0] && strcmp(variant->fusion, cost->fusion) != 0;
    snprintf(variant->fusion, sizeof variant->fusion, "%s", other ? "mixed" : cost->fusion);
  }
  if (cost->device[0]) memcpy(variant->device, cost->device, sizeof variant->device);
}

static void count_failure(struct result *result, const struct outcome *outcome) {
  char *message = result->status_message[outcome->status];
  if (!message[0]) snprintf(message, RESULT_MESSAGE_BYTES, "%s", outcome->message);
}

void result_add(struct result *result, const struct outcome *outcome, struct reply_cost *cost) {
  struct variant_result *variant = &result->variant[outcome->variant];
  const bool ok = outcome->status == STATUS_OK;
  cost->present = 0;
  if (!ok) count_failure(result, outcome);
  if (ok && outcome->in_window) {
    variant->n_ok_window++;
    variant->tokens_window += outcome->tokens;
  }
  if (!outcome->measured) {
    result->n_warmup++;
    result->n_warmup_failed += !ok;
    result->warmup_status_count[outcome->status]++;
    return;
  }
  result->status_count[outcome->status]++;
  if (!ok) return;
  variant->n_ok++;
  variant->tokens += outcome->tokens;
  result->request_bytes += outcome->request_bytes;
  result->reply_bytes += outcome->reply_bytes;
  samples_add(&variant->latency_us, outcome->latency_us);
  if (reply_scan_cost(outcome->reply, cost))
    add_cost(variant, cost);
  else
    result->n_bad_cost++;
}

static bool grow_pairs(struct ab_pairs *pairs) {
  if (pairs->n < pairs->capacity) return true;
  const int64_t capacity = pairs->capacity ? pairs->capacity * 2 : 256;
  for (int m = 0; m < AB_METRICS; m++) {
    for (int v = 0; v < RESULT_VARIANTS; v++) {
      double *grown = realloc(pairs->value[m][v], (size_t)capacity * sizeof *grown);
      if (!grown) return false;
      pairs->value[m][v] = grown;
    }
  }
  pairs->capacity = capacity;
  return true;
}

enum status result_add_pair(struct result *result,
                            const double value[AB_METRICS][RESULT_VARIANTS]) {
  struct ab_pairs *pairs = &result->pairs;
  if (!grow_pairs(pairs)) return STATUS_RESOURCE_EXHAUSTED;
  for (int m = 0; m < AB_METRICS; m++) {
    for (int v = 0; v < RESULT_VARIANTS; v++)
      pairs->value[m][v][pairs->n] = value[m][v];
  }
  pairs->n++;
  return STATUS_OK;
}

enum status result_estimate(struct result *result, uint64_t seed) {
  const struct ab_pairs *pairs = &result->pairs;
  for (int m = 0; m < AB_METRICS; m++) {
    const int first = m == AB_RATE ? 1 : 0; // rates: a over b
    const enum status status = ab_ratio(pairs->value[m][first], pairs->value[m][1 - first],
                                        pairs->n, seed + (uint64_t)m, &result->estimate[m]);
    if (status != STATUS_OK) return status;
    for (int v = 0; v < RESULT_VARIANTS; v++) {
      const enum status mean = ab_mean_of(pairs->value[m][v], pairs->n,
                                          seed + (uint64_t)(AB_METRICS + m), &result->mean[m][v]);
      if (mean != STATUS_OK) return mean;
    }
  }
  return STATUS_OK;
}

int64_t result_failed(const struct result *result) {
  int64_t failed = result->n_unsent;
  for (int code = 1; code < STATUS_COUNT; code++)
    failed += result->status_count[code];
  return failed;
}

double result_cost_mean(const struct variant_result *variant, enum cost cost) {
  return variant->cost[cost].n ? variant->cost[cost].sum / (double)variant->cost[cost].n : NAN;
}

double result_bytes_moved(const struct variant_result *variant) {
  return result_cost_mean(variant, COST_READ_BYTES) + result_cost_mean(variant, COST_WRITE_BYTES);
}
