// A model file (docs/MODELS.md) -> name, signature, limits, graph and weights of a struct model.
#ifndef MODEL_MODEL_CONF_H
#define MODEL_MODEL_CONF_H

#include "conf/yaml.h"
#include "model/model.h"

// Fills a zeroed `model` whose graph is initialised. Errors go to `report`; false when there was
// any (or the file could not be read: *code says why). `caps` may be NULL: every compute type is
// then taken.
bool model_conf_load(const char *path, const struct server_conf *conf, const struct plan_caps *caps,
                     struct conf_report *report, struct model *model, enum status *code);

#endif
