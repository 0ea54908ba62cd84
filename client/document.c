#include "client/document.h"
#include "client/commands.h"
#include "client/file.h"

#include <stdio.h>
#include <string.h>

static enum status find_format(const struct document_command *command, const char *word,
                               int *format, struct error *err) {
  char words[64] = "";
  size_t used = 0;
  for (*format = 0; *format < command->n_formats; ++*format) {
    if (strcmp(word, command->formats[*format]) == 0) return STATUS_OK;
    const char *before = *format == 0 ? "" : *format + 1 == command->n_formats ? " or " : ", ";
    used += (size_t)snprintf(words + used, sizeof words - used, "%s%s", before,
                             command->formats[*format]);
  }
  return error_set(err, STATUS_INVALID_ARGUMENT, "--format: found \"%.40s\", expected %s", word,
                   words);
}

static enum status read_options(const struct document_command *command, int argc, char **argv,
                                struct document_options *options, int *format, struct error *err) {
  const char *word = NULL;
  options->connect.url = CONNECT_DEFAULT_URL;
  options->format = command->formats[0];
  options->output = "-";
  enum status status =
      options_parse_word(command->rows, command->n_rows, argc, argv, options, &word, err);
  if (status == STATUS_OK && (word || options->model || !command->all_models))
    status = command_model(word, &options->model, err);
  return status == STATUS_OK ? find_format(command, options->format, format, err) : status;
}

static int print_document(const struct document_command *command, struct net *net,
                          const struct document_options *options, int format) {
  struct error err = {0};
  struct slice document = {0};
  enum status status = command->ask(net, options, format, &document, &err);
  if (status != STATUS_OK) return command_failure(command->name, &err);
  status = file_write(options->output, &document, 1, &err);
  file_free(&document);
  return status == STATUS_OK ? EXIT_ALL_OK : command_local_failure(command->name, &err);
}

int document_run(const struct document_command *command, struct document_options *options, int argc,
                 char **argv) {
  struct error err = {0};
  struct net *net = NULL;
  int format = 0;
  if (command_help(command->usage, command->rows, command->n_rows, argc, argv)) return EXIT_ALL_OK;
  if (read_options(command, argc, argv, options, &format, &err) != STATUS_OK)
    return command_usage_error(command->name, &err);
  int code = connect_open(command->name, &options->connect, 1, &net);
  if (code != EXIT_ALL_OK) return code;
  code = print_document(command, net, options, format);
  net_close(net);
  return code;
}
