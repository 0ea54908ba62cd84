// A model's metrics over all of its fusion modes: what ModelStatistics and Triton's metric names
// tell, from one place, so that they cannot differ. Any thread; snapshots.
#ifndef OBS_TOTALS_H
#define OBS_TOTALS_H

#include "obs/metrics.h"
#include "obs/registry.h"

struct model_totals {
  const struct model_metrics *first; // for the name and the version
  uint64_t accepted, finished[STATUS_COUNT];
  int64_t in_flight, last_ns;
  uint64_t rows, batches;
  uint64_t total_ns, failed_ns, cancelled_ns, queue_ns, copy_in_ns, compute_ns, copy_out_ns;
};

uint64_t totals_failed(const struct model_totals *totals); // neither OK nor cancelled

// One entry per model and version, in order of registration. Returns how many.
int totals_fill(struct model_totals out[METRICS_MODELS]);
// Of one model; zeros when it has no metrics.
void totals_of(const char *model, const char *version, struct model_totals *out);

struct batch_totals {
  uint64_t rows; // 0: the entry's size was never run
  uint64_t runs, copy_in_ns, compute_ns, copy_out_ns;
};
// The sizes of batches that were run, ascending. Returns how many.
int totals_batches(const char *model, const char *version,
                   struct batch_totals out[METRICS_BATCH_ROWS]);

#endif
