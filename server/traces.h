// trace.*: whether and where spans of calls go.
#ifndef TRACES_H
#define TRACES_H

#include "conf/server_conf.h"
#include "trace/exporter.h"

// *out stays NULL where trace.endpoint is empty.
MUST_USE enum status traces_open(const struct server_conf *conf, struct exporter **out,
                                 struct error *err);
void traces_check(const struct server_conf *conf, int *n_errors); // reports what is wrong

#endif
