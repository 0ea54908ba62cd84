// One batch as the audit sees it: when it was on the device, what it was, what it was expected to
// move and what the counters say that it moved. Plain data; made by the executor, filled by the
// decoder, handed over by rings (audit/exchange.h).
#ifndef AUDIT_BATCH_H
#define AUDIT_BATCH_H

#include "model/model.h"

// What became of a batch. A request that asks for its bytes is told by these words.
enum audit_outcome {
  AUDIT_NONE,         // nothing of it ran on a device
  AUDIT_MEASURED,     // counted, by counters that were found right
  AUDIT_LATE,         // the samples did not come within audit.wait, or not before the deadline
  AUDIT_LOST,         // samples of its time were lost
  AUDIT_UNCALIBRATED, // the counters were not (yet, or again) found right
  AUDIT_SKIPPED,      // nobody looked: outside audit.window, or the decoder has used up audit.cpu
  AUDIT_REFUSED,      // there are no counters, they are refused, or somebody else has them
  AUDIT_OUTCOMES
};
const char *audit_outcome_name(enum audit_outcome outcome); // "measured" and so on

enum audit_kind {
  AUDIT_BATCH, // of requests
  AUDIT_WARM,  // of a model that is being loaded: known, not reported
  AUDIT_COPY,  // of known size: the calibration
};

struct audit_bytes {
  double read, write;
};
// What a batch was expected to move, with both bounds: all that can be found in the device's
// last-level cache is, and nothing is. `resident`: every step fits into that cache, so that the
// truth may lie anywhere between the bounds.
struct batch_bytes {
  struct audit_bytes expected, low, high;
  bool resident;
};

struct audit_target; // audit/target.h
struct audit_batch {
  // ---- the executor's ----
  enum audit_kind kind;
  int lane;
  bool wanted; // a request waits for the result
  bool failed; // it did not run, or not to its end: there is nothing to measure
  struct device_span span;
  struct model *model; // AUDIT_BATCH: counted; NULL: the executor has filled bytes.expected
  struct audit_target *target;
  enum fusion_mode fusion;
  uint8_t outputs;
  int32_t ran_tokens; // rows that the device computed, with those that fill up a bucket
  int64_t n_tokens, n_seqs, sum_sq;
  void *owner; // the executor's own use
  // ---- the decoder's ----
  enum audit_outcome outcome;
  struct batch_bytes bytes;
  double read_bytes, write_bytes; // measured
  double read_at;                 // AUDIT_COPY: sum of bytes read x ns from its beginning
  int64_t copied_ns;              // AUDIT_COPY: when the executor saw its end, by the host's clock
  int64_t shift_ns;               // by which span was moved, to the samples' clock
  int64_t shared_ns;              // of its time beside batches of other models and modes
  int64_t taken_ns;               // when it came to the decoder
  bool audited;
};

#endif
