// Log lines to stderr, text or JSON lines, rate-limited per event word. Any thread; no lock, no
// allocation, and no waiting for a reader: a line that a full pipe cannot take is left out. Not for
// the per-request path at level info.
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/status.h"
#include <stdint.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };
enum log_format { LOG_TEXT, LOG_JSON };

void log_setup(enum log_level level, enum log_format format);
// `event` is a short stable word (model_loaded); the rest is a sentence.
void log_write(enum log_level level, const char *event, const char *format, ...) PRINTF_LIKE(3, 4);
// The same with members of their own in JSON lines, and ` key=value` behind the sentence in text.
struct log_field {
  const char *key, *text; // text NULL: a number
  int64_t number;
};
void log_fields(enum log_level level, const char *event, const struct log_field *fields,
                int n_fields, const char *format, ...) PRINTF_LIKE(5, 6);
bool log_wants(enum log_level level); // a line of that level would be written
#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)
#define log_info(...) log_write(LOG_INFO, __VA_ARGS__)
#define log_warn(...) log_write(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)

// Asserts are for our own bugs and stay in release builds. They never check input.
#define FW_ASSERT(cond) ((cond) ? (void)0 : assert_fail(#cond, __FILE__, __LINE__))
_Noreturn void assert_fail(const char *expression, const char *file, int line);

#endif
