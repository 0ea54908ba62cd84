// One run of load: closed loop (a number of callers) or open loop (a rate), warm-up, measuring,
// draining. Loop thread only; returns when everything has ended. In steady state a call costs no
// allocation here.
#ifndef CLIENT_LOAD_H
#define CLIENT_LOAD_H

#include "client/net.h"
#include "client/payload.h"
#include "client/result.h"

struct load_progress {
  double fraction; // of the whole run, warm-up included
  bool warmup;
  int64_t n_done, n_failed;
  double seconds; // since the start
};

struct load_options {
  struct net *net;
  const struct payload_set *payloads; // cycled in order
  const struct call_method *method;
  int64_t timeout_ns; // each call's limit
  int callers;        // closed loop: concurrency; open loop: most calls in flight
  double rate_per_s;  // > 0: open loop
  bool poisson;
  int64_t warmup_ns, duration_ns, requests; // requests > 0 replaces the duration
  int64_t
      slice_calls; // > 0: A/B over variants 0 and 1 in slices of this many calls (closed loop only)
  uint64_t seed;
  void (*on_progress)(const struct load_progress *progress,
                      void *arg); // about 10 times a second; NULL: none
  void *arg;
  const volatile bool *interrupt; // set by a signal handler: stop sending, drain, report
};

// Fills `result` (free it in every case). UNAVAILABLE: every connection was lost for good; what was
// measured until then is in `result`.
MUST_USE enum status load_run(const struct load_options *options, struct result *result,
                              struct error *err);

#endif
