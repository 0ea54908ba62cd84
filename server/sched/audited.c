#include "sched/audited.h"
#include "base/log.h"

// A reply must be on its way before its deadline, not at it.
#define DEADLINE_MARGIN_NS (2 * NS_PER_MS)
#define WARM_ROOM 256 // batches: those of models that are being loaded leave so much room

static struct audit_exchange *exchange_of(const struct core *core) {
  return core->options.audit ? &core->options.audit->exchange : NULL;
}

static enum audit_state state_of(const struct core *core) {
  return audit_state(core->options.audit);
}

// ---- batches ----
void audited_begin(struct core *core, struct work *work) {
  work->audit = NULL;
  if (!core->options.audit || state_of(core) == AUDIT_GONE) return;
  const struct model *model = work->queue->model;
  bool wanted = false;
  for (const struct request *request = work->first; request; request = request->next)
    wanted |= request->audit;
  struct audit_batch *batch = work->audit =
      exchange_begin(exchange_of(core), (int)(work - core->works), wanted);
  if (!batch) return;
  batch->model = work->queue->model;
  model_get(batch->model); // its plan is looked at until the verdict is back
  batch->fusion = work->queue->fusion;
  batch->target = model->audit[core->on.index][work->queue->fusion];
  batch->outputs = work->outputs;
  batch->n_tokens = work->n_tokens;
  batch->n_seqs = work->n_seqs;
  batch->sum_sq = work->sum_sq;
}

static void reap(struct core *core, int64_t now_ns);

void audited_warm_begin(struct core *core, struct work *work, const struct model *model,
                        enum fusion_mode fusion, const struct warm_size *size) {
  work->audit = NULL;
  if (!core->options.audit || state_of(core) == AUDIT_GONE) return;
  reap(core, 0);
  if (exchange_of(core)->n_free < WARM_ROOM) return;
  struct audit_batch *batch = work->audit =
      exchange_begin(exchange_of(core), (int)(work - core->works), false);
  if (!batch) return;
  // Without the model, which may never come to serve.
  int64_t sum_sq = (int64_t)size->n_tokens * size->n_tokens / size->n_seqs;
  struct traffic_total once =
      plan_traffic(model->plans[fusion], size->outputs, size->n_tokens, size->n_seqs, sum_sq);
  batch->kind = AUDIT_WARM;
  batch->n_tokens = size->n_tokens;
  batch->bytes.expected = (struct audit_bytes){once.read_bytes, once.write_bytes};
}

void audited_done(struct core *core, struct work *work, const struct lane_times *times) {
  struct audit_batch *batch = work->audit;
  work->audit = NULL;
  if (!batch) return;
  batch->span = times->span;
  batch->ran_tokens = times->ran_tokens > 0 ? times->ran_tokens : (int32_t)batch->n_tokens;
  exchange_end(exchange_of(core), batch);
}

void audited_failed(struct core *core, struct work *work) {
  struct audit_batch *batch = work->audit;
  work->audit = NULL;
  if (!batch) return;
  batch->failed = true;
  exchange_end(exchange_of(core), batch);
}

// ---- requests that wait ----
bool audited_keeps(struct core *core, struct request *request, const struct audit_batch *batch,
                   int64_t now_ns) {
  struct request_cost *cost = &request->cost;
  if (!request->audit) return false;
  if (cost->kernels == 0)
    cost->audit = AUDIT_NONE;
  else if (!core->options.audit || state_of(core) == AUDIT_GONE)
    cost->audit = AUDIT_REFUSED;
  else if (!batch)
    cost->audit = AUDIT_SKIPPED;
  else if (state_of(core) != AUDIT_CALIBRATED)
    cost->audit = AUDIT_UNCALIBRATED;
  else {
    int64_t until_ns = now_ns + core->options.audit->options.wait_ns;
    if (request->deadline_ns != CLOCK_NEVER && request->deadline_ns - DEADLINE_MARGIN_NS < until_ns)
      until_ns = request->deadline_ns - DEADLINE_MARGIN_NS;
    cost->audit = AUDIT_LATE;
    if (until_ns <= now_ns) return false;
    request->t_ns[STAGE_DONE] = now_ns; // what it waits for now is no time of the service
    request->audit_batch = batch;
    request->audit_until_ns = until_ns;
    request->next = core->audited.waiting;
    core->audited.waiting = request;
    return true;
  }
  return false;
}

// Those for which `which` says so leave the list and are answered.
static void release(struct core *core,
                    bool (*which)(const struct request *request, const void *arg), const void *arg,
                    enum status status, const char *text, const struct audit_batch *verdict) {
  struct request **at = &core->audited.waiting;
  while (*at) {
    struct request *request = *at;
    if (!which(request, arg)) {
      at = &request->next;
      continue;
    }
    *at = request->next;
    if (verdict) {
      request->cost.audit = verdict->outcome;
      request->cost.read_measured = verdict->read_bytes;
      request->cost.write_measured = verdict->write_bytes;
      request->cost.read_expected = verdict->bytes.expected.read;
      request->cost.write_expected = verdict->bytes.expected.write;
    }
    core_finish(core, request, status, text);
  }
}

static bool is_of(const struct request *request, const void *batch) {
  return request->audit_batch == batch;
}
static bool is_over(const struct request *request, const void *now_ns) {
  return request->audit_until_ns <= *(const int64_t *)now_ns;
}
static bool is_cancelled(const struct request *request, const void *arg) {
  (void)arg;
  return atomic_load_explicit(&request->cancelled, memory_order_relaxed);
}
static bool is_any(const struct request *request, const void *arg) {
  (void)request, (void)arg;
  return true;
}

void audited_sweep(struct core *core) {
  release(core, is_cancelled, NULL, STATUS_CANCELLED,
          "the client cancelled the request while its bytes were being counted", NULL);
}

// `now_ns` 0: nobody can be waiting.
static void reap(struct core *core, int64_t now_ns) {
  struct audit_exchange *exchange = exchange_of(core);
  struct audit_batch *batch;
  while ((batch = exchange_reap(exchange))) {
    if (batch->wanted) release(core, is_of, batch, STATUS_OK, "", batch);
    if (batch->model) model_put(batch->model);
    exchange_free(exchange, batch);
  }
  if (now_ns > 0) release(core, is_over, &now_ns, STATUS_OK, "", NULL);
}

// ---- copies of known size ----
static bool any_busy(const struct core *core) {
  for (int i = 0; i < core->n_works; i++)
    if (core->works[i].busy) return true;
  return false;
}

// The device has nothing to do for a while, then the copy, then again nothing for a while.
static int64_t copy_step(struct core *core, int64_t now_ns) {
  struct audit *audit = core->options.audit;
  struct audited *audited = &core->audited;
  const struct counter_ops *ops = audit->options.backend->counters;
  int64_t quiet_ns = exchange_quiet_ns(&audit->exchange);
  struct counter_copy copy;
  int state = atomic_load(&audit->exchange.copy_state);
  if (state == COPY_RUNS) {
    int done = ops->copy_poll(audit->source, &copy);
    if (done == 0) return now_ns + 1;
    exchange_copy_end(&audit->exchange, done > 0 ? &copy : NULL, now_ns);
    audited->quiet_until_ns = now_ns + quiet_ns;
    audited->idle_since_ns = 0;
    return audited->quiet_until_ns;
  }
  if (state == COPY_NONE || any_busy(core)) {
    audited->idle_since_ns = 0;
    return CLOCK_NEVER;
  }
  if (audited->idle_since_ns == 0) audited->idle_since_ns = now_ns;
  if (now_ns < audited->idle_since_ns + quiet_ns) return audited->idle_since_ns + quiet_ns;
  exchange_copy_begin(&audit->exchange);
  if (ops->copy_begin(audit->source, quiet_ns) == STATUS_OK) return now_ns + 1;
  exchange_copy_end(&audit->exchange, NULL, now_ns);
  return CLOCK_NEVER;
}

bool audited_copies(const struct core *core, int64_t now_ns) {
  if (!core->options.audit) return false;
  return atomic_load(&core->options.audit->exchange.copy_state) == COPY_RUNS ||
         now_ns < core->audited.quiet_until_ns;
}

bool audited_holds(const struct core *core, int64_t now_ns) {
  if (!core->options.audit) return false;
  bool wanted = atomic_load(&core->options.audit->exchange.copy_state) == COPY_WANTED;
  return (wanted && !core->hurry) || audited_copies(core, now_ns);
}

int64_t audited_step(struct core *core, int64_t now_ns) {
  int64_t next_ns = CLOCK_NEVER;
  if (!core->options.audit) return next_ns;
  reap(core, now_ns);
  if (core->hurry || core_lost(core)) release(core, is_any, NULL, STATUS_OK, "", NULL);
  for (const struct request *request = core->audited.waiting; request; request = request->next)
    if (request->audit_until_ns < next_ns) next_ns = request->audit_until_ns;
  if (now_ns < core->audited.quiet_until_ns && core->audited.quiet_until_ns < next_ns)
    next_ns = core->audited.quiet_until_ns;
  bool runs = atomic_load(&core->options.audit->exchange.copy_state) == COPY_RUNS;
  if (!runs && (core->hurry || core_lost(core) || state_of(core) == AUDIT_GONE)) return next_ns;
  int64_t copy_ns = copy_step(core, now_ns);
  return copy_ns < next_ns ? copy_ns : next_ns;
}

bool audited_idle(const struct core *core) {
  if (!core->options.audit) return true;
  return !core->audited.waiting &&
         atomic_load(&core->options.audit->exchange.copy_state) != COPY_RUNS;
}

void audited_close(struct core *core) {
  struct audit_batch *batch;
  if (!core->options.audit) return;
  reap(core, 0);
  // Nobody is there any more, or was yet, to look at these.
  while ((batch = exchange_pop(exchange_of(core))))
    if (batch->model) model_put(batch->model);
}
