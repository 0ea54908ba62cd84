// fusewired: the command line and the settings; the rest is daemon.c.
#include "args.h"
#include "base/log.h"
#include "daemon.h"
#include "explain_command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum exit_code print_config(void) {
  size_t bytes = server_conf_print(NULL, 0);
  char *text = malloc(bytes + 1);
  if (!text) return EXIT_FAILED;
  server_conf_print(text, bytes + 1);
  bool ok = fwrite(text, 1, bytes, stdout) == bytes && fflush(stdout) == 0;
  free(text);
  return ok ? EXIT_GOOD : EXIT_FAILED;
}

static bool set_text(char *out, size_t out_bytes, const char *value, const char *what,
                     int *n_errors) {
  if (!value) return true;
  size_t bytes = strlen(value);
  if (bytes < out_bytes) {
    memcpy(out, value, bytes + 1);
    return true;
  }
  struct error err;
  (void)error_set(&err, STATUS_INVALID_ARGUMENT, "%s: longer than %zu bytes", what, out_bytes - 1);
  daemon_report(&err, n_errors);
  return false;
}

// The server file, then what the command line says over it. Returns the number of errors.
static int settings(const struct args *args, struct server_conf *conf) {
  int n_errors = 0;
  server_conf_defaults(conf);
  if (args->config && server_conf_load(args->config, conf, daemon_report, &n_errors) != STATUS_OK &&
      n_errors == 0)
    n_errors = 1;
  set_text(conf->listen, sizeof conf->listen, args->listen, "--listen", &n_errors);
  set_text(conf->admin, sizeof conf->admin, args->admin, "--admin", &n_errors);
  for (int i = 0; i < args->n_models; i++) {
    if (conf->n_models == LIMIT_MODELS) {
      struct error err;
      (void)error_set(&err, STATUS_INVALID_ARGUMENT, "more than %d models", LIMIT_MODELS);
      daemon_report(&err, &n_errors);
      break;
    }
    if (set_text(conf->models[conf->n_models], sizeof conf->models[0], args->models[i], "--model",
                 &n_errors))
      conf->n_models++;
  }
  return n_errors;
}

int main(int argc, char **argv) {
  struct args args;
  struct error err;
  if (argc > 1 && strcmp(argv[1], "explain") == 0) return explain_command(argc - 1, argv + 1);
  if (args_parse(argc, argv, &args, &err) != STATUS_OK) {
    fprintf(stderr, "fusewired: %s; see --help\n", err.message);
    return EXIT_BAD_INPUT;
  }
  if (args.help) return fputs(args_help, stdout) < 0 ? EXIT_FAILED : EXIT_GOOD;
  if (args.version) return puts("fusewired " FUSEWIRE_VERSION) < 0 ? EXIT_FAILED : EXIT_GOOD;
  if (args.print_config) return print_config();
  static struct server_conf conf; // too large for a stack
  int n_errors = settings(&args, &conf);
  // --check goes on to the models, so that one run shows every error.
  if (n_errors > 0 && !args.check) return EXIT_BAD_INPUT;
  log_setup((enum log_level)conf.log_level, (enum log_format)conf.log_format);
  if (args.tune) return daemon_tune(&conf);
  return args.check ? daemon_check(&conf, n_errors) : daemon_run(&conf);
}
