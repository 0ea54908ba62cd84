// The row programs of a plan as kernels on the card: generated, compiled by several threads at
// once, loaded. Control thread only; the device is current.
#ifndef BACKEND_CUDA_PROGRAMS_H
#define BACKEND_CUDA_PROGRAMS_H

#include "backend/cuda/cuda_device.h"

// Fills bound->kernels with one kernel for each distinct program of the plan, and the steps'
// pointers to them. A program is one the generator knows: anything else is INTERNAL.
MUST_USE enum status programs_load(struct bound_plan *bound, struct error *err);
void programs_unload(struct bound_plan *bound);

#endif
