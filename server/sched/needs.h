// Which inputs and steps each output of a plan needs, so that a batch copies in only what its steps
// read and a reply that needs no step needs no device. Load time; pure.
#ifndef SCHED_NEEDS_H
#define SCHED_NEEDS_H

#include "model/model.h"

void needs_fill(
    struct model *model); // needs[] of every plan that there is; before the model is served
bool needs_steps(const struct model *model, enum fusion_mode fusion, uint8_t outputs);
uint32_t needs_inputs(const struct model *model, enum fusion_mode fusion,
                      uint8_t outputs); // mask of signature inputs

#endif
