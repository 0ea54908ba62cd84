// Two rings a loop: records that have ended go to the exporter, empty ones come back.
#include "obs/trace.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/ring.h"
#include "bounds.h"
#include "obs/metrics.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

struct record {
  struct trace_span span; // first
  int loop;
};

struct trace_source {
  struct ring ended, empty;
  struct record *records;
  uint64_t random, threshold;
  bool always;
  uint32_t wake_at;
  struct wake *exporter;
};

struct trace {
  int n_loops, turn;
  struct trace_source sources[LIMIT_LOOPS];
};

static void count(_Atomic uint64_t *counter) {
  atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

// splitmix64: ids need to differ, not to be secret.
static uint64_t random_next(uint64_t *state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

static uint64_t random_id(uint64_t *state) {
  uint64_t id;
  do
    id = random_next(state);
  while (id == 0); // the one that means: none
  return id;
}

static enum status source_open(struct trace_source *source, const struct trace_options *options,
                               int loop) {
  uint32_t n = (uint32_t)options->queue;
  if (getrandom(&source->random, sizeof source->random, 0) != (ssize_t)sizeof source->random)
    source->random = (uint64_t)clock_wall_ns() + (uint64_t)loop;
  source->always = options->sampling >= 1.0;
  source->threshold = source->always ? 0 : (uint64_t)(options->sampling * 0x1p63) * 2;
  source->wake_at = n / 2 > 0 ? n / 2 : 1;
  source->exporter = options->exporter;
  source->records = calloc(n, sizeof *source->records);
  if (!source->records || ring_init(&source->ended, n) != STATUS_OK ||
      ring_init(&source->empty, n) != STATUS_OK)
    return STATUS_RESOURCE_EXHAUSTED;
  for (uint32_t i = 0; i < n; i++) {
    source->records[i].loop = loop;
    bool pushed = ring_push(&source->empty, &source->records[i]);
    FW_ASSERT(pushed);
  }
  return STATUS_OK;
}

enum status trace_open(const struct trace_options *options, struct trace **out, struct error *err) {
  FW_ASSERT(options->n_loops > 0 && options->n_loops <= LIMIT_LOOPS && options->queue > 0);
  struct trace *trace = calloc(1, sizeof *trace);
  enum status status = trace ? STATUS_OK : STATUS_RESOURCE_EXHAUSTED;
  if (trace) trace->n_loops = options->n_loops;
  for (int i = 0; i < options->n_loops && status == STATUS_OK; i++)
    status = source_open(&trace->sources[i], options, i);
  if (status == STATUS_OK) {
    *out = trace;
    return status;
  }
  trace_close(trace);
  return error_set(err, status, "out of memory for %d records of traces (trace.queue) a loop",
                   options->queue);
}

void trace_close(struct trace *trace) {
  if (!trace) return;
  for (int i = 0; i < trace->n_loops; i++) {
    ring_deinit(&trace->sources[i].ended);
    ring_deinit(&trace->sources[i].empty);
    free(trace->sources[i].records);
  }
  free(trace);
}

struct trace_source *trace_source_of(struct trace *trace, int loop) {
  return trace ? &trace->sources[loop] : NULL;
}

// ---- loop thread ----
static struct trace_span *take(struct trace_source *source) {
  struct record *record = ring_pop(&source->empty);
  if (!record) {
    count(&trace_metrics.dropped);
    return NULL;
  }
  struct trace_span *span = &record->span;
  memset(span, 0, offsetof(struct trace_span, text));
  span->text[0] = span->model[0] = span->version[0] = span->request_id[0] = span->state[0] = 0;
  uint64_t id = random_id(&source->random);
  memcpy(span->id, &id, sizeof id);
  return span;
}

static int digit_of(char c) {
  return c <= '9' ? c - '0' : c - 'a' + 10;
}

static void hex_read(const char *hex, uint8_t *out, int bytes) {
  for (int i = 0; i < bytes; i++)
    out[i] = (uint8_t)(digit_of(hex[2 * i]) << 4 | digit_of(hex[2 * i + 1]));
}

// "00-" trace "-" parent "-" flags.
enum { TRACE_AT = 3, PARENT_AT = 36, FLAGS_AT = 53, FLAG_SAMPLED = 1 };

struct trace_span *trace_begin(struct trace_source *source, const char *traceparent,
                               int64_t now_ns) {
  uint64_t halves[2] = {0, 0};
  if (traceparent[0]) {
    if (!(digit_of(traceparent[FLAGS_AT + 1]) & FLAG_SAMPLED)) return NULL;
  } else {
    halves[0] = random_id(&source->random);
    halves[1] = random_id(&source->random);
    if (!source->always && halves[1] >= source->threshold) return NULL;
  }
  struct trace_span *span = take(source);
  if (!span) return NULL;
  memcpy(span->trace_id, halves, sizeof halves);
  if (traceparent[0]) {
    hex_read(traceparent + TRACE_AT, span->trace_id, sizeof span->trace_id);
    hex_read(traceparent + PARENT_AT, span->parent, sizeof span->parent);
    span->has_parent = true;
  }
  span->is_call = true;
  span->began_ns = now_ns;
  return span;
}

struct trace_span *trace_child(struct trace_source *source, const struct trace_span *parent) {
  struct trace_span *span = take(source);
  if (!span) return NULL;
  memcpy(span->trace_id, parent->trace_id, sizeof span->trace_id);
  memcpy(span->parent, parent->id, sizeof span->parent);
  span->has_parent = true;
  span->method = parent->method;
  trace_put_text(span->state, sizeof span->state, parent->state, strlen(parent->state));
  return span;
}

void trace_end(struct trace_source *source, struct trace_span *span, int64_t now_ns) {
  span->ended_ns = now_ns;
  bool pushed = ring_push(&source->ended, span);
  FW_ASSERT(pushed); // as many places as there are records
  if (ring_size(&source->ended) == source->wake_at) wake_signal(source->exporter);
}

void trace_put_text(char *out, size_t out_bytes, const char *text, size_t bytes) {
  if (bytes >= out_bytes) bytes = out_bytes - 1;
  memcpy(out, text, bytes);
  out[bytes] = 0;
}

// ---- the thread that exports ----
struct trace_span *trace_next(struct trace *trace) {
  for (int i = 0; i < trace->n_loops; i++) {
    struct trace_span *span = ring_pop(&trace->sources[trace->turn].ended);
    trace->turn = (trace->turn + 1) % trace->n_loops;
    if (span) return span;
  }
  return NULL;
}

void trace_give_back(struct trace *trace, struct trace_span *span) {
  struct record *record = (struct record *)span;
  bool pushed = ring_push(&trace->sources[record->loop].empty, record);
  FW_ASSERT(pushed);
}
