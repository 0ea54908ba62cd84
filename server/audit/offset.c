#include "audit/offset.h"

#include <math.h>

#define DRIFT_MOST 1e-4               // timers of crystals; more is a mistake
#define DRIFT_LEAST_NS (5 * NS_PER_S) // between two copies that tell it

static double offset_at(const struct clock_offset *offset, int64_t device_ns) {
  return offset->ns + offset->drift * (double)(device_ns - offset->at_ns);
}

void offset_begin(struct clock_offset *offset) {
  offset->newest_ns = INT64_MIN;
}

void offset_sample(struct clock_offset *offset, int64_t ended_ns, int64_t now_ns) {
  if (ended_ns - now_ns > offset->newest_ns) offset->newest_ns = ended_ns - now_ns;
}

void offset_shift(const struct clock_offset *offset, struct audit_batch *batch) {
  struct device_span *span = &batch->span;
  int64_t by_ns = (int64_t)offset_at(offset, span->computed_ns);
  batch->shift_ns = by_ns;
  span->began_ns += by_ns, span->computes_ns += by_ns;
  span->computed_ns += by_ns, span->ended_ns += by_ns;
}

int64_t offset_find(struct clock_offset *offset, const struct audit_batch *copy) {
  int64_t device_ns = copy->span.computed_ns;
  if (offset->newest_ns == INT64_MIN) return 0;
  double found = (double)(offset->newest_ns - (device_ns - copy->copied_ns)),
         by = found - offset_at(offset, device_ns);
  if (fabs(by) <= (double)OFFSET_FOUND_NS / 2) return 0;
  offset->ns = found;
  offset->drift = 0;
  offset->at_ns = 0;
  return (int64_t)by;
}

double offset_seen(const struct audit_batch *copy) {
  double half_ns = 0.5 * (double)(copy->span.computed_ns - copy->span.computes_ns);
  return copy->read_bytes > 0 ? copy->read_at / copy->read_bytes - half_ns : 0;
}

void offset_learn(struct clock_offset *offset, const struct audit_batch *copy) {
  double ns = (double)copy->shift_ns + offset_seen(copy);
  int64_t device_ns = copy->span.computes_ns - copy->shift_ns, since_ns = device_ns - offset->at_ns;
  if (offset->at_ns > 0 && since_ns >= DRIFT_LEAST_NS) {
    offset->drift = (ns - offset->ns) / (double)since_ns;
    if (fabs(offset->drift) > DRIFT_MOST) offset->drift = 0;
  }
  offset->ns = ns;
  offset->at_ns = device_ns;
}
