// A team of threads that run one function together (SPMD): the executor's own thread and n - 1
// helpers.
//
// Between runs helpers sleep in the kernel and cost nothing. Inside a run, whoever waits spins for
// about a hundred microseconds and then sleeps too, so a team shares two cores with a loop thread
// and clients without burning their time.
#ifndef BACKEND_CPU_TEAM_H
#define BACKEND_CPU_TEAM_H

#include "base/status.h"

#include <stdatomic.h>
#include <stdint.h>

#define TEAM_MAX 256
// How long whoever waits looks before it goes to sleep: longer than the slip between two threads
// that do equal work (a step of a small batch is that long, and a futex wake-up costs half of it),
// shorter than a time slice.
#define TEAM_SPIN_NS 100000

struct team;
typedef void (*team_fn)(void *arg, int index); // index 0 is the calling thread

// `init` is called once in every helper before its first run.
MUST_USE enum status team_open(int n_threads, void (*init)(void), struct team **out,
                               struct error *err);
void team_close(struct team *team); // no run may be in progress
int team_size(const struct team *team);
// Looks (team_relax in between) that last TEAM_SPIN_NS: a pause is 40 to 140 cycles, by processor.
int team_spins(const struct team *team);
// Calls fn(arg, i) on every thread and returns when all have returned. One caller at a time.
void team_run(struct team *team, team_fn fn, void *arg);
// Inside a run: returns when all threads of the team have called it. Publishes everything written
// before.
void team_barrier(struct team *team);

// Inside a run, pieces of work are counted when they are done; threads wait until all are.
// Adds n to the counter; when that makes it `target`, sleepers wake. Publishes everything written
// before.
void team_count(struct team *team, _Atomic uint32_t *counter, uint32_t n, uint32_t target);
// After team_spins looks at the counter in vain: sleeps until somebody's count is complete. Look
// again afterwards.
void team_doze(struct team *team, const _Atomic uint32_t *counter, uint32_t target);
void team_relax(void);

#endif
