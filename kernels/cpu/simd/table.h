// Prototypes of the kernels that simd/table.c gathers; SIMD_NAME appends the instruction set.
#ifndef KERNELS_CPU_SIMD_TABLE_H
#define KERNELS_CPU_SIMD_TABLE_H

#include "kernels/cpu/features.h"
#include "kernels/cpu/simd/simd.h"

// Columns of a unit of our fp32 product: one pass of the epilogue on AVX2. The smaller, the better
// two threads share a few rows; AVX-512's panels are as wide as AVX2's units.
#define PRODUCT_GROUP (SIMD_BYTES == 64 ? 64 : 32)

void SIMD_NAME(row_run)(const struct row_kernel *kernel, const struct row_call *call);
void SIMD_NAME(epilogue_run)(const struct epilogue_call *call);
void SIMD_NAME(attention_run)(const struct attention_call *call);
void SIMD_NAME(scores_run)(const struct attention_call *call);
void SIMD_NAME(softmax_run)(const struct attention_call *call);
void SIMD_NAME(scale_run)(const struct attention_call *call);
void SIMD_NAME(context_run)(const struct attention_call *call);
void SIMD_NAME(product_f32_run)(const struct product_call *call);
void SIMD_NAME(product_bf16_run)(const struct product_call *call);

#endif
