// fusewire: the bundled client. Finds the command and hands over.
#include "base/streams.h"
#include "client/commands.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct command {
  const char *name, *help;
  int (*run)(int argc, char **argv);
} commands[] = {
    {"bench", "load test: sweep, open loop, percentiles, memory traffic, fused against unfused",
     command_bench},
    {"infer", "one request, from .npy or raw files or made up", command_infer},
    {"status", "is the server live, ready, healthy", command_status},
    {"models", "models: ready or not, signatures, fusion mode", command_models},
    {"explain", "what the planner made of a model: what is fused, why, and what it saves",
     command_explain},
    {"audit", "memory traffic that a GPU's counters saw, beside what was expected", command_audit},
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

static void print_usage(FILE *out) {
  fputs("usage: fusewire COMMAND [options]\n\n", out);
  for (size_t i = 0; i < N_COMMANDS; i++)
    fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].help);
  fputs("\n'fusewire COMMAND --help' explains each, docs/CLIENT.md all of them. 'fusewire "
        "--version' prints the version.\n",
        out);
}

static const char *nearest_command(const char *word) {
  struct option_row rows[N_COMMANDS];
  for (size_t i = 0; i < N_COMMANDS; i++)
    rows[i] = (struct option_row){.name = commands[i].name};
  return options_nearest(rows, N_COMMANDS, word);
}

// What was printed must have arrived.
static int finish(int code) {
  errno = 0;
  if (fflush(stdout) == 0 && !ferror(stdout)) return code;
  if (code != EXIT_ALL_OK) return code; // why, was told
  fprintf(stderr, "fusewire: standard output: cannot write%s%s\n", errno ? ": " : "",
          errno ? strerror(errno) : "");
  return EXIT_SOME_FAILED;
}

int main(int argc, char **argv) {
  streams_hold();
  if (argc < 2) {
    print_usage(stderr);
    return EXIT_USAGE;
  }
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
      strcmp(argv[1], "help") == 0) {
    print_usage(stdout);
    return finish(EXIT_ALL_OK);
  }
  if (strcmp(argv[1], "--version") == 0) {
    puts("fusewire " FUSEWIRE_VERSION);
    return finish(EXIT_ALL_OK);
  }
  for (size_t i = 0; i < N_COMMANDS; i++) {
    if (strcmp(argv[1], commands[i].name) == 0) return finish(commands[i].run(argc - 2, argv + 2));
  }
  const char *nearest = nearest_command(argv[1]);
  fprintf(stderr, "fusewire: unknown command '%s'%s%s\n", argv[1],
          nearest ? "; the nearest is " : "", nearest ? nearest : "");
  return EXIT_USAGE;
}
