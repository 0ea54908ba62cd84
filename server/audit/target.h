// What the audit keeps: for each model, fusion mode and device a row of sums by batch size, for as
// long as the process lives; and, as long as the model does, what its plan is expected to move.
#ifndef AUDIT_TARGET_H
#define AUDIT_TARGET_H

#include "audit/batch.h"
#include "base/clock.h"
#include "obs/series.h"

// Classes of batches by the tokens that they computed.
#define AUDIT_SIZES 6
extern const int32_t audit_size_most[AUDIT_SIZES]; // 16, 64, 256, 1024, 4096; 0: no limit
int audit_size_of(int64_t tokens);

// Edges of the histograms of measured / expected; one more class above the last.
#define AUDIT_RATIOS 15
extern const double audit_ratio_edges[AUDIT_RATIOS];

// Bytes are whole numbers here. One thread adds, any reads.
struct audit_sums {
  _Atomic uint64_t batches;
  _Atomic uint64_t shared; // of these, beside batches of others for more than a tenth of their time
  _Atomic uint64_t resident; // of these, whose steps each fit into the last-level cache
  _Atomic uint64_t read_measured, write_measured, read_expected, write_expected;
  _Atomic uint64_t read_low, read_high, write_low, write_high; // of the expected bytes
};

struct audit_hist { // of batches' measured / expected, those that were not shared
  _Atomic uint64_t counts[AUDIT_RATIOS + 1];
  _Atomic double sum; // one thread adds
};

// The band: sums of the batches since the last verdict, and the verdict. The adding thread's.
struct audit_verdict {
  double measured, low, high;
  bool out;
};
struct audit_band {
  struct audit_verdict read, write;
  int64_t since_ns;
  int64_t n;
};

struct audit_row {
  struct series_labels labels;
  struct audit_sums sizes[AUDIT_SIZES];
  struct audit_hist read_ratio, write_ratio;
  _Atomic uint64_t unmeasured[AUDIT_OUTCOMES]; // batches, by why there is no figure
  _Atomic bool read_out, write_out;            // of the band, now
  _Atomic uint64_t alarms;
  struct audit_band band;
};

// Rows live as long as the process: a model that is loaded again goes on with its own. The loading
// thread adds. NULL: no memory or room.
struct audit_row *audit_row_add(const char *model, const char *version, const char *fusion,
                                const char *device);
int audit_row_count(void); // any thread
struct audit_row *audit_row_at(int index);

// ---- one batch ----
// Into the sums; MEASURED only. Looks at the band when enough has come together: within
// 1 +- `band` of what is expected (of its bounds, where a batch lives in the cache), and logs when
// that changes.
void audit_row_measured(struct audit_row *row, const struct audit_batch *batch, double band,
                        int64_t now_ns);
void audit_row_unmeasured(struct audit_row *row, enum audit_outcome outcome);

// ---- a model's ----
#define AUDIT_ESTIMATES 256
struct audit_estimate { // of expected bytes, as shares of the compulsory ones
  int32_t tokens, length;
  uint8_t outputs;
  bool resident;
  double expected_read, expected_write, low_read, low_write, high_read, high_write;
};
struct audit_target {
  struct audit_row *row;
  struct audit_estimate estimates[AUDIT_ESTIMATES]; // the decoder's
  int32_t n_estimates, next;
};
// model->audit for all its modes on a device; before it serves. One block of memory each, which
// model_free frees.
MUST_USE enum status audit_targets_fill(struct model *model, int device_index, const char *device,
                                        struct error *err);
// batch->bytes. Takes milliseconds for a size that was not asked for before.
void audit_estimate(struct audit_batch *batch);

#endif
