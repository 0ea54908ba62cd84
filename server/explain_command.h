// `fusewired explain MODEL`: what the planner makes of a model file, without serving it. No port is
// bound, weights are not read (only the header of their file, for names and shapes).
#ifndef EXPLAIN_COMMAND_H
#define EXPLAIN_COMMAND_H

#include "daemon.h"

// `argv[0]` is the word "explain". Writes to stdout, or to --output.
enum exit_code explain_command(int argc, char **argv);

#endif
