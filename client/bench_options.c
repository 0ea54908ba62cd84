#include "base/clock.h"
#include "client/bench.h"
#include "client/commands.h"
#include "client/net.h"
#include <string.h>

#define OFFSET(field) offsetof(struct bench_options, field)
#define WARMUP_UNSET (-1)
#define COMPARE_UNSET (-1)
#define COMPARE_DEFAULT 16

static const char usage[] = "usage: fusewire bench MODEL [options]\n"
                            "Load test: sends ModelInfer calls, measures latency, throughput and "
                            "what the server says each call cost.\n";

static const struct option_row rows[] = {
    {NULL, OPTION_FLAG, 0, NULL, "Server", 0, 0},
    CONNECT_ROWS(OFFSET(connect)),
    {"model", OPTION_TEXT, OFFSET(model), "NAME", "the model, if it is not a word of its own", 0,
     0},
    {"model-version", OPTION_TEXT, OFFSET(version), "V",
     "its version (default: the server's choice)", 0, 0},
    {"connections", OPTION_COUNT, OFFSET(connections), "N",
     "HTTP/2 connections, calls dealt out in turn (default 1)", 1, NET_CONNS_MAX},
    {NULL, OPTION_FLAG, 0, NULL, "Load", 0, 0},
    {"concurrency", OPTION_TEXT, OFFSET(concurrency), "LIST",
     "closed loop: callers that each wait for their answer (default 1);\n1,4,16 or 1:16:5 "
     "(start:end:step): one run each",
     0, 0},
    {"rate", OPTION_TEXT, OFFSET(rate), "LIST",
     "open loop: calls per second, whatever the server does; latency counts\nfrom the scheduled "
     "send. 100 or 100,200,400",
     0, 0},
    {"poisson", OPTION_FLAG, OFFSET(poisson), NULL,
     "with --rate: random gaps (Poisson arrivals) instead of constant ones", 0, 0},
    {"max-in-flight", OPTION_COUNT, OFFSET(max_in_flight), "N",
     "with --rate: most calls in flight; more wait, and their latency counts\n(default 1024)", 1,
     1 << 16},
    {"duration", OPTION_DURATION, OFFSET(duration_ns), "TIME", "measure for so long (default 10s)",
     0, 0},
    {"requests", OPTION_COUNT, OFFSET(requests), "N", "measure so many calls instead", 1,
     INT64_MAX / 2},
    {"warmup", OPTION_DURATION, OFFSET(warmup_ns), "TIME",
     "send for so long before measuring (default 1s; none with --requests)", 0, 0},
    {"deadline-ms", OPTION_COUNT, OFFSET(deadline_ms), "N",
     "send grpc-timeout; later answers count as failed", 1, 86400000},
    {"timeout", OPTION_DURATION, OFFSET(timeout_ns), "TIME",
     "give a call up without a deadline (default 60s)", 0, 0},
    {NULL, OPTION_FLAG, 0, NULL, "Requests", 0, 0},
    {"tokens", OPTION_TEXT, OFFSET(tokens), "N|A..B",
     "synthetic requests of the model's signature: length of each sequence, or\na uniform range "
     "(default 32); rows where the model has no sequences (1)",
     0, 0},
    {"batch", OPTION_COUNT, OFFSET(batch), "N", "rows in one request (default 1)", 1, 65536},
    {"max-id", OPTION_COUNT, OFFSET(max_id), "N", "token ids are random in 1..N (default 1000)", 1,
     INT32_MAX},
    {"payloads", OPTION_COUNT, OFFSET(payloads), "N",
     "how many different requests to make and cycle (default 128)", 1, 65536},
    {"input-file", OPTION_TEXT, OFFSET(input_file), "FILE",
     "token ids instead, a JSON array a line, cycled in order", 0, 0},
    {"input", OPTION_LIST, OFFSET(inputs), "SPEC",
     "tensors instead: name=file.npy or name:DTYPE:shape=file.raw; repeat for\nfurther inputs", 0,
     0},
    {"output", OPTION_LIST, OFFSET(outputs), "NAME",
     "ask for this output only; may be repeated (default: all)", 0, 0},
    {"seed", OPTION_COUNT, OFFSET(seed), "N", "of lengths, ids, arrivals, bootstrap (default 1)", 0,
     INT64_MAX / 2},
    {NULL, OPTION_FLAG, 0, NULL, "Fusion", 0, 0},
    {"fusion", OPTION_TEXT, OFFSET(fusion), "MODE",
     "the request parameter: on, off or auto (default: not sent)", 0, 0},
    {"ab", OPTION_FLAG, OFFSET(ab), NULL,
     "fused against unfused: slices of calls of either kind in turn, with the\nratio of each "
     "figure and its confidence interval, what was predicted, and\nhow far the answers differ",
     0, 0},
    {"ab-slice", OPTION_COUNT, OFFSET(slice_calls), "N",
     "calls in a slice (default: 4 a caller, and 1 with a single caller)", 1, 1 << 20},
    {"ab-compare", OPTION_COUNT, OFFSET(compare), "N",
     "with --ab: how many requests' answers to compare before the runs (default\n16; 0: none)", 0,
     65536},
    {NULL, OPTION_FLAG, 0, NULL, "Output", 0, 0},
    {"json", OPTION_TEXT, OFFSET(json), "FILE", "write all figures as JSON; - is standard output",
     0, 0},
    {"csv", OPTION_TEXT, OFFSET(csv), "FILE", "write a line per run as CSV; - is standard output",
     0, 0},
    {"html", OPTION_TEXT, OFFSET(html), "FILE", "write a page with charts", 0, 0},
    {"quiet", OPTION_FLAG, OFFSET(quiet), NULL, "no progress line, no table", 0, 0},
    {"help", OPTION_FLAG, OFFSET(help), NULL, "this text", 0, 0},
};
#define N_ROWS ((int)(sizeof rows / sizeof rows[0]))

bool bench_help(int argc, char **argv) {
  return command_help(usage, rows, N_ROWS, argc, argv);
}

// Two reports into one file: the second would take the place of the first.
static bool same_report(const struct bench_options *o, const char **name) {
  const char *const to[] = {o->json, o->csv, o->html};
  for (int i = 1; i < 3; i++)
    for (int j = 0; j < i; j++)
      if (to[i] && to[j] && strcmp(to[i], to[j]) == 0) return *name = to[i], true;
  return false;
}

static enum status check_together(const struct bench_options *o, struct error *err) {
  const enum status bad = STATUS_INVALID_ARGUMENT;
  const int sources = (o->tokens != NULL) + (o->input_file != NULL) + (o->inputs.n > 0);
  if (o->rate && o->concurrency)
    return error_set(err, bad,
                     "--rate (open loop) and --concurrency (closed loop) exclude each other");
  if (o->poisson && !o->rate) return error_set(err, bad, "--poisson needs --rate");
  if (o->ab && o->rate)
    return error_set(err, bad, "--ab needs the closed loop: use --concurrency, not --rate");
  if (o->ab && o->fusion)
    return error_set(err, bad, "--ab sets the parameter fusion itself; leave --fusion out");
  if (o->slice_calls && !o->ab) return error_set(err, bad, "--ab-slice needs --ab");
  if (o->compare != COMPARE_UNSET && !o->ab) return error_set(err, bad, "--ab-compare needs --ab");
  if (sources > 1)
    return error_set(err, bad, "--tokens, --input-file and --input exclude one another");
  if (o->requests == 0 && o->duration_ns == 0)
    return error_set(err, bad, "--duration 0: expected a time above 0");
  if (o->timeout_ns == 0) return error_set(err, bad, "--timeout 0: expected a time above 0");
  const char *name;
  if (same_report(o, &name))
    return error_set(err, bad, "--json, --csv and --html: two of them go to \"%s\"", name);
  return STATUS_OK;
}

static enum status work_out(struct bench_options *o, struct error *err) {
  const enum status bad = STATUS_INVALID_ARGUMENT;
  if (o->rate && !spec_real_list(o->rate, o->rates, &o->n_levels)) {
    return error_set(
        err, bad, "--rate %s: expected calls per second above 0, such as 100 or 100,200", o->rate);
  }
  if (!o->rate && !spec_int_list(o->concurrency ? o->concurrency : "1", o->callers, &o->n_levels)) {
    return error_set(err, bad,
                     "--concurrency %s: expected such as 16, 1,4,16 or 1:16:5, at most %d numbers",
                     o->concurrency, SPEC_LIST_MAX);
  }
  for (int i = 0; !o->rate && i < o->n_levels; i++) {
    if (o->callers[i] > 1 << 16)
      return error_set(err, bad, "--concurrency %s: at most %d", o->concurrency, 1 << 16);
  }
  if (o->tokens && !spec_range(o->tokens, &o->tokens_low, &o->tokens_high)) {
    return error_set(err, bad, "--tokens %s: expected such as 32 or 8..128", o->tokens);
  }
  if (o->tokens_high > 1 << 20)
    return error_set(err, bad, "--tokens %s: at most %d", o->tokens, 1 << 20);
  if (o->warmup_ns == WARMUP_UNSET) o->warmup_ns = o->requests ? 0 : NS_PER_S;
  if (o->compare == COMPARE_UNSET) o->compare = o->ab ? COMPARE_DEFAULT : 0;
  if (o->deadline_ms) o->timeout_ns = o->deadline_ms * NS_PER_MS;
  return STATUS_OK;
}

enum status bench_parse(int argc, char **argv, struct bench_options *out, struct error *err) {
  *out = (struct bench_options){
      .connect.url = CONNECT_DEFAULT_URL,
      .connections = 1,
      .max_in_flight = 1024,
      .batch = 1,
      .max_id = 1000,
      .seed = 1,
      .payloads = 128,
      .duration_ns = 10 * NS_PER_S,
      .warmup_ns = WARMUP_UNSET,
      .compare = COMPARE_UNSET,
      .timeout_ns = 60 * NS_PER_S,
  };
  const char *word = NULL;
  enum status status = options_parse_word(rows, N_ROWS, argc, argv, out, &word, err);
  if (status == STATUS_OK) status = command_model(word, &out->model, err);
  if (status == STATUS_OK) status = check_together(out, err);
  return status == STATUS_OK ? work_out(out, err) : status;
}
