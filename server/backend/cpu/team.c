#include "backend/cpu/team.h"

#include "base/clock.h"
#include "base/log.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

// A word that threads wait on until it changes.
struct gate {
  _Alignas(64) _Atomic uint32_t value;
  _Atomic uint32_t sleepers;
};

struct helper {
  struct team *team;
  pthread_t thread;
  int index;
};

struct team {
  int n;
  void (*init)(void);
  team_fn fn; // of the current run; written before `start` opens
  void *arg;
  bool stop;
  int spins;
  struct gate start, barrier, count;
  _Alignas(64) _Atomic uint32_t arrived;
  int n_started;
  struct helper helpers[];
};

void team_relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// The fastest of some tries: whatever else the machine does only lengthens one.
static int count_spins(void) {
  enum { TRIES = 8, PAUSES = 100 };
  int64_t best = INT64_MAX;
  for (int i = 0; i < TRIES; i++) {
    int64_t start = clock_now_ns();
    for (int j = 0; j < PAUSES; j++)
      team_relax();
    int64_t ns = clock_now_ns() - start;
    if (ns < best) best = ns;
  }
  int64_t spins = (int64_t)TEAM_SPIN_NS * PAUSES / (best + 1);
  return spins < 1000 ? 1000 : spins > 100000 ? 100000 : (int)spins;
}

// The waiter counts itself, then the kernel compares the value; the opener changes the value, then
// reads the count. Both sides are sequentially consistent, so one of them sees the other: no
// wake-up is lost.
static void gate_wait(struct gate *gate, uint32_t seen, int spins) {
  for (int i = 0; i < spins; i++) {
    if (atomic_load_explicit(&gate->value, memory_order_acquire) != seen) return;
    team_relax();
  }
  atomic_fetch_add(&gate->sleepers, 1);
  while (atomic_load(&gate->value) == seen)
    syscall(SYS_futex, (uint32_t *)&gate->value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
  atomic_fetch_sub(&gate->sleepers, 1);
}

static void gate_open(struct gate *gate) {
  atomic_fetch_add(&gate->value, 1); // release: what was written before is visible behind the gate
  if (atomic_load(&gate->sleepers) > 0)
    syscall(SYS_futex, (uint32_t *)&gate->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void team_barrier(struct team *team) {
  if (team->n == 1) return;
  uint32_t seen = atomic_load_explicit(&team->barrier.value, memory_order_relaxed);
  // acq_rel: the last to arrive has seen what all others wrote, and passes it on through the gate.
  if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) + 1 == (uint32_t)team->n) {
    atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
    gate_open(&team->barrier);
  } else {
    gate_wait(&team->barrier, seen, team->spins);
  }
}

// As with a gate, all of it sequentially consistent: either the one who completes the count sees
// the sleeper, or the sleeper sees the count.
void team_count(struct team *team, _Atomic uint32_t *counter, uint32_t n, uint32_t target) {
  if (atomic_fetch_add(counter, n) + n != target) return;
  if (atomic_load(&team->count.sleepers) > 0) gate_open(&team->count);
}

void team_doze(struct team *team, const _Atomic uint32_t *counter, uint32_t target) {
  uint32_t seen = atomic_load(&team->count.value);
  atomic_fetch_add(&team->count.sleepers, 1);
  if (atomic_load(counter) != target)
    syscall(SYS_futex, (uint32_t *)&team->count.value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
  atomic_fetch_sub(&team->count.sleepers, 1);
}

static void *helper_main(void *arg) {
  struct helper *self = arg;
  struct team *team = self->team;
  if (team->init) team->init();
  for (uint32_t seen = 0;; seen++) {
    gate_wait(&team->start, seen, 0);
    if (team->stop) return NULL;
    team->fn(team->arg, self->index);
    team_barrier(team);
  }
}

enum status team_open(int n_threads, void (*init)(void), struct team **out, struct error *err) {
  FW_ASSERT(n_threads >= 1 && n_threads <= TEAM_MAX);
  size_t bytes = sizeof(struct team) + (size_t)n_threads * sizeof(struct helper);
  struct team *team = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
  if (!team)
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for %d compute threads", n_threads);
  *team = (struct team){.n = n_threads, .init = init, .spins = count_spins()};
  for (int i = 1; i < n_threads; i++) {
    struct helper *h = &team->helpers[team->n_started];
    *h = (struct helper){.team = team, .index = i};
    if (pthread_create(&h->thread, NULL, helper_main, h) != 0) {
      team_close(team);
      return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cannot start compute thread %d of %d",
                       i + 1, n_threads);
    }
    team->n_started++;
  }
  *out = team;
  return STATUS_OK;
}

void team_close(struct team *team) {
  if (!team) return;
  team->stop = true;
  gate_open(&team->start);
  for (int i = 0; i < team->n_started; i++)
    pthread_join(team->helpers[i].thread, NULL);
  free(team);
}

int team_size(const struct team *team) {
  return team->n;
}

int team_spins(const struct team *team) {
  return team->spins;
}

void team_run(struct team *team, team_fn fn, void *arg) {
  if (team->n == 1) {
    fn(arg, 0);
    return;
  }
  team->fn = fn;
  team->arg = arg;
  gate_open(&team->start);
  fn(arg, 0);
  team_barrier(team); // everyone has returned; nobody reads fn and arg any more
}
