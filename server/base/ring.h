// Bounded single-producer single-consumer ring of pointers: the only way work crosses threads.
//
// One thread pushes, one thread pops, for the ring's whole life. Capacity is a power of two. A push
// into a full ring is refused (back-pressure), never blocked. Publishing order: everything written
// before ring_push is visible to the thread whose ring_pop returns that pointer (release store of
// tail, acquire load by the consumer).
#ifndef BASE_RING_H
#define BASE_RING_H

#include "base/status.h"
#include <stdatomic.h>
#include <stdint.h>

struct ring {
  void **slots;
  uint32_t mask;
  char pad0[64]; // head and tail on cache lines of their own, without asking the embedding struct
                 // for alignment
  _Atomic uint32_t head; // consumer writes
  char pad1[64];
  _Atomic uint32_t tail; // producer writes
  char pad2[64];
};

// Allocates the slots. RESOURCE_EXHAUSTED when out of memory; capacity is rounded up to a power of
// two.
MUST_USE enum status ring_init(struct ring *ring, uint32_t capacity);
void ring_deinit(struct ring *ring);
bool ring_push(struct ring *ring, void *item); // producer; false when full
void *ring_pop(struct ring *ring);             // consumer; NULL when empty
uint32_t ring_size(const struct ring *ring);   // any thread; a snapshot

#endif
