// What a bench prints and writes: tables for people, CSV and JSON for programs, one self-contained
// HTML page.
#ifndef CLIENT_REPORT_H
#define CLIENT_REPORT_H

#include "client/difference.h"
#include "client/predict.h"
#include "client/result.h"
#include "client/spec.h"
#include <stdio.h>

struct level {       // one point of the sweep
  int callers;       // closed loop: concurrency; open loop: the bound on calls in flight
  double rate_per_s; // open loop; else 0
  struct result result;
  struct prediction prediction; // A/B: for the mean batch of this run
};

struct report {
  const char *url, *model, *input;     // input: a sentence about the requests
  const char *fusion[RESULT_VARIANTS]; // as asked; NULL: the server's default
  const char *server;                  // name and version from its metadata; may be ""
  int connections, n_payloads;
  int64_t slice_calls; // > 0: A/B. 0 there with `ab` means: 4 calls a caller, 1 for a single caller
  int64_t seed, warmup_ns, duration_ns, requests, deadline_ns, batch;
  bool ab, poisson;
  int n_asked;                  // levels; more than n_levels when the run was cut short
  int compare;                  // A/B: requests whose answers were to be compared
  struct difference difference; // A/B: of the answers, compared before the runs
  struct level levels[SPEC_LIST_MAX];
  int n_levels;
  bool cut_short; // by a server that was lost
};

void report_table(struct report *report, FILE *out); // percentiles sort samples: not const
MUST_USE enum status report_csv(struct report *report, const char *path, struct error *err);
MUST_USE enum status report_json(struct report *report, const char *path, struct error *err);
MUST_USE enum status report_html(struct report *report, const char *path, struct error *err);
// Failures by status, warm-up included, with the first message of each; prints nothing when there
// was none.
void report_errors(const struct report *report, FILE *out);
// What was asked for and is not in the report though no call failed for it: runs and calls that an
// interrupt left out, a run in which no call ended in time, answers that were not compared, A/B
// with too few pairs for an interval, a run that was cut short. A line for each to `out` (NULL:
// only count); how many. The caller has failures from the results.
int report_gaps(const struct report *report, FILE *out);

// Shared by the writers.
void report_ab(const struct report *report, FILE *out);
const char *report_level_word(const struct report *report); // "callers" or "rate/s"
const char *report_variant_name(const struct report *report,
                                int variant); // "on", "mixed", "default"
double report_calls_per_s(const struct variant_result *variant);
double report_tokens_per_s(const struct variant_result *variant);
#define REPORT_PERCENTILES 5
extern const double report_fractions[REPORT_PERCENTILES];
extern const char *const report_fraction_names[REPORT_PERCENTILES]; // "p50" ...

#endif
