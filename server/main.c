// fusewired: the command line and the settings; the rest is daemon.c.
#include "args.h"
#include "base/log.h"
#include "base/streams.h"
#include "daemon.h"
#include "explain_command.h"
#include "settings.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What was printed must have arrived.
static enum exit_code printed(enum exit_code code) {
  errno = 0;
  if (fflush(stdout) == 0 && !ferror(stdout)) return code;
  if (code != EXIT_GOOD) return code; // why, was told
  fprintf(stderr, "error: standard output cannot be written%s%s\n", errno ? ": " : "",
          errno ? strerror(errno) : "");
  return EXIT_FAILED;
}

static enum exit_code print_config(void) {
  size_t bytes = server_conf_print(NULL, 0);
  char *text = malloc(bytes + 1);
  if (!text) return EXIT_FAILED;
  server_conf_print(text, bytes + 1);
  (void)fwrite(text, 1, bytes, stdout);
  free(text);
  return EXIT_GOOD;
}

int main(int argc, char **argv) {
  struct args args;
  struct error err;
  streams_hold();
  if (argc > 1 && strcmp(argv[1], "explain") == 0) return explain_command(argc - 1, argv + 1);
  if (args_parse(argc, argv, &args, &err) != STATUS_OK) {
    fprintf(stderr, "fusewired: %s; see --help\n", err.message);
    return EXIT_BAD_INPUT;
  }
  if (args.help) return (void)fputs(args_help, stdout), printed(EXIT_GOOD);
  if (args.version) return (void)puts("fusewired " FUSEWIRE_VERSION), printed(EXIT_GOOD);
  if (args.print_config) return printed(print_config());
  static struct server_conf conf; // too large for a stack
  int n_errors = settings_read(&args, &conf, daemon_report);
  // --check goes on to the models, so that one run shows every error.
  if (n_errors > 0 && !args.check) return EXIT_BAD_INPUT;
  log_setup((enum log_level)conf.log_level, (enum log_format)conf.log_format);
  if (args.tune) return printed(daemon_tune(&conf, args.quick));
  return args.check ? printed(daemon_check(&conf, n_errors)) : daemon_run(&conf, &args);
}
