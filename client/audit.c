// `fusewire audit`: what the daemon has counted of its memory traffic, beside what it expected.
#include "base/clock.h"
#include "client/audit_print.h"
#include "client/commands.h"
#include "client/document.h"
#include "client/oip.h"

#define OFFSET(field) offsetof(struct document_options, field)

static const char usage[] =
    "usage: fusewire audit [MODEL] [options]\n"
    "What the daemon's live audit has counted of the traffic of GPU memory, beside what was "
    "expected,\nby model, plan and size of batch (docs/TRAFFIC.md). Without MODEL: of all.\n\n";

static const struct option_row rows[] = {
    {"model", OPTION_TEXT, OFFSET(model), "NAME", "the model, if it is not a word of its own", 0,
     0},
    {"model-version", OPTION_TEXT, OFFSET(version), "V", "its version (default: every one)", 0, 0},
    {"format", OPTION_TEXT, OFFSET(format), "FORMAT", "text or json (default text)", 0, 0},
    {"output", OPTION_TEXT, OFFSET(output), "FILE", "write there instead of to standard output", 0,
     0},
    {"help", OPTION_FLAG, OFFSET(help), NULL, "this text", 0, 0},
    {NULL, OPTION_FLAG, 0, NULL, "Server", 0, 0},
    CONNECT_ROWS(OFFSET(connect)),
};
#define N_ROWS ((int)(sizeof rows / sizeof rows[0]))

static enum status ask(struct net *net, const struct document_options *options, int format,
                       struct slice *document, struct error *err) {
  Fusewire__V1__AuditResponse *reply = NULL;
  enum status status = oip_audit(net, options->model, options->version, &reply, err);
  if (status != STATUS_OK) return status;
  status = format == 0 ? audit_text(reply, document, err) : audit_json(reply, document, err);
  fusewire__v1__audit_response__free_unpacked(reply, NULL);
  return status;
}

int command_audit(int argc, char **argv) {
  static const char *const formats[] = {"text", "json"};
  static const struct document_command command = {.name = "audit",
                                                  .usage = usage,
                                                  .rows = rows,
                                                  .n_rows = N_ROWS,
                                                  .formats = formats,
                                                  .n_formats = 2,
                                                  .all_models = true,
                                                  .ask = ask};
  struct document_options options = {0};
  return document_run(&command, &options, argc, argv);
}
