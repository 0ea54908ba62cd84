#include "sched/needs.h"

static bool step_reads(const struct step *step, const struct operand *input) {
  for (int i = 0; i < step->n_in; i++) {
    const struct operand *operand = &step->in[i];
    if (operand->place == PLACE_ARENA && operand->tensor == input->tensor) return true;
  }
  return false;
}

static void plan_needs(const struct plan *plan, struct model_needs *out) {
  *out = (struct model_needs){0};
  for (int32_t s = 0; s < plan->n_steps; s++) {
    const struct step *step = &plan->steps[s];
    out->steps |= step->needed_by;
    uint32_t reads = 0;
    for (int i = 0; i < plan->n_inputs; i++)
      if (plan->inputs[i].place == PLACE_ARENA && step_reads(step, &plan->inputs[i]))
        reads |= 1u << i;
    for (int o = 0; o < plan->n_outputs; o++)
      if (step->needed_by >> o & 1) out->inputs[o] |= reads;
  }
}

void needs_fill(struct model *model) {
  for (int mode = 0; mode < FUSION_MODES; mode++)
    if (model->plans[mode]) plan_needs(model->plans[mode], &model->needs[mode]);
}

bool needs_steps(const struct model *model, enum fusion_mode fusion, uint8_t outputs) {
  return (model->needs[fusion].steps & outputs) != 0;
}

uint32_t needs_inputs(const struct model *model, enum fusion_mode fusion, uint8_t outputs) {
  uint32_t inputs = 0;
  for (int o = 0; o < LIMIT_MODEL_OUTPUTS; o++)
    if (outputs >> o & 1) inputs |= model->needs[fusion].inputs[o];
  return inputs;
}
