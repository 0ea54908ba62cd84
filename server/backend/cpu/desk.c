#include "backend/cpu/desk.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

// Epoch of the desk, first unit, end: one word, so that a claim is one compare-and-swap, and fails
// when the step is another one by then.
struct range {
  _Alignas(64) _Atomic uint64_t word;
};

struct desk {
  int n;
  uint32_t epoch;   // owner only
  uint32_t n_units; // owner only
  _Atomic int32_t step, n_rows;
  _Atomic int64_t row;
  char *_Atomic tile;
  _Alignas(64) _Atomic int32_t left; // units that nobody took, or somewhat more
  _Alignas(64) _Atomic uint32_t done;
  _Atomic uint32_t all; // n_units, for helpers
  struct range ranges[];
};

static uint64_t pack(uint32_t epoch, int32_t first, int32_t end) {
  return (uint64_t)epoch << 32 | (uint64_t)first << 16 | (uint64_t)end;
}

static size_t desk_bytes(int n_threads) {
  return sizeof(struct desk) + (size_t)n_threads * sizeof(struct range);
}

struct desk *desks_open(int n_threads) {
  size_t bytes = desk_bytes(n_threads);
  char *memory = aligned_alloc(64, bytes * (size_t)n_threads);
  if (!memory) return NULL;
  memset(memory, 0, bytes * (size_t)n_threads);
  for (int i = 0; i < n_threads; i++)
    ((struct desk *)(void *)(memory + (size_t)i * bytes))->n = n_threads;
  return (struct desk *)(void *)memory;
}

void desks_close(struct desk *desks) {
  free(desks);
}

struct desk *desk_of(struct desk *desks, int thread) {
  return (struct desk *)(void *)((char *)desks + (size_t)thread * desk_bytes(desks->n));
}

int32_t desk_first(int32_t n_units, int thread, int n_threads) {
  return (int32_t)((int64_t)n_units * thread / n_threads);
}

void desk_lay(struct desk *desk, const struct desk_job *job, int32_t n_units, int owner,
              bool split) {
  FW_ASSERT(n_units >= 1 && n_units <= DESK_UNITS_MAX);
  desk->epoch++;
  desk->n_units = (uint32_t)n_units;
  // Nobody else looks at these until a range of this epoch is seen: all units before are done.
  atomic_store_explicit(&desk->step, job->step, memory_order_relaxed);
  atomic_store_explicit(&desk->n_rows, job->n_rows, memory_order_relaxed);
  atomic_store_explicit(&desk->row, job->row, memory_order_relaxed);
  atomic_store_explicit(&desk->tile, job->tile, memory_order_relaxed);
  atomic_store_explicit(&desk->all, (uint32_t)n_units, memory_order_relaxed);
  atomic_store_explicit(&desk->done, 0, memory_order_relaxed);
  for (int i = 0; i < desk->n; i++) {
    int32_t first = split ? desk_first(n_units, i, desk->n) : i > owner ? n_units : 0;
    int32_t end = split ? desk_first(n_units, i + 1, desk->n) : i >= owner ? n_units : 0;
    atomic_store_explicit(&desk->ranges[i].word, pack(desk->epoch, first, end),
                          memory_order_release);
  }
  atomic_store_explicit(&desk->left, n_units, memory_order_release);
}

// A part of range `from`: its front for the thread whose range it is, its back for others.
static bool take_from(struct desk *desk, int from, bool front, struct desk_claim *claim) {
  _Atomic uint64_t *word = &desk->ranges[from].word;
  uint64_t seen = atomic_load_explicit(word, memory_order_acquire);
  for (;;) {
    int32_t first = (int32_t)(seen >> 16 & 0xffff), end = (int32_t)(seen & 0xffff);
    if (first >= end) return false;
    // The compare-and-swap proves that these were of the same epoch.
    claim->job = (struct desk_job){atomic_load_explicit(&desk->step, memory_order_relaxed),
                                   atomic_load_explicit(&desk->n_rows, memory_order_relaxed),
                                   atomic_load_explicit(&desk->row, memory_order_relaxed),
                                   atomic_load_explicit(&desk->tile, memory_order_relaxed)};
    int32_t some = (end - first + 3) / 4;
    uint64_t rest =
        pack((uint32_t)(seen >> 32), front ? first + some : first, front ? end : end - some);
    if (!atomic_compare_exchange_weak_explicit(word, &seen, rest, memory_order_acq_rel,
                                               memory_order_acquire))
      continue;
    claim->unit = front ? first : end - some;
    claim->n_units = some;
    claim->next = front && some < end - first ? first + some : -1;
    atomic_fetch_sub_explicit(&desk->left, some, memory_order_relaxed);
    return true;
  }
}

bool desk_take(struct desk *desk, int thread, struct desk_claim *claim) {
  if (atomic_load_explicit(&desk->left, memory_order_acquire) <= 0) return false;
  if (take_from(desk, thread, true, claim)) return true;
  for (int i = 1; i < desk->n; i++)
    if (take_from(desk, (thread + i) % desk->n, false, claim)) return true;
  return false;
}

void desk_done(struct desk *desk, struct team *team, int32_t n_units) {
  uint32_t all = atomic_load_explicit(&desk->all, memory_order_relaxed);
  team_count(team, &desk->done, (uint32_t)n_units, all);
}

void desk_wait(struct desk *desk, struct team *team) {
  int most = team_spins(team);
  for (int spins = 0; atomic_load_explicit(&desk->done, memory_order_acquire) != desk->n_units;) {
    if (++spins < most)
      team_relax();
    else
      team_doze(team, &desk->done, desk->n_units);
  }
}
