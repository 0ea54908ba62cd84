// The program's commands. Each gets the arguments after its name and returns the exit code.
#ifndef CLIENT_COMMANDS_H
#define CLIENT_COMMANDS_H

#include "client/options.h"

enum exit_code {
  EXIT_ALL_OK = 0,
  EXIT_SOME_FAILED = 1, // some calls failed, the server is not ready, a file cannot be written
  EXIT_USAGE = 2,       // options or input files are wrong; nothing was sent
  EXIT_UNREACHABLE = 3, // cannot connect, or every connection was lost for good
};

int command_bench(int argc, char **argv);
int command_infer(int argc, char **argv);
int command_status(int argc, char **argv);
int command_models(int argc, char **argv);
int command_explain(int argc, char **argv);
int command_audit(int argc, char **argv);

// Help for --help anywhere in the arguments (true: printed, exit 0).
bool command_help(const char *usage, const struct option_row *rows, int n_rows, int argc,
                  char **argv);
// The model that is asked for: a word or the value of --model, in `*model`. INVALID_ARGUMENT: both,
// or none.
MUST_USE enum status command_model(const char *word, const char **model, struct error *err);
int command_usage_error(const char *command, const struct error *err);
// One line about a call that failed, and the exit code it stands for.
int command_failure(const char *what, const struct error *err);
// The same of what failed here, mostly a file that could not be written: no status, which would
// read as the server's.
int command_local_failure(const char *command, const struct error *err);

#endif
