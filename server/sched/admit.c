// A model comes to a core, or leaves it, while others are served: by the thread that loads, with
// small pieces of work for the thread that serves.
#include "base/log.h"
#include "sched/audited.h"

#include <stdlib.h>
#include <string.h>

static void run(const struct core_runner *runner, struct core *core,
                bool (*job)(struct core *core, void *arg), void *arg) {
  if (runner) {
    runner->run(runner->arg, job, arg);
    return;
  }
  bool done = job(core, arg);
  FW_ASSERT(done); // nothing runs that it could have to wait for
}

static bool runs(const struct model *model, int mode) {
  return model->fusion_available[mode] && model->plans[mode];
}

// ---- lanes ----
struct lanes {
  struct work works[LIMIT_LANES];
  int n, n_swapped;
};

static struct lane_sizes sizes_with(const struct core *core, const struct model *model) {
  struct lane_sizes sizes = {core->options.arena_bytes, core->options.max_tokens,
                             core->options.max_seqs};
  for (int mode = 0; mode < FUSION_MODES; mode++) {
    const struct plan *plan = model->plans[mode];
    if (!runs(model, mode)) continue;
    if (plan->arena_bytes > sizes.arena_bytes) sizes.arena_bytes = plan->arena_bytes;
    if (plan->limits.max_tokens > sizes.max_tokens) sizes.max_tokens = plan->limits.max_tokens;
    if (plan->limits.max_seqs > sizes.max_seqs) sizes.max_seqs = plan->limits.max_seqs;
  }
  return sizes;
}

static enum status prepare(struct work *works, int n, const struct model *model,
                           struct error *err) {
  for (int mode = 0; mode < FUSION_MODES; mode++)
    for (int i = 0; i < n && runs(model, mode); i++) {
      enum status status = work_prepare(&works[i], model, (enum fusion_mode)mode, err);
      if (status != STATUS_OK) return status;
    }
  return STATUS_OK;
}

static void lanes_close(struct lanes *lanes) {
  for (int i = 0; i < lanes->n; i++)
    work_close(&lanes->works[i]);
}

// Each lane when it is free; the old ones are then in the place of the new.
static bool swap(struct core *core, void *arg) {
  struct lanes *lanes = arg;
  for (; lanes->n_swapped < lanes->n; lanes->n_swapped++) {
    struct work *work = &core->works[lanes->n_swapped];
    if (work->busy) return false;
    struct work old = *work;
    *work = lanes->works[lanes->n_swapped];
    lanes->works[lanes->n_swapped] = old;
  }
  return true;
}

static enum status widen(struct core *core, const struct core_runner *runner,
                         const struct lane_sizes *sizes, const struct model *const *served,
                         int n_served, struct error *err) {
  struct lanes *lanes = calloc(1, sizeof *lanes);
  if (!lanes) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for lanes");
  enum status status = STATUS_OK;
  for (int i = 0; i < core->n_works && status == STATUS_OK; i++) {
    status = work_open(&lanes->works[i], &core->on, sizes, err);
    lanes->n += status == STATUS_OK;
  }
  for (int m = 0; m < n_served && status == STATUS_OK; m++)
    status = prepare(lanes->works, lanes->n, served[m], err);
  if (status == STATUS_OK) {
    run(runner, core, swap, lanes);
    core->options.arena_bytes = sizes->arena_bytes;
    core->options.max_tokens = sizes->max_tokens;
    core->options.max_seqs = sizes->max_seqs;
  }
  lanes_close(lanes);
  free(lanes);
  return status;
}

// ---- first batches ----
struct first_batch {
  const struct model *model;
  enum fusion_mode fusion;
  struct warm_size size;
  int work;
  int32_t *seqlens;
  enum status status;
  struct error *err;
};

static bool first_batch(struct core *core, void *arg) {
  struct first_batch *first = arg;
  struct work *work = &core->works[first->work];
  if (core_lost(core)) {
    first->status = error_set(first->err, STATUS_UNAVAILABLE, "the device was lost");
    return true;
  }
  if (work->busy || audited_copies(core, clock_now_ns())) return false;
  struct lane_times times;
  audited_warm_begin(core, work, first->model, first->fusion, &first->size);
  first->status = work_warm(work, first->model, first->fusion, &first->size, first->seqlens, &times,
                            first->err);
  if (first->status == STATUS_OK)
    audited_done(core, work, &times);
  else
    audited_failed(core, work);
  return true;
}

static enum status warm(struct core *core, const struct core_runner *runner,
                        struct first_batch *first) {
  for (int32_t i = 0; work_warm_size(&core->on, first->model, first->fusion, i, &first->size); i++)
    for (first->work = 0; first->size.n_tokens > 0 && first->work < core->n_works; first->work++) {
      run(runner, core, first_batch, first);
      if (first->status != STATUS_OK) return first->status;
    }
  return STATUS_OK;
}

static enum status warm_all(struct core *core, const struct core_runner *runner,
                            const struct model *model, struct error *err) {
  int32_t *seqlens = malloc((size_t)core->options.max_seqs * sizeof *seqlens);
  if (!seqlens) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for first batches");
  enum status status = STATUS_OK;
  for (int mode = 0; mode < FUSION_MODES && status == STATUS_OK; mode++) {
    struct first_batch first = {
        .model = model, .fusion = (enum fusion_mode)mode, .seqlens = seqlens, .err = err};
    if (runs(model, mode)) status = warm(core, runner, &first);
  }
  free(seqlens);
  return status;
}

// ---- shadows: the list is of the thread that loads ----
static enum status shade(struct core *core, const struct model *model, struct error *err) {
  struct model *changed = (struct model *)(uintptr_t)model; // it does not serve yet
  struct shadow *shadow;
  if (model->shadow.share <= 0) return STATUS_OK;
  enum status status =
      shadow_open(core->options.backend, core->options.device, changed, &shadow, err);
  if (status != STATUS_OK) return status;
  shadow->next = core->shadows.all;
  core->shadows.all = shadow;
  changed->shadow.on[core->options.device_index] = shadow;
  return status;
}

static void unshade(struct core *core, const struct model *model) {
  struct shadow **link = &core->shadows.all;
  while (*link && (*link)->model != model)
    link = &(*link)->next;
  struct shadow *shadow = *link;
  if (!shadow) return;
  *link = shadow->next;
  shadow_close(shadow);
}

enum status core_admit(struct core *core, const struct core_runner *runner,
                       const struct model *model, const struct model *const *served, int n_served,
                       struct error *err) {
  struct lane_sizes sizes = sizes_with(core, model);
  enum status status = STATUS_OK;
  if (sizes.arena_bytes > core->options.arena_bytes ||
      sizes.max_tokens > core->options.max_tokens || sizes.max_seqs > core->options.max_seqs)
    status = widen(core, runner, &sizes, served, n_served, err);
  if (status == STATUS_OK) status = prepare(core->works, core->n_works, model, err);
  if (status == STATUS_OK) status = warm_all(core, runner, model, err);
  if (status == STATUS_OK) status = shade(core, model, err);
  return status;
}

// ---- leaving ----
static bool forget(struct core *core, void *arg) {
  for (int32_t i = 0; i < core->queues.n_slots; i++) {
    struct queue *queue = &core->queues.slots[i];
    if (queue->model != arg) continue;
    FW_ASSERT(queue->n == 0);
    *queue = (struct queue){0};
  }
  for (int i = 0; i < core->n_works; i++)
    if (!core->works[i].busy) core->works[i].queue = NULL;
  return true;
}

void core_forget(struct core *core, const struct core_runner *runner, const struct model *model) {
  run(runner, core, forget, (void *)(uintptr_t)model);
  unshade(core, model);
}
