// The oracle itself: values worked out by hand, and the ways in which such kernels are known to go
// wrong.
#include "kernels/ref/ref.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void near(double found, double expected, double tolerance, const char *what) {
  if (!(fabs(found - expected) <= tolerance))
    fail_msg("%s: found %.17g, expected %.17g", what, found, expected);
}

static void near_all(const double *found, const double *expected, int n, const char *what) {
  for (int i = 0; i < n; i++) {
    char label[64];
    snprintf(label, sizeof label, "%s[%d]", what, i);
    near(found[i], expected[i], 1e-12, label);
  }
}

static void near_relative(double found, double expected, double tolerance, const char *what) {
  near(found, expected, fabs(expected) * tolerance, what);
}

// ---- activations ----
static void activations_have_their_known_values(void **state) {
  (void)state;
  near(ref_activate(ACT_GELU_ERF, 1), 0.8413447460685429, 1e-15, "gelu(1) = Phi(1)");
  near(ref_activate(ACT_GELU_ERF, -1), -0.15865525393145705, 1e-15, "gelu(-1)");
  near(ref_activate(ACT_GELU_TANH, 1), 0.8411919906082768, 1e-12, "tanh gelu(1)");
  near(ref_activate(ACT_SILU, 1), 0.7310585786300049, 1e-15, "silu(1)");
  near(ref_activate(ACT_SIGMOID, 0), 0.5, 0, "sigmoid(0)");
  near(ref_activate(ACT_TANH, 0.5), 0.46211715726000975, 1e-15, "tanh(0.5)");
  near(ref_activate(ACT_RELU, -3), 0, 0, "relu(-3)");
  near(ref_activate(ACT_NONE, -3), -3, 0, "none");
}

// 0.5 x (1 + erf) loses every digit in the left tail. The tail's asymptotic series is the
// independent witness: Phi(-a) = phi(a)/a (1 - 1/a^2 + 3/a^4 - 15/a^6 + ...).
static void gelu_erf_keeps_its_digits_in_the_left_tail(void **state) {
  (void)state;
  for (double a = 6; a <= 12; a += 0.25) {
    double series = 1, term = 1, phi = exp(-a * a / 2) / sqrt(2 * acos(-1.0));
    for (int k = 1; k <= 8; k++)
      series += term *= -(2 * k - 1) / (a * a);
    char label[32];
    snprintf(label, sizeof label, "gelu(%g)", -a);
    near_relative(ref_activate(ACT_GELU_ERF, -a), -phi * series, 1e-3, label);
  }
  double last = ref_activate(ACT_GELU_ERF, -9);
  for (double x = -8.9; x < -1; x += 0.1) { // falls until its minimum near -0.75
    assert_true(ref_activate(ACT_GELU_ERF, x) < last);
    last = ref_activate(ACT_GELU_ERF, x);
  }
}

// 0.5 x (1 + tanh u) is zero below -6; x * sigmoid(2u) is not: x exp(2u) / (1 + exp(2u)).
static void gelu_tanh_keeps_its_digits_in_the_left_tail(void **state) {
  (void)state;
  for (double x = -9; x <= -3; x += 0.125) {
    double u = sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x), e = exp(2 * u);
    near_relative(ref_activate(ACT_GELU_TANH, x), x * e / (1 + e), 1e-12, "tanh gelu");
    assert_true(ref_activate(ACT_GELU_TANH, x) < 0);
  }
}

static void the_two_gelus_differ_so_that_the_wrong_one_is_noticed(void **state) {
  (void)state;
  double most = 0;
  for (double x = -6; x <= 6; x += 0.01) {
    double off = fabs(ref_activate(ACT_GELU_ERF, x) - ref_activate(ACT_GELU_TANH, x));
    if (off > most) most = off;
  }
  assert_true(most > 3e-4 && most < 6e-4);
}

static void activations_end_at_their_limits(void **state) {
  (void)state;
  static const enum activation all[] = {ACT_GELU_ERF, ACT_GELU_TANH, ACT_SILU,
                                        ACT_TANH,     ACT_SIGMOID,   ACT_RELU};
  static const double left[] = {0, 0, 0, -1, 0, 0};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    bool bounded = all[i] == ACT_TANH || all[i] == ACT_SIGMOID;
    for (double x = 40; x < 1e300; x *= 1e10) {
      near_relative(ref_activate(all[i], x), bounded ? 1 : x, 1e-15, activation_name(all[i]));
      near(ref_activate(all[i], -x), left[i], 1e-15, activation_name(all[i]));
    }
    near(ref_activate(all[i], -INFINITY), left[i], 0, activation_name(all[i]));
    assert_true(ref_activate(all[i], INFINITY) == (bounded ? 1 : INFINITY));
    assert_true(isnan(ref_activate(all[i], NAN)));
  }
  static const double steep[] = {-13.3, -50, -1e4, 10.5, 63.5};
  for (size_t i = 0; i < sizeof steep / sizeof *steep; i++)
    assert_true(isfinite(ref_activate(ACT_GELU_TANH, steep[i])));
}

// ---- products and norms ----
static void linear_multiplies_by_the_transpose_and_adds_bias(void **state) {
  (void)state;
  double x[] = {1, 2, 3, 4, 5, 6}, w[] = {1, 0, -1, 2, 1, 0}, bias[] = {10, 20}, y[4];
  ref_linear(y, x, w, bias, 2, 2, 3);
  near_all(y, (double[]){1 - 3 + 10, 2 + 2 + 20, 4 - 6 + 10, 8 + 5 + 20}, 4, "with bias");
  ref_linear(y, x, w, NULL, 2, 2, 3);
  near_all(y, (double[]){-2, 4, -2, 13}, 4, "without");
}

static void layer_norm_has_its_known_values(void **state) {
  (void)state;
  double x[] = {1, 2, 3, 4, -1, -1, 1, 1}, y[8], s = sqrt(1.25);
  ref_layer_norm(y, x, NULL, NULL, 2, 4, 0);
  near_all(y, (double[]){-1.5 / s, -0.5 / s, 0.5 / s, 1.5 / s, -1, -1, 1, 1}, 8, "plain");
  ref_layer_norm(y, x, (double[]){1, 2, 3, 4}, (double[]){0, 1, 0, 1}, 1, 4,
                 0.75); // sqrt(1.25 + 0.75)
  double t = sqrt(2.0);
  near_all(y, (double[]){-1.5 / t, -1 / t + 1, 1.5 / t, 6 / t + 1}, 4, "gamma, beta, eps");
}

// E[x^2] - mean^2 cancels for rows far from zero, down to negative variances.
static void layer_norm_centres_before_it_squares(void **state) {
  (void)state;
  double offsets[] = {2000, 1e8, -3e12};
  for (int o = 0; o < 3; o++) {
    double x[4], y[4], expected[4], base[] = {-1.5, -0.5, 0.5, 1.5};
    for (int i = 0; i < 4; i++)
      x[i] = offsets[o] + base[i];
    ref_layer_norm(expected, base, NULL, NULL, 1, 4, 1e-5);
    ref_layer_norm(y, x, NULL, NULL, 1, 4, 1e-5);
    near_all(y, expected, 4, "shifted row");
  }
  double same[16], y[16];
  for (int i = 0; i < 16; i++)
    same[i] = 1449.123;
  ref_layer_norm(y, same, NULL, NULL, 1, 16, 1e-12);
  for (int i = 0; i < 16; i++)
    assert_true(isfinite(y[i]));
}

static void rms_norm_has_its_known_values(void **state) {
  (void)state;
  double x[] = {3, 4, -3, -4}, gamma[] = {1, 2}, y[4], s = sqrt(12.5);
  ref_rms_norm(y, x, gamma, 2, 2, 0);
  near_all(y, (double[]){3 / s, 8 / s, -3 / s, -8 / s}, 4, "rms");
  ref_rms_norm(y, (double[]){0, 0}, NULL, 1, 2, 1e-6);
  near_all(y, (double[]){0, 0}, 2, "zeros");
}

// fp16 values whose squares overflow fp16: the sum of squares must not be kept in the input's
// dtype.
static void rms_norm_of_large_values_has_unit_rms(void **state) {
  (void)state;
  enum { N = 4096 };
  static double x[N], y[N];
  double squares = 0;
  for (int i = 0; i < N; i++)
    x[i] = i % 2 ? 30000 : -30000;
  ref_rms_norm(y, x, NULL, 1, N, 1e-5);
  for (int i = 0; i < N; i++)
    squares += y[i] * y[i];
  near_relative(sqrt(squares), 64, 1e-6, "norm");
}

static void softmax_has_its_known_values(void **state) {
  (void)state;
  double x[] = {0, log(2), log(5), 1000, 1000, -1000}, y[6];
  ref_softmax(y, x, 2, 3);
  near_all(y, (double[]){0.125, 0.25, 0.625, 0.5, 0.5, 0}, 6, "softmax");
}

static void fully_masked_softmax_rows_are_zero(void **state) {
  (void)state;
  double masked[] = {-INFINITY, -INFINITY, -INFINITY}, partly[] = {-INFINITY, 1, -INFINITY}, y[3];
  ref_softmax(y, masked, 1, 3);
  near_all(y, (double[]){0, 0, 0}, 3, "masked");
  ref_softmax(y, partly, 1, 3);
  near_all(y, (double[]){0, 1, 0}, 3, "partly");
  double huge[] = {-FLT_MAX, -FLT_MAX}; // finite, however low: equal scores
  ref_softmax(y, huge, 1, 2);
  near_all(y, (double[]){0.5, 0.5}, 2, "lowest finite");
  double bad[] = {NAN, -INFINITY};
  ref_softmax(y, bad, 1, 2);
  assert_true(isnan(y[0]));
}

static void normalize_divides_by_the_norm_or_eps(void **state) {
  (void)state;
  double x[] = {3, 4, 0, 0, 1e-9, 0}, y[6];
  ref_normalize(y, x, 3, 2, 1e-6);
  near_all(y, (double[]){0.6, 0.8, 0, 0, 1e-3, 0}, 6, "normalize");
  ref_normalize(y, (double[]){0, 0}, 1, 2, 0);
  near_all(y, (double[]){0, 0}, 2, "zero row, no eps");
}

static void reduce_sums_averages_and_finds_the_maximum(void **state) {
  (void)state;
  double x[] = {1, -2, 4, -5, -6, -7}, y[2];
  ref_reduce(y, x, 2, 3, 's');
  near_all(y, (double[]){3, -18}, 2, "sum");
  ref_reduce(y, x, 2, 3, 'm');
  near_all(y, (double[]){1, -6}, 2, "mean");
  ref_reduce(y, x, 2, 3, 'x');
  near_all(y, (double[]){4, -5}, 2, "max");
  ref_reduce(y, (double[]){1, NAN, 2}, 1, 3, 'x');
  assert_true(isnan(y[0]));
}

static void embedding_reads_zeros_outside_its_table(void **state) {
  (void)state;
  double table[] = {1, 2, 3, 4, 5, 6}, y[10];
  int64_t ids[] = {2, 0, -1, 3, INT64_MAX};
  ref_embedding(y, table, ids, 5, 3, 2);
  near_all(y, (double[]){5, 6, 1, 2, 0, 0, 0, 0, 0, 0}, 10, "embedding");
}

static void pool_works_by_sequence_and_gives_zeros_for_empty_ones(void **state) {
  (void)state;
  int32_t cu[] = {0, 2, 2, 3};
  struct batch_geometry g = {.n_tokens = 3, .n_seqs = 3, .cu_seqlens = cu};
  double x[] = {1, -10, 3, -20, -5, 7}, y[6];
  ref_pool(y, x, 2, &g, 'm');
  near_all(y, (double[]){2, -15, 0, 0, -5, 7}, 6, "mean");
  ref_pool(y, x, 2, &g, 'c');
  near_all(y, (double[]){1, -10, 0, 0, -5, 7}, 6, "cls");
  ref_pool(y, x, 2, &g, 'x');
  near_all(y, (double[]){3, -10, 0, 0, -5, 7}, 6, "max");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(activations_have_their_known_values),
      cmocka_unit_test(gelu_erf_keeps_its_digits_in_the_left_tail),
      cmocka_unit_test(gelu_tanh_keeps_its_digits_in_the_left_tail),
      cmocka_unit_test(the_two_gelus_differ_so_that_the_wrong_one_is_noticed),
      cmocka_unit_test(activations_end_at_their_limits),
      cmocka_unit_test(linear_multiplies_by_the_transpose_and_adds_bias),
      cmocka_unit_test(layer_norm_has_its_known_values),
      cmocka_unit_test(layer_norm_centres_before_it_squares),
      cmocka_unit_test(rms_norm_has_its_known_values),
      cmocka_unit_test(rms_norm_of_large_values_has_unit_rms),
      cmocka_unit_test(softmax_has_its_known_values),
      cmocka_unit_test(fully_masked_softmax_rows_are_zero),
      cmocka_unit_test(normalize_divides_by_the_norm_or_eps),
      cmocka_unit_test(reduce_sums_averages_and_finds_the_maximum),
      cmocka_unit_test(embedding_reads_zeros_outside_its_table),
      cmocka_unit_test(pool_works_by_sequence_and_gives_zeros_for_empty_ones),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
