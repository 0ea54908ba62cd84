// Whose bytes are a sample's? Samples and batches lie on one clock, the device's; each sample is
// shared out among the batches that computed in it. Pure.
//
//   samples   |  s0  |  s1  |  s2  |  s3  |        s0: batch A alone, and idle time before it
//   A            [------------]                    s1: A
//   B                         [-------]            s2: A and B by what each was expected to move in
//   it
//
// - A batch's part is in proportion to the bytes that it was expected to move in its part of the
//   sample's time (expected bytes a nanosecond, reads and writes apart), whether batches follow
//   each other in a sample or run side by side. A batch that has a sample to itself gets all of it.
// - Time of the sample in which nothing computed is charged first, at the rate of samples in which
//   nothing ran at all: other programs, the display, refresh. So the edges of a lonely batch do not
//   leak into the idle time beside it, and what others move is not laid at its door.
// - Bytes while batches only copied in or out are counted as copies, bytes of idle time as other.
#ifndef AUDIT_SPLIT_H
#define AUDIT_SPLIT_H

#include "audit/batch.h"

// More batches than this on their way from the executor to a verdict: later ones are not looked at.
#define AUDIT_BATCHES 4096

enum split_kind {
  SPLIT_COUNTED, // its bytes are known
  SPLIT_PASSED,  // nobody looked at them
  SPLIT_HOLE,    // there is no such sample: time of which samples were lost
};
struct split_sample {
  struct counter_sample at;
  enum split_kind kind;
  double weight; // of how many like it, it is the one that was looked at
};

struct split_totals { // bytes
  double batches, copies, other;
};

struct split {
  struct audit_batch *room[2 * AUDIT_BATCHES]; // room[first .. first + n): by span.began_ns
  int first, n;
  int64_t done_ns;              // all samples before this have been shared out
  double idle_read, idle_write; // bytes a nanosecond, while nothing runs
  bool idle_known;
  struct split_totals read, write;
};

// False: there are AUDIT_BATCHES already. A batch that comes after samples of its time were shared
// out is SKIPPED.
bool split_add(struct split *split, struct audit_batch *batch);
// What is known to lie in that time.
struct split_look {
  bool any;     // some batch, or its copies
  bool audited; // one of which the bytes are wanted
  bool wanted;  // by somebody who waits
  bool copy;    // of known size: a calibration
};
struct split_look split_look(const struct split *split, int64_t began_ns, int64_t ended_ns);
// The next sample in the order of time; every batch that overlaps it has been added.
void split_sample(struct split *split, const struct split_sample *sample);
// A batch all of whose samples have come, or NULL. Its measured bytes are set, its outcome is
// AUDIT_MEASURED, or why they are not to be believed. Remove it before the next sample.
struct audit_batch *split_take(struct split *split);
// A batch that came to the decoder before that time; NULL: none. For those whose samples never
// come.
struct audit_batch *split_drop(struct split *split, int64_t taken_before_ns);

#endif
