// How far the samples' clock is off the batches'. Both are timers of one card, and do not run
// alike: on an H200 samples fell behind the batches' times by 3 us a second. The host's clock,
// looked at as samples come and as a copy of known size ends, tells it to some milliseconds; where
// the middle of what was counted of the copy lies, to some microseconds; two copies, how fast they
// part.
//
// One thread: the decoder's.
#ifndef AUDIT_OFFSET_H
#define AUDIT_OFFSET_H

#include "audit/batch.h"
#include "base/clock.h"

#define OFFSET_FOUND_NS (8 * NS_PER_MS) // by the host's clock it is known within that
#define OFFSET_KNOWN_NS NS_PER_MS       // by copies within that, until the next one

struct clock_offset {
  double ns, drift;  // samples' time less batches' time at at_ns; and what it gains a ns
  int64_t at_ns;     // of the batches' clock; 0: no copy has told
  int64_t newest_ns; // the samples' clock less the host's, at least; INT64_MIN: no sample yet
};

// The counters begin (anew): what is known of the clocks stays, of the host's clock nothing is.
void offset_begin(struct clock_offset *offset);
// A sample that ended at ended_ns has come at now_ns of the host's clock.
void offset_sample(struct clock_offset *offset, int64_t ended_ns, int64_t now_ns);
// Moves the batch's span to the samples' clock; shift_ns says by how much.
void offset_shift(const struct clock_offset *offset, struct audit_batch *batch);
// Before a copy's span is moved: corrects what the host's clock shows to be wrong. By how many ns;
// 0: nothing was.
int64_t offset_find(struct clock_offset *offset, const struct audit_batch *copy);
// How much later than where its span was moved to the middle of what was counted of a copy lies.
double offset_seen(const struct audit_batch *copy);
// What that copy says is so.
void offset_learn(struct clock_offset *offset, const struct audit_batch *copy);

#endif
