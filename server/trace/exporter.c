#include "trace/exporter.h"
#include "base/clock.h"
#include "base/log.h"
#include "obs/metrics.h"
#include "trace/otlp.h"
#include "trace/post.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

struct exporter {
  struct exporter_options options;
  struct trace *trace;
  struct wake wake;
  struct otlp *otlp;
  struct post *post;
  struct post_answer answer;
  pthread_t thread;
  bool started;
  _Atomic int64_t until_ns; // CLOCK_NEVER until the end is near
  unsigned jitter;
};

#define ATTEMPTS 5 // at one body
#define FIRST_PAUSE_MS 500
#define LONGEST_PAUSE_MS 30000 // also where the collector asks for more

static void add(_Atomic uint64_t *counter, int64_t n) {
  atomic_fetch_add_explicit(counter, (uint64_t)n, memory_order_relaxed);
}

static bool over(struct exporter *exporter) {
  return clock_now_ns() >= atomic_load(&exporter->until_ns);
}

static bool ending(struct exporter *exporter) {
  return atomic_load(&exporter->until_ns) != CLOCK_NEVER;
}

// What the collector asked for; else twice as long each time, and half of that left to chance, so
// that many daemons do not come back together.
static int64_t pause_ms(struct exporter *exporter, int attempt, int64_t asked_s) {
  if (asked_s > 0)
    return asked_s < LONGEST_PAUSE_MS / 1000 ? asked_s * 1000 : (int64_t)LONGEST_PAUSE_MS;
  int64_t half_ms = FIRST_PAUSE_MS << attempt >> 1;
  exporter->jitter = exporter->jitter * 1103515245u + 12345u;
  return half_ms + half_ms * (int64_t)(exporter->jitter >> 16 & 0xff) / 255;
}

static void pause_for(struct exporter *exporter, int64_t ms) {
  int64_t end_ns = clock_now_ns() + ms * NS_PER_MS;
  while (clock_now_ns() < end_ns && !ending(exporter))
    wake_wait(&exporter->wake, end_ns);
}

static void taken(struct exporter *exporter, int n) {
  struct post_answer *answer = &exporter->answer;
  int64_t rejected = 0;
  char text[160];
  if (answer->bytes > sizeof answer->body ||
      !otlp_answer(answer->body, answer->bytes, &rejected, text, sizeof text))
    log_warn("trace_export", "the collector took %d traces and answered what is no OTLP", n);
  if (rejected > 0) log_warn("trace_export", "the collector refused spans: %s", text);
  // It counts spans, we count calls: at least one of them, and no more than there were.
  int64_t lost = rejected <= 0 ? 0 : rejected < n ? rejected : n;
  add(&trace_metrics.exported, n - lost);
  add(&trace_metrics.failed, lost);
}

static void deliver(struct exporter *exporter, const uint8_t *body, size_t bytes, int n) {
  struct post_answer *answer = &exporter->answer;
  for (int attempt = 0; !over(exporter); attempt++) {
    bool last = attempt + 1 == ATTEMPTS || ending(exporter);
    post_send(exporter->post, body, bytes, &exporter->until_ns, answer);
    if (answer->result == POST_TAKEN) {
      taken(exporter, n);
      return;
    }
    if (answer->result == POST_REFUSED || last) break;
    log_debug("trace_export", "%s: %s; it is tried again", exporter->options.endpoint,
              answer->text);
    pause_for(exporter, pause_ms(exporter, attempt, answer->retry_after_s));
  }
  add(&trace_metrics.failed, n);
  log_warn("trace_export", "%d traces are lost: %s: %s", n, exporter->options.endpoint,
           answer->text);
}

// One body of what waits. False: there was not enough for a full one.
static bool export_some(struct exporter *exporter) {
  int64_t wall_ns = clock_wall_ns() - clock_now_ns();
  struct trace_span *span;
  int n = 0;
  while (n < OTLP_BATCH && (span = trace_next(exporter->trace))) {
    otlp_add(exporter->otlp, span, wall_ns);
    trace_give_back(exporter->trace, span);
    n++;
  }
  if (n == 0) return false;
  size_t bytes;
  const uint8_t *body = otlp_pack(exporter->otlp, &bytes);
  snprintf(exporter->answer.text, sizeof exporter->answer.text, "there was no time left");
  deliver(exporter, body, bytes, n);
  return n == OTLP_BATCH;
}

static void *exporter_main(void *arg) {
  struct exporter *exporter = arg;
  for (;;) {
    bool last = ending(exporter); // read before: what came before the end is exported
    while (export_some(exporter)) {
    }
    if (last) return NULL;
    if (!ending(exporter))
      wake_wait(&exporter->wake, clock_now_ns() + exporter->options.delay_ms * NS_PER_MS);
  }
}

enum status exporter_open(const struct exporter_options *options, struct exporter **out,
                          struct error *err) {
  struct exporter *exporter = calloc(1, sizeof *exporter);
  if (!exporter)
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for the export of traces");
  exporter->options = *options;
  exporter->jitter = (unsigned)clock_now_ns();
  atomic_init(&exporter->until_ns, CLOCK_NEVER);
  wake_init(&exporter->wake, NULL, NULL);
  struct trace_options trace = {options->n_loops, options->queue, options->sampling,
                                &exporter->wake};
  enum status status = trace_open(&trace, &exporter->trace, err);
  if (status == STATUS_OK)
    status = post_open(options->endpoint, options->ca, options->timeout_ms, &exporter->post, err);
  *out = exporter;
  if (status == STATUS_OK) return status;
  exporter_close(exporter);
  *out = NULL;
  return status;
}

struct trace *exporter_trace(struct exporter *exporter) {
  return exporter ? exporter->trace : NULL;
}

enum status exporter_start(struct exporter *exporter, int port, struct error *err) {
  if (!exporter) return STATUS_OK;
  const struct exporter_options *options = &exporter->options;
  struct otlp_options otlp = {options->service, FUSEWIRE_VERSION, options->address, port};
  enum status status = otlp_open(&otlp, &exporter->otlp, err);
  if (status != STATUS_OK) return status;
  sigset_t all, old; // signals are the main thread's
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &old);
  exporter->started = pthread_create(&exporter->thread, NULL, exporter_main, exporter) == 0;
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (exporter->started) return STATUS_OK;
  return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cannot start the thread that exports traces");
}

static void end_by(struct exporter *exporter, int64_t until_ns) {
  int64_t before = atomic_load(&exporter->until_ns);
  while (until_ns < before &&
         !atomic_compare_exchange_weak(&exporter->until_ns, &before, until_ns)) {
  }
  post_wake(exporter->post);
  wake_signal(&exporter->wake);
}

void exporter_abandon(struct exporter *exporter) {
  if (exporter) end_by(exporter, 0);
}

void exporter_flush(struct exporter *exporter, int64_t until_ns) {
  if (!exporter || !exporter->started) return;
  end_by(exporter, until_ns);
  pthread_join(exporter->thread, NULL);
  exporter->started = false;
}

void exporter_close(struct exporter *exporter) {
  if (!exporter) return;
  exporter_flush(exporter, 0);
  post_close(exporter->post);
  otlp_close(exporter->otlp);
  trace_close(exporter->trace);
  free(exporter);
}
