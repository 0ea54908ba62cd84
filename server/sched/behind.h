// What the executor does when it has nothing to do: shadows, one piece at a time. A piece is the
// run of one shadow (one request's batch, of ab.shadow_tokens at most) or a slice of a comparison.
#ifndef SCHED_BEHIND_H
#define SCHED_BEHIND_H

#include "sched/core_parts.h"

// The batch that runs on `work` is a shadow: is it done?
void behind_poll(struct core *core, struct work *work);
// At the end of core_step, which would like to be called again at wait_ns; when to call it.
// `moved`: something was answered or begun in it. A piece is only begun when nothing waits, runs or
// was answered just now, so that answers leave first.
int64_t behind_step(struct core *core, bool moved, int64_t now_ns, int64_t wait_ns);

#endif
