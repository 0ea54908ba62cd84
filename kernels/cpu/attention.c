// Scratch of the attention kernels; the kernels themselves are compiled per instruction set
// (simd/attention_ops.c).
#include "kernels/cpu/attention.h"

// Layout (floats): queries [Q][d'], keys [K][d'], values [K][d'], scores [Q][K], result [Q][d'],
// where d' is d rounded up to 16; queries, keys and scores may be transposed.
size_t attention_scratch_bytes(const struct attention_problem *problem) {
  size_t d = (size_t)problem->head_dim, padded = (d + 15) & ~(size_t)15;
  size_t floats = 2 * ATTENTION_QUERIES * padded + 2 * ATTENTION_KEYS * padded +
                  ATTENTION_QUERIES * ATTENTION_KEYS;
  return floats * sizeof(float);
}
