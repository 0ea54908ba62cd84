// Spans of calls, from the loops that serve to the thread that exports (server/trace). A fixed
// number of records for each loop: taken when a call begins, filled while it lives, handed over
// when it ends, given back when it is exported. With none left a call is simply not traced, and
// counted (fusewire_trace_dropped_total). Nothing here allocates or locks after trace_open.
#ifndef OBS_TRACE_H
#define OBS_TRACE_H

#include "base/status.h"
#include "base/wake.h"
#include <stdint.h>

#define TRACE_NAME_BYTES 96   // of a model, its version and a request's id; longer ones are cut
#define TRACE_TEXT_BYTES 160  // of an error's text
#define TRACE_STATE_BYTES 513 // of tracestate, which is kept whole or not at all
enum trace_stage { TRACE_QUEUE, TRACE_COPY_IN, TRACE_COMPUTE, TRACE_COPY_OUT, TRACE_STAGES };

// Times are CLOCK_MONOTONIC. Texts may be any bytes, cut anywhere: the exporter makes UTF-8 of
// them.
struct trace_span {
  uint8_t trace_id[16], id[8], parent[8];
  bool has_parent;
  bool is_call;       // false: a request of a stream, within its call
  const char *method; // "/package.Service/Method", static text; NULL: none that we know
  int64_t began_ns, ended_ns;
  enum status status;
  // Of an inference that was answered.
  bool ran;
  struct {
    int64_t from_ns, ns;
  } stages[TRACE_STAGES];
  int32_t batch_requests, batch_tokens, kernels;
  double read_bytes, write_bytes, unfused_bytes;
  const char *fusion, *close; // static text
  // From here on only the first byte of each is cleared.
  char text[TRACE_TEXT_BYTES];
  char model[TRACE_NAME_BYTES], version[TRACE_NAME_BYTES], request_id[TRACE_NAME_BYTES];
  char state[TRACE_STATE_BYTES]; // W3C tracestate of the parent's trace; "": none, or malformed
};

struct trace_options {
  int n_loops;
  int32_t queue;         // records of each loop
  double sampling;       // 0..1 of the traces that begin here
  struct wake *exporter; // signalled when half of a loop's records wait
};
struct trace;
struct trace_source; // of one loop
MUST_USE enum status trace_open(const struct trace_options *options, struct trace **out,
                                struct error *err);
void trace_close(struct trace *trace); // every loop has ended; NULL is fine
struct trace_source *trace_source_of(struct trace *trace, int loop); // NULL for NULL

// ---- loop thread ----
// A record for a call, or NULL: not sampled, or none left. `traceparent` (checked, "": none)
// decides where there is one; else the trace begins here, and chance decides.
struct trace_span *trace_begin(struct trace_source *source, const char *traceparent,
                               int64_t now_ns);
// For a part of that call, with its trace and state. NULL: none left.
struct trace_span *trace_child(struct trace_source *source, const struct trace_span *parent);
// Hands it over; it is not ours any more.
void trace_end(struct trace_source *source, struct trace_span *span, int64_t now_ns);
// Copies what fits, and a zero.
void trace_put_text(char *out, size_t out_bytes, const char *text, size_t bytes);

// ---- the thread that exports ----
struct trace_span *trace_next(struct trace *trace); // NULL: nothing waits
void trace_give_back(struct trace *trace, struct trace_span *span);

#endif
