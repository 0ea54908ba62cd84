// The daemon's parts and their order: devices, models, network, executors; up, running, down. Main
// thread.
#ifndef DAEMON_H
#define DAEMON_H

#include "conf/server_conf.h"

// What the process ends with.
enum exit_code { EXIT_GOOD = 0, EXIT_FAILED = 1, EXIT_BAD_INPUT = 2 };

// Measures the device and the products of the models, keeps both (tune.c).
enum exit_code daemon_tune(const struct server_conf *conf, bool quick);
// Validates devices and every model of `conf`, prints each error to stderr, binds nothing.
// `n_errors`: those that the settings had already; the count printed last includes them.
enum exit_code daemon_check(const struct server_conf *conf, int n_errors);
// Serves until a signal or a lost device ends it. Prints one line to stdout when it is ready:
//   fusewired ready: grpc=HOST:PORT admin=HOST:PORT models=N device=NAME start_ms=T
// `args`: what `conf` was read from, and is read again for the list of models.
struct args;
enum exit_code daemon_run(const struct server_conf *conf, const struct args *args);

// A line "error: file:line:column: message" on stderr; `arg` is an int that counts them.
void daemon_report(const struct error *err, void *arg);
// The same for what begins with a key's path ("tls.key: ..."): with that key's place in the file.
void daemon_report_setting(const struct server_conf *conf, struct error *err, int *n_errors);

#endif
