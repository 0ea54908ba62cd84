#include "sched/compare.h"

#include <math.h>
#include <string.h>

static void add(struct difference *out, double a, double b) {
  double d = fabs(a - b);
  if (!(d < INFINITY)) { // one of them is no finite number
    if (a == b || (isnan(a) && isnan(b))) return;
    out->odd++;
    out->max_abs = INFINITY;
    return;
  }
  out->squared += d * d;
  out->reference += b * b;
  if (d > out->max_abs) out->max_abs = d;
}

static double at(enum dtype dtype, const void *data, int64_t i) {
  switch (dtype) {
  case DTYPE_F32:
    return ((const float *)data)[i];
  case DTYPE_F16:
    return f16_to_f32(((const uint16_t *)data)[i]);
  case DTYPE_BF16:
    return bf16_to_f32(((const uint16_t *)data)[i]);
  case DTYPE_I64:
    return (double)((const int64_t *)data)[i];
  case DTYPE_I32:
    return ((const int32_t *)data)[i];
  default:
    return 0;
  }
}

void difference_add(struct difference *difference, enum dtype dtype, const void *found,
                    const void *reference, int64_t n) {
  struct difference sum = *difference; // in registers
  if (dtype == DTYPE_F32)              // nearly always, and without a switch inside
    for (int64_t i = 0; i < n; i++)
      add(&sum, ((const float *)found)[i], ((const float *)reference)[i]);
  else
    for (int64_t i = 0; i < n; i++)
      add(&sum, at(dtype, found, i), at(dtype, reference, i));
  *difference = sum;
}

double difference_relative(const struct difference *difference) {
  if (difference->odd > 0) return INFINITY;
  if (difference->squared == 0) return 0;
  return difference->reference > 0 ? sqrt(difference->squared / difference->reference) : INFINITY;
}
