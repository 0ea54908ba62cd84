// Between the files that make launches.
#ifndef BACKEND_CUDA_LAUNCH_H
#define BACKEND_CUDA_LAUNCH_H

#include "backend/cuda/cuda_device.h"

// The step's operands as views of this lane's memory: in [n_in], out [n_out], where a finish's last
// result comes first, as the kernel has it.
void launch_views(const struct lane *lane, const struct bound_step *b, struct view *in,
                  struct view out[LAUNCH_OUTS]);
// A product or attention step on those views; rows and geometry are the caller's to fill in.
struct kernel_call launch_call(const struct device *device, const struct bound_step *b,
                               const struct view *in, const struct view *out);

#endif
