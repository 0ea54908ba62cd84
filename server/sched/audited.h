// The executor's part of the live audit (audit/audit.h): batches are announced and handed over,
// requests that want their bytes wait for the verdict, and copies of known size run while the
// device has nothing else to do. Without an audit (core_options.audit NULL) all of it does nothing.
// Executor thread.
#ifndef SCHED_AUDITED_H
#define SCHED_AUDITED_H

#include "sched/core_parts.h"

// A work's batch, before anything of it is given to the device; then its end.
void audited_begin(struct core *core, struct work *work);
void audited_done(struct core *core, struct work *work, const struct lane_times *times);
void audited_failed(struct core *core, struct work *work);
// The same for a batch of a model that is being loaded.
void audited_warm_begin(struct core *core, struct work *work, const struct model *model,
                        enum fusion_mode fusion, const struct warm_size *size);
// A request of `batch` (NULL: it was not announced) that is complete: true when it waits for its
// bytes, and comes back through core_finish later; else its outcome is in request->cost.
bool audited_keeps(struct core *core, struct request *request, const struct audit_batch *batch,
                   int64_t now_ns);
// Verdicts, requests that have waited for long enough, copies. Returns when to be called again.
int64_t audited_step(struct core *core, int64_t now_ns);
// No batch may start: a copy is due, or runs; only the latter.
bool audited_holds(const struct core *core, int64_t now_ns);
bool audited_copies(const struct core *core, int64_t now_ns);
void audited_sweep(struct core *core);      // cancelled ones wait no longer
bool audited_idle(const struct core *core); // nobody waits, and no copy runs
void audited_close(struct core *core);      // the audit is stopped, and nobody waits

#endif
