// Looks after the executors: one that finishes nothing of what it has, for longer than any batch
// may take, hangs. Then health says NOT_SERVING and the supervisor's watchdog is not fed. Main
// thread.
#ifndef WATCH_H
#define WATCH_H

#include "api/api.h"

struct watch {
  struct api *api;
  int64_t limit_ns; // device.stuck_after; 0: nobody looks
  bool stuck;
};

// How often it wants to look; 0: never.
int64_t watch_every_ns(const struct watch *watch);
// False: some executor hangs. Executors that come back are told of too.
bool watch_look(struct watch *watch, struct executor *const *executors, int n_executors,
                int64_t now_ns);

#endif
