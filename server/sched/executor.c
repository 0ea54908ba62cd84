// The thread around sched/core: rings in, rings out, sleep.
//
// Each loop has a pair of rings. The loop counts what it has submitted and not yet reaped, and
// never lets that pass the rings' capacity, so neither ring can be full when it is pushed to.
#include "sched/executor.h"
#include "audit/audit.h"
#include "base/log.h"
#include "base/ring.h"
#include "sched/core.h"
#include "sched/pace.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

// One loop's side. NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): keeps writers apart
struct port {
  struct ring submitted, done;
  _Alignas(64) int32_t outstanding; // loop thread only
  bool finished; // executor thread only: something was pushed to `done` since the last wake
};

struct job;
struct executor {
  struct port ports[LIMIT_LOOPS];
  struct executor_options options;
  struct core *core;
  struct wake wake;
  pthread_t thread;
  struct wake opened; // the opener waits here
  struct error *warm_error;
  struct job *_Atomic job; // NULL: none
  enum status warm_status; // before `warm`
  _Atomic int32_t queued;
  _Atomic uint64_t finished; // requests and jobs
  _Atomic int64_t oldest_ns; // core_oldest_ns
  uint64_t seen_finished;    // executor_stuck_ns
  int64_t seen_ns;
  _Atomic bool warm, stopping, cancels;
  bool stopped;
};

static void request_done(void *arg, struct request *request) {
  struct executor *executor = arg;
  struct port *port = &executor->ports[request->call.loop];
  bool pushed = ring_push(&port->done, request);
  FW_ASSERT(pushed); // see the file's head
  port->finished = true;
  atomic_fetch_add_explicit(&executor->finished, 1, memory_order_relaxed);
  atomic_fetch_sub_explicit(&executor->queued, 1, memory_order_relaxed);
}

static void wake_loops(struct executor *executor) {
  for (int i = 0; i < executor->options.n_loops; i++) {
    if (!executor->ports[i].finished) continue;
    executor->ports[i].finished = false;
    wake_signal(executor->options.loop_wakes[i]);
  }
}

static bool take_submitted(struct executor *executor) {
  bool any = false;
  for (int i = 0; i < executor->options.n_loops; i++) {
    struct request *request;
    while ((request = ring_pop(&executor->ports[i].submitted))) {
      core_add(executor->core, request);
      any = true;
    }
  }
  return any;
}

static enum status warm_all(struct executor *executor) {
  const struct executor_options *o = &executor->options;
  for (int i = 0; i < o->n_models; i++) {
    enum status status =
        core_admit(executor->core, NULL, o->models[i], (const struct model *const *)o->models, i,
                   executor->warm_error);
    if (status != STATUS_OK) return status;
  }
  return STATUS_OK;
}

// What the loading thread wants done here, between two steps.
struct job {
  bool (*run)(struct core *core, void *arg);
  void *arg;
  _Atomic bool done;
};

static void run_job(struct executor *executor) {
  struct job *job = atomic_load_explicit(&executor->job, memory_order_acquire);
  if (!job || !job->run(executor->core, job->arg)) return;
  atomic_fetch_add_explicit(&executor->finished, 1, memory_order_relaxed);
  atomic_store_explicit(&executor->job, NULL, memory_order_relaxed);
  atomic_store_explicit(&job->done, true, memory_order_release); // from here on it is not ours
  wake_signal(&executor->opened);
}

static void run_on_thread(void *arg, bool (*run)(struct core *core, void *run_arg), void *run_arg) {
  struct executor *executor = arg;
  struct job job = {.run = run, .arg = run_arg};
  atomic_store_explicit(&executor->job, &job, memory_order_release);
  wake_signal(&executor->wake);
  while (!atomic_load_explicit(&job.done, memory_order_acquire))
    wake_wait(&executor->opened, CLOCK_NEVER);
}

enum status executor_admit(struct executor *executor, const struct model *model,
                           const struct model *const *served, int n_served, struct error *err) {
  struct core_runner runner = {run_on_thread, executor};
  return core_admit(executor->core, &runner, model, served, n_served, err);
}

void executor_forget(struct executor *executor, const struct model *model) {
  struct core_runner runner = {run_on_thread, executor};
  core_forget(executor->core, &runner, model);
}

#define TIMER_SLACK_NS 1000 // Linux adds 50 us to each sleep unless told otherwise

// Until `until_ns`, or work comes. A result that is due any moment is not slept for: the thread
// only lets others have the core.
static void wait_until(struct executor *executor, int64_t now_ns, int64_t until_ns) {
  if (until_ns <= now_ns) return;
  if (until_ns - now_ns <= PACE_AWAKE_NS)
    sched_yield();
  else
    wake_wait(&executor->wake, until_ns);
}

static void *executor_main(void *arg) {
  struct executor *executor = arg;
  prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS);
  prctl(PR_SET_NAME, "executor");
  executor->warm_status = warm_all(executor);
  atomic_store(&executor->warm, true);
  wake_signal(&executor->opened);
  bool told = executor->options.on_lost == NULL;
  for (;;) {
    // The flag is read before the rings are emptied: what was submitted before the stop is seen
    // below.
    bool stopping = atomic_load(&executor->stopping);
    if (stopping) core_hurry(executor->core);
    take_submitted(executor);
    int64_t now_ns = clock_now_ns();
    if (atomic_exchange_explicit(&executor->cancels, false, memory_order_acquire))
      core_sweep(executor->core, now_ns);
    int64_t until_ns = core_step(executor->core, now_ns);
    atomic_store_explicit(&executor->oldest_ns, core_oldest_ns(executor->core),
                          memory_order_relaxed);
    wake_loops(executor);
    run_job(executor);
    if (!told && core_lost(executor->core)) {
      told = true;
      executor->options.on_lost(executor->options.lost_arg);
    }
    if (stopping && core_idle(executor->core)) return NULL;
    wait_until(executor, now_ns, until_ns);
  }
}

static void ports_close(struct executor *executor) {
  for (int i = 0; i < executor->options.n_loops; i++) {
    ring_deinit(&executor->ports[i].submitted);
    ring_deinit(&executor->ports[i].done);
  }
}

static enum status ports_open(struct executor *executor, struct error *err) {
  uint32_t capacity = (uint32_t)executor->options.queue_requests;
  for (int i = 0; i < executor->options.n_loops; i++) {
    struct port *port = &executor->ports[i];
    if (ring_init(&port->submitted, capacity) != STATUS_OK ||
        ring_init(&port->done, capacity) != STATUS_OK)
      return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for a queue of %u requests",
                       capacity);
  }
  return STATUS_OK;
}

static enum status core_of(struct executor *executor, struct error *err) {
  const struct executor_options *o = &executor->options;
  struct core_options options = {.backend = o->backend,
                                 .device = o->device,
                                 .device_index = o->device_index,
                                 .lanes = o->lanes,
                                 .arena_bytes = o->arena_bytes,
                                 .max_tokens = o->max_tokens,
                                 .max_seqs = o->max_seqs,
                                 .audit = o->audit,
                                 .finish = request_done,
                                 .arg = executor};
  return core_open(&options, &executor->core, err);
}

// Signals are for the main thread: the new one inherits a mask that blocks all of them.
static int thread_start(struct executor *executor) {
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &old);
  int failed = pthread_create(&executor->thread, NULL, executor_main, executor);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  return failed;
}

enum status executor_open(const struct executor_options *options, struct executor **out,
                          struct error *err) {
  FW_ASSERT(options->n_loops > 0 && options->n_loops <= LIMIT_LOOPS && options->queue_requests > 0);
  struct executor *executor = aligned_alloc(64, (sizeof *executor + 63) / 64 * 64);
  if (!executor) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for an executor");
  *executor = (struct executor){.options = *options};
  executor->warm_error = err;
  wake_init(&executor->wake, NULL, NULL);
  wake_init(&executor->opened, NULL, NULL);
  enum status status = ports_open(executor, err);
  if (status == STATUS_OK) status = core_of(executor, err);
  if (status == STATUS_OK && thread_start(executor) != 0)
    status = error_set(err, STATUS_RESOURCE_EXHAUSTED, "cannot start the executor's thread");
  if (status == STATUS_OK) {
    while (!atomic_load(&executor->warm))
      wake_wait(&executor->opened, CLOCK_NEVER);
    status = executor->warm_status;
    if (status != STATUS_OK) executor_stop(executor);
  }
  if (status != STATUS_OK) {
    core_close(executor->core);
    ports_close(executor);
    free(executor);
    return status;
  }
  if (options->audit) atomic_store(&options->audit->exchange.executor, &executor->wake);
  *out = executor;
  return STATUS_OK;
}

static const struct service *service_of(const struct executor *executor,
                                        const struct request *request) {
  return &request->model->service[executor->options.device_index][request->fusion];
}

bool executor_forecast(const struct executor *executor, const struct request *request,
                       struct forecast *out) {
  return load_forecast(core_load(executor->core), service_of(executor, request), request,
                       request->t_ns[STAGE_ADMITTED], out);
}

struct load *executor_load(struct executor *executor) {
  return core_load(executor->core);
}

int64_t executor_wait_ns(const struct executor *executor) {
  return load_wait_ns(core_load(executor->core), clock_now_ns());
}

bool executor_submit(struct executor *executor, int loop, struct request *request) {
  struct port *port = &executor->ports[loop];
  if (port->outstanding >= executor->options.queue_requests || atomic_load(&executor->stopping))
    return false;
  request->call.loop = (uint16_t)loop;
  load_enter(core_load(executor->core), request, service_of(executor, request));
  atomic_fetch_add_explicit(&executor->queued, 1, memory_order_relaxed);
  bool pushed = ring_push(&port->submitted, request);
  FW_ASSERT(pushed);
  port->outstanding++;
  wake_signal(&executor->wake);
  return true;
}

struct request *executor_reap(struct executor *executor, int loop) {
  struct request *request = ring_pop(&executor->ports[loop].done);
  if (request) executor->ports[loop].outstanding--;
  return request;
}

int32_t executor_outstanding(const struct executor *executor, int loop) {
  return executor->ports[loop].outstanding;
}

void executor_note_cancel(struct executor *executor) {
  atomic_store_explicit(&executor->cancels, true, memory_order_release);
  wake_signal(&executor->wake);
}

int32_t executor_queued(const struct executor *executor) {
  return atomic_load_explicit(&executor->queued, memory_order_relaxed);
}

bool executor_lost(const struct executor *executor) {
  return core_lost(executor->core);
}

int64_t executor_stuck_ns(struct executor *executor, int64_t now_ns) {
  uint64_t finished = atomic_load_explicit(&executor->finished, memory_order_relaxed);
  bool busy = executor_queued(executor) > 0 ||
              atomic_load_explicit(&executor->job, memory_order_relaxed) != NULL;
  if (!busy || finished != executor->seen_finished || executor->seen_ns == 0) {
    executor->seen_finished = finished;
    executor->seen_ns = now_ns;
  }
  int64_t oldest_ns = atomic_load_explicit(&executor->oldest_ns, memory_order_relaxed);
  if (oldest_ns == 0 || oldest_ns > executor->seen_ns) oldest_ns = executor->seen_ns;
  return now_ns - oldest_ns;
}

bool executor_try_stop(struct executor *executor, int seconds) {
  struct timespec until = {0};
  if (executor->stopped) return true;
  atomic_store(&executor->stopping, true);
  wake_signal(&executor->wake);
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += seconds;
  executor->stopped = pthread_timedjoin_np(executor->thread, NULL, &until) == 0;
  return executor->stopped;
}

void executor_stop(struct executor *executor) {
  if (executor->stopped) return;
  atomic_store(&executor->stopping, true);
  wake_signal(&executor->wake);
  pthread_join(executor->thread, NULL);
  executor->stopped = true;
}

void executor_close(struct executor *executor) {
  if (!executor) return;
  executor_stop(executor);
  if (executor->options.audit) atomic_store(&executor->options.audit->exchange.executor, NULL);
  core_close(executor->core);
  ports_close(executor);
  free(executor);
}
