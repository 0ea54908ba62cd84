// `fusewire audit`: what the daemon has counted of its memory traffic, beside what it expected.
#include "base/clock.h"
#include "client/audit_print.h"
#include "client/commands.h"
#include "client/connect.h"
#include "client/file.h"
#include "client/oip.h"

#include <string.h>

struct audit_arguments {
  struct connect_options connect;
  const char *model, *version, *format, *output;
  bool help;
};

#define OFFSET(field) offsetof(struct audit_arguments, field)

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

static enum status read_arguments(int argc, char **argv, struct audit_arguments *arguments,
                                  struct error *err) {
  const char *word = NULL;
  *arguments =
      (struct audit_arguments){.connect.url = CONNECT_DEFAULT_URL, .format = "text", .output = "-"};
  enum status status = options_parse_word(rows, N_ROWS, argc, argv, arguments, &word, err);
  if (status == STATUS_OK && (word || arguments->model))
    status = command_model(word, &arguments->model, err);
  if (status != STATUS_OK) return status;
  if (strcmp(arguments->format, "text") == 0 || strcmp(arguments->format, "json") == 0)
    return STATUS_OK;
  return error_set(err, STATUS_INVALID_ARGUMENT, "--format: found \"%.40s\", expected text or json",
                   arguments->format);
}

static int print_audit(struct net *net, const struct audit_arguments *arguments) {
  struct error err = {0};
  struct slice document = {0};
  Fusewire__V1__AuditResponse *reply = NULL;
  enum status status = oip_audit(net, arguments->model, arguments->version, &reply, &err);
  if (status != STATUS_OK) return command_failure("audit", &err);
  status = strcmp(arguments->format, "json") == 0 ? audit_json(reply, &document, &err)
                                                  : audit_text(reply, &document, &err);
  fusewire__v1__audit_response__free_unpacked(reply, NULL);
  if (status == STATUS_OK) status = file_write(arguments->output, &document, 1, &err);
  file_free(&document);
  return status == STATUS_OK ? EXIT_ALL_OK : command_failure("audit", &err);
}

int command_audit(int argc, char **argv) {
  struct audit_arguments arguments;
  struct error err = {0};
  struct net *net = NULL;
  if (command_help(usage, rows, N_ROWS, argc, argv)) return EXIT_ALL_OK;
  if (read_arguments(argc, argv, &arguments, &err) != STATUS_OK)
    return command_usage_error("audit", &err);
  int code = connect_open("audit", &arguments.connect, 1, &net);
  if (code != EXIT_ALL_OK) return code;
  code = print_audit(net, &arguments);
  net_close(net);
  return code;
}
