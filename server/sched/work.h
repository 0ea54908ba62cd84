// One batch on one lane: what it is made of, and its way to the device. Executor thread.
#ifndef SCHED_WORK_H
#define SCHED_WORK_H

#include "sched/pace.h"
#include "sched/pack.h"
#include "sched/queue.h"

struct audit_batch;
struct work_device {
  const struct backend_ops *backend;
  struct device *device;
  int index; // into model.bound
};

struct work {
  const struct work_device *on;
  struct lane *lane;
  struct pack_arrays arrays;
  struct batch_geometry geometry;
  struct request *first; // linked by `next`
  struct queue *queue;   // they came from; its model and mode
  int64_t began_ns, n_tokens, n_seqs, sum_sq;
  int32_t n_requests;
  uint8_t outputs; // that any of them asks for
  enum batch_close close;
  struct pace_run run;
  int64_t until_ns;          // it will not end before, as far as is known
  struct audit_batch *audit; // announced to the audit; NULL: it is not
  bool busy;
  bool shadow; // busy with one: nobody waits for it (sched/behind)
};

MUST_USE enum status work_open(struct work *work, const struct work_device *on,
                               const struct lane_sizes *sizes, struct error *err);
void work_close(struct work *work);
// What the model's plan needs on this lane. The thread that loads; the lane may be busy.
MUST_USE enum status work_prepare(struct work *work, const struct model *model,
                                  enum fusion_mode fusion, struct error *err);
// The sizes of batches to be run before a plan serves, by index; n_tokens 0: pass over. False: no
// more.
bool work_warm_size(const struct work_device *on, const struct model *model,
                    enum fusion_mode fusion, int32_t index, struct warm_size *out);
// Runs one batch of zeros of that size, and waits. The work is not busy. `seqlens`: room for
// size->n_seqs. `times` is set when it is OK and there was anything to run.
MUST_USE enum status work_warm(struct work *work, const struct model *model,
                               enum fusion_mode fusion, const struct warm_size *size,
                               int32_t *seqlens, struct lane_times *times, struct error *err);
// Makes it the batch of `first` and what is linked to it: sums them up, and writes into each when
// and why it was batched.
void work_take(struct work *work, struct queue *queue, struct request *first,
               enum batch_close close, int64_t now_ns);
bool work_has_steps(const struct work *work); // false: nothing of it needs the device
// Copies in, run, copies out, all of it handed to the device. Without steps the replies are
// complete afterwards, else when backend->poll says so. After a failure nothing of it is on the
// device.
MUST_USE enum status work_run(struct work *work);
// It is done: into the model's metrics. `total`: its bytes and operations.
void work_count(const struct work *work, const struct lane_times *times,
                const struct traffic_total *total);

#endif
