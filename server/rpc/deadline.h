// Min-heap of deadlines, intrusive: a node knows its place, so a call that ends early leaves in
// O(log n). Loop thread only.
#ifndef RPC_DEADLINE_H
#define RPC_DEADLINE_H

#include "base/status.h"
#include <stdint.h>

struct deadline {
  int64_t at_ns;  // CLOCK_NEVER: none
  uint32_t index; // place in the heap, from 1; 0: not in it
};

struct deadline_heap {
  struct deadline **nodes; // [1..n]
  uint32_t n, capacity;
};

void deadline_heap_init(struct deadline_heap *heap);
void deadline_heap_deinit(struct deadline_heap *heap);
MUST_USE enum status deadline_add(struct deadline_heap *heap,
                                  struct deadline *node); // RESOURCE_EXHAUSTED: no memory
void deadline_remove(struct deadline_heap *heap, struct deadline *node); // may be out already
struct deadline *deadline_first(const struct deadline_heap *heap);       // NULL: empty

#endif
