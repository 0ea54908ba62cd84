// The live audit of one device: counts what batches really move through its memory while they are
// served, beside what they were expected to (docs/TRAFFIC.md, "Live audit").
//
//   the device  samples its memory's counters by its own clock          backend/counters.h
//   executor    announces batches, hands them over with their times     exchange.h
//   decoder     a thread: shares samples out among batches               decoder.h, split.h
//   target      keeps sums by model, mode and size; the band's alarm    target.h
#ifndef AUDIT_AUDIT_H
#define AUDIT_AUDIT_H

#include "audit/decoder.h"
#include "audit/target.h"

#include <pthread.h>

enum audit_mode { AUDIT_OFF, AUDIT_SAMPLED, AUDIT_CONTINUOUS }; // audit.mode, as in keys.def
const char *audit_mode_name(enum audit_mode mode);

struct audit_options {
  enum audit_mode mode; // not AUDIT_OFF
  const struct backend_ops *backend;
  struct device *device;
  const char *name; // "cuda:0"; outlives the audit
  int64_t interval_ns, window_ns, period_ns, wait_ns;
  double band, cpu;
};

struct audit {
  struct audit_options options;
  struct audit_exchange exchange;
  struct counter_source *source; // NULL: there is none to be had
  struct decoder decoder;
  pthread_t thread;
  bool running;
  _Atomic bool stop;
};

// Those of all devices; none where audit.mode is off.
struct audits {
  struct audit *list[LIMIT_DEVICES];
  int n;
};

// Takes the device's counters. Without them, or where they are refused, says so once: the audit is
// there all the same, and every batch is AUDIT_REFUSED. RESOURCE_EXHAUSTED: no memory. The loading
// thread, before models are bound.
MUST_USE enum status audit_open(const struct audit_options *options, struct audit **out,
                                struct error *err);
MUST_USE enum status audit_start(struct audit *audit, struct error *err); // the decoder's thread
void audit_stop(struct audit *audit);  // ends it; every batch is given back. NULL: nothing
void audit_close(struct audit *audit); // the executor is closed. NULL: nothing
enum audit_state audit_state(const struct audit *audit); // any thread
// Their series into /metrics; once. They stay until nobody scrapes any more.
void audit_metrics(const struct audits *audits);

#endif
