// The services: what each method of methods.def answers. Handlers run on loop threads (rpc/call.h);
// everything they share is here, set up by main.c before the first call or switched by an atomic.
#ifndef API_API_H
#define API_API_H

#include "base/ring.h"
#include "model/model.h"
#include "rpc/rpc.h"
#include "sched/executor.h"

// Health and admission follow this one word. Requests are served in SERVING and DRAINING: draining
// is told to clients by health and GOAWAY, and what they still send on open connections is not
// lost.
enum api_state { API_LOADING, API_SERVING, API_DRAINING, API_LOST };

struct api_options {
  struct registry *registry;
  int n_loops;
  int32_t requests_per_loop; // size of each loop's request pool
  int32_t stream_requests;   // at once on one ModelStreamInfer call; 0: as many as is usual
  bool model_control;        // RepositoryModelLoad and Unload are served
  int log_requests;          // enum infer_log
  struct wake *loader;       // signalled when a job was asked for; NULL: nobody does any
  struct wake *explainer;    // signalled when a model is to be explained; NULL: nobody explains
  const char *device_name;   // "NVIDIA H200, ..."; NULL: none to tell; outlives the api
  const char *fallback;      // why `auto` serves on the CPU; NULL or empty: it does not; as above
  bool rates_measured;       // the device's rates are no defaults: for Explain
  // For Audit; opened before anything is served; outlives the api. NULL: none.
  const struct audits *audits;
};

// A model that a client wants loaded or unloaded: from a loop to the thread that loads, and back.
struct api_job {
  bool load; // else unload
  char name[LIMIT_NAME_BYTES];
  struct call_ref call;
  enum status status;
  struct error err;
};
#define API_JOBS 16    // of one loop at once
#define API_EXPLAINS 8 // likewise

struct watcher;
struct api_loop {                    // what one loop thread owns
  struct ring asked, done;           // of struct api_job
  int n_jobs;                        // in either, or at work
  struct ring to_explain, explained; // of struct explain_job
  int n_explains;                    // as above
  struct watcher *watchers;          // health Watch calls
  uint32_t seen;                     // the epoch that they know of
  _Atomic uint32_t passed; // the last epoch at which the loop held nothing of the registry
};

struct api {
  _Atomic int state; // enum api_state
  // Grows with every change that a client may be waiting to hear of, and with every table of the
  // registry that is to be reclaimed.
  _Atomic uint32_t epoch;
  uint32_t pulse;                  // the epoch of the last api_pulse
  struct wake *wakes[LIMIT_LOOPS]; // api_connect
  struct api_loop loops[LIMIT_LOOPS];
  struct registry *registry;
  _Atomic bool stuck;
  struct executor *executors[LIMIT_DEVICES]; // set before state leaves LOADING
  int n_executors;
  struct request_pool *pools[LIMIT_LOOPS];
  int n_loops;
  int32_t stream_requests;
  bool model_control;
  struct wake *loader, *explainer;
  char device[16];                    // "cpu", "cuda": for replies
  const char *device_name, *fallback; // for metadata; never NULL
  const struct audits *audits;        // may be NULL
  bool rates_measured;
};

MUST_USE enum status api_open(struct api *api, const struct api_options *options,
                              struct error *err);
void api_close(struct api *api); // after net_close: every request is back in its pool
// The loops' wakes (net_loop_wake), so that changes reach them; before the loops run.
void api_connect(struct api *api, struct wake *const *wakes);
// Something that health tells has changed: Watch calls hear of it. Any thread.
void api_changed(struct api *api);
// False: a loop has not turned since the last call. Sends the loops another sign to answer. One
// thread.
bool api_pulse(struct api *api);
// Asks every loop to let go of what it may have read from the registry, and waits until all have:
// registry_reclaim may follow. False: `give_up` became true first. Not on a loop's thread.
bool api_quiesce(struct api *api, const _Atomic bool *give_up);
// The thread that loads: the next job, or NULL; and back with it, status and err set.
struct api_job *api_job_next(struct api *api);
void api_job_done(struct api *api, struct api_job *job);
// The thread that explains: the next call's document. False: nobody waits for one.
bool api_explain_next(struct api *api);
// The executors exist and every model is loaded: serve. Control thread, once.
void api_serve(struct api *api, struct executor *const *executors, int n_executors,
               const char *device);
void api_drain(struct api *api);             // health turns NOT_SERVING. Any thread.
void api_stuck(struct api *api, bool stuck); // a device hangs, or none does any more. Any thread.
// SERVING, and no device is lost or hangs. Any thread.
bool api_ready(const struct api *api);
// net_options.reap: answers the requests that the executors have finished for this loop.
void api_reap(struct rpc *rpc, int loop, void *app);
bool api_busy(int loop, void *app); // net_options.busy: executors have requests of this loop

// The table of methods, in the order of methods.def.
extern const struct method api_methods[];
extern const int api_n_methods;

#endif
