// The program's one error vocabulary: the 17 gRPC status codes, from kernel launch to trailer.
//
// Every fallible function returns `enum status` and is marked MUST_USE. A function whose failure a
// person reads also fills a `struct error`. Any thread may call anything here; nothing allocates.
#ifndef BASE_STATUS_H
#define BASE_STATUS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#define MUST_USE __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt, first) __attribute__((format(printf, fmt, first)))

// Values are those of https://grpc.github.io/grpc/core/md_doc_statuscodes.html and go on the wire
// as they are.
enum status {
  STATUS_OK = 0,
  STATUS_CANCELLED = 1,
  STATUS_UNKNOWN = 2,
  STATUS_INVALID_ARGUMENT = 3,
  STATUS_DEADLINE_EXCEEDED = 4,
  STATUS_NOT_FOUND = 5,
  STATUS_ALREADY_EXISTS = 6,
  STATUS_PERMISSION_DENIED = 7,
  STATUS_RESOURCE_EXHAUSTED = 8,
  STATUS_FAILED_PRECONDITION = 9,
  STATUS_ABORTED = 10,
  STATUS_OUT_OF_RANGE = 11,
  STATUS_UNIMPLEMENTED = 12,
  STATUS_INTERNAL = 13,
  STATUS_UNAVAILABLE = 14,
  STATUS_DATA_LOSS = 15,
  STATUS_UNAUTHENTICATED = 16,
};
#define STATUS_COUNT 17

// "INVALID_ARGUMENT" and so on; "UNKNOWN" for a value outside the enum.
const char *status_name(enum status code);

#define ERROR_MESSAGE_BYTES 1024

// What a person reads. `file` may be empty (no source position); line and column count from 1.
struct error {
  enum status code;
  int line, column;
  char file[256];
  char message[ERROR_MESSAGE_BYTES];
};

// Fill `err` (may be NULL) and return `code`, so that `return error_set(err, STATUS_X, "...")`
// reads well. Over-long messages are cut at a UTF-8 boundary; control characters, and what is no
// UTF-8, become '?'.
enum status error_set(struct error *err, enum status code, const char *format, ...)
    PRINTF_LIKE(3, 4);
// The same with a source position. `file` is copied, and cut if it is longer than the field.
enum status error_set_at(struct error *err, enum status code, const char *file, int line,
                         int column, const char *format, ...) PRINTF_LIKE(6, 7);
// "file:line:column: message" (position left out when there is none) into `out`; returns `out`.
const char *error_text(const struct error *err, char *out, size_t out_bytes);

#endif
