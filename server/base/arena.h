// Bump allocator over one fixed block: many small things, freed together. Owner thread only.
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include "base/status.h"
#include <stdint.h>

struct arena {
  uint8_t *base;
  size_t used_bytes, size_bytes;
};

void arena_init(struct arena *arena, void *memory, size_t bytes); // caller keeps the memory
void *arena_take(struct arena *arena, size_t bytes,
                 size_t align); // NULL when it does not fit; not zeroed
void arena_reset(struct arena *arena);

#endif
