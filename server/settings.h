// What the daemon is told: the server file, and the command line over it.
#ifndef SETTINGS_H
#define SETTINGS_H

#include "args.h"
#include "conf/server_conf.h"

// Reads the file again at each call. Returns the number of errors; each is reported with a pointer
// to that number so far, which the report adds to (daemon_report does).
int settings_read(const struct args *args, struct server_conf *conf,
                  void (*report)(const struct error *err, void *n_errors));

#endif
