// What settings name on this machine: addresses, a socket's path, a folder. Looked at while the
// file is read, so that --check finds what a start would stumble over, with its position.
#ifndef CONF_PLACES_H
#define CONF_PLACES_H

#include "conf/server_conf.h"
#include "conf/yaml.h"

void places_check(struct conf_report *report, const struct conf_node *root,
                  const struct server_conf *conf);

#endif
