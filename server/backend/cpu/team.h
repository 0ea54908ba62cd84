// A team of threads that run one function together (SPMD): the executor's own thread and n - 1
// helpers.
//
// Between runs helpers sleep in the kernel and cost nothing. Inside a run a barrier spins for a few
// microseconds and then sleeps too, so a team shares two cores with a loop thread and clients
// without burning their time.
#ifndef BACKEND_CPU_TEAM_H
#define BACKEND_CPU_TEAM_H

#include "base/status.h"

#define TEAM_MAX 256

struct team;
typedef void (*team_fn)(void *arg, int index); // index 0 is the calling thread

// `init` is called once in every helper before its first run.
MUST_USE enum status team_open(int n_threads, void (*init)(void), struct team **out,
                               struct error *err);
void team_close(struct team *team); // no run may be in progress
int team_size(const struct team *team);
// Calls fn(arg, i) on every thread and returns when all have returned. One caller at a time.
void team_run(struct team *team, team_fn fn, void *arg);
// Inside a run: returns when all threads of the team have called it. Publishes everything written
// before.
void team_barrier(struct team *team);

#endif
