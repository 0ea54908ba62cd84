// `fusewire explain`: what the daemon's planner made of a model. The daemon writes the document.
#include "base/clock.h"
#include "client/commands.h"
#include "client/connect.h"
#include "client/file.h"
#include "client/oip.h"

#include <string.h>

struct explain_arguments {
  struct connect_options connect;
  const char *model, *version, *fusion, *format, *output;
  int64_t tokens, sequences;
  bool help;
};

#define OFFSET(field) offsetof(struct explain_arguments, field)

static const char usage[] =
    "usage: fusewire explain MODEL [options]\n"
    "What the daemon's planner made of a model: graph, kernels, what is fused and why, bytes, "
    "predicted\ntime, memory, roofline (docs/EXPLAIN.md). `fusewired explain` does it for a model "
    "file, without a daemon.\n\n";

static const struct option_row rows[] = {
    {"model", OPTION_TEXT, OFFSET(model), "NAME", "the model, if it is not a word of its own", 0,
     0},
    {"model-version", OPTION_TEXT, OFFSET(version), "V",
     "its version (default: the server's choice)", 0, 0},
    {"tokens", OPTION_COUNT, OFFSET(tokens), "N",
     "tokens (rows, for models without sequences) of the batch to\nspeak of (default 128)", 1,
     1 << 20},
    {"seqs", OPTION_COUNT, OFFSET(sequences), "N",
     "sequences that they are in (default: as few as there can be)", 1, 1 << 20},
    {"fusion", OPTION_TEXT, OFFSET(fusion), "MODE",
     "on or auto: the plan to hold against one op at a time (default: the model's)", 0, 0},
    {"format", OPTION_TEXT, OFFSET(format), "FORMAT", "text, json or svg (default text)", 0, 0},
    {"output", OPTION_TEXT, OFFSET(output), "FILE", "write there instead of to standard output", 0,
     0},
    {"help", OPTION_FLAG, OFFSET(help), NULL, "this text", 0, 0},
    {NULL, OPTION_FLAG, 0, NULL, "Server", 0, 0},
    CONNECT_ROWS(OFFSET(connect)),
};
#define N_ROWS ((int)(sizeof rows / sizeof rows[0]))

static enum status read_arguments(int argc, char **argv, struct explain_arguments *arguments,
                                  int *format, struct error *err) {
  static const char *const formats[] = {"text", "json", "svg"}; // as in fusewire.proto
  const char *word = NULL;
  *arguments = (struct explain_arguments){
      .connect.url = CONNECT_DEFAULT_URL, .format = "text", .output = "-"};
  enum status status = options_parse_word(rows, N_ROWS, argc, argv, arguments, &word, err);
  if (status == STATUS_OK) status = command_model(word, &arguments->model, err);
  if (status != STATUS_OK) return status;
  for (*format = 0; *format < 3; ++*format)
    if (strcmp(arguments->format, formats[*format]) == 0) return STATUS_OK;
  return error_set(err, STATUS_INVALID_ARGUMENT,
                   "--format: found \"%.40s\", expected text, json or svg", arguments->format);
}

static int print_explanation(struct net *net, const struct explain_arguments *arguments,
                             int format) {
  struct error err = {0};
  struct slice document;
  const struct oip_explain ask = {.model = arguments->model,
                                  .version = arguments->version,
                                  .fusion = arguments->fusion,
                                  .tokens = arguments->tokens,
                                  .sequences = arguments->sequences,
                                  .format = format};
  enum status status = oip_explain(net, &ask, &document, &err);
  if (status != STATUS_OK) return command_failure("explain", &err);
  status = file_write(arguments->output, &document, 1, &err);
  file_free(&document);
  return status == STATUS_OK ? EXIT_ALL_OK : command_failure("explain", &err);
}

int command_explain(int argc, char **argv) {
  struct explain_arguments arguments;
  struct error err = {0};
  struct net *net = NULL;
  int format = 0;
  if (command_help(usage, rows, N_ROWS, argc, argv)) return EXIT_ALL_OK;
  enum status status = read_arguments(argc, argv, &arguments, &format, &err);
  if (status != STATUS_OK) return command_usage_error("explain", &err);
  int code = connect_open("explain", &arguments.connect, 1, &net);
  if (code != EXIT_ALL_OK) return code;
  code = print_explanation(net, &arguments, format);
  net_close(net);
  return code;
}
