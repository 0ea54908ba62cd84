// The command line of fusewired.
#ifndef ARGS_H
#define ARGS_H

#include "base/status.h"
#include "bounds.h"

struct args {
  const char *config;               // NULL: defaults
  const char *models[LIMIT_MODELS]; // after those of the server file
  int n_models;
  const char *listen, *admin; // NULL: as the server file says
  bool tune;                  // the first word
  bool quick;                 // of tune
  bool check, print_config, version, help;
};

// INVALID_ARGUMENT with a message on anything unknown. Values point into argv.
MUST_USE enum status args_parse(int argc, char **argv, struct args *out, struct error *err);
// The error of an option that is none of `words` ("--a|--b"), with the nearest of them.
MUST_USE enum status args_unknown(const char *word, const char *words, struct error *err);
extern const char args_help[];

#endif
