#include "sched/core.h"
#include "base/log.h"
#include "sched/audited.h"
#include "sched/behind.h"
#include "sched/needs.h"

#include <stdio.h>
#include <stdlib.h>

static int64_t clock_real(void *arg) {
  (void)arg;
  return clock_now_ns();
}

static int64_t now(const struct core *core) {
  return core->options.now(core->options.arg);
}

enum status core_open(const struct core_options *options, struct core **out, struct error *err) {
  FW_ASSERT(options->lanes > 0 && options->max_tokens > 0 && options->max_seqs > 0);
  struct core *core = calloc(1, sizeof *core);
  if (!core) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for the scheduler");
  core->options = *options;
  if (!core->options.now) core->options.now = clock_real;
  const struct device_caps *caps = options->backend->caps(options->device);
  core->small_tokens = caps->small_tokens;
  core->on = (struct work_device){options->backend, options->device, options->device_index};
  int lanes = !caps->async ? 1 : options->lanes < LIMIT_LANES ? options->lanes : LIMIT_LANES;
  struct lane_sizes sizes = {options->arena_bytes, options->max_tokens, options->max_seqs};
  enum status status = STATUS_OK;
  for (int i = 0; i < lanes && status == STATUS_OK; i++) {
    status = work_open(&core->works[i], &core->on, &sizes, err);
    core->n_works += status == STATUS_OK;
  }
  if (status == STATUS_OK)
    *out = core;
  else
    core_close(core);
  return status;
}

void core_close(struct core *core) {
  if (!core) return;
  FW_ASSERT(core_idle(core));
  audited_close(core);
  for (int i = 0; i < core->n_works; i++)
    work_close(&core->works[i]);
  while (core->shadows.all) {
    struct shadow *shadow = core->shadows.all;
    core->shadows.all = shadow->next;
    shadow_close(shadow);
  }
  free(core);
}

// ---- endings ----
void core_finish(struct core *core, struct request *request, enum status status, const char *text) {
  request->status = status;
  if (status != STATUS_OK)
    snprintf(request->message_text, sizeof request->message_text, "%s", text);
  if (request->t_ns[STAGE_DONE] == 0) request->t_ns[STAGE_DONE] = now(core);
  request->next = NULL;
  load_leave(&core->load, request);
  core->n_moves++;
  core->options.finish(core->options.arg, request);
}

static enum status dead(const struct request *request, int64_t now_ns) {
  if (request->deadline_ns <= now_ns) return STATUS_DEADLINE_EXCEEDED;
  if (atomic_load_explicit(&request->cancelled, memory_order_relaxed)) return STATUS_CANCELLED;
  return STATUS_OK;
}

static void count_refused(const struct request *request, enum refused why) {
  struct model_metrics *metrics = request->model->metrics[request->fusion];
  if (metrics) atomic_fetch_add_explicit(&metrics->refused[why], 1, memory_order_relaxed);
}

struct service *core_service(const struct core *core, const struct queue *queue) {
  return &queue->model->service[core->on.index][queue->fusion];
}

// ---- leaving the queue without having run ----
struct leaving {
  struct core *core;
  const struct service *service;
  int64_t now_ns;
  int64_t from_ns;    // when the device could begin
  int64_t at_most_ns; // least_ns of the largest batch: who has more time left is on time
  int64_t done_ns;
};

static bool leave_dead(void *arg, struct request *request) {
  const struct leaving *leaving = arg;
  enum status status = dead(request, leaving->now_ns);
  if (status == STATUS_OK) return false;
  bool expired = status == STATUS_DEADLINE_EXCEEDED;
  if (expired) count_refused(request, REFUSED_EXPIRED);
  core_finish(leaving->core, request, status,
              expired ? "the deadline passed while the request was queued; it never ran"
                      : "the client cancelled the request while it was queued");
  return true;
}

static void leave_late(struct core *core, struct request *request) {
  count_refused(request, REFUSED_LATE);
  core_finish(
      core, request, STATUS_DEADLINE_EXCEEDED,
      "while the request was queued, the time until its deadline became too short to run it; it "
      "never ran");
}

// Dead, or to be late even if it ran next and alone.
static bool leave_hopeless(void *arg, struct request *request) {
  const struct leaving *leaving = arg;
  if (leave_dead(arg, request)) return true;
  if (request->deadline_ns >= leaving->from_ns + leaving->at_most_ns) return false;
  int64_t least_ns = service_least_ns(leaving->service, request->n_tokens, leaving->now_ns);
  if (least_ns == 0 || // nothing is known of its size
      request->deadline_ns >= leaving->from_ns + service_with_margin_ns(least_ns))
    return false;
  leave_late(leaving->core, request);
  return true;
}

static bool leave_before(void *arg, struct request *request) {
  const struct leaving *leaving = arg;
  if (request->deadline_ns >= leaving->done_ns) return false;
  leave_late(leaving->core, request);
  return true;
}

void core_lose(struct core *core, const char *what) {
  if (core_lost(core)) return;
  log_error("device_lost", "device %s: %s; its requests end UNAVAILABLE",
            core->options.backend->name, what);
  atomic_store(&core->lost, true);
}

static void fail_all(struct core *core, struct request *first, enum status status,
                     const char *text) {
  while (first) {
    struct request *next = first->next;
    core_finish(core, first, status, text);
    first = next;
  }
}

static const char lost_text[] = "the device was lost; this server is shutting down";

static void fail_waiting(struct core *core) {
  for (int32_t i = 0; i < core->queues.n_slots; i++) {
    struct queue *queue = &core->queues.slots[i];
    if (queue->n > 0)
      fail_all(core, queue_pop(queue, &core->queues, queue->n), STATUS_UNAVAILABLE, lost_text);
  }
}

// ---- adding ----
void core_add(struct core *core, struct request *request) {
  request->urgency_ns = batch_urgency(request->t_ns[STAGE_ADMITTED], request->deadline_ns);
  if (core_lost(core)) {
    core_finish(core, request, STATUS_UNAVAILABLE, lost_text);
  } else if (!queues_add(&core->queues, request)) {
    core_finish(core, request, STATUS_RESOURCE_EXHAUSTED,
                "requests of too many models are waiting at once");
  }
}

void core_sweep(struct core *core, int64_t now_ns) {
  struct leaving leaving = {.core = core, .now_ns = now_ns};
  for (int32_t i = 0; i < core->queues.n_slots; i++)
    if (core->queues.slots[i].n > 0)
      queue_sweep(&core->queues.slots[i], &core->queues, leave_dead, &leaving);
  audited_sweep(core);
}

// ---- running ----
void core_cost(struct request *request, const struct lane_times *times, int64_t batch_tokens) {
  struct request_cost *cost = &request->cost;
  const struct model *model = request->model;
  cost->queue_ns = request->t_ns[STAGE_BATCHED] - request->t_ns[STAGE_ADMITTED];
  cost->copy_in_ns = times->copy_in_ns;
  request->t_ns[STAGE_COMPUTE] = request->t_ns[STAGE_BATCHED] + times->copy_in_ns;
  cost->compute_ns = times->compute_ns;
  cost->copy_out_ns = times->copy_out_ns;
  if (!needs_steps(model, request->fusion, request->outputs)) return;
  struct traffic_total share =
      plan_traffic_share(model->plans[request->fusion], request->outputs, request->n_tokens,
                         request->n_seqs, request->sum_sq, batch_tokens);
  cost->kernels = share.kernels;
  cost->read_bytes = share.read_bytes;
  cost->write_bytes = share.write_bytes;
  struct traffic_total unfused = share;
  if (request->fusion != FUSION_OFF && model->plans[FUSION_OFF])
    unfused = plan_traffic_share(model->plans[FUSION_OFF], request->outputs, request->n_tokens,
                                 request->n_seqs, request->sum_sq, batch_tokens);
  cost->unfused_bytes = unfused.read_bytes + unfused.write_bytes;
}

// It ended earlier or later than expected, and so will what is behind it.
static void resume_others(struct core *core, const struct work *done) {
  int64_t by_ns = now(core) - done->until_ns;
  for (int i = 0; i < core->n_works; i++)
    if (core->works[i].busy && core->works[i].until_ns > done->until_ns)
      core->works[i].until_ns += by_ns;
}

static struct shadow *shadow_of(const struct core *core, const struct model *model) {
  return model->shadow.on[core->options.device_index];
}

static void work_finish(struct core *core, struct work *work, const struct lane_times *times) {
  struct queue *queue = work->queue;
  struct traffic_total total = {0};
  if (work_has_steps(work)) {
    service_learn(core_service(core, queue), work->n_tokens,
                  times->copy_in_ns + times->compute_ns + times->copy_out_ns,
                  work->close == CLOSE_FULL, now(core));
    total = plan_traffic(queue->model->plans[queue->fusion], work->outputs, work->n_tokens,
                         work->n_seqs, work->sum_sq);
  }
  work_count(work, times, &total);
  const struct audit_batch *batch = work->audit; // to be known by, no more
  audited_done(core, work, times);
  work->busy = false;
  resume_others(core, work);
  struct shadow *shadow = total.kernels > 0 ? shadow_of(core, queue->model) : NULL;
  for (struct request *request = work->first, *next; request; request = next) {
    next = request->next;
    core_cost(request, times, work->n_tokens);
    if (shadow && request->cost.kernels > 0)
      shadow_offer(&core->shadows, shadow, request, core->hurry, now(core));
    request->cost.batch_read_bytes = total.read_bytes;
    request->cost.batch_write_bytes = total.write_bytes;
    if (!audited_keeps(core, request, batch, now(core))) core_finish(core, request, STATUS_OK, "");
  }
  work->first = NULL;
}

static void work_fail(struct core *core, struct work *work, enum status status) {
  char text[160];
  snprintf(text, sizeof text, "device %s failed the batch: %s", core->options.backend->name,
           status_name(status));
  if (status == STATUS_UNAVAILABLE) core_lose(core, "a batch ended UNAVAILABLE");
  audited_failed(core, work);
  struct request *first = work->first;
  work->first = NULL;
  work->busy = false;
  fail_all(core, first, status, core_lost(core) ? lost_text : text);
}

// Asks a running batch whether it is done.
static void work_poll(struct core *core, struct work *work) {
  struct lane_times times = {0};
  int done = core->options.backend->poll(work->lane, &times);
  if (done == 0) return;
  if (done > 0)
    work_finish(core, work, &times);
  else
    work_fail(core, work, STATUS_UNAVAILABLE);
}

// All that runs as one: its tokens, the first and the last end. False: nothing runs.
static bool running(const struct core *core, struct pace_run *all, int64_t *last_ns) {
  *all = (struct pace_run){.expect_ns = CLOCK_NEVER, .began_ns = CLOCK_NEVER};
  *last_ns = 0;
  for (int i = 0; i < core->n_works; i++) {
    const struct pace_run *run = &core->works[i].run;
    if (!core->works[i].busy || core->works[i].shadow) continue;
    all->tokens += run->tokens;
    if (run->began_ns < all->began_ns) all->began_ns = run->began_ns;
    if (run->expect_ns < all->expect_ns) all->expect_ns = run->expect_ns;
    if (run->expect_ns > *last_ns) *last_ns = run->expect_ns;
  }
  return all->tokens > 0;
}

// When the device is free for a batch of `tokens`, at the earliest: beside what runs, or behind it.
static int64_t free_ns(const struct core *core, int64_t tokens, int64_t now_ns) {
  int64_t all_tokens = tokens, until_ns = now_ns;
  for (int i = 0; i < core->n_works; i++) {
    const struct work *work = &core->works[i];
    // Where there is another lane nobody waits for a shadow.
    if (!work->busy || (work->shadow && core->n_works > 1)) continue;
    all_tokens += work->run.tokens;
    if (work->until_ns > until_ns) until_ns = work->until_ns;
  }
  return all_tokens > core->small_tokens ? until_ns : now_ns;
}

// A batch that does not fit beside what runs begins in earnest when that has ended.
static struct pace_run expectation(const struct core *core, const struct work *work) {
  struct pace_run all;
  int64_t estimate_ns =
      service_estimate_ns(core_service(core, work->queue), work->n_tokens, now(core));
  int64_t from_ns = work->began_ns, last_ns;
  bool behind = running(core, &all, &last_ns) && all.tokens + work->n_tokens > core->small_tokens &&
                last_ns > from_ns;
  return (struct pace_run){work->began_ns, (behind ? last_ns : from_ns) + estimate_ns,
                           work->n_tokens};
}

// For those who ask what a newcomer has to wait for.
void core_publish_busy(struct core *core) {
  int64_t until_ns = free_ns(core, 1, 0);
  atomic_store_explicit(&core->load.busy_until_ns, until_ns, memory_order_relaxed);
}

static void work_start(struct core *core, struct work *work, struct queue *queue,
                       struct batch_choice choice) {
  work_take(work, queue, queue_pop(queue, &core->queues, choice.n), choice.close, now(core));
  for (struct request *request = work->first; request; request = request->next)
    load_leave(&core->load, request);
  work->run = expectation(core, work);
  work->until_ns = free_ns(core, work->n_tokens, work->began_ns) +
                   service_least_ns(core_service(core, queue), work->n_tokens, work->began_ns);
  work->busy = true;
  core_publish_busy(core);
  core->n_moves++;
  work->audit = NULL;
  if (work_has_steps(work)) audited_begin(core, work);
  enum status status = work_run(work);
  if (status != STATUS_OK) {
    work_fail(core, work, status);
  } else if (!work_has_steps(work)) {
    work_finish(core, work, &(struct lane_times){0});
  } else {
    work_poll(core, work); // a device that is not asynchronous is done already
  }
  core_publish_busy(core);
}

// ---- choosing ----
// A batch that is neither full nor pressed for time waits for the one that runs (sched/pace).
static struct batch_choice hold(const struct core *core, struct batch_choice choice,
                                int64_t now_ns) {
  struct pace_run all;
  int64_t last_ns;
  if (choice.n == 0 || choice.close == CLOSE_FULL || choice.close == CLOSE_DEADLINE) return choice;
  if (!running(core, &all, &last_ns)) return choice;
  int64_t start_ns = pace_start_ns(&all, choice.n_tokens, core->small_tokens);
  if (choice.latest_ns < start_ns) start_ns = choice.latest_ns;
  if (start_ns <= now_ns) return choice;
  return (struct batch_choice){.wait_until_ns = start_ns};
}

static int32_t snapshot(struct core *core, const struct queue *queue, int32_t max_requests) {
  int32_t n = 0;
  // One more than fits, so that the batcher knows whether the batch is full.
  for (const struct request *request = queue->first; request && n <= max_requests;
       request = request->next)
    core->items[n++] = (struct batch_item){request->n_tokens, request->n_seqs,
                                           request->t_ns[STAGE_ADMITTED], request->deadline_ns};
  return n;
}

static struct batch_rule rule_of(const struct queue *queue) {
  const struct model *model = queue->model;
  struct batch_rule rule = {.max_tokens = model->batch.max_tokens,
                            .max_requests = model->batch.max_requests,
                            .max_seqs = model->plans[queue->fusion]->limits.max_seqs,
                            .max_delay_ns = model->batch.max_delay_ns};
  if (rule.max_requests > LIMIT_BATCH_REQUESTS) rule.max_requests = LIMIT_BATCH_REQUESTS;
  return rule;
}

// Not one of its requests will be late, as far as is known: those that would be leave the queue.
static struct batch_choice choose_on_time(struct core *core, struct queue *queue,
                                          const struct batch_rule *rule, struct leaving *leaving) {
  for (;;) {
    if (queue->n == 0) return (struct batch_choice){.wait_until_ns = CLOCK_NEVER};
    int32_t n = snapshot(core, queue, rule->max_requests);
    struct batch_choice choice =
        batch_choose(core->items, n, rule, leaving->service, core->hurry, leaving->now_ns);
    choice = hold(core, choice, leaving->now_ns);
    if (choice.n == 0) return choice;
    leaving->done_ns =
        batch_on_time(core->items, &choice, leaving->service,
                      free_ns(core, choice.n_tokens, leaving->now_ns), leaving->now_ns);
    if (leaving->done_ns == 0) return choice;
    queue_sweep(queue, &core->queues, leave_before, leaving); // one at least
  }
}

// The queue's choice now. It is rid of cancelled, expired and hopeless requests first, so that they
// never count.
static struct batch_choice queue_choose(struct core *core, struct queue *queue, int64_t now_ns) {
  struct batch_rule rule = rule_of(queue);
  struct leaving leaving = {.core = core,
                            .service = core_service(core, queue),
                            .now_ns = now_ns,
                            .from_ns = free_ns(core, 1, now_ns)};
  leaving.at_most_ns =
      service_with_margin_ns(service_least_ns(leaving.service, rule.max_tokens, now_ns));
  queue_sweep(queue, &core->queues, leave_hopeless, &leaving);
  return choose_on_time(core, queue, &rule, &leaving);
}

// Among the queues that may run now, the one whose head is most urgent; *wait_ns: the nearest time
// that another may.
static struct queue *queue_pick(struct core *core, int64_t now_ns, struct batch_choice *best,
                                int64_t *wait_ns) {
  struct queue *picked = NULL;
  *wait_ns = CLOCK_NEVER;
  for (int32_t i = 0; i < core->queues.n_slots; i++) {
    struct queue *queue = &core->queues.slots[i];
    if (queue->n == 0) continue;
    struct batch_choice choice = queue_choose(core, queue, now_ns);
    if (queue->n == 0) continue;
    if (choice.n == 0) {
      if (choice.wait_until_ns < *wait_ns) *wait_ns = choice.wait_until_ns;
    } else if (!picked || queue->first->urgency_ns < picked->first->urgency_ns) {
      picked = queue;
      *best = choice;
    }
  }
  return picked;
}

static struct work *work_free(struct core *core) {
  for (int i = 0; i < core->n_works; i++)
    if (!core->works[i].busy) return &core->works[i];
  return NULL;
}

int64_t core_look_ns(const struct core *core, int64_t now_ns) {
  int64_t first_ns = CLOCK_NEVER;
  for (int i = 0; i < core->n_works; i++) {
    if (!core->works[i].busy) continue;
    int64_t at_ns = pace_look_ns(&core->works[i].run, now_ns);
    if (at_ns < first_ns) first_ns = at_ns;
  }
  return first_ns;
}

int64_t core_step(struct core *core, int64_t now_ns) {
  uint64_t moves = core->n_moves;
  for (int i = 0; i < core->n_works; i++)
    if (core->works[i].busy)
      (core->works[i].shadow ? behind_poll : work_poll)(core, &core->works[i]);
  core_publish_busy(core);
  int64_t audited_ns = audited_step(core, now_ns);
  struct work *work = audited_holds(core, now_ns) ? NULL : work_free(core);
  int64_t wait_ns = CLOCK_NEVER;
  if (core_lost(core)) {
    fail_waiting(core);
  } else if (work && core->queues.n_waiting > 0) {
    struct batch_choice choice;
    struct queue *queue = queue_pick(core, now_ns, &choice, &wait_ns);
    if (queue) {
      work_start(core, work, queue, choice);
      if (core_lost(core)) fail_waiting(core);
      if (core->queues.n_waiting > 0)
        wait_ns = now_ns; // one batch a step: newcomers are looked at in between
    }
  }
  int64_t at_ns = core_look_ns(core, now_ns);
  if (audited_ns < at_ns) at_ns = audited_ns;
  if (at_ns < wait_ns) wait_ns = at_ns;
  if (!shadow_pending(&core->shadows)) return wait_ns;
  return behind_step(core, core->n_moves != moves, now_ns, wait_ns);
}

void core_hurry(struct core *core) {
  core->hurry = true;
}

bool core_idle(const struct core *core) {
  bool any_busy = false;
  for (int i = 0; i < core->n_works; i++)
    any_busy |= core->works[i].busy;
  return core->queues.n_waiting == 0 && !any_busy && !shadow_pending(&core->shadows) &&
         audited_idle(core);
}

int64_t core_oldest_ns(const struct core *core) {
  int64_t oldest_ns = 0;
  for (int i = 0; i < core->n_works; i++) {
    const struct work *work = &core->works[i];
    if (work->busy && (oldest_ns == 0 || work->began_ns < oldest_ns)) oldest_ns = work->began_ns;
  }
  return oldest_ns;
}

bool core_lost(const struct core *core) {
  return atomic_load_explicit(&core->lost, memory_order_relaxed);
}

struct load *core_load(struct core *core) {
  return &core->load;
}
