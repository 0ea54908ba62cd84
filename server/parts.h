// What daemon_check and daemon_run both need: the devices and the parsed models.
#ifndef PARTS_H
#define PARTS_H

#include "audits.h"
#include "devices.h"
#include "model/model.h"

struct parts {
  const struct server_conf *conf;
  struct devices devices;
  struct audits audits;
  struct registry *registry; // the parsed models, not yet bound
  struct graveyard graveyard;
};

// Opens the devices that conf asks for. UNAVAILABLE when there is none such, with the reason.
MUST_USE enum status parts_open_devices(struct parts *parts, struct error *err);
// Parses every model, reporting every error of each; the good ones are in the registry. Returns the
// number of errors. Without devices (they could not be opened) the files alone are looked at, and
// nothing is planned.
int parts_parse_models(struct parts *parts);
// Opens the audits and binds the models of the start; the thread that loads.
MUST_USE enum status parts_bind(struct parts *parts, struct error *err);
void parts_close(struct parts *parts);

#endif
