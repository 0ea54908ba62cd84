// The kernel table of one instruction set.
#include "kernels/cpu/simd/table.h"
#include "kernels/cpu/simd/convert.h"
#include "kernels/cpu/simd/lines.h"

static void activate(enum activation act, const float *src, float *dst, int64_t n) {
  for (int64_t i = 0; i < n; i += 4096)
    activate_floats(act, src + i, dst + i, (int32_t)(n - i < 4096 ? n - i : 4096));
}

static void exponent(const float *src, float *dst, int64_t n) {
  int64_t i = 0;
  for (; i + VL <= n; i += VL)
    vf_store(dst + i, vf_exp(vf_load(src + i)));
  if (i < n) vf_store_n(dst + i, vf_exp(vf_load_n(src + i, (int)(n - i))), (int)(n - i));
}

static void convert(void *dst, enum dtype to, const void *src, enum dtype from, int64_t n) {
  float line[1024];
  for (int64_t i = 0; i < n; i += 1024) {
    int32_t m = (int32_t)(n - i < 1024 ? n - i : 1024);
    load_floats(line, (const char *)src + i * element_bytes(from), from, m);
    store_floats((char *)dst + i * element_bytes(to), to, line, m);
  }
}

#define ISA_portable CPU_PORTABLE
#define ISA_avx2 CPU_AVX2
#define ISA_avx512 CPU_AVX512
#define ISA_avx512_bf16 CPU_AVX512_BF16
extern const struct cpu_ops SIMD_NAME(cpu_ops);
const struct cpu_ops SIMD_NAME(cpu_ops) = {
    .isa = SIMD_PASTE(ISA, SIMD_ISA),
    .row_run = SIMD_NAME(row_run),
    .epilogue_run = SIMD_NAME(epilogue_run),
    .attention_run = SIMD_NAME(attention_run),
    .scores_run = SIMD_NAME(scores_run),
    .softmax_run = SIMD_NAME(softmax_run),
    .scale_run = SIMD_NAME(scale_run),
    .context_run = SIMD_NAME(context_run),
    .product_f32_run = SIMD_NAME(product_f32_run),
    .product_bf16_run = SIMD_NAME(product_bf16_run),
    .panel_cols = 2 * VL,
    .group_cols = PRODUCT_GROUP,
    .convert = convert,
    .activate = activate,
    .exp = exponent,
};
