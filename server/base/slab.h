// Payload buffers in size classes with a hard byte budget: where request and response bodies live.
//
// One pool per loop thread; slab_get and slab_put are that thread's. The executor only reads and
// writes the bytes of a slab that a request carries. Classes are powers of two from 4 KiB to the
// largest message; freed slabs are kept for reuse up to `keep_bytes`, and those that nobody has
// wanted for SLAB_IDLE_TICKS go back to where they came from (slab_pool_tick): a pool shrinks to
// what it was used for lately, or what its busiest moment ever took would stay. Memory comes from
// `host_alloc` (pinned on a GPU back end), 64-byte aligned. Nothing is ever over-committed:
// slab_get returns NULL when the budget would be passed, and the caller refuses the call with
// RESOURCE_EXHAUSTED.
#ifndef BASE_SLAB_H
#define BASE_SLAB_H

#include "base/status.h"
#include <stdatomic.h>
#include <stdint.h>

struct slice {
  const uint8_t *data;
  size_t bytes;
};

struct slab {
  uint8_t *data;
  size_t capacity_bytes;
  struct slab *next, *previous; // free list
  uint32_t class_index;
  uint32_t refs;      // loop thread only; put frees at 0
  uint32_t idle_tick; // when it came to the free list
};

// A byte budget that several pools may share (the process-wide one). Lock-free.
struct budget {
  _Atomic int64_t used_bytes;
  int64_t limit_bytes;
};
bool budget_take(struct budget *budget,
                 int64_t bytes); // false and nothing taken when over the limit
void budget_give(struct budget *budget, int64_t bytes);

struct slab_pool;
struct slab_pool_options {
  size_t max_slab_bytes;                        // largest single buffer
  size_t keep_bytes;                            // idle memory kept for reuse
  struct budget *budget;                        // shared, not owned
  void *(*host_alloc)(void *arg, size_t bytes); // NULL: aligned_alloc
  void (*host_free)(void *arg, void *memory, size_t bytes);
  void *arg;
};
MUST_USE enum status slab_pool_open(const struct slab_pool_options *options,
                                    struct slab_pool **out);
void slab_pool_close(struct slab_pool *pool);                // every slab must have been put back
struct slab *slab_get(struct slab_pool *pool, size_t bytes); // refs = 1
void slab_ref(struct slab *slab);
void slab_put(struct slab_pool *pool, struct slab *slab);
// Time goes on, by about a second. Returns how many bytes were given back: at most some MiB, so
// that a large pool holds its loop up by less than a millisecond.
#define SLAB_IDLE_TICKS 10
size_t slab_pool_tick(struct slab_pool *pool);
size_t slab_pool_used_bytes(const struct slab_pool *pool); // handed out now
size_t slab_pool_idle_bytes(const struct slab_pool *pool); // kept for reuse now
// How much memory somebody who holds `held_bytes` may take, so that any number of greedy ones leave
// something to those that want little: as long as half of the budget is free whatever is wanted
// (INT64_MAX), then half of the difference between what is free and what he holds.
int64_t slab_pool_fair_bytes(const struct slab_pool *pool, int64_t held_bytes);

#endif
