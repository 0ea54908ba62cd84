#include "base/status.h"
#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

const char *status_name(enum status code) {
  static const char *const names[STATUS_COUNT] = {"OK",
                                                  "CANCELLED",
                                                  "UNKNOWN",
                                                  "INVALID_ARGUMENT",
                                                  "DEADLINE_EXCEEDED",
                                                  "NOT_FOUND",
                                                  "ALREADY_EXISTS",
                                                  "PERMISSION_DENIED",
                                                  "RESOURCE_EXHAUSTED",
                                                  "FAILED_PRECONDITION",
                                                  "ABORTED",
                                                  "OUT_OF_RANGE",
                                                  "UNIMPLEMENTED",
                                                  "INTERNAL",
                                                  "UNAVAILABLE",
                                                  "DATA_LOSS",
                                                  "UNAUTHENTICATED"};
  return (unsigned)code < STATUS_COUNT ? names[code] : "UNKNOWN";
}

// A message that did not fit is cut where a character begins, so that it stays valid UTF-8 on the
// wire.
static void cut_at_character(char *text, size_t capacity) {
  size_t end = capacity - 1;
  while (end > 0 && ((unsigned char)text[end] & 0xc0) == 0x80)
    end--;
  text[end] = '\0';
}

static void message_format(struct error *err, const char *format, va_list args) PRINTF_LIKE(2, 0);
static void message_format(struct error *err, const char *format, va_list args) {
  char wide[ERROR_MESSAGE_BYTES + 4]; // room to see the byte after the cut
  int length = vsnprintf(wide, sizeof wide, format, args);
  if (length < 0) wide[0] = '\0';
  if (length >= ERROR_MESSAGE_BYTES) cut_at_character(wide, ERROR_MESSAGE_BYTES);
  memcpy(err->message, wide, ERROR_MESSAGE_BYTES);
  err->message[ERROR_MESSAGE_BYTES - 1] = '\0';
  utf8_make_printable(err->message);
}

enum status error_set(struct error *err, enum status code, const char *format, ...) {
  if (!err) return code;
  err->code = code;
  err->line = err->column = 0;
  err->file[0] = '\0';
  va_list args;
  va_start(args, format);
  message_format(err, format, args);
  va_end(args);
  return code;
}

enum status error_set_at(struct error *err, enum status code, const char *file, int line,
                         int column, const char *format, ...) {
  if (!err) return code;
  err->code = code;
  err->line = line;
  err->column = column;
  snprintf(err->file, sizeof err->file, "%s", file ? file : "");
  utf8_make_printable(err->file);
  va_list args;
  va_start(args, format);
  message_format(err, format, args);
  va_end(args);
  return code;
}

const char *error_text(const struct error *err, char *out, size_t out_bytes) {
  if (err->file[0] && err->line > 0)
    snprintf(out, out_bytes, "%s:%d:%d: %s", err->file, err->line, err->column, err->message);
  else if (err->file[0])
    snprintf(out, out_bytes, "%s: %s", err->file, err->message);
  else
    snprintf(out, out_bytes, "%s", err->message);
  return out;
}
