#include "args.h"
#include "conf/yaml.h"

#include <stdio.h>
#include <string.h>

const char args_help[] =
    "usage: fusewired [options] [MODEL.yaml ...]\n"
    "       fusewired explain MODEL.yaml [options]   what the planner makes of it; see explain "
    "--help\n"
    "       fusewired tune [options] [MODEL.yaml ...]   measure this machine and the models' "
    "products, for fusion: auto\n"
    "Serves transformer models over gRPC (Open Inference Protocol v2) with fused kernels.\n"
    "\n"
    "  --config FILE     server settings (--print-config shows them all); default: built-in "
    "defaults\n"
    "  --model FILE      a model to serve; may be repeated, and given without the option\n"
    "  --listen ADDRESS  gRPC address, instead of server.listen (port 0: a free one)\n"
    "  --admin ADDRESS   address of /metrics and /v2/health, instead of server.admin (\"\": none)\n"
    "  --check           validate settings, models and weights; bind nothing; exit 2 when "
    "something is wrong\n"
    "  --quick           of tune: a second or two; figures that mean little, and are kept too\n"
    "  --print-config    print the default settings with their documentation\n"
    "  --version         print the version\n"
    "  --help            print this\n"
    "\n"
    "SIGTERM or SIGINT drains: health turns NOT_SERVING, what was accepted is answered, then the "
    "process ends;\n"
    "a second signal cuts off what is left. SIGHUP loads every model again from its file.\n"
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
                               {"--quick", &args->quick},
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

struct option {
  const char *name;
  const char **value;
};

enum status args_unknown(const char *word, const char *words, struct error *err) {
  char name[32], near[32];
  snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
  const char *best = conf_nearest(name, words, near, sizeof near);
  return error_set(err, STATUS_INVALID_ARGUMENT, "unknown option %.200s%s%s", word,
                   best != NULL ? "; the nearest is " : "", best != NULL ? best : "");
}

// "--name VALUE" or "--name=VALUE". *at moves past a value of its own.
static enum status take_option(int argc, char **argv, int *at, struct args *out,
                               struct error *err) {
  const char *word = argv[*at], *model = NULL;
  const struct option options[] = {{"--config", &out->config},
                                   {"--listen", &out->listen},
                                   {"--admin", &out->admin},
                                   {"--model", &model}};
  for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
    size_t bytes = strlen(options[i].name);
    if (strncmp(word, options[i].name, bytes) != 0) continue;
    if (word[bytes] == '=')
      *options[i].value = word + bytes + 1;
    else if (word[bytes] != 0)
      continue; // another word that begins alike
    else if (*at + 1 < argc)
      *options[i].value = argv[++*at];
    else
      return error_set(err, STATUS_INVALID_ARGUMENT, "option %s needs a value", word);
    return model ? add_model(out, model, err) : STATUS_OK;
  }
  return args_unknown(word,
                      "--config|--model|--listen|--admin|--check|--quick|--print-config|--version|"
                      "--help",
                      err);
}

enum status args_parse(int argc, char **argv, struct args *out, struct error *err) {
  *out = (struct args){0};
  for (int i = 1; i < argc; i++) {
    enum status status = STATUS_OK;
    if (flag_set(out, argv[i])) continue;
    if (i == 1 && strcmp(argv[i], "tune") == 0) {
      out->tune = true;
      continue;
    }
    if (argv[i][0] != '-')
      status = add_model(out, argv[i], err);
    else
      status = take_option(argc, argv, &i, out, err);
    if (status != STATUS_OK) return status;
  }
  if (out->quick && !out->tune)
    return error_set(err, STATUS_INVALID_ARGUMENT, "option --quick belongs to fusewired tune");
  return STATUS_OK;
}
