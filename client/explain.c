// `fusewire explain`: what the daemon's planner made of a model. The daemon writes the document.
#include "base/clock.h"
#include "client/commands.h"
#include "client/document.h"
#include "client/oip.h"

struct explain_options {
  struct document_options document; // first
  const char *fusion;
  int64_t tokens, sequences;
};

#define OFFSET(field) offsetof(struct explain_options, field)

static const char usage[] =
    "usage: fusewire explain MODEL [options]\n"
    "What the daemon's planner made of a model: graph, kernels, what is fused and why, bytes, "
    "predicted\ntime, memory, roofline (docs/EXPLAIN.md). `fusewired explain` does it for a model "
    "file, without a daemon.\n\n";

static const struct option_row rows[] = {
    {"model", OPTION_TEXT, OFFSET(document.model), "NAME",
     "the model, if it is not a word of its own", 0, 0},
    {"model-version", OPTION_TEXT, OFFSET(document.version), "V",
     "its version (default: the server's choice)", 0, 0},
    {"tokens", OPTION_COUNT, OFFSET(tokens), "N",
     "tokens (rows, for models without sequences) of the batch to\nspeak of (default 128)", 1,
     1 << 20},
    {"seqs", OPTION_COUNT, OFFSET(sequences), "N",
     "sequences that they are in (default: as few as there can be)", 1, 1 << 20},
    {"fusion", OPTION_TEXT, OFFSET(fusion), "MODE",
     "on or auto: the plan to hold against one op at a time (default: the model's)", 0, 0},
    {"format", OPTION_TEXT, OFFSET(document.format), "FORMAT", "text, json or svg (default text)",
     0, 0},
    {"output", OPTION_TEXT, OFFSET(document.output), "FILE",
     "write there instead of to standard output", 0, 0},
    {"help", OPTION_FLAG, OFFSET(document.help), NULL, "this text", 0, 0},
    {NULL, OPTION_FLAG, 0, NULL, "Server", 0, 0},
    CONNECT_ROWS(OFFSET(document.connect)),
};
#define N_ROWS ((int)(sizeof rows / sizeof rows[0]))

static enum status ask(struct net *net, const struct document_options *document, int format,
                       struct slice *out, struct error *err) {
  const struct explain_options *options = (const struct explain_options *)document;
  const struct oip_explain asked = {.model = document->model,
                                    .version = document->version,
                                    .fusion = options->fusion,
                                    .tokens = options->tokens,
                                    .sequences = options->sequences,
                                    .format = format};
  return oip_explain(net, &asked, out, err);
}

int command_explain(int argc, char **argv) {
  static const char *const formats[] = {"text", "json", "svg"}; // as in fusewire.proto
  static const struct document_command command = {.name = "explain",
                                                  .usage = usage,
                                                  .rows = rows,
                                                  .n_rows = N_ROWS,
                                                  .formats = formats,
                                                  .n_formats = 3,
                                                  .ask = ask};
  struct explain_options options = {0};
  return document_run(&command, &options.document, argc, argv);
}
