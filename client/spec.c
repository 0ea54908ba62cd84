#include "client/spec.h"
#include "base/clock.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// strtoll without its leniency (no leading space, something must be there); `end` is where it
// stopped.
static bool take_integer(const char *text, const char **end, int64_t *out) {
  char *stop = NULL;
  const char first = text[0] == '-' ? text[1] : text[0];
  if (first < '0' || first > '9') return false;
  errno = 0;
  const long long value = strtoll(text, &stop, 10);
  if (errno != 0) return false;
  *end = stop;
  *out = value;
  return true;
}

static bool take_real(const char *text, const char **end, double *out) {
  char *stop = NULL;
  const char first = text[0] == '-' ? text[1] : text[0];
  if ((first < '0' || first > '9') && first != '.') return false; // no "inf", "nan"
  if (first == '0' && strpbrk(text, "xX") != NULL) return false;
  const double value = strtod(text, &stop);
  if (stop == text || !isfinite(value)) return false;
  *end = stop;
  *out = value;
  return true;
}

bool spec_integer(const char *text, int64_t *out) {
  const char *end = NULL;
  int64_t value = 0;
  if (!take_integer(text, &end, &value) || *end) return false;
  *out = value;
  return true;
}

bool spec_real(const char *text, double *out) {
  const char *end = NULL;
  double value = 0;
  if (!take_real(text, &end, &value) || *end) return false;
  *out = value;
  return true;
}

bool spec_duration(const char *text, int64_t *out_ns) {
  static const struct {
    const char *unit;
    double ns;
  } units[] = {{"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 60e9}, {"h", 3600e9}, {"", 1e9}};
  const char *end = NULL;
  double value = 0;
  if (!take_real(text, &end, &value) || value < 0) return false;
  for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
    if (strcmp(end, units[i].unit) != 0) continue;
    if (value * units[i].ns > 1e17) return false; // three years
    *out_ns = (int64_t)llround(value * units[i].ns);
    return true;
  }
  return false;
}

bool spec_range(const char *text, int64_t *low, int64_t *high) {
  const char *end = NULL;
  int64_t first = 0, last = 0;
  if (!take_integer(text, &end, &first)) return false;
  last = first;
  if (strncmp(end, "..", 2) == 0 && !take_integer(end + 2, &end, &last)) return false;
  if (*end || first < 1 || last < first) return false;
  *low = first;
  *high = last;
  return true;
}

// One element of an integer list: n, or start:end:step.
static bool take_span(const char *text, const char **end, int64_t *out, int *n) {
  int64_t first = 0, last = 0, step = 1;
  if (!take_integer(text, end, &first) || first < 1) return false;
  last = first;
  if (**end == ':') {
    if (!take_integer(*end + 1, end, &last) || last < first) return false;
    if (**end == ':' && (!take_integer(*end + 1, end, &step) || step < 1)) return false;
  }
  for (int64_t value = first; value <= last; value += step) {
    if (*n == SPEC_LIST_MAX) return false;
    out[(*n)++] = value;
    if (value > last - step) break; // the sum could overflow
  }
  return true;
}

bool spec_int_list(const char *text, int64_t out[SPEC_LIST_MAX], int *n) {
  const char *end = text;
  *n = 0;
  for (;;) {
    if (!take_span(end, &end, out, n)) return false;
    if (!*end) return true;
    if (*end++ != ',') return false;
  }
}

bool spec_real_list(const char *text, double out[SPEC_LIST_MAX], int *n) {
  const char *end = text;
  *n = 0;
  for (;;) {
    if (*n == SPEC_LIST_MAX || !take_real(end, &end, &out[*n]) || out[*n] <= 0) return false;
    (*n)++;
    if (!*end) return true;
    if (*end++ != ',') return false;
  }
}

static bool take_dims(const char *text, const char *stop, struct infer_tensor *out) {
  const char *at = text;
  out->rank = 0;
  if (at == stop) return true; // "name:FP32:=x.raw" is a scalar
  for (;;) {
    if (out->rank == TENSOR_RANK || !take_integer(at, &at, &out->dims[out->rank])) return false;
    if (out->dims[out->rank++] < 0) return false;
    if (at == stop) return true;
    if (*at != 'x' && *at != ',') return false;
    at++;
  }
}

enum status spec_input(const char *text, struct infer_tensor *out, const char **path,
                       struct error *err) {
  const char *equals = strchr(text, '=');
  const char *colon = equals ? memchr(text, ':', (size_t)(equals - text)) : NULL;
  const char *name_end = colon ? colon : equals;
  *out = (struct infer_tensor){0};
  if (!equals || name_end == text || (size_t)(name_end - text) >= sizeof out->name || !equals[1]) {
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "--input %s: expected name=file.npy or name:DTYPE:shape=file.raw", text);
  }
  memcpy(out->name, text, (size_t)(name_end - text));
  *path = equals + 1;
  if (!colon) return STATUS_OK;
  const char *shape = memchr(colon + 1, ':', (size_t)(equals - colon - 1));
  const char *type_end = shape ? shape : equals;
  out->type =
      datatype_of((struct slice){(const uint8_t *)colon + 1, (size_t)(type_end - colon - 1)});
  if (out->type == TYPE_NONE || out->type == TYPE_BYTES) {
    return error_set(
        err, STATUS_INVALID_ARGUMENT,
        "--input %s: unknown datatype '%.*s'; expected BOOL, INT64, FP32, BF16 and so on", text,
        (int)(type_end - colon - 1), colon + 1);
  }
  if (!shape) { // name:BF16=file.npy: the file's shape, another reading of its bits
    out->rank = -1;
    return STATUS_OK;
  }
  if (take_dims(shape + 1, equals, out)) return STATUS_OK;
  return error_set(err, STATUS_INVALID_ARGUMENT,
                   "--input %s: bad shape '%.*s'; expected such as 1x128", text,
                   (int)(equals - shape - 1), shape + 1);
}
