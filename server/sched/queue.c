#include "sched/queue.h"
#include "base/log.h"

// The queue of the request's model and mode, or one that nobody has to make it that, or NULL. An
// empty one may still have a batch running.
static struct queue *queue_of(struct queues *queues, const struct request *request) {
  struct queue *vacant = NULL;
  for (int32_t i = 0; i < queues->n_slots; i++) {
    struct queue *queue = &queues->slots[i];
    if (queue->model == request->model && queue->fusion == request->fusion) return queue;
    if (!queue->model && !vacant) vacant = queue;
  }
  if (!vacant && queues->n_slots < QUEUES_MAX) vacant = &queues->slots[queues->n_slots++];
  if (vacant) *vacant = (struct queue){.model = request->model, .fusion = request->fusion};
  return vacant;
}

bool queues_add(struct queues *queues, struct request *request) {
  struct queue *queue = queue_of(queues, request);
  if (!queue) return false;
  struct request **link = &queue->first;
  if (queue->last && queue->last->urgency_ns <= request->urgency_ns)
    link = &queue->last->next; // the usual case
  else
    while (*link && (*link)->urgency_ns <= request->urgency_ns)
      link = &(*link)->next;
  request->next = *link;
  *link = request;
  if (!request->next) queue->last = request;
  queue->n++;
  queues->n_waiting++;
  return true;
}

void queue_sweep(struct queue *queue, struct queues *queues,
                 bool (*leaves)(void *arg, struct request *request), void *arg) {
  struct request **link = &queue->first;
  queue->last = NULL;
  while (*link) {
    struct request *request = *link, *next = request->next;
    if (!leaves(arg, request)) {
      queue->last = request;
      link = &request->next;
      continue;
    }
    *link = next;
    queue->n--;
    queues->n_waiting--;
  }
}

struct request *queue_pop(struct queue *queue, struct queues *queues, int32_t n) {
  FW_ASSERT(n > 0 && n <= queue->n);
  struct request *first = queue->first, *last = first;
  for (int32_t i = 1; i < n; i++)
    last = last->next;
  queue->first = last->next;
  if (!queue->first) queue->last = NULL;
  last->next = NULL;
  queue->n -= n;
  queues->n_waiting -= n;
  return first;
}
