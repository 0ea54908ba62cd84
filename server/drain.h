// The way down, as far as clients see it: serve on for a while, then end every connection. Main
// thread.
#ifndef DRAIN_H
#define DRAIN_H

#include "net/net.h"
#include "trace/exporter.h"

#include <signal.h>

// Wakes the main thread out of sigwait: a model did not load, a device was lost, draining has
// ended.
#define SIGNAL_WAKE SIGUSR1

static inline bool drain_asked(int number) {
  return number == SIGTERM || number == SIGINT;
}

// Serves on, with health NOT_SERVING, so that load balancers look away before connections close.
// False: a second signal.
bool drain_delay(int64_t delay_ms, const sigset_t *signals);

struct drain {
  struct net *net;
  struct exporter *exporter; // NULL: none
  const sigset_t *signals;
  int64_t timeout_ms, flush_ms; // for calls, and of what is left of that for traces
  _Atomic bool done;
};
// Returns the number of calls that were cut off. A second signal ends the wait.
int drain_network(struct drain *drain);

#endif
