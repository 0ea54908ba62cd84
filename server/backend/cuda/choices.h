// Which kernel of kernels/kernels.def runs each product and attention of a plan, at each row count
// that is run: decided at load, shared by all lanes.
#ifndef BACKEND_CUDA_CHOICES_H
#define BACKEND_CUDA_CHOICES_H

#include "backend/cuda/cuda_device.h"

// Fills the steps' `choices`. Their weights are bound. INTERNAL, naming the step, when no kernel of
// the table takes it.
MUST_USE enum status choices_make(struct bound_plan *bound, struct error *err);
// Steps for these outputs and counts whose kernel is a fallback.
int32_t choices_fallbacks(const struct bound_plan *bound, const struct batch_geometry *counts,
                          uint8_t outputs);
void choices_free(struct bound_plan *bound);

#endif
