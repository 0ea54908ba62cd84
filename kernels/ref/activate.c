// Activations in the forms that keep their digits in the tails.
#include "kernels/ref/ref.h"

#include <math.h>

static double sigmoid(double x) {
  if (x >= 0) return 1 / (1 + exp(-x));
  double e = exp(x); // exp of a negative number never overflows
  return e / (1 + e);
}

// x/2 * (1 + erf(x/sqrt2)) cancels below -1; erfc does not. At -inf the limit is 0, not -inf * 0.
static double gelu_erf(double x) {
  if (x == -INFINITY) return 0;
  return 0.5 * x * erfc(-x * 0.70710678118654752440);
}

// x/2 * (1 + tanh u) = x * sigmoid(2u)
static double gelu_tanh(double x) {
  if (x == -INFINITY) return 0;
  if (x == INFINITY) return x;
  double u = 0.79788456080286535588 * (x + 0.044715 * x * x * x);
  return x * sigmoid(2 * u);
}

static double silu(double x) {
  return x == -INFINITY ? 0 : x * sigmoid(x);
}

double ref_activate(enum activation act, double x) {
  switch (act) {
  case ACT_GELU_ERF:
    return gelu_erf(x);
  case ACT_GELU_TANH:
    return gelu_tanh(x);
  case ACT_RELU:
    return isnan(x) ? x : x > 0 ? x : 0;
  case ACT_SILU:
    return silu(x);
  case ACT_TANH:
    return tanh(x);
  case ACT_SIGMOID:
    return sigmoid(x);
  default:
    return x;
  }
}
