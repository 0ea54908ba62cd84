#include "backend/cuda/ledger.h"
#include "base/log.h"

#include <stdio.h>

const char *ledger_kind_name(enum ledger_kind kind) {
  static const char *const names[LEDGER_KINDS] = {"context",   "weights", "arenas",
                                                  "workspace", "graphs",  "headroom"};
  return kind < LEDGER_KINDS ? names[kind] : "unknown";
}

static int64_t held(const struct ledger *ledger, int kind) {
  return atomic_load_explicit(&ledger->held_bytes[kind], memory_order_relaxed);
}

void ledger_init(struct ledger *ledger, const char *device, int64_t total_bytes, int64_t free_bytes,
                 int64_t headroom_bytes) {
  FW_ASSERT(free_bytes >= 0 && free_bytes <= total_bytes && headroom_bytes >= 0);
  snprintf(ledger->device, sizeof ledger->device, "%s", device);
  ledger->total_bytes = total_bytes;
  for (int kind = 0; kind < LEDGER_KINDS; kind++)
    atomic_init(&ledger->held_bytes[kind], 0);
  ledger_note(ledger, LEDGER_CONTEXT, total_bytes - free_bytes);
  ledger_note(ledger, LEDGER_HEADROOM, headroom_bytes);
}

int64_t ledger_free_bytes(const struct ledger *ledger) {
  int64_t left = ledger->total_bytes;
  for (int kind = 0; kind < LEDGER_KINDS; kind++)
    left -= held(ledger, kind);
  return left;
}

enum status ledger_reserve(struct ledger *ledger, enum ledger_kind kind, int64_t bytes,
                           const char *name, struct error *err) {
  FW_ASSERT(bytes >= 0);
  char need[32], text[320];
  if (bytes <= ledger_free_bytes(ledger)) {
    ledger_note(ledger, kind, bytes);
    return STATUS_OK;
  }
  snprintf(need, sizeof need, "%.1f MiB", (double)bytes / (1 << 20));
  return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: no room on %s: needs %s (%s); %s", name,
                   ledger->device, need, ledger_kind_name(kind),
                   ledger_text(ledger, text, sizeof text));
}

void ledger_note(struct ledger *ledger, enum ledger_kind kind, int64_t bytes) {
  atomic_fetch_add_explicit(&ledger->held_bytes[kind], bytes, memory_order_relaxed);
}

void ledger_release(struct ledger *ledger, enum ledger_kind kind, int64_t bytes) {
  FW_ASSERT(bytes >= 0 && bytes <= held(ledger, (int)kind));
  ledger_note(ledger, kind, -bytes);
}

const char *ledger_text(const struct ledger *ledger, char *out, size_t out_bytes) {
  const double mib = 1 << 20;
  int used = snprintf(out, out_bytes, "%.1f MiB =", (double)ledger->total_bytes / mib);
  for (int kind = 0; kind < LEDGER_KINDS && (size_t)used < out_bytes; kind++)
    used += snprintf(out + used, out_bytes - (size_t)used, " %s %.1f +",
                     ledger_kind_name((enum ledger_kind)kind), (double)held(ledger, kind) / mib);
  if ((size_t)used < out_bytes)
    snprintf(out + used, out_bytes - (size_t)used, " free %.1f",
             (double)ledger_free_bytes(ledger) / mib);
  return out;
}
