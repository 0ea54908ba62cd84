// audit.*: the live audits of this process's devices (audit/audit.h), from their opening before
// models are bound to their end behind the last request.
#ifndef AUDITS_H
#define AUDITS_H

#include "audit/audit.h"
#include "conf/server_conf.h"
#include "devices.h"

// One for each device; none where audit.mode is off. Counters that are refused are no error. The
// thread that loads.
MUST_USE enum status audits_open(const struct server_conf *conf, const struct devices *devices,
                                 struct audits *audits, struct error *err);
// What the audits keep of a model that was bound, before it serves.
MUST_USE enum status audits_fill(const struct audits *audits, struct model *model,
                                 struct error *err);
MUST_USE enum status audits_start(const struct audits *audits, struct error *err);
void audits_stop(const struct audits *audits); // the executors have stopped
void audits_close(struct audits *audits);      // the executors are closed

#endif
