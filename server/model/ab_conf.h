// The key `ab` of a model file (docs/MODELS.md, A/B).
#ifndef MODEL_AB_CONF_H
#define MODEL_AB_CONF_H

#include "conf/yaml.h"
#include "model/model.h"

// After the modes and the limits of the model were read. Errors go to `report`.
void ab_conf_read(struct conf_report *report, const struct conf_node *root, struct model *model);

#endif
