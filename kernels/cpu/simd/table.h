// Prototypes of the kernels that simd/table.c gathers; SIMD_NAME appends the instruction set.
#ifndef KERNELS_CPU_SIMD_TABLE_H
#define KERNELS_CPU_SIMD_TABLE_H

#include "kernels/cpu/features.h"
#include "kernels/cpu/simd/simd.h"

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
