// A device's own counters of what its memory moves, sampled by the device's clock while it works:
// backend_ops.counters, where a back end has such.
//
// What they say is not to be believed unseen: samples can be lost without a word, and whole
// sessions were seen to count twice. So a source also copies a known number of bytes on demand, and
// whoever reads it (server/audit) compares.
//
// Threads: open and close are the loading thread's, start, take and evaluate one other's,
// copy_begin and copy_poll the executor's.
#ifndef BACKEND_COUNTERS_H
#define BACKEND_COUNTERS_H

#include "base/status.h"
#include <stdint.h>

struct device;
struct counter_source;

// Bytes between two times of the device's clock (that of lane_times.span, or nearly: how much it is
// off is for the reader to find out by a copy of known size).
struct counter_sample {
  int64_t began_ns, ended_ns;
  double read_bytes, write_bytes;
};

struct counter_news { // of a take
  bool more;          // others wait already
  bool lost;          // the source knows itself that samples were lost; that it says nothing means
                      // nothing
};

struct counter_options {
  int64_t interval_ns; // between samples
  int64_t copy_ns;     // the shortest time that the copy of known size should take
};

// A copy of known size: what a calibration holds the counters against.
struct counter_copy {
  int64_t began_ns, ended_ns; // the device's clock
  double read_bytes, write_bytes;
};

struct counter_ops {
  // Takes the counters and what memory the copy needs. UNAVAILABLE or FAILED_PRECONDITION, with the
  // reason, where there are none, they are refused or somebody else has them.
  enum status (*open)(struct device *device, const struct counter_options *options,
                      struct counter_source **out, struct error *err);
  void (*close)(struct counter_source *source);
  // Samples from now on; those of before that were not taken are forgotten. May be called again.
  enum status (*start)(struct counter_source *source, struct error *err);
  // The next samples, oldest first, at most `most`, their times only; how many, -1: the counters
  // are gone. Cheap beside evaluate.
  int (*take)(struct counter_source *source, struct counter_sample *out, int most,
              struct counter_news *news, struct error *err);
  // The bytes of sample `index` of the last take. False: the counters are gone.
  bool (*evaluate)(struct counter_source *source, int index, struct counter_sample *out);
  // Starts the copy. The device has nothing else to do, and gets nothing until copy_poll has said
  // 1: done, out filled; 0: not yet; < 0: it failed.
  // Before it begins, the device's memory moves nothing for quiet_ns.
  enum status (*copy_begin)(struct counter_source *source, int64_t quiet_ns);
  int (*copy_poll)(struct counter_source *source, struct counter_copy *out);
};

#endif
