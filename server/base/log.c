// One write(2) per line, formatted on the stack. Rate limit: per event word, a burst of 20 lines
// and then 10 a second; what was suppressed is counted and said in the next line that passes.
#include "base/log.h"

#include "base/clock.h"
#include "base/utf8.h"
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LOG_LINE_BYTES 2048 // less than PIPE_BUF: a pipe takes all of it or nothing
#define LOG_TAIL_BYTES 48   // kept for the count of suppressed lines and the end
#define RATE_SLOTS 64
#define RATE_BURST 20
#define RATE_PER_S 10

static _Atomic int log_level = LOG_INFO;
static _Atomic int log_format = LOG_TEXT;

// Token buckets by hash of the event word; two words that share a slot share its limit, which only
// makes it stricter.
static struct rate_slot {
  _Atomic int64_t window_s;
  _Atomic int count, suppressed;
} rate_slots[RATE_SLOTS];

void log_setup(enum log_level level, enum log_format format) {
  atomic_store(&log_level, (int)level);
  atomic_store(&log_format, (int)format);
}

static bool rate_allows(const char *event, int *suppressed) {
  uint32_t hash = 2166136261u;
  for (const char *p = event; *p; p++)
    hash = (hash ^ (unsigned char)*p) * 16777619u;
  struct rate_slot *slot = &rate_slots[hash % RATE_SLOTS];
  int64_t now_s = clock_now_ns() / NS_PER_S, before = atomic_load(&slot->window_s);
  if (now_s != before && atomic_compare_exchange_strong(&slot->window_s, &before, now_s)) {
    int64_t refill = (now_s - before) * RATE_PER_S;
    int count = atomic_load(&slot->count);
    atomic_store(&slot->count, refill >= count ? 0 : count - (int)refill);
  }
  if (atomic_fetch_add(&slot->count, 1) >= RATE_BURST) {
    atomic_fetch_sub(&slot->count, 1);
    atomic_fetch_add(&slot->suppressed, 1);
    return false;
  }
  *suppressed = atomic_exchange(&slot->suppressed, 0);
  return true;
}

static size_t put_json_text(char *out, size_t room, const char *text) {
  size_t used = 0;
  for (; *text && used + 7 < room; text++) {
    unsigned char c = (unsigned char)*text;
    if (c == '"' || c == '\\') {
      out[used++] = '\\';
      out[used++] = (char)c;
    } else if (c < 0x20) {
      used += (size_t)snprintf(out + used, room - used, "\\u%04x", c);
    } else {
      out[used++] = (char)c;
    }
  }
  out[used] = '\0';
  return used;
}

static void stamp(char *out, size_t bytes) {
  int64_t wall = clock_wall_ns();
  time_t seconds = (time_t)(wall / NS_PER_S);
  struct tm utc;
  gmtime_r(&seconds, &utc);
  size_t used = strftime(out, bytes, "%Y-%m-%dT%H:%M:%S", &utc);
  snprintf(out + used, bytes - used, ".%03dZ", (int)(wall % NS_PER_S / NS_PER_MS));
}

struct line {
  char text[LOG_LINE_BYTES];
  size_t used;
};

static void put(struct line *line, const char *format, ...) PRINTF_LIKE(2, 3);
static void put(struct line *line, const char *format, ...) {
  size_t room = sizeof line->text - LOG_TAIL_BYTES - line->used;
  va_list args;
  va_start(args, format);
  int n = vsnprintf(line->text + line->used, room, format, args);
  va_end(args);
  if (n > 0) line->used += (size_t)n < room ? (size_t)n : room - 1;
}

// A JSON string; cut where the line is full, so that the quotes still close.
static void put_json(struct line *line, const char *text) {
  size_t room = sizeof line->text - LOG_TAIL_BYTES - line->used;
  if (room < 3) return;
  line->text[line->used++] = '"';
  line->used += put_json_text(line->text + line->used, room - 2, text);
  line->text[line->used++] = '"';
}

static const char *const level_names[] = {"debug", "info", "warn", "error"};

static void json_line(struct line *line, enum log_level level, const char *event,
                      const struct log_field *fields, int n_fields, const char *message,
                      const char *when) {
  put(line, "{\"time\":\"%s\",\"level\":\"%s\",\"event\":\"%s\",\"message\":", when,
      level_names[level], event);
  put_json(line, message);
  for (int i = 0; i < n_fields; i++) {
    // A member that does not fit whole is left out whole.
    size_t text_bytes = fields[i].text ? 6 * strlen(fields[i].text) : 24;
    if (line->used + strlen(fields[i].key) + text_bytes + 8 > sizeof line->text - LOG_TAIL_BYTES)
      continue;
    put(line, ",\"%s\":", fields[i].key);
    if (fields[i].text)
      put_json(line, fields[i].text);
    else
      put(line, "%lld", (long long)fields[i].number);
  }
}

static void text_line(struct line *line, enum log_level level, const char *event,
                      const struct log_field *fields, int n_fields, const char *message,
                      const char *when) {
  put(line, "%s %-5s %s: %s", when, level_names[level], event, message);
  for (int i = 0; i < n_fields; i++)
    if (fields[i].text)
      put(line, " %s=%s", fields[i].key, fields[i].text);
    else
      put(line, " %s=%lld", fields[i].key, (long long)fields[i].number);
}

__attribute__((format(printf, 5, 0))) static void
write_line(enum log_level level, const char *event, const struct log_field *fields, int n_fields,
           const char *format, va_list args) {
  int suppressed = 0;
  if (!log_wants(level) || !rate_allows(event, &suppressed)) return;
  char message[LOG_LINE_BYTES / 2], when[40];
  struct line line = {.used = 0};
  vsnprintf(message, sizeof message, format, args);
  stamp(when, sizeof when);
  bool json = atomic_load_explicit(&log_format, memory_order_relaxed) == LOG_JSON;
  (json ? json_line : text_line)(&line, level, event, fields, n_fields, message, when);
  utf8_make_printable(line.text); // control characters would let a request write fake lines
  char *tail = line.text + line.used;
  int n = 0;
  if (json)
    n = snprintf(tail, LOG_TAIL_BYTES, ",\"suppressed\":%d}\n", suppressed);
  else if (suppressed > 0)
    n = snprintf(tail, LOG_TAIL_BYTES, " (%d lines suppressed)\n", suppressed);
  else
    n = snprintf(tail, LOG_TAIL_BYTES, "\n");
  struct pollfd to = {.fd = STDERR_FILENO, .events = POLLOUT};
  if (poll(&to, 1, 0) != 1 || !(to.revents & POLLOUT)) return; // nobody reads it: nobody waits
  ssize_t ignored = write(STDERR_FILENO, line.text, line.used + (size_t)n);
  (void)ignored; // a closed stderr must not stop the daemon
}

bool log_wants(enum log_level level) {
  return (int)level >= atomic_load_explicit(&log_level, memory_order_relaxed);
}

void log_write(enum log_level level, const char *event, const char *format, ...) {
  va_list args;
  va_start(args, format);
  write_line(level, event, NULL, 0, format, args);
  va_end(args);
}

void log_fields(enum log_level level, const char *event, const struct log_field *fields,
                int n_fields, const char *format, ...) {
  va_list args;
  va_start(args, format);
  write_line(level, event, fields, n_fields, format, args);
  va_end(args);
}

void assert_fail(const char *expression, const char *file, int line) {
  fprintf(stderr, "%s:%d: assertion failed: %s\n", file, line, expression);
  abort();
}
