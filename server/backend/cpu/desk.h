// A desk: one step's work on one tile, laid out in units that several threads take.
//
// Every thread owns a desk. Who works on a tile while others have nothing left to do opens each
// step on it: the units are dealt out in ranges, one for each thread. A thread takes from the front
// of its own range, so that its weights follow one another in memory, and then from the back of the
// others', a part of what is left each time: threads of unlike speed finish together, and one that
// the system has put aside holds up nobody. The owner opens the next step when all units are done.
#ifndef BACKEND_CPU_DESK_H
#define BACKEND_CPU_DESK_H

#include "backend/cpu/team.h"

#include <stdbool.h>

#define DESK_UNITS_MAX 65535

struct desk_job { // what the units are of
  int32_t step;
  int32_t n_rows;
  int64_t row; // first row of the tile
  char *tile;  // its scratch
};

struct desk;
struct desk *desks_open(int n_threads); // n_threads desks; NULL: memory is out
void desks_close(struct desk *desks);
struct desk *desk_of(struct desk *desks, int thread);

// By the owner, when no unit of the step before is left. `split`: every thread has its range; else
// all of it is the owner's (`owner`), and others help from the back.
void desk_lay(struct desk *desk, const struct desk_job *job, int32_t n_units, int owner,
              bool split);

struct desk_claim {
  struct desk_job job;
  int32_t unit, n_units;
  int32_t next; // the unit that this thread would take next; -1: its own range is empty
};
// Some units for thread `thread`; false: none are left. Any thread.
bool desk_take(struct desk *desk, int thread, struct desk_claim *claim);
// After a claim's units are done.
void desk_done(struct desk *desk, struct team *team, int32_t n_units);
// By the owner: returns when all units are done.
void desk_wait(struct desk *desk, struct team *team);
// First unit of a thread's range in a step of n_units that is split.
int32_t desk_first(int32_t n_units, int thread, int n_threads);

#endif
