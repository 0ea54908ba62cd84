#include "base/arena.h"

void arena_init(struct arena *arena, void *memory, size_t bytes) {
  arena->base = memory;
  arena->used_bytes = 0;
  arena->size_bytes = bytes;
}

void *arena_take(struct arena *arena, size_t bytes, size_t align) {
  uintptr_t start = (uintptr_t)arena->base + arena->used_bytes;
  size_t pad = (align - start % align) % align;
  size_t left = arena->size_bytes - arena->used_bytes;
  if (pad > left || bytes > left - pad) return NULL;
  void *taken = arena->base + arena->used_bytes + pad;
  arena->used_bytes += pad + bytes;
  return taken;
}

void arena_reset(struct arena *arena) {
  arena->used_bytes = 0;
}
