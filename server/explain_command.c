#include "explain_command.h"
#include "args.h"
#include "base/log.h"
#include "explain/explain.h"
#include "parts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
    "usage: fusewired explain MODEL [options]\n"
    "What the planner makes of a model: graph, kernels, what is fused and why, bytes, predicted "
    "time,\n"
    "memory, roofline. MODEL is a model file, or with --config the name of a model that it lists.\n"
    "Nothing is served, no port is bound, weights are not read.\n"
    "\n"
    "  --tokens N      tokens (rows, for models without sequences) of the batch to speak of\n"
    "                  (default 128)\n"
    "  --seqs N        sequences that they are in (default: as few as there can be)\n"
    "  --format FORMAT text, json or svg (default: text)\n"
    "  --fusion MODE   on or auto: the plan to hold against one op at a time (default: the "
    "model's)\n"
    "  --device KIND   auto, cpu or cuda (default: device.kind of the settings)\n"
    "  --config FILE   server settings (default: built-in defaults)\n"
    "  --output FILE   write there instead of to standard output\n"
    "  --help          print this\n"
    "\n"
    "docs/EXPLAIN.md describes the formats. `fusewire explain` asks a running daemon.\n"
    "Exit codes: 0 all went well; 1 it could not be written; 2 wrong usage, settings or model.\n";

struct command {
  const char *model, *config, *device, *tokens, *seqs, *format, *fusion, *output;
  bool help, by_name;
  enum explain_format as;
  enum fusion_mode plan;
  int64_t n_tokens, n_seqs;
};

// ---- command line ----
static enum status take_word(int argc, char **argv, int *at, struct command *out,
                             struct error *err) {
  const struct {
    const char *name, **value;
  } options[] = {{"--tokens", &out->tokens}, {"--seqs", &out->seqs},     {"--format", &out->format},
                 {"--device", &out->device}, {"--config", &out->config}, {"--output", &out->output},
                 {"--fusion", &out->fusion}};
  const char *word = argv[*at];
  if (word[0] != '-' && out->model)
    return error_set(err, STATUS_INVALID_ARGUMENT, "one model at a time; found %s and %s",
                     out->model, word);
  if (word[0] != '-') {
    out->model = word;
    return STATUS_OK;
  }
  for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
    size_t bytes = strlen(options[i].name);
    if (strncmp(word, options[i].name, bytes) != 0 || (word[bytes] && word[bytes] != '=')) continue;
    if (word[bytes] == '=')
      *options[i].value = word + bytes + 1;
    else if (*at + 1 < argc)
      *options[i].value = argv[++*at];
    else
      return error_set(err, STATUS_INVALID_ARGUMENT, "option %s needs a value", word);
    return STATUS_OK;
  }
  return args_unknown(word, "--tokens|--seqs|--format|--fusion|--device|--config|--output|--help",
                      err);
}

static enum status count_of(const char *name, const char *text, int64_t *out, struct error *err) {
  char *end;
  if (!text) return STATUS_OK;
  errno = 0;
  *out = strtoll(text, &end, 10);
  if (errno == 0 && end != text && *end == '\0' && *out > 0) return STATUS_OK;
  return error_set(err, STATUS_INVALID_ARGUMENT, "%s: found \"%.40s\", expected a count from 1 on",
                   name, text);
}

static enum status parse(int argc, char **argv, struct command *out, struct error *err) {
  *out = (struct command){.as = EXPLAIN_TEXT};
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
      out->help = true;
      return STATUS_OK;
    }
    enum status status = take_word(argc, argv, &i, out, err);
    if (status != STATUS_OK) return status;
  }
  if (!out->model) {
    (void)error_set(err, STATUS_INVALID_ARGUMENT, "which model?");
    return STATUS_INVALID_ARGUMENT;
  }
  if (out->format && !explain_format_find(out->format, &out->as))
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "--format: found \"%.40s\", expected text, json or svg", out->format);
  if (out->fusion && (!out->fusion[0] || !explain_fusion_find(out->fusion, &out->plan)))
    return error_set(err, STATUS_INVALID_ARGUMENT, "--fusion: found \"%.40s\", expected on or auto",
                     out->fusion);
  enum status status = count_of("--tokens", out->tokens, &out->n_tokens, err);
  return status == STATUS_OK ? count_of("--seqs", out->seqs, &out->n_seqs, err) : status;
}

// ---- settings ----
static enum status choose_device(const char *kind, struct server_conf *conf, struct error *err) {
  static const char *const kinds[] = {"auto", "cpu", "cuda"}; // device.kind, as in keys.def
  if (!kind) return STATUS_OK;
  for (int i = 0; i < 3; i++)
    if (strcmp(kind, kinds[i]) == 0) {
      conf->device_kind = i;
      return STATUS_OK;
    }
  return error_set(err, STATUS_INVALID_ARGUMENT,
                   "--device: found \"%.40s\", expected auto, cpu or cuda", kind);
}

// A file wins over a name of the settings' models.
static enum status choose_model(struct command *command, struct server_conf *conf,
                                struct error *err) {
  const char *model = command->model;
  command->by_name = access(model, F_OK) != 0 && conf->n_models > 0;
  if (command->by_name) return STATUS_OK;
  if (strlen(model) >= sizeof conf->models[0])
    return error_set(err, STATUS_INVALID_ARGUMENT, "the model's path is too long");
  memcpy(conf->models[0], model, strlen(model) + 1);
  conf->n_models = 1;
  return STATUS_OK;
}

static enum status settings(struct command *command, struct server_conf *conf, struct error *err) {
  int n_errors = 0;
  server_conf_defaults(conf);
  if (command->config &&
      (server_conf_load(command->config, conf, daemon_report, &n_errors) != STATUS_OK))
    return error_set(err, STATUS_INVALID_ARGUMENT, "%.300s is not right", command->config);
  enum status status = choose_device(command->device, conf, err);
  return status == STATUS_OK ? choose_model(command, conf, err) : status;
}

// ---- output ----
static bool write_text(const char *path, const char *text, size_t bytes) {
  FILE *file = path ? fopen(path, "w") : stdout;
  if (!file) return false;
  bool ok = fwrite(text, 1, bytes, file) == bytes && fflush(file) == 0;
  return path ? fclose(file) == 0 && ok : ok;
}

static enum exit_code complain(const struct error *err, enum exit_code code) {
  int n = 0;
  daemon_report(err, &n);
  return code;
}

static enum exit_code explain(const struct command *command, const struct parts *parts) {
  struct error err;
  struct slice name = {(const uint8_t *)command->model, strlen(command->model)},
               any = {name.data, 0};
  struct model *model = command->by_name ? registry_find(parts->registry, name, any)
                                         : registry_at(parts->registry, 0);
  if (!model) {
    const char *near = registry_nearest(parts->registry, name);
    (void)error_set(&err, STATUS_NOT_FOUND,
                    "no file and no model of the settings is called %.300s%s%s", command->model,
                    near ? "; did you mean " : "", near ? near : "");
    return complain(&err, EXIT_BAD_INPUT);
  }
  struct explain_options options = {.model = model,
                                    .fusion = command->plan,
                                    .rates_measured = parts->devices.facts.measured,
                                    .caps = parts->devices.backend->caps(parts->devices.list[0]),
                                    .tokens = command->n_tokens,
                                    .seqs = command->n_seqs,
                                    .format = command->as};
  char *text;
  size_t bytes;
  enum status status = explain_write(&options, &text, &bytes, &err);
  if (status != STATUS_OK)
    return complain(&err, status == STATUS_INVALID_ARGUMENT ? EXIT_BAD_INPUT : EXIT_FAILED);
  bool ok = write_text(command->output, text, bytes);
  free(text);
  if (ok) return EXIT_GOOD;
  (void)error_set(&err, STATUS_INTERNAL, "%.300s cannot be written: %s",
                  command->output ? command->output : "standard output", strerror(errno));
  return complain(&err, EXIT_FAILED);
}

enum exit_code explain_command(int argc, char **argv) {
  struct command command;
  struct error err;
  static struct server_conf conf; // too large for a stack
  enum status status = parse(argc, argv, &command, &err);
  if (status == STATUS_OK && command.help) return fputs(help, stdout) < 0 ? EXIT_FAILED : EXIT_GOOD;
  log_setup(LOG_WARN, LOG_TEXT);
  if (status == STATUS_OK) status = settings(&command, &conf, &err);
  if (status != STATUS_OK) {
    (void)complain(&err, EXIT_BAD_INPUT);
    fputs("`fusewired explain --help` shows how it is used.\n", stderr);
    return EXIT_BAD_INPUT;
  }
  struct parts parts = {.conf = &conf};
  enum exit_code code = EXIT_BAD_INPUT;
  status = parts_open_devices(&parts, &err);
  if (status != STATUS_OK)
    code = complain(&err, EXIT_FAILED);
  else if (parts_parse_models(&parts) == 0)
    code = explain(&command, &parts);
  parts_close(&parts);
  return code;
}
