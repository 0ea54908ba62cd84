#include "audit/audit.h"
#include "base/log.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>

#define COPY_INTERVALS 10 // that a copy of known size spans: its middle is known well then

const char *audit_mode_name(enum audit_mode mode) {
  static const char *const names[] = {"off", "sampled", "continuous"};
  return (unsigned)mode < sizeof names / sizeof *names ? names[mode] : "invalid";
}

enum audit_state audit_state(const struct audit *audit) {
  return (enum audit_state)atomic_load(&audit->exchange.state);
}

static int64_t thread_cpu_ns(void *arg) {
  struct timespec at;
  (void)arg;
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at) != 0) return 0;
  return at.tv_sec * NS_PER_S + at.tv_nsec;
}

static enum status take_counters(struct audit *audit, struct error *err) {
  const struct audit_options *o = &audit->options;
  struct counter_options options = {.interval_ns = o->interval_ns,
                                    .copy_ns = COPY_INTERVALS * o->interval_ns};
  if (!o->backend->counters)
    return error_set(err, STATUS_UNIMPLEMENTED, "no counters of a device of kind %s can be read",
                     o->backend->name);
  return o->backend->counters->open(o->device, &options, &audit->source, err);
}

enum status audit_open(const struct audit_options *options, struct audit **out, struct error *err) {
  struct error why;
  struct audit *audit = calloc(1, sizeof *audit);
  FW_ASSERT(options->mode != AUDIT_OFF && options->interval_ns > 0);
  if (!audit || exchange_open(&audit->exchange) != STATUS_OK) {
    audit_close(audit);
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for the audit of %s",
                     options->name);
  }
  audit->options = *options;
  audit->exchange.interval_ns = options->interval_ns;
  struct decoder_options decoder = {.counters = options->backend->counters,
                                    .device = options->name,
                                    .interval_ns = options->interval_ns,
                                    .sampled = options->mode == AUDIT_SAMPLED,
                                    .window_ns = options->window_ns,
                                    .period_ns = options->period_ns,
                                    .band = options->band,
                                    .cpu = options->cpu,
                                    .cpu_ns = thread_cpu_ns};
  enum status status = take_counters(audit, &why);
  decoder_init(&audit->decoder, &decoder, audit->source, &audit->exchange);
  if (status != STATUS_OK) decoder_refuse(&audit->decoder, why.message);
  *out = audit;
  return STATUS_OK;
}

static void *audit_main(void *arg) {
  struct audit *audit = arg;
  while (!atomic_load(&audit->stop)) {
    int64_t until_ns = decoder_step(&audit->decoder, clock_now_ns());
    wake_wait(&audit->exchange.wake, until_ns);
  }
  decoder_end(&audit->decoder);
  return NULL;
}

enum status audit_start(struct audit *audit, struct error *err) {
  sigset_t all, old;
  if (!audit->source) return STATUS_OK;
  sigfillset(&all); // signals are for the main thread
  pthread_sigmask(SIG_BLOCK, &all, &old);
  int failed = pthread_create(&audit->thread, NULL, audit_main, audit);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  audit->running = failed == 0;
  if (failed == 0) return STATUS_OK;
  return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cannot start the audit's thread");
}

void audit_stop(struct audit *audit) {
  if (!audit || !audit->running) return;
  atomic_store(&audit->stop, true);
  wake_signal(&audit->exchange.wake);
  pthread_join(audit->thread, NULL);
  audit->running = false;
}

void audit_close(struct audit *audit) {
  if (!audit) return;
  audit_stop(audit);
  if (audit->source) audit->options.backend->counters->close(audit->source);
  exchange_close(&audit->exchange);
  free(audit);
}
