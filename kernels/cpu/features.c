// Processor detection and the choice of a kernel table.
#include "kernels/cpu/features.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

extern const struct cpu_ops cpu_ops_portable;
#if defined(__x86_64__) && !defined(SIMD_PORTABLE_ONLY)
#define X86_SETS 1
#include <cpuid.h>
extern const struct cpu_ops cpu_ops_avx2, cpu_ops_avx512, cpu_ops_avx512_bf16;

#define ARCH_REQ_XCOMP_PERM 0x1023 // arch_prctl: ask for a dynamically enabled state
#define XFEATURE_XTILEDATA 18

static bool allow_amx(void) {
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static void read_brand(char out[64]) {
  unsigned regs[12] = {0};
  for (unsigned leaf = 0; leaf < 3; leaf++) {
    if (!__get_cpuid(0x80000002u + leaf, &regs[4 * leaf], &regs[4 * leaf + 1], &regs[4 * leaf + 2],
                     &regs[4 * leaf + 3]))
      return;
  }
  char raw[49] = {0};
  memcpy(raw, regs, 48);
  const char *start = raw;
  while (*start == ' ')
    start++;
  memcpy(out, start, strlen(start) + 1); // at most 49 bytes
}

static void detect_x86(struct cpu_features *out) {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    unsigned a, b, c, d;
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & (1u << 29));
    if (f16c) out->isa = CPU_AVX2;
  }
  if (out->isa == CPU_AVX2 && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    out->isa = CPU_AVX512;
  unsigned a, b, c, d;
  if (out->isa == CPU_AVX512 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
    out->avx512_bf16 = a & (1u << 5);
  if (out->avx512_bf16) out->isa = CPU_AVX512_BF16;
  if (out->isa >= CPU_AVX512 && __get_cpuid_count(7, 0, &a, &b, &c, &d))
    out->amx_bf16 = (d & (1u << 22)) && (d & (1u << 24)) && allow_amx();
  read_brand(out->brand);
}
#endif

static int64_t cache_bytes(int name, int64_t guess) {
  long bytes = sysconf(name);
  return bytes > 0 ? bytes : guess;
}

void cpu_detect(struct cpu_features *out) {
  memset(out, 0, sizeof *out);
  out->isa = CPU_PORTABLE;
  static const char unknown[] = "unknown processor";
  memcpy(out->brand, unknown, sizeof unknown);
#if defined(X86_SETS)
  detect_x86(out);
#endif
  out->l1d_bytes = cache_bytes(_SC_LEVEL1_DCACHE_SIZE, 32 << 10);
  out->l2_bytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE, 512 << 10);
}

const char *cpu_isa_name(enum cpu_isa isa) {
  static const char *const names[CPU_ISA_COUNT] = {"portable", "avx2", "avx512", "avx512_bf16"};
  return isa < CPU_ISA_COUNT ? names[isa] : "invalid";
}

const struct cpu_ops *cpu_ops_for(enum cpu_isa isa) {
  if (isa == CPU_PORTABLE) return &cpu_ops_portable;
#if defined(X86_SETS)
  struct cpu_features features;
  cpu_detect(&features);
  if (isa == CPU_AVX2 && features.isa >= CPU_AVX2) return &cpu_ops_avx2;
  if (isa == CPU_AVX512 && features.isa >= CPU_AVX512) return &cpu_ops_avx512;
  if (isa == CPU_AVX512_BF16 && features.isa >= CPU_AVX512_BF16) return &cpu_ops_avx512_bf16;
#endif
  return NULL;
}
