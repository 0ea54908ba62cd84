#include "client/bench.h"
#include "base/clock.h"
#include "client/commands.h"
#include "client/file.h"
#include "client/input.h"
#include "client/load.h"
#include "client/progress.h"
#include "client/report.h"
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define PAYLOAD_BYTES_MAX ((size_t)256 << 20) // of all synthetic requests together

struct bench {
  struct bench_options options;
  struct net *net;
  struct oip_model model;
  struct payload_options payload_options;
  struct payload_set payloads;
  struct rng rng;
  struct report report;
  struct progress progress;
  char server[600], input[300];
};

static volatile bool interrupted;

static void on_interrupt(int number) {
  (void)number;
  interrupted = true;
  signal(SIGINT, SIG_DFL); // the second one ends the program
}

// ---- requests -----------------------------------------------------------------------------------

static enum status add_request(const struct input_rows *rows, void *arg, struct error *err) {
  struct bench *bench = arg;
  struct request_input input;
  enum status status =
      input_make(&bench->model, rows, bench->options.max_id, &bench->rng, &input, err);
  if (status != STATUS_OK) return status;
  status = payload_set_add(&bench->payloads, &bench->payload_options, &input, err);
  request_input_free(&input);
  return status;
}

// One random request. Where the model has no sequences --tokens means rows, each of one position.
static enum status add_random(struct bench *bench, int64_t low, int64_t high, struct error *err) {
  const bool sequences = input_has_sequences(&bench->model);
  const int64_t batch = bench->options.batch;
  const int64_t n = sequences ? batch : batch * rng_between(&bench->rng, low, high);
  int64_t *lengths = calloc((size_t)n, sizeof *lengths);
  if (!lengths) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory");
  for (int64_t row = 0; row < n; row++)
    lengths[row] = sequences ? rng_between(&bench->rng, low, high) : 1;
  const struct input_rows rows = {n, lengths, NULL};
  const enum status status = add_request(&rows, bench, err);
  free(lengths);
  return status;
}

static enum status make_synthetic(struct bench *bench, struct error *err) {
  const struct bench_options *o = &bench->options;
  const bool sequences = input_has_sequences(&bench->model);
  const int64_t low = o->tokens ? o->tokens_low : sequences ? 32 : 1;
  const int64_t high = o->tokens ? o->tokens_high : low;
  enum status status = STATUS_OK;
  for (int64_t i = 0; i < o->payloads && status == STATUS_OK; i++) {
    status = add_random(bench, low, high, err);
    if (bench->payloads.total_bytes > PAYLOAD_BYTES_MAX) break; // large ones need no variety
  }
  char range[64];
  snprintf(range, sizeof range, low == high ? "%" PRId64 : "%" PRId64 "..%" PRId64, low, high);
  snprintf(bench->input, sizeof bench->input, "%d synthetic requests of %" PRId64 " x %s %s",
           bench->payloads.n, o->batch, range, sequences ? "tokens" : "rows");
  return status;
}

static enum status make_from_files(struct bench *bench, struct error *err) {
  struct request_input input;
  enum status status = input_from_files(&bench->options.inputs, &input, err);
  if (status != STATUS_OK) return status;
  status = payload_set_add(&bench->payloads, &bench->payload_options, &input, err);
  request_input_free(&input);
  snprintf(bench->input, sizeof bench->input, "one request from %d tensor file%s",
           bench->options.inputs.n, bench->options.inputs.n == 1 ? "" : "s");
  return status;
}

// Our server says in its metadata which plans a model has. Others say nothing, and are believed.
static enum status check_both_plans(const struct bench *bench, struct error *err) {
  const char *fusion = oip_property(&bench->model, "fusion");
  if (!fusion || strcmp(fusion, "ab") == 0) return STATUS_OK;
  return error_set(
      err, STATUS_FAILED_PRECONDITION,
      "--ab compares two plans, and model %s is served with fusion: %s, which has one; "
      "its file needs fusion: ab",
      bench->options.model, fusion);
}

static enum status make_requests(struct bench *bench, struct error *err) {
  const struct bench_options *o = &bench->options;
  bench->rng.state = (uint64_t)o->seed;
  bench->payload_options =
      (struct payload_options){.model = o->model,
                               .version = o->version,
                               .outputs = &o->outputs,
                               .fusion = {o->ab ? "on" : o->fusion, o->ab ? "off" : NULL}};
  if (o->inputs.n && !o->ab) return make_from_files(bench, err);
  enum status status = oip_model_metadata(bench->net, o->model, o->version, &bench->model, err);
  if (status == STATUS_OK && o->ab) status = check_both_plans(bench, err);
  if (status != STATUS_OK) return status;
  if (o->inputs.n) return make_from_files(bench, err);
  if (bench->model.n_inputs == 0) {
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "the server's metadata of %s lists no inputs; use --input", o->model);
  }
  if (!o->input_file) return make_synthetic(bench, err);
  if (!input_takes_ids(&bench->model))
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "--input-file has token ids, and no input of %s takes any; use --input",
                     o->model);
  status = input_read_lines(o->input_file, o->batch, add_request, bench, err);
  if (status == STATUS_OK && bench->payloads.n == 0) {
    status = error_set(err, STATUS_INVALID_ARGUMENT, "%s: no requests in it", o->input_file);
  }
  int used = snprintf(bench->input, sizeof bench->input, "%d request%s from %s", bench->payloads.n,
                      bench->payloads.n == 1 ? "" : "s", o->input_file);
  if (o->batch > 1 && used < (int)sizeof bench->input)
    snprintf(bench->input + used, sizeof bench->input - (size_t)used, ", %" PRId64 " lines in each",
             o->batch);
  return status;
}

// ---- A/B beside the runs ------------------------------------------------------------------------

// One answer, parsed; `message` holds its bytes (file_free).
static enum status answer(struct bench *bench, const struct payload *payload, int variant,
                          struct slice *message, struct reply *reply, struct error *err) {
  static const struct call_method method = {.path = METHOD_INFER};
  const struct slice parts[CALL_PARTS] = {payload->head[variant], payload->body};
  const enum status status =
      net_call_parts(bench->net, &method, parts, bench->options.timeout_ns, message, err);
  return status == STATUS_OK ? reply_parse(*message, reply, err) : status;
}

// The first requests once each way: what differs does so whatever is timed later. A failure ends
// it, and is noted; the runs count theirs.
static enum status compare_answers(struct bench *bench, struct error *err) {
  struct difference *difference = &bench->report.difference;
  struct reply *replies = calloc(2, sizeof *replies);
  bool more = true;
  if (!replies) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory");
  for (int i = 0; i < bench->report.compare && more && !interrupted; i++) {
    struct slice messages[2] = {{0}, {0}};
    struct error why = {0};
    enum status status = STATUS_OK;
    for (int v = 0; v < 2 && status == STATUS_OK; v++)
      status = answer(bench, &bench->payloads.items[i], v, &messages[v], &replies[v], &why);
    more = status == STATUS_OK && difference_add(difference, &replies[0], &replies[1]);
    if (status != STATUS_OK)
      snprintf(difference->note, sizeof difference->note, "%s: %.200s", status_name(status),
               why.message);
    for (int v = 0; v < 2; v++)
      file_free(&messages[v]);
  }
  free(replies);
  return difference_finish(difference, (uint64_t)bench->options.seed);
}

static double mean_of_both(const struct result *result, enum cost cost) {
  const double a = result_cost_mean(&result->variant[0], cost);
  const double b = result_cost_mean(&result->variant[1], cost);
  return (a + b) / 2;
}

// What the planner says of `rows` sequences as long as those of this run; of a batch that would be
// larger than the model's largest it says nothing.
static void predict_rows(struct bench *bench, struct level *level, int64_t rows, double length) {
  prediction_ask(bench->net, bench->options.model, bench->options.version,
                 (int64_t)(length * (double)rows + 0.5), rows, &level->prediction);
}

// The planner's word on batches of the size that this run had on average, in whole sequences: those
// of a little more tokens each would take other tiles.
static void predict(struct bench *bench, struct level *level) {
  const double tokens = mean_of_both(&level->result, COST_BATCH_TOKENS);
  const double requests = mean_of_both(&level->result, COST_BATCH_REQUESTS);
  const bool sequences = input_has_sequences(&bench->model);
  if (!(tokens >= 1) || !(requests >= 1)) {
    snprintf(level->prediction.note, sizeof level->prediction.note,
             "the replies do not say how large batches were");
    return;
  }
  if (!sequences) {
    prediction_ask(bench->net, bench->options.model, bench->options.version,
                   (int64_t)(tokens + 0.5), 0, &level->prediction);
    return;
  }
  const double mean_rows = requests * (double)bench->options.batch;
  const int64_t rows = (int64_t)(requests + 0.5) * bench->options.batch;
  predict_rows(bench, level, rows, tokens / mean_rows);
  if (!level->prediction.present && (double)rows > mean_rows && rows > bench->options.batch)
    predict_rows(bench, level, rows - bench->options.batch, tokens / mean_rows);
}

// ---- runs ---------------------------------------------------------------------------------------

static int64_t slice_of(const struct bench_options *o, int64_t callers) {
  if (!o->ab) return 0;
  if (o->slice_calls) return o->slice_calls;
  return callers == 1 ? 1 : 4 * callers;
}

static enum status run_level(struct bench *bench, int index, const struct call_method *method,
                             struct error *err) {
  const struct bench_options *o = &bench->options;
  struct level *level = &bench->report.levels[index];
  char label[64];
  level->rate_per_s = o->rate ? o->rates[index] : 0;
  level->callers = (int)(o->rate ? o->max_in_flight : o->callers[index]);
  if (o->rate)
    snprintf(label, sizeof label, "%.6g calls/s", level->rate_per_s);
  else
    snprintf(label, sizeof label, "%d caller%s", level->callers, level->callers == 1 ? "" : "s");
  progress_label(&bench->progress, label);
  const struct load_options load = {
      .net = bench->net,
      .payloads = &bench->payloads,
      .method = method,
      .timeout_ns = o->timeout_ns,
      .callers = level->callers,
      .rate_per_s = level->rate_per_s,
      .poisson = o->poisson,
      .warmup_ns = o->warmup_ns,
      .duration_ns = o->duration_ns,
      .requests = o->requests,
      .slice_calls = slice_of(o, level->callers),
      .seed = (uint64_t)o->seed,
      .on_progress = bench->progress.on ? progress_draw : NULL,
      .arg = &bench->progress,
      .interrupt = &interrupted,
  };
  bench->report.n_levels = index + 1;
  const enum status status = load_run(&load, &level->result, err);
  progress_clear(&bench->progress);
  if (status == STATUS_OK && o->ab) predict(bench, level);
  return status;
}

static void note_stream_limit(const struct bench *bench) {
  const uint64_t per_conn = conn_max_calls(net_conn(bench->net, 0));
  int64_t most = bench->options.rate ? 0 : bench->options.callers[0];
  for (int i = 1; !bench->options.rate && i < bench->options.n_levels; i++) {
    if (bench->options.callers[i] > most) most = bench->options.callers[i];
  }
  if (per_conn == 0 || (uint64_t)most <= per_conn * (uint64_t)bench->options.connections) return;
  fprintf(stderr,
          "note: the server takes %" PRIu64 " calls at once on a connection; the rest of %" PRId64
          " callers queue here. More --connections help.\n",
          per_conn, most);
}

// Work that the server does of itself in the pauses between slices.
static void note_shadows(const struct bench *bench) {
  const char *share = bench->options.ab ? oip_property(&bench->model, "ab.shadow") : NULL;
  double part = 0;
  if (!share || !spec_real(share, &part) || part <= 0) return;
  fprintf(
      stderr,
      "note: the server runs a shadow of %s of this model's requests (ab.shadow), which may be in "
      "the way of what is timed\n",
      share);
}

static void describe(struct bench *bench) {
  const struct bench_options *o = &bench->options;
  struct oip_server server;
  struct error err;
  if (oip_server_metadata(bench->net, &server, &err) == STATUS_OK) {
    snprintf(bench->server, sizeof bench->server, "%s %s", server.name, server.version);
  }
  struct report *report = &bench->report;
  report->url = o->connect.url;
  report->model = o->model;
  report->input = bench->input;
  report->fusion[0] = bench->payload_options.fusion[0];
  report->fusion[1] = bench->payload_options.fusion[1];
  report->server = bench->server;
  report->connections = (int)o->connections;
  report->n_payloads = bench->payloads.n;
  report->slice_calls = o->slice_calls;
  report->seed = o->seed;
  report->warmup_ns = o->warmup_ns;
  report->duration_ns = o->duration_ns;
  report->requests = o->requests;
  report->deadline_ns = o->deadline_ms * NS_PER_MS;
  report->batch = o->batch;
  report->ab = o->ab;
  report->poisson = o->poisson;
  report->n_asked = o->n_levels;
  report->compare = (int)(o->compare < bench->payloads.n ? o->compare : bench->payloads.n);
}

static int write_reports(struct bench *bench) {
  const struct bench_options *o = &bench->options;
  struct error err = {0};
  const bool to_stdout =
      (o->json && o->json[0] == '-' && !o->json[1]) || (o->csv && o->csv[0] == '-' && !o->csv[1]);
  enum status status = STATUS_OK;
  if (!o->quiet) report_table(&bench->report, to_stdout ? stderr : stdout);
  if (status == STATUS_OK && o->json) status = report_json(&bench->report, o->json, &err);
  if (status == STATUS_OK && o->csv) status = report_csv(&bench->report, o->csv, &err);
  if (status == STATUS_OK && o->html) status = report_html(&bench->report, o->html, &err);
  report_errors(&bench->report, stderr);
  const int n_gaps = report_gaps(&bench->report, stderr);
  if (status != STATUS_OK) return command_local_failure("bench", &err);
  for (int i = 0; i < bench->report.n_levels; i++) {
    const struct result *result = &bench->report.levels[i].result;
    if (result_failed(result) || result->n_warmup_failed || result->n_bad_cost)
      return EXIT_SOME_FAILED;
  }
  return n_gaps ? EXIT_SOME_FAILED : EXIT_ALL_OK;
}

static int run_levels(struct bench *bench) {
  struct call_method method = {.path = METHOD_INFER};
  struct error err = {0};
  enum status status = STATUS_OK;
  call_timeout_text(bench->options.deadline_ms * NS_PER_MS, method.timeout);
  signal(SIGINT, on_interrupt);
  note_stream_limit(bench);
  note_shadows(bench);
  if (bench->options.compare) status = compare_answers(bench, &err);
  for (int i = 0; i < bench->options.n_levels && status == STATUS_OK && !interrupted; i++) {
    status = run_level(bench, i, &method, &err);
  }
  bench->report.cut_short = status != STATUS_OK;
  const int code = write_reports(bench);
  if (status == STATUS_OK) return code;
  command_failure("the run was cut short", &err);
  return status == STATUS_UNAVAILABLE ? EXIT_UNREACHABLE : EXIT_SOME_FAILED;
}

static int run(struct bench *bench) {
  struct error err = {0};
  const int code =
      connect_open("bench", &bench->options.connect, (int)bench->options.connections, &bench->net);
  if (code != EXIT_ALL_OK) return code;
  progress_init(&bench->progress, !bench->options.quiet);
  const enum status status = make_requests(bench, &err);
  const bool of_files = bench->options.inputs.n || bench->options.input_file;
  if (err.file[0] || (status == STATUS_INVALID_ARGUMENT && of_files)) {
    return command_usage_error("bench", &err); // an input file
  }
  if (status != STATUS_OK) return command_failure("making requests", &err);
  describe(bench);
  return run_levels(bench);
}

int command_bench(int argc, char **argv) {
  struct error err = {0};
  if (bench_help(argc, argv)) return EXIT_ALL_OK;
  struct bench *bench = calloc(1, sizeof *bench);
  if (!bench) return EXIT_SOME_FAILED;
  int code = EXIT_USAGE;
  if (bench_parse(argc, argv, &bench->options, &err) == STATUS_OK)
    code = run(bench);
  else
    command_usage_error("bench", &err);
  for (int i = 0; i < bench->report.n_levels; i++)
    result_free(&bench->report.levels[i].result);
  difference_free(&bench->report.difference);
  net_close(bench->net); // first: queued bytes borrow from payloads
  payload_set_free(&bench->payloads);
  free(bench);
  return code;
}
