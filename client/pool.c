#include "client/pool.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CLASS_LARGE POOL_CLASSES
#define CLASS_BYTES(index) ((size_t)32 << (index))

struct pool_block {
  union {
    struct pool_block *next; // while free
    struct {
      uint32_t class_index;
      size_t bytes; // usable
    } used;
    max_align_t align;
  };
};

static uint32_t class_of(size_t bytes) {
  uint32_t index = 0;
  while (index < POOL_CLASSES && CLASS_BYTES(index) < bytes)
    index++;
  return index;
}

void *pool_malloc(struct pool *pool, size_t bytes) {
  const uint32_t index = class_of(bytes);
  const size_t usable = index == CLASS_LARGE ? bytes : CLASS_BYTES(index);
  struct pool_block *block = index == CLASS_LARGE ? NULL : pool->free_blocks[index];
  if (block) {
    pool->free_blocks[index] = block->next;
  } else {
    if (usable > SIZE_MAX - sizeof *block) return NULL;
    block = malloc(sizeof *block + usable);
    if (!block) return NULL;
  }
  block->used.class_index = index;
  block->used.bytes = usable;
  return block + 1;
}

void *pool_calloc(struct pool *pool, size_t n, size_t bytes) {
  size_t total = 0;
  if (__builtin_mul_overflow(n, bytes, &total)) return NULL;
  void *memory = pool_malloc(pool, total);
  if (memory) memset(memory, 0, total);
  return memory;
}

void *pool_realloc(struct pool *pool, void *memory, size_t bytes) {
  if (!memory) return pool_malloc(pool, bytes);
  const struct pool_block *block = (struct pool_block *)memory - 1;
  const size_t old_bytes = block->used.bytes;
  if (bytes <= old_bytes) return memory;
  void *larger = pool_malloc(pool, bytes);
  if (!larger) return NULL;
  memcpy(larger, memory, old_bytes);
  pool_free(pool, memory);
  return larger;
}

void pool_free(struct pool *pool, void *memory) {
  if (!memory) return;
  struct pool_block *block = (struct pool_block *)memory - 1;
  const uint32_t index = block->used.class_index;
  if (index == CLASS_LARGE) {
    free(block);
    return;
  }
  block->next = pool->free_blocks[index];
  pool->free_blocks[index] = block;
}

void pool_deinit(struct pool *pool) {
  for (int i = 0; i < POOL_CLASSES; i++) {
    for (struct pool_block *block = pool->free_blocks[i]; block;) {
      struct pool_block *next = block->next;
      free(block);
      block = next;
    }
    pool->free_blocks[i] = NULL;
  }
}
