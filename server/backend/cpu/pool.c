#include "backend/cpu/pool.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#define HUGE_BYTES ((size_t)2 << 20)
#define BLOCK_BYTES (2 * HUGE_BYTES)

struct pool_block {
  struct pool_block *next;
  char *memory;
  size_t used, size;
};

static struct pool_block *block_open(size_t bytes) {
  size_t size = (bytes + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1);
  if (size < bytes) return NULL;
  if (size < BLOCK_BYTES) size = BLOCK_BYTES;
  struct pool_block *block = malloc(sizeof *block);
  char *memory = aligned_alloc(HUGE_BYTES, size);
  if (!block || !memory) {
    free(block), free(memory);
    return NULL;
  }
  madvise(memory, size, MADV_HUGEPAGE); // advice: nothing is lost when it is refused
  *block = (struct pool_block){.memory = memory, .size = size};
  return block;
}

void *pool_take(struct pool *pool, size_t bytes) {
  size_t rounded = (bytes + 63) & ~(size_t)63;
  if (rounded < bytes) return NULL;
  struct pool_block *block = pool->blocks;
  if (!block || block->size - block->used < rounded) {
    block = block_open(rounded);
    if (!block) return NULL;
    block->next = pool->blocks;
    pool->blocks = block;
  }
  void *out = block->memory + block->used;
  block->used += rounded;
  return out;
}

void pool_deinit(struct pool *pool) {
  while (pool->blocks) {
    struct pool_block *next = pool->blocks->next;
    free(pool->blocks->memory);
    free(pool->blocks);
    pool->blocks = next;
  }
}
