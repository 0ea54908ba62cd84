// What shadows of a model found (sched/shadow): how many ran, and how far the two plans' answers
// lie apart. Fixed at load, like all of obs/metrics.h, and as that kept while the process lives.
//
// Law, checked by tests: sampled = compared + failed + dropped + pending. No request is counted
// here, and no shadow there.
#ifndef OBS_SHADOW_H
#define OBS_SHADOW_H

#include "base/status.h"
#include "bounds.h"
#include "obs/series.h"
#include <stdatomic.h>
#include <stdint.h>

// Why a sampled request got no shadow.
enum shadow_drop {
  SHADOW_BUSY,  // every slot was taken
  SHADOW_SIZE,  // larger than a slot
  SHADOW_LATE,  // requests kept the device busy for too long
  SHADOW_DRAIN, // the server was ending
  SHADOW_LOST,  // the device was lost
  SHADOW_DROPS
};
const char *shadow_drop_name(enum shadow_drop drop); // "busy" and so on

#define SHADOW_EDGES 17 // of the histogram: 1e-8, 3e-8, 1e-7 and so on to 1
extern const double shadow_edges[SHADOW_EDGES];

struct shadow_output_metrics {
  char name[LIMIT_NAME_BYTES];
  _Atomic uint64_t compared, exceeded;
  _Atomic uint64_t buckets[SHADOW_EDGES + 1]; // of relative differences; [i]: up to edge i
  _Atomic double sum;                         // of relative differences
  _Atomic double max_relative, max_abs;
};

#define SHADOW_OUTPUTS (2 * LIMIT_MODEL_OUTPUTS) // as many again for models that replace others
struct shadow_metrics {
  struct series_labels labels;
  _Atomic uint64_t sampled, compared, failed, dropped[SHADOW_DROPS];
  _Atomic uint64_t copy_ns, compute_ns; // copying requests and answers; running shadows
  _Atomic int64_t pending, bytes;       // slots that are in use; memory of all slots
  struct shadow_output_metrics outputs[SHADOW_OUTPUTS];
  _Atomic int n_outputs;
};

// Control thread. Those of that model, version and device, made when there are none. NULL: no
// memory, or too many.
struct shadow_metrics *metrics_shadow_add(const char *model, const char *version,
                                          const char *device);
// NULL: the model had SHADOW_OUTPUTS others.
struct shadow_output_metrics *metrics_shadow_output(struct shadow_metrics *metrics,
                                                    const char *name);
// One output was compared: its relative L2 difference (infinite: not comparable), the largest
// absolute one.
void metrics_shadow_record(struct shadow_output_metrics *output, double relative, double max_abs,
                           bool exceeded);

// In the order of their registration; NULL: no more. Any thread.
const struct shadow_metrics *metrics_shadow_at(int index);

#endif
