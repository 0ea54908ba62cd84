// Traces to a collector: a thread of its own, so that whatever the collector does costs no call
// anything. Bodies that it cannot take now are offered again, with growing pauses; what waits too
// long or is refused is counted (fusewire_trace_failed_total).
#ifndef TRACE_EXPORTER_H
#define TRACE_EXPORTER_H

#include "obs/trace.h"

struct exporter_options {
  const char *endpoint, *ca, *service; // trace.*; borrowed, as all texts
  const char *address;                 // server.address of the spans
  int n_loops;
  int32_t queue;
  double sampling;
  int64_t delay_ms, timeout_ms;
};
struct exporter;
// The records only; exporter_start begins to export. INVALID_ARGUMENT: trace.endpoint is no URL.
MUST_USE enum status exporter_open(const struct exporter_options *options, struct exporter **out,
                                   struct error *err);
struct trace *exporter_trace(struct exporter *exporter); // NULL for NULL
// `port`: server.port of the spans. NULL is fine.
MUST_USE enum status exporter_start(struct exporter *exporter, int port, struct error *err);
// Exports what waits and ends the thread, by `until_ns` at the latest. One thread, once; NULL is
// fine.
void exporter_flush(struct exporter *exporter, int64_t until_ns);
void exporter_abandon(struct exporter *exporter); // what is under way ends now; any thread
void exporter_close(struct exporter *exporter);   // every loop has ended; NULL is fine

#endif
