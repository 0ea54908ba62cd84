#include "sched/behind.h"
#include "base/log.h"
#include "sched/audited.h"

static int64_t now(const struct core *core) {
  return core->options.now(core->options.arg);
}

static void failed(struct core *core, struct work *work, enum status status) {
  audited_failed(core, work);
  work->busy = work->shadow = false;
  work->first = NULL;
  work->queue = NULL;
  shadow_failed(&core->shadows);
  if (status == STATUS_UNAVAILABLE) core_lose(core, "a shadow ended UNAVAILABLE");
}

void behind_poll(struct core *core, struct work *work) {
  struct lane_times times = {0};
  int done = core->options.backend->poll(work->lane, &times);
  if (done == 0) return;
  if (done < 0) {
    failed(core, work, STATUS_UNAVAILABLE);
    return;
  }
  service_learn(core_service(core, work->queue), work->n_tokens,
                times.copy_in_ns + times.compute_ns + times.copy_out_ns, false, now(core));
  audited_done(core, work, &times);
  work->busy = work->shadow = false;
  work->first = NULL;
  work->queue = NULL;
  shadow_ran(&core->shadows, times.compute_ns);
}

static void start(struct core *core) {
  struct work *work = &core->works[0]; // none is busy
  struct shadow_slot *slot = shadow_take(&core->shadows);
  struct queue *queue = &slot->shadow->queues[slot->request.fusion];
  const struct service *service = core_service(core, queue);
  int64_t now_ns = now(core);
  work_take(work, queue, &slot->request, CLOSE_IDLE, now_ns);
  work->run = (struct pace_run){
      now_ns, now_ns + service_estimate_ns(service, work->n_tokens, now_ns), work->n_tokens};
  work->until_ns = now_ns + service_least_ns(service, work->n_tokens, now_ns);
  work->busy = work->shadow = true;
  core_publish_busy(core); // who has no time for it is told at the door
  audited_begin(core, work);
  enum status status = work_run(work);
  if (status != STATUS_OK)
    failed(core, work, status);
  else
    behind_poll(core, work); // a device that is not asynchronous is done already
}

static bool any_busy(const struct core *core) {
  for (int i = 0; i < core->n_works; i++)
    if (core->works[i].busy) return true;
  return false;
}

int64_t behind_step(struct core *core, bool moved, int64_t now_ns, int64_t wait_ns) {
  struct shadows *shadows = &core->shadows;
  if (core_lost(core)) shadow_drop_all(shadows, SHADOW_LOST);
  if (core->hurry) shadow_drop_all(shadows, SHADOW_DRAIN);
  int64_t late_ns = shadow_expire(shadows, now_ns);
  if (!shadow_pending(shadows)) return wait_ns;
  if (any_busy(core) || core->queues.n_waiting > 0 || audited_holds(core, now_ns))
    return wait_ns < late_ns ? wait_ns : late_ns;
  if (moved) return now_ns;
  if (shadows->comparing)
    shadow_compare(shadows);
  else
    start(core);
  core_publish_busy(core);
  int64_t look_ns = core_look_ns(core, now_ns);
  if (look_ns < wait_ns) wait_ns = look_ns;
  return shadow_pending(shadows) && !any_busy(core) ? now_ns : wait_ns;
}
