// Spans as the body of an OTLP export: opentelemetry.proto.collector.trace.v1's
// ExportTraceServiceRequest, with the names of OpenTelemetry's semantic conventions for RPC. One
// thread.
#ifndef TRACE_OTLP_H
#define TRACE_OTLP_H

#include "obs/trace.h"

#define OTLP_BATCH 256 // spans of calls in one body; each has up to four more within it

struct otlp_options {
  const char *service, *version; // of the resource
  const char *address;           // server.address
  int port;                      // server.port; 0: none
};
struct otlp;
MUST_USE enum status otlp_open(const struct otlp_options *options, struct otlp **out,
                               struct error *err); // the texts are borrowed
void otlp_close(struct otlp *otlp);                // NULL is fine
// At most OTLP_BATCH since the last otlp_pack. `wall_ns`: what to add to CLOCK_MONOTONIC. Keeps
// nothing of the span but its texts that are static.
void otlp_add(struct otlp *otlp, const struct trace_span *span, int64_t wall_ns);
// The body of all that was added, which is forgotten then. Valid until the next otlp_add.
const uint8_t *otlp_pack(struct otlp *otlp, size_t *bytes);

// The collector's answer: how many spans it refused, and why. False: not such an answer.
bool otlp_answer(const uint8_t *body, size_t bytes, int64_t *rejected, char *text,
                 size_t text_bytes);

#endif
