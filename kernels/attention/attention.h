// The attention kernels behind attention_run, as plain C.
#ifndef ATTENTION_ATTENTION_H
#define ATTENTION_ATTENTION_H

#include "kernels/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

// Hopper, one file a dtype. CUDA_UNSUPPORTED: another dtype, head size (32, 64, 80, 96, 128, 256),
// architecture, rows that are not 16-byte aligned, or a scale that is not positive.
int flash_sm90_bf16(const struct attention_problem *p, const struct view *in,
                    const struct view *out, const struct batch_geometry *g,
                    struct CUstream_st *stream);
int flash_sm90_f16(const struct attention_problem *p, const struct view *in, const struct view *out,
                   const struct batch_geometry *g, struct CUstream_st *stream);
// Any dtype and alignment, head sizes up to 256; fp32 arithmetic on the CUDA cores.
int attention_simple(const struct attention_problem *p, const struct view *in,
                     const struct view *out, const struct batch_geometry *g,
                     struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
