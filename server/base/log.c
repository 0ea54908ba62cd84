// One write(2) per line, formatted on the stack. Rate limit: per event word, a burst of 20 lines
// and then 10 a second; what was suppressed is counted and said in the next line that passes.
#include "base/log.h"

#include "base/clock.h"
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LOG_LINE_BYTES 2048
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

// Control characters would let a request write fake lines into a text log.
static void make_printable(char *text) {
  for (; *text; text++)
    if ((unsigned char)*text < 0x20 || *text == 0x7f) *text = '?';
}

static void stamp(char *out, size_t bytes) {
  int64_t wall = clock_wall_ns();
  time_t seconds = (time_t)(wall / NS_PER_S);
  struct tm utc;
  gmtime_r(&seconds, &utc);
  size_t used = strftime(out, bytes, "%Y-%m-%dT%H:%M:%S", &utc);
  snprintf(out + used, bytes - used, ".%03dZ", (int)(wall % NS_PER_S / NS_PER_MS));
}

void log_write(enum log_level level, const char *event, const char *format, ...) {
  static const char *const names[] = {"debug", "info", "warn", "error"};
  int suppressed = 0;
  if ((int)level < atomic_load_explicit(&log_level, memory_order_relaxed) ||
      !rate_allows(event, &suppressed))
    return;
  char message[LOG_LINE_BYTES / 2], line[LOG_LINE_BYTES], when[40];
  va_list args;
  va_start(args, format);
  vsnprintf(message, sizeof message, format, args);
  va_end(args);
  stamp(when, sizeof when);
  size_t used;
  if (atomic_load_explicit(&log_format, memory_order_relaxed) == LOG_JSON) {
    used = (size_t)snprintf(line, sizeof line,
                            "{\"time\":\"%s\",\"level\":\"%s\",\"event\":\"%s\",\"message\":\"",
                            when, names[level], event);
    used += put_json_text(line + used, sizeof line - used - 40, message);
    used +=
        (size_t)snprintf(line + used, sizeof line - used, "\",\"suppressed\":%d}\n", suppressed);
  } else {
    make_printable(message);
    used =
        (size_t)snprintf(line, sizeof line, "%s %-5s %s: %s", when, names[level], event, message);
    if (suppressed > 0 && used < sizeof line)
      used +=
          (size_t)snprintf(line + used, sizeof line - used, " (%d lines suppressed)", suppressed);
    if (used > sizeof line - 2) used = sizeof line - 2;
    line[used++] = '\n';
  }
  ssize_t ignored = write(STDERR_FILENO, line, used);
  (void)ignored; // a closed stderr must not stop the daemon
}

void assert_fail(const char *expression, const char *file, int line) {
  fprintf(stderr, "%s:%d: assertion failed: %s\n", file, line, expression);
  abort();
}
