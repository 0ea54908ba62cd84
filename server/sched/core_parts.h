// What core.c (serving) and admit.c (models come and go) share.
#ifndef SCHED_CORE_PARTS_H
#define SCHED_CORE_PARTS_H

#include "sched/core.h"
#include "sched/load.h"
#include "sched/work.h"

struct core {
  struct core_options options; // its sizes are those of the lanes
  struct work_device on;
  struct queues queues;
  struct load load; // of the requests in them that came through load_enter
  struct work works[LIMIT_LANES];
  int n_works;
  int32_t small_tokens; // the device's
  bool hurry;
  _Atomic bool lost;
  struct batch_item items[LIMIT_BATCH_REQUESTS + 1]; // the snapshot that the batcher sees
};

#endif
