// What the processor can do, and the table of kernels for each instruction set.
#ifndef KERNELS_CPU_FEATURES_H
#define KERNELS_CPU_FEATURES_H

#include "kernels/types.h"

// AVX512_BF16 is AVX512 with conversions to bf16 in hardware (which drop subnormal numbers).
enum cpu_isa { CPU_PORTABLE, CPU_AVX2, CPU_AVX512, CPU_AVX512_BF16, CPU_ISA_COUNT };

struct cpu_features {
  enum cpu_isa isa;            // the best one that this build and this processor share
  bool avx512_bf16;            // vector bf16 dot products
  bool amx_bf16;               // bf16 tile products, and the kernel lets this process use them
  int64_t l1d_bytes, l2_bytes; // of one core; a cautious guess where the system does not tell
  char brand[64];              // "AMD EPYC 9B14 96-Core Processor"
};

// Fills `out`. Asks the kernel for permission to use AMX state for the whole process, so call it
// before threads that compute are made. Any thread.
void cpu_detect(struct cpu_features *out);
const char *cpu_isa_name(enum cpu_isa isa); // "portable", "avx2", "avx512", "avx512_bf16"

struct row_kernel;
struct row_call;
struct epilogue_call;
struct attention_call;
struct pack_call;
struct product_call;

// Kernels of one instruction set: the same sources (kernels/cpu/simd) compiled for each. Pure
// functions of their arguments; no allocation, no synchronisation; any thread.
struct cpu_ops {
  enum cpu_isa isa;
  void (*row_run)(const struct row_kernel *kernel, const struct row_call *call);
  void (*epilogue_run)(const struct epilogue_call *call);
  void (*attention_run)(const struct attention_call *call);
  void (*scores_run)(const struct attention_call *call); // unfused attention, one matrix after each
  void (*softmax_run)(const struct attention_call *call);
  void (*scale_run)(const struct attention_call *call);
  void (*context_run)(const struct attention_call *call);
  // Own products (own.h): fp32, chosen where it measures faster than the library's; bf16 for
  // processors without bf16 instructions.
  void (*product_f32_run)(const struct product_call *call);
  void (*product_bf16_run)(const struct product_call *call);
  int32_t panel_cols; // of its packed weights
  int32_t group_cols; // between two epilogues: whole panels, at most OWN_GROUP_COLS
  // n elements from one float dtype to another, rounded to nearest even.
  void (*convert)(void *dst, enum dtype to, const void *src, enum dtype from, int64_t n);
  // dst[i] = act(src[i]); for tests of the polynomials over all of fp32.
  void (*activate)(enum activation act, const float *src, float *dst, int64_t n);
  void (*exp)(const float *src, float *dst, int64_t n);
};
// NULL when this build or this processor lacks it. CPU_PORTABLE always exists.
const struct cpu_ops *cpu_ops_for(enum cpu_isa isa);

#endif
