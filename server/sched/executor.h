// One thread per device: takes requests off the loops' rings, forms batches (sched/batch, pure),
// runs them through the back end, hands the requests back. The device's only caller.
#ifndef SCHED_EXECUTOR_H
#define SCHED_EXECUTOR_H

#include "base/wake.h"
#include "sched/load.h"

struct executor;
struct executor_options {
  const struct backend_ops *backend;
  struct device *device;
  int device_index; // into model.bound
  int n_loops;
  struct wake *loop_wakes[LIMIT_LOOPS]; // signalled once per batch of completions
  int32_t queue_requests;               // ring capacity per loop
  int lanes;
  int64_t arena_bytes;          // largest arena of all models
  int32_t max_tokens, max_seqs; // largest batch of all models
  struct model *const
      *models; // [n_models], run once each before executor_open returns; may be none
  int n_models;
  struct audit *audit; // of this device, open until the executor is closed; NULL: none
  void (*on_lost)(
      void *arg); // once, on the executor's thread, when the device is gone; may be NULL
  void *lost_arg;
};
// Also fails when a model's first batch does.
MUST_USE enum status executor_open(const struct executor_options *options, struct executor **out,
                                   struct error *err);
// Loop thread `loop`. Moves the request; false (nothing moved): `queue_requests` of this loop wait,
// run or are done but not reaped, or the executor is stopping.
bool executor_submit(struct executor *executor, int loop, struct request *request);
// Whether it could be done by its deadline if it was submitted now (load_forecast); `out` is filled
// when not. Any thread.
bool executor_forecast(const struct executor *executor, const struct request *request,
                       struct forecast *out);
int64_t executor_wait_ns(const struct executor *executor); // of a newcomer, as expected; any thread
struct load *executor_load(struct executor *executor);     // for tests
// Loop thread `loop`: the next finished request (status set), or NULL.
struct request *executor_reap(struct executor *executor, int loop);
int32_t executor_outstanding(const struct executor *executor, int loop); // submitted, not reaped
// Any thread: some submitted request was cancelled; look for it soon, even while batches wait for
// company.
void executor_note_cancel(struct executor *executor);
// core_admit and core_forget, between the batches of a running executor. The thread that loads; the
// executor is not being stopped.
MUST_USE enum status executor_admit(struct executor *executor, const struct model *model,
                                    const struct model *const *served, int n_served,
                                    struct error *err);
void executor_forget(struct executor *executor, const struct model *model);
int32_t executor_queued(const struct executor *executor); // requests waiting or running; any thread
bool executor_lost(const struct executor *executor);      // the device is gone; any thread
// For how long it has had something to do and has finished nothing, or one batch has been running,
// as far as the last look tells. One thread.
int64_t executor_stuck_ns(struct executor *executor, int64_t now_ns);
// Finish what was submitted, then end the thread. Control thread; submit must not be called any
// more.
void executor_stop(struct executor *executor);
// As executor_stop, if that takes no longer than `seconds`. False: its thread runs on.
bool executor_try_stop(struct executor *executor, int seconds);
void executor_close(struct executor *executor);

#endif
