#include "client/commands.h"
#include <string.h>

bool command_help(const char *usage, const struct option_row *rows, int n_rows, int argc,
                  char **argv) {
  for (int i = 0; i < argc; i++) {
    if (strcmp(argv[i], "--help") != 0 && strcmp(argv[i], "-h") != 0) continue;
    fputs(usage, stdout);
    options_help(rows, n_rows, stdout);
    fputs("\nExit codes: 0 all went well; 1 some calls failed; 2 wrong usage; 3 cannot connect.\n",
          stdout);
    return true;
  }
  return false;
}

enum status command_model(const char *word, const char **model, struct error *err) {
  if (word && *model) {
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "unexpected argument '%s' beside --model %s; options begin with --", word,
                     *model);
  }
  if (word) *model = word;
  if (*model) return STATUS_OK;
  return error_set(err, STATUS_INVALID_ARGUMENT,
                   "which model? Its name is missing: a word, or --model NAME");
}

int command_usage_error(const char *command, const struct error *err) {
  char text[ERROR_MESSAGE_BYTES + 300];
  fprintf(stderr, "fusewire %s: %s\n", command, error_text(err, text, sizeof text));
  fprintf(stderr, "Try 'fusewire %s --help'.\n", command);
  return EXIT_USAGE;
}

int command_local_failure(const char *command, const struct error *err) {
  fprintf(stderr, "fusewire %s: %s\n", command, err->message);
  return EXIT_SOME_FAILED;
}

int command_failure(const char *what, const struct error *err) {
  fprintf(stderr, "fusewire: %s: %s: %s\n", what, status_name(err->code), err->message);
  return EXIT_SOME_FAILED;
}
