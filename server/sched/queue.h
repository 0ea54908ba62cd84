// Waiting requests, one queue per model and fusion mode, each in order of urgency. Executor thread
// only; no allocation.
#ifndef SCHED_QUEUE_H
#define SCHED_QUEUE_H

#include "sched/batch.h"

struct queue {
  struct model *model;
  enum fusion_mode fusion;
  struct request *first, *last;
  int32_t n;
};

// Every pair of a model and a mode, twice over: while a model is replaced both generations may have
// work waiting.
#define QUEUES_MAX (LIMIT_MODELS * FUSION_MODES * 2)
struct queues {
  struct queue slots[QUEUES_MAX];
  int32_t n_slots;   // in use, some perhaps empty
  int32_t n_waiting; // requests in all of them
};

bool queues_add(
    struct queues *queues,
    struct request *request); // by urgency; false: every slot holds another model's work
// Removes every request of which `leaves` says so, having taken it.
void queue_sweep(struct queue *queue, struct queues *queues,
                 bool (*leaves)(void *arg, struct request *request), void *arg);
// The first n requests, still linked by `next`, the last one's next NULL.
struct request *queue_pop(struct queue *queue, struct queues *queues, int32_t n);

#endif
