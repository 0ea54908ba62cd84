// The scheduler without its thread: queues, lanes, batches, one device. Whoever owns it calls
// core_step and hands the time in, so tests and the simulation run it on a clock of their own. Not
// thread safe, but for the two flags noted below.
//
// Every request that core_add took comes back through `finish` exactly once: run, failed, cancelled
// or expired.
#ifndef SCHED_CORE_H
#define SCHED_CORE_H

#include "sched/load.h"

struct core;
struct audit;
struct core_options {
  const struct backend_ops *backend;
  struct device *device;
  int device_index;                                   // into model.bound
  int lanes;                                          // a device that is not asynchronous gets one
  int64_t arena_bytes;                                // largest arena of all plans
  int32_t max_tokens, max_seqs;                       // largest batch of all models
  struct audit *audit;                                // of this device; NULL: none
  int64_t (*now)(void *arg);                          // the clock; NULL: clock_now_ns
  void (*finish)(void *arg, struct request *request); // status and cost are set
  void *arg;
};
MUST_USE enum status core_open(const struct core_options *options, struct core **out,
                               struct error *err);
void core_close(struct core *core); // nothing may be waiting or running

// ---- a model comes and goes. The thread that loads, while core_step may run on another: `run`
// hands it a piece of work for core_step's thread, which does it between two steps and as often as
// it returns false; `run` returns when it is done. NULL: there is no other thread yet. ----
struct core_runner {
  void (*run)(void *arg, bool (*job)(struct core *core, void *job_arg), void *job_arg);
  void *arg;
};
// Lanes for the model's batches (larger ones take the place of those that are too small: every
// model of `served` is prepared on them as well), what its plans need on each, and a first batch of
// every size that has code or a graph of its own, on each, so that no request pays for graphs,
// pages, caches and whatever a device does late; also the proof that the model runs at all.
MUST_USE enum status core_admit(struct core *core, const struct core_runner *runner,
                                const struct model *model, const struct model *const *served,
                                int n_served, struct error *err);
// Before the model is freed, when none of its requests is left: no queue remembers it afterwards.
void core_forget(struct core *core, const struct core_runner *runner, const struct model *model);

void core_add(struct core *core, struct request *request);
// Drops cancelled and expired requests that wait, wherever they stand in their queue.
void core_sweep(struct core *core, int64_t now_ns);
// Collects finished batches and starts what may start. Returns when it wants to be called again at
// the latest (even if nothing is added): a time that has passed means at once, CLOCK_NEVER that
// there is nothing to wait for; within PACE_AWAKE_NS, as soon as may be, without sleeping.
int64_t core_step(struct core *core, int64_t now_ns);
void core_hurry(struct core *core);              // from now on no batch waits for company
bool core_idle(const struct core *core);         // nothing waits, nothing runs
int64_t core_oldest_ns(const struct core *core); // when what runs longest began; 0: nothing runs
bool core_lost(const struct core *core); // the device is gone: everything fails UNAVAILABLE from
                                         // here on. Any thread.

// What waits, for load_enter and load_forecast. Any thread.
struct load *core_load(struct core *core);

// Time, bytes and kernels of one request into its cost, as the reply reports them. `times` are
// zeros when no device took part.
void core_cost(struct request *request, const struct lane_times *times, int64_t batch_tokens);

#endif
