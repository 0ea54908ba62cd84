// Counters and histograms of the whole process. Fixed at load: nothing is created on the request
// path; every series exists from the start at 0. Updates are relaxed atomics; /metrics reads
// snapshots.
//
// Conservation law, checked by tests: accepted = ok + failed + cancelled + in flight, per model.
#ifndef OBS_METRICS_H
#define OBS_METRICS_H

#include "base/hist.h"
#include "base/status.h"
#include "obs/series.h"
#include <stdatomic.h>

// Batches of one number of rows (of the batch dimension).
#define METRICS_BATCH_ROWS 1024 // the last entry also has every larger batch
struct batch_metrics {
  _Atomic uint64_t runs, copy_in_ns, compute_ns, copy_out_ns;
};

// What the last batches did, each a little less than the one after it: sums that fade, for ratios
// of two of them. Several executors may add: a sum may then miss one batch, which a mean survives.
#define METRICS_MEAN_BATCHES 64
struct metrics_mean {
  _Atomic double bytes, flops, ns;
};

// Why a request never ran.
enum refused {
  REFUSED_QUEUE,   // batch.queue_requests were there already
  REFUSED_BUSY,    // it could not be done by its deadline because of the work ahead of it
  REFUSED_SLOW,    // ... even if nothing was ahead of it
  REFUSED_LATE,    // while it waited it became clear that it would be late
  REFUSED_EXPIRED, // its deadline passed while it waited
  REFUSED_SIZE,    // more tokens than batch.max_tokens
  REFUSED_MEMORY,  // no room for its reply (limits.total_bytes)
  REFUSED_COUNT
};

// Per model and fusion mode.
struct model_metrics {
  struct series_labels labels;
  _Atomic uint64_t accepted;               // ModelInfer calls whose model was found
  _Atomic uint64_t finished[STATUS_COUNT]; // by status; [0] is ok
  _Atomic uint64_t refused[REFUSED_COUNT]; // by enum refused
  _Atomic int64_t in_flight;
  _Atomic uint64_t failed_ns, cancelled_ns; // of those that finished so, from their last byte on
  _Atomic int64_t last_ns;                  // when the last one was answered OK; 0: none yet
  _Atomic uint64_t batches, batch_requests, batch_tokens, rows;
  _Atomic uint64_t ran_tokens, graph_replays, fallback_kernels; // see struct lane_times
  _Atomic uint64_t batch_close[4];                              // enum batch_close
  _Atomic uint64_t read_bytes, write_bytes, unfused_bytes;      // estimates, of requests
  _Atomic uint64_t saved_bytes;                                 // unfused less read and written
  _Atomic uint64_t batch_bytes, batch_flops, batch_compute_ns;  // of whole batches
  struct metrics_mean recent;
  struct hist queue_ns, copy_in_ns, compute_ns, copy_out_ns, total_ns, batch_size_tokens;
  struct batch_metrics batch_rows[METRICS_BATCH_ROWS]; // [rows - 1]
};

// Per model and device: bytes that its loaded versions hold (two of them while one replaces the
// other). Device "host": what the program itself keeps of the weights, which back ends read in
// place.
struct memory_metrics {
  struct series_labels labels;
  _Atomic int64_t weights, arena;
  _Atomic int64_t shadows; // device "host" only: slots of obs/shadow.h
};

// Why a call of any method was not let in.
enum call_refused {
  CALL_REFUSED_HEADER_BYTES, // limits.header_bytes
  CALL_REFUSED_MESSAGE_BYTES,
  CALL_REFUSED_CONNECTION_BYTES,
  CALL_REFUSED_TOTAL_BYTES,
  CALL_REFUSED_REQUEST_TIMEOUT,
  CALL_REFUSED_CALLS, // no room for one more (REFUSED_STREAM)
  CALL_REFUSED_COUNT
};

struct rpc_metrics { // per process, updated by rpc/ and net/
  _Atomic uint64_t connections_accepted, connections_refused, connections_closed;
  _Atomic uint64_t calls_started, calls_finished[STATUS_COUNT], calls_reset;
  _Atomic uint64_t calls_refused[CALL_REFUSED_COUNT];
  _Atomic uint64_t bytes_in, bytes_out, goaways_sent;
};
extern struct rpc_metrics rpc_metrics;
static inline void metrics_call_refused(enum call_refused why) {
  atomic_fetch_add_explicit(&rpc_metrics.calls_refused[why], 1, memory_order_relaxed);
}

struct trace_metrics { // per process, updated by obs/trace and the exporter
  _Atomic uint64_t exported, failed, dropped;
};
extern struct trace_metrics trace_metrics;

// One batch: bytes through device memory (estimated), operations, time of computing.
void metrics_batch_work(struct model_metrics *metrics, double bytes, double flops, int64_t ns);

// Control thread. Registered metrics live as long as the process: a model that is loaded again, or
// in the place of another of the same name, version, mode and device, goes on with the same ones.
// NULL: no memory, or METRICS_MODELS are there.
struct model_metrics *metrics_model_add(const char *model, const char *version, const char *fusion,
                                        const char *device);
// The same for memory. NULL: no memory, or METRICS_MEMORIES are there.
struct memory_metrics *metrics_memory_add(const char *model, const char *version,
                                          const char *device);
// Gauges that are read when scraped (queue length, slab bytes, RSS); registered once by main.
void metrics_gauge_add(const char *name, const char *help, const char *labels,
                       double (*read)(void *arg), void *arg);
// A part of the text that another layer writes: called for every scrape, on its thread. Control
// thread; at most METRICS_WRITERS.
struct expo;
void metrics_writer_add(void (*write)(struct expo *expo));
// Prometheus text exposition 0.0.4; returns bytes needed (call again with more room when >
// out_bytes). Any thread.
size_t metrics_expose(char *out, size_t out_bytes, bool triton_names);

#endif
