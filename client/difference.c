#include "client/difference.h"
#include "client/call.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static double half_value(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31) return fraction ? (double)NAN : sign * (double)INFINITY;
  return sign * (exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24));
}

// Element `i` of a tensor of any numeric type.
static double element(enum datatype type, const uint8_t *data, size_t i) {
  const size_t bytes = datatype_bytes(type);
  uint64_t bits = 0;
  memcpy(&bits, data + i * bytes, bytes); // little-endian, as we are
  switch (type) {
  case TYPE_FP32:
    return (double)float_of_bits((uint32_t)bits);
  case TYPE_BF16:
    return (double)float_of_bits((uint32_t)bits << 16);
  case TYPE_FP16:
    return half_value((uint16_t)bits);
  case TYPE_FP64: {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
  }
  case TYPE_INT8:
    return (int8_t)bits;
  case TYPE_INT16:
    return (int16_t)bits;
  case TYPE_INT32:
    return (int32_t)bits;
  case TYPE_INT64:
    return (double)(int64_t)bits;
  default:
    return (double)bits;
  }
}

static bool same_slice(struct slice a, struct slice b) {
  return a.bytes == b.bytes && (a.bytes == 0 || memcmp(a.data, b.data, a.bytes) == 0);
}

static bool same_form(const struct reply_output *a, const struct reply_output *b) {
  return same_slice(a->name, b->name) && a->type == b->type && a->rank == b->rank &&
         memcmp(a->dims, b->dims, (size_t)a->rank * sizeof a->dims[0]) == 0 &&
         a->raw.bytes == b->raw.bytes && datatype_bytes(a->type) > 0;
}

static void add_tensor(struct difference_output *out, const struct reply_output *a,
                       const struct reply_output *b) {
  const size_t bytes = datatype_bytes(a->type), n = a->raw.bytes / bytes;
  double squares = 0, reference = 0;
  for (size_t i = 0; i < n; i++) {
    if (memcmp(a->raw.data + i * bytes, b->raw.data + i * bytes, bytes) == 0) {
      const double value = element(b->type, b->raw.data, i);
      if (isfinite(value)) reference += value * value;
      continue;
    }
    const double x = element(a->type, a->raw.data, i), y = element(b->type, b->raw.data, i);
    if (!isfinite(x) || !isfinite(y)) {
      out->not_finite++;
      continue;
    }
    const double distance = fabs(x - y);
    if (distance > out->max_abs) out->max_abs = distance;
    squares += distance * distance;
    reference += y * y;
  }
  out->elements += (int64_t)n;
  const double relative = squares == 0     ? 0
                          : reference == 0 ? (double)INFINITY
                                           : sqrt(squares / reference);
  samples_add(&out->relative, relative);
}

static void keep_name(struct difference_output *out, struct slice name) {
  const size_t room = sizeof out->name - 1, bytes = name.bytes < room ? name.bytes : room;
  if (bytes) memcpy(out->name, name.data, bytes);
  out->name[bytes] = '\0';
  call_tame(out->name);
}

bool difference_add(struct difference *difference, const struct reply *a, const struct reply *b) {
  const bool first = difference->n_requests == 0;
  bool same = a->n_outputs == b->n_outputs && (first || a->n_outputs == difference->n_outputs);
  for (int i = 0; i < a->n_outputs && same; i++) {
    const struct reply_output *output = &a->outputs[i];
    struct difference_output *out = &difference->outputs[i];
    if (first) keep_name(out, output->name);
    same = same_form(output, &b->outputs[i]);
  }
  if (!same) {
    snprintf(
        difference->note, sizeof difference->note,
        "the two answers to a request have other outputs, shapes or types, or hold no numbers");
    return false;
  }
  difference->n_outputs = a->n_outputs;
  for (int i = 0; i < a->n_outputs; i++)
    add_tensor(&difference->outputs[i], &a->outputs[i], &b->outputs[i]);
  difference->n_requests++;
  return true;
}

enum status difference_finish(struct difference *difference, uint64_t seed) {
  for (int i = 0; i < difference->n_outputs; i++) {
    struct difference_output *out = &difference->outputs[i];
    const enum status status =
        ab_mean_of(out->relative.values, out->relative.n, seed + (uint64_t)i, &out->relative_l2);
    if (status != STATUS_OK) return status;
  }
  return STATUS_OK;
}

void difference_free(struct difference *difference) {
  for (int i = 0; i < REPLY_OUTPUTS; i++)
    samples_free(&difference->outputs[i].relative);
}
