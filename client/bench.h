// The options of `fusewire bench`, checked, as numbers: apart from the command so that tests reach
// them. Pure.
#ifndef CLIENT_BENCH_H
#define CLIENT_BENCH_H

#include "client/connect.h"
#include "client/spec.h"

struct bench_options {
  struct connect_options connect;
  const char *model, *version, *concurrency, *rate, *tokens, *fusion, *input_file, *json, *csv,
      *html;
  struct text_list inputs, outputs;
  int64_t connections, max_in_flight, requests, batch, max_id, seed, payloads, slice_calls,
      deadline_ms, compare;
  int64_t duration_ns, warmup_ns, timeout_ns;
  bool poisson, ab, quiet, help;
  // Worked out by bench_parse.
  int64_t callers[SPEC_LIST_MAX]; // closed loop; n_levels of them
  double rates[SPEC_LIST_MAX];    // open loop
  int n_levels;
  int64_t tokens_low, tokens_high;
};

// INVALID_ARGUMENT names the option and what was expected.
MUST_USE enum status bench_parse(int argc, char **argv, struct bench_options *out,
                                 struct error *err);
bool bench_help(int argc, char **argv);

#endif
