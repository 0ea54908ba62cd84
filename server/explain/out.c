#include "explain/out.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_ROOM ((size_t)16 << 10)

static void fail(struct out *out, enum status status) {
  if (out->failed == STATUS_OK) out->failed = status;
}

// Room for so many more bytes and a zero. False: failed.
static bool reserve(struct out *out, size_t more) {
  if (out->failed != STATUS_OK) return false;
  if (out->most > 0 && more > out->most - out->used) {
    fail(out, STATUS_OUT_OF_RANGE);
    return false;
  }
  size_t room = out->room ? out->room : FIRST_ROOM;
  while (room - out->used <= more)
    room *= 2;
  if (room == out->room) return true;
  char *data = realloc(out->data, room);
  if (!data) {
    fail(out, STATUS_RESOURCE_EXHAUSTED);
    return false;
  }
  out->data = data;
  out->room = room;
  return true;
}

void out_add(struct out *out, const char *format, ...) {
  char small[512];
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  int length = vsnprintf(small, sizeof small, format, args);
  va_end(args);
  if (length >= 0 && reserve(out, (size_t)length)) {
    if ((size_t)length < sizeof small)
      memcpy(out->data + out->used, small, (size_t)length + 1);
    else
      vsnprintf(out->data + out->used, (size_t)length + 1, format, again);
    out->used += (size_t)length;
  }
  va_end(again);
}

void out_write(struct out *out, const char *data, size_t bytes) {
  if (!reserve(out, bytes)) return;
  memcpy(out->data + out->used, data, bytes);
  out->used += bytes;
  out->data[out->used] = '\0';
}

void out_raw(struct out *out, const char *text) {
  out_write(out, text, strlen(text));
}

void out_fill(struct out *out, char what, int count) {
  if (count <= 0 || !reserve(out, (size_t)count)) return;
  memset(out->data + out->used, what, (size_t)count);
  out->used += (size_t)count;
  out->data[out->used] = '\0';
}

static char clean_char(char c) {
  return c >= ' ' && c <= '~' ? c : '?';
}

void out_xml(struct out *out, const char *text) {
  for (; *text; text++) {
    char one[2] = {clean_char(*text), 0};
    out_raw(out, one[0] == '<'    ? "&lt;"
                 : one[0] == '>'  ? "&gt;"
                 : one[0] == '&'  ? "&amp;"
                 : one[0] == '"'  ? "&quot;"
                 : one[0] == '\'' ? "&#39;"
                                  : one);
  }
}

void out_free(struct out *out) {
  free(out->data);
  *out = (struct out){0};
}

const char *out_clean(const char *text, int width, char *buffer, size_t bytes) {
  int n = 0;
  if ((size_t)width >= bytes) width = (int)bytes - 1;
  for (; text[n] && n < width; n++)
    buffer[n] = clean_char(text[n]);
  buffer[n] = '\0';
  if (text[n] && width >= 2) memcpy(buffer + width - 2, "..", 2);
  return buffer;
}

const char *out_name(const char *text, int width, char *buffer, size_t bytes) {
  if ((size_t)width >= bytes) width = (int)bytes - 1;
  int length = (int)strlen(text), head = (width - 1) / 2;
  if (length <= width || head < 1) return out_clean(text, width, buffer, bytes);
  for (int i = 0; i < width; i++)
    buffer[i] = clean_char(text[i < head ? i : length - width + i]);
  memcpy(buffer + head, "..", 2);
  buffer[width] = '\0';
  return buffer;
}

// ---- numbers ----
// Three digits and a prefix. Whole numbers below 1000 of the smallest unit stay whole.
static const char *scaled(double value, const char *const *units, int n_units, char *buffer) {
  int unit = 0;
  double size = fabs(value);
  for (; unit + 1 < n_units && size >= 999.5; unit++)
    size /= 1000, value /= 1000;
  int digits = size >= 99.95 || (unit == 0 && size == floor(size)) ? 0 : size >= 9.995 ? 1 : 2;
  snprintf(buffer, OUT_NUMBER, "%.*f %s", digits, value, units[unit]);
  return buffer;
}

const char *out_bytes(double bytes, char *buffer) {
  static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  return scaled(bytes < 999.5 ? round(bytes) : bytes, units, 6, buffer); // a part of one is none
}

const char *out_us(double us, char *buffer) {
  static const char *const units[] = {"us", "ms", "s"};
  return scaled(us, units, 3, buffer);
}

const char *out_flops(double flops, char *buffer) {
  static const char *const units[] = {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"};
  return scaled(flops, units, 6, buffer);
}

const char *out_rate(double per_second, const char *unit, char *buffer) {
  static const char *const prefixes[] = {"", "k", "M", "G", "T", "P"};
  char number[OUT_NUMBER];
  scaled(per_second, prefixes, 6, number);
  snprintf(buffer, OUT_NUMBER, "%.20s%s/s", number, unit);
  return buffer;
}
