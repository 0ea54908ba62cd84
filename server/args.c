#include "args.h"

#include <string.h>

const char args_help[] =
    "usage: fusewired [options] [MODEL.yaml ...]\n"
    "Serves transformer models over gRPC (Open Inference Protocol v2) with fused kernels.\n"
    "\n"
    "  --config FILE     server settings (--print-config shows them all); default: built-in "
    "defaults\n"
    "  --model FILE      a model to serve; may be repeated, and given without the option\n"
    "  --listen ADDRESS  gRPC address, instead of server.listen (port 0: a free one)\n"
    "  --admin ADDRESS   address of /metrics and /v2/health, instead of server.admin (\"\": none)\n"
    "  --check           validate settings, models and weights; bind nothing; exit 2 when "
    "something is wrong\n"
    "  --print-config    print the default settings with their documentation\n"
    "  --version         print the version\n"
    "  --help            print this\n"
    "\n"
    "SIGTERM or SIGINT drains: health turns NOT_SERVING, what was accepted is answered, then the "
    "process ends;\n"
    "a second signal cuts off what is left.\n"
    "Exit codes: 0 ended in good order; 1 failed while starting or running; 2 wrong usage, "
    "settings or models.\n";

static enum status add_model(struct args *args, const char *path, struct error *err) {
  if (args->n_models == LIMIT_MODELS)
    return error_set(err, STATUS_INVALID_ARGUMENT, "more than %d models", LIMIT_MODELS);
  args->models[args->n_models++] = path;
  return STATUS_OK;
}

struct flag {
  const char *name;
  bool *set;
};

static bool flag_set(struct args *args, const char *word) {
  const struct flag flags[] = {{"--check", &args->check},
                               {"--print-config", &args->print_config},
                               {"--version", &args->version},
                               {"--help", &args->help},
                               {"-h", &args->help}};
  for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
    if (strcmp(word, flags[i].name) != 0) continue;
    *flags[i].set = true;
    return true;
  }
  return false;
}

// "--name VALUE" and "--name=VALUE": the value, or NULL when `word` is not this option. *at moves
// past a value of its own.
static const char *option_value(const char *name, int argc, char **argv, int *at, bool *missing) {
  const char *word = argv[*at];
  size_t bytes = strlen(name);
  if (strncmp(word, name, bytes) != 0) return NULL;
  if (word[bytes] == '=') return word + bytes + 1;
  if (word[bytes] != 0) return NULL;
  if (*at + 1 < argc) return argv[++*at];
  *missing = true;
  return NULL;
}

static enum status take_option(int argc, char **argv, int *at, struct args *out,
                               struct error *err) {
  const char *word = argv[*at], *value;
  bool missing = false;
  if ((value = option_value("--config", argc, argv, at, &missing)))
    out->config = value;
  else if ((value = option_value("--listen", argc, argv, at, &missing)))
    out->listen = value;
  else if ((value = option_value("--admin", argc, argv, at, &missing)))
    out->admin = value;
  else if ((value = option_value("--model", argc, argv, at, &missing)))
    return add_model(out, value, err);
  else if (missing)
    return error_set(err, STATUS_INVALID_ARGUMENT, "option %s needs a value", word);
  else
    return error_set(err, STATUS_INVALID_ARGUMENT, "unknown option %s", word);
  return STATUS_OK;
}

enum status args_parse(int argc, char **argv, struct args *out, struct error *err) {
  *out = (struct args){0};
  for (int i = 1; i < argc; i++) {
    enum status status = STATUS_OK;
    if (flag_set(out, argv[i])) continue;
    if (argv[i][0] != '-')
      status = add_model(out, argv[i], err);
    else
      status = take_option(argc, argv, &i, out, err);
    if (status != STATUS_OK) return status;
  }
  return STATUS_OK;
}
