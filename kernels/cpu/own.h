// Our own product kernels: some columns, any number of rows up to PRODUCT_ROWS, sums in fp32.
//
// fp32 (simd/product_ops.c): panels of two vectors of columns, weights as [panel][k][columns]; up
// to PRODUCT_MR rows of sums in registers; x is broadcast from where it lies. bf16 without bf16
// instructions: the same panels in bf16; x once a call, and a piece of a panel at a time, are
// widened (which is exact) into scratch, where the fp32 kernel reads them: memory moves half the
// bytes of fp32, the widening is shared by all rows of a call. bf16 on AMX (amx.c):
// panels of 32 columns, weights as [panel][k/32][2 tiles][16 pairs of k][16 columns]; 32 x 32 sums
// in four tiles. k must be a multiple of 32.
// Both stop every few panels to run the epilogue over what they made, which is then in the
// first-level cache.
#ifndef KERNELS_CPU_OWN_H
#define KERNELS_CPU_OWN_H

#include "kernels/cpu/epilogue.h"

#define AMX_COLS 32

struct product_call {
  int32_t rows, n, k;
  const void *x;
  int64_t x_stride;    // elements
  const void *weights; // packed, from column 0 of the call on
  const void *next;    // packed weights that this thread needs after these: fetched early; or NULL
  // Scratch: OWN_SUMS_FLOATS, and behind them own_wide_floats(k) for bf16; 64-byte aligned
  float *sums;
  // The epilogue over the whole call: y and operands at row 0, column 0 of the call; rows, cols and
  // sums are filled in.
  struct epilogue_call epilogue;
};

// Most columns between two epilogues: the unit in which threads share a product of few rows.
#define OWN_GROUP_COLS 64
#define OWN_SUMS_FLOATS (64 * OWN_GROUP_COLS)

// Packed bytes of an [n, k] matrix, and packing from row-major [n, k]. Panels follow one another,
// so that any whole number of panels is a matrix of its own.
size_t own_bytes(int32_t n, int32_t k, int32_t panel_cols, enum dtype dtype);
void own_pack(void *out, const void *w, int32_t n, int32_t k, int32_t panel_cols, enum dtype dtype);

#define OWN_DEPTH                                                                                  \
  768                     // of k at a time: a panel of so many rows, the next one, and x share the
                          // second-level cache
#define OWN_PANEL_MOST 32 // columns of the widest panel: two vectors of AVX-512
// Floats of scratch for PRODUCT_ROWS rows of x and a piece of a panel.
size_t own_wide_floats(int32_t k);

bool amx_supports(int32_t k);
size_t amx_bytes(int32_t n, int32_t k);
void amx_pack(uint16_t *out, const uint16_t *w, int32_t n, int32_t k);
void amx_product_run(const struct product_call *call,
                     void (*epilogue_run)(const struct epilogue_call *call));

#endif
