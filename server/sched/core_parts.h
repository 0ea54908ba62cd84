// What core.c (serving) and admit.c (models come and go) share.
#ifndef SCHED_CORE_PARTS_H
#define SCHED_CORE_PARTS_H

#include "audit/audit.h"
#include "sched/core.h"
#include "sched/load.h"
#include "sched/shadow.h"
#include "sched/work.h"

struct audited {                         // sched/audited.c
  struct request *waiting;               // complete, but for what was counted of their batches
  int64_t idle_since_ns, quiet_until_ns; // around copies of known size
};

struct core {
  struct core_options options; // its sizes are those of the lanes
  struct work_device on;
  struct queues queues;
  struct load load; // of the requests in them that came through load_enter
  struct work works[LIMIT_LANES];
  int n_works;
  int32_t small_tokens; // the device's
  struct shadows shadows;
  uint64_t n_moves; // requests finished and batches begun, ever
  struct audited audited;
  bool hurry;
  _Atomic bool lost;
  struct batch_item items[LIMIT_BATCH_REQUESTS + 1]; // the snapshot that the batcher sees
};

// The device is gone: once, and for all that comes.
void core_lose(struct core *core, const char *what);
// When to ask again after the batches that run.
int64_t core_look_ns(const struct core *core, int64_t now_ns);
// For those who ask what a newcomer has to wait for: something began or ended.
void core_publish_busy(struct core *core);
// What batches of the queue's model and mode took.
struct service *core_service(const struct core *core, const struct queue *queue);
// It comes back: status OK, or a text.
void core_finish(struct core *core, struct request *request, enum status status, const char *text);

#endif
