// exp and the activations of every instruction set over a dense sweep of fp32 against double:
// element by element, so that a tail that cancels would show.
#include "kernels/cpu/features.h"
#include "kernels/ref/ref.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CHUNK 4096
#define STRIDE 293 // every 293rd bit pattern: 15 million of 2^32; a prime, so that low bits vary

static float of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static double reference(int what, double x) {
  return what == ACT_COUNT ? exp(x) : ref_activate((enum activation)what, x);
}

// Largest relative error over the sweep.
static void sweep(const struct cpu_ops *ops, int what, uint32_t stride, double bound) {
  static float x[CHUNK], y[CHUNK];
  double worst = 0;
  float worst_at = 0;
  for (uint64_t base = 0; base < 1ull << 32; base += (uint64_t)stride * CHUNK) {
    for (int i = 0; i < CHUNK; i++)
      x[i] = of_bits((uint32_t)(base + (uint64_t)i * stride));
    if (what == ACT_COUNT)
      ops->exp(x, y, CHUNK);
    else
      ops->activate((enum activation)what, x, y, CHUNK);
    for (int i = 0; i < CHUNK; i++) {
      double want = reference(what, (double)x[i]);
      if (isnan(x[i]) || isnan(want)) {
        if (!isnan(y[i]))
          fail_msg("%s(%a) is %a, expected NaN", activation_name((enum activation)what),
                   (double)x[i], (double)y[i]);
        continue;
      }
      if (fabs(want) > 3.4028234e38) {
        if ((double)y[i] != (want > 0 ? INFINITY : -INFINITY) && fabs((double)y[i]) < 3.40e38)
          fail_msg("%s(%a) is %a, expected infinity", activation_name((enum activation)what),
                   (double)x[i], (double)y[i]);
        continue;
      }
      // A factor below the smallest normal number may have been dropped: 1.2e-38, or |x| times
      // that.
      double slack =
          1.2e-38 * (fabs((double)x[i]) > 1 && fabs((double)x[i]) < 120 ? fabs((double)x[i]) : 1);
      double error = fabs((double)y[i] - want) - slack;
      error = error > 0 ? error / fabs(want) : 0;
      if (!(error <= worst)) worst = error, worst_at = x[i];
    }
  }
  printf("  %-8s %-10s worst relative error %.2e at %.9g\n", cpu_isa_name(ops->isa),
         what == ACT_COUNT ? "exp" : activation_name((enum activation)what), worst,
         (double)worst_at);
  if (!(worst <= bound)) fail_msg("above %g", bound);
}

static void check_isa(enum cpu_isa isa) {
  const struct cpu_ops *ops = cpu_ops_for(isa);
  if (!ops) {
    printf("  this processor has no %s\n", cpu_isa_name(isa));
    skip();
  }
  // The exponent's own rounding bounds the far tails: exp(-x) with |x| up to 88 is good to 88 *
  // 2^-24.
  sweep(ops, ACT_COUNT, STRIDE * 7, 1e-6);
  sweep(ops, ACT_GELU_ERF, STRIDE, 8e-6);
  sweep(ops, ACT_GELU_TANH, STRIDE * 7, 3e-5);
  sweep(ops, ACT_RELU, STRIDE * 7, 0);
  sweep(ops, ACT_SILU, STRIDE * 7, 1e-6);
  sweep(ops, ACT_TANH, STRIDE * 7, 1e-6);
  sweep(ops, ACT_SIGMOID, STRIDE * 7, 1e-6);
}

static void portable_activations_follow_double(void **state) {
  (void)state;
  check_isa(CPU_PORTABLE);
}

static void avx2_activations_follow_double(void **state) {
  (void)state;
  check_isa(CPU_AVX2);
}

static void avx512_activations_follow_double(void **state) {
  (void)state;
  check_isa(CPU_AVX512);
}

// Every length's tail is computed, and nothing beyond it is written.
static void tails_are_computed_and_not_passed(void **state) {
  (void)state;
  float x[70], y[70];
  for (int i = 0; i < 70; i++)
    x[i] = (float)(i - 35) * 0.1f;
  for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
    const struct cpu_ops *ops = cpu_ops_for((enum cpu_isa)isa);
    for (int n = 1; ops && n < 66; n++) {
      for (int i = 0; i < 70; i++)
        y[i] = -777;
      ops->activate(ACT_GELU_ERF, x, y, n);
      for (int i = 0; i < n; i++)
        assert_true(fabs((double)y[i] - ref_activate(ACT_GELU_ERF, (double)x[i])) < 1e-5);
      for (int i = n; i < 70; i++)
        assert_true(y[i] == -777);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(portable_activations_follow_double),
      cmocka_unit_test(avx2_activations_follow_double),
      cmocka_unit_test(avx512_activations_follow_double),
      cmocka_unit_test(tails_are_computed_and_not_passed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
