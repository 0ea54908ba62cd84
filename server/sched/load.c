#include "sched/load.h"
#include "sched/batch.h"

static int64_t get(const _Atomic int64_t *value) {
  return atomic_load_explicit(value, memory_order_relaxed);
}

static void add(_Atomic int64_t *value, int64_t n) {
  atomic_fetch_add_explicit(value, n, memory_order_relaxed);
}

static int64_t urgency_of(const struct request *request) {
  return batch_urgency(request->t_ns[STAGE_ADMITTED], request->deadline_ns);
}

static int64_t slot_of(int64_t urgency_ns) {
  return urgency_ns >> LOAD_SLOT_BITS;
}

static _Atomic int64_t *slot_at(struct load *load, int64_t urgency_ns) {
  return &load->slots[slot_of(urgency_ns) & (LOAD_SLOTS - 1)];
}

void load_enter(struct load *load, struct request *request, const struct service *service) {
  request->urgency_ns = urgency_of(request);
  request->share_ns = service_share_ns(service, request->n_tokens, request->t_ns[STAGE_ADMITTED]);
  if (request->share_ns == 0) return;
  add(slot_at(load, request->urgency_ns), request->share_ns);
  add(&load->waiting_ns, request->share_ns);
}

void load_leave(struct load *load, struct request *request) {
  if (request->share_ns == 0) return;
  add(slot_at(load, request->urgency_ns), -request->share_ns);
  add(&load->waiting_ns, -request->share_ns);
  request->share_ns = 0;
}

static int64_t running_ns(const struct load *load, int64_t now_ns) {
  int64_t until_ns = get(&load->busy_until_ns);
  return until_ns > now_ns ? until_ns - now_ns : 0;
}

int64_t load_wait_ns(const struct load *load, int64_t now_ns) {
  int64_t waiting_ns = get(&load->waiting_ns);
  return running_ns(load, now_ns) + (waiting_ns > 0 ? waiting_ns : 0);
}

// Of what waits, what is not less urgent. The less urgent part is summed up, because its slots are
// known: nobody's urgency is later than a newcomer's without a deadline. What shares a slot with
// the newcomer is most often older, and counts.
static int64_t more_urgent_ns(const struct load *load, int64_t urgency_ns, int64_t now_ns) {
  int64_t sum_ns = get(&load->waiting_ns);
  int64_t first = slot_of(urgency_ns) + 1, last = slot_of(now_ns + BATCH_PATIENCE_NS);
  for (int64_t slot = first; slot <= last; slot++)
    sum_ns -= get(&load->slots[slot & (LOAD_SLOTS - 1)]);
  return sum_ns > 0 ? sum_ns : 0;
}

// How long a queue of `work_ns`, the newcomer's part included, takes until the newcomer is done. As
// soon as there is more than one full batch all of them are full, and a batch's last request is
// done when its first one is.
static int64_t in_batches(int64_t work_ns, int64_t full_ns) {
  if (full_ns == 0 || work_ns <= full_ns) return work_ns;
  return (work_ns + full_ns - 1) / full_ns * full_ns + full_ns / SERVICE_MARGIN;
}

static int64_t done_ns(const struct forecast *forecast, int64_t share_ns, int64_t running,
                       int64_t full_ns, int64_t now_ns) {
  int64_t queue_ns = in_batches(forecast->ahead_ns - running + share_ns, full_ns);
  return now_ns + running + (queue_ns > forecast->own_ns ? queue_ns : forecast->own_ns);
}

bool load_forecast(const struct load *load, const struct service *service,
                   const struct request *request, int64_t now_ns, struct forecast *out) {
  int64_t deadline_ns = request->deadline_ns;
  if (deadline_ns == CLOCK_NEVER) return true;
  int64_t running = running_ns(load, now_ns), full_ns = service_full_ns(service, now_ns);
  int64_t share_ns = service_share_ns(service, request->n_tokens, now_ns);
  out->own_ns = service_with_margin_ns(service_least_ns(service, request->n_tokens, now_ns));
  if (out->own_ns == 0 && share_ns == 0) return true;
  out->ahead_ns = load_wait_ns(load, now_ns);
  out->done_ns = done_ns(out, share_ns, running, full_ns, now_ns);
  if (out->done_ns <= deadline_ns) return true; // even behind all that waits
  out->ahead_ns = running + more_urgent_ns(load, urgency_of(request), now_ns);
  out->done_ns = done_ns(out, share_ns, running, full_ns, now_ns);
  return out->done_ns <= deadline_ns;
}
