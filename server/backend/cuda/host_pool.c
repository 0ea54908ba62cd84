#include "backend/cuda/host_pool.h"
#include "base/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define ORDERS 40 // block sizes: HOST_POOL_BLOCK_BYTES << order

// Written into a free block itself.
struct vacant {
  struct vacant *next, **link;
};

struct chunk {
  struct chunk *next;
  uint8_t *memory;
  uint8_t vacant[]; // of each smallest block: 1 + order where a free block begins, else 0
};

struct host_pool {
  struct host_pool_options options;
  int top; // the order of a whole chunk
  pthread_mutex_t mutex;
  struct chunk *_Atomic chunks; // grows at its head only
  struct vacant *free[ORDERS];
  int64_t bytes;
  int64_t n_out;
};

static size_t block_bytes(int order) {
  return (size_t)HOST_POOL_BLOCK_BYTES << order;
}

static int order_of(size_t bytes) {
  int order = 0;
  while (order < ORDERS && block_bytes(order) < bytes)
    order++;
  return order;
}

static void vacant_add(struct host_pool *pool, struct chunk *chunk, size_t offset, int order) {
  struct vacant *block = (struct vacant *)(void *)(chunk->memory + offset);
  block->next = pool->free[order];
  block->link = &pool->free[order];
  if (block->next) block->next->link = &block->next;
  pool->free[order] = block;
  chunk->vacant[offset / HOST_POOL_BLOCK_BYTES] = (uint8_t)(order + 1);
}

static void vacant_remove(struct chunk *chunk, struct vacant *block) {
  *block->link = block->next;
  if (block->next) block->next->link = block->link;
  size_t offset = (size_t)((uint8_t *)block - chunk->memory);
  chunk->vacant[offset / HOST_POOL_BLOCK_BYTES] = 0;
}

static struct chunk *chunk_of(const struct host_pool *pool, const void *memory) {
  struct chunk *chunk = atomic_load_explicit(&pool->chunks, memory_order_acquire);
  for (; chunk; chunk = chunk->next)
    if ((const uint8_t *)memory >= chunk->memory &&
        (const uint8_t *)memory < chunk->memory + pool->options.chunk_bytes)
      return chunk;
  return NULL;
}

static void *take_below(struct host_pool *pool, size_t bytes) {
  void *memory = pool->options.take(pool->options.arg, bytes);
  if (memory) pool->bytes += (int64_t)bytes;
  return memory;
}

static void give_below(struct host_pool *pool, void *memory, size_t bytes) {
  pool->bytes -= (int64_t)bytes;
  pool->options.give(pool->options.arg, memory, bytes);
}

static bool chunk_add(struct host_pool *pool) {
  struct chunk *chunk =
      calloc(1, sizeof *chunk + pool->options.chunk_bytes / HOST_POOL_BLOCK_BYTES);
  if (!chunk) return false;
  chunk->memory = take_below(pool, pool->options.chunk_bytes);
  if (!chunk->memory) {
    free(chunk);
    return false;
  }
  chunk->next = atomic_load_explicit(&pool->chunks, memory_order_relaxed);
  // Release: who finds the chunk finds what it says of itself.
  atomic_store_explicit(&pool->chunks, chunk, memory_order_release);
  vacant_add(pool, chunk, 0, pool->top);
  return true;
}

enum status host_pool_open(const struct host_pool_options *options, struct host_pool **out) {
  int top = order_of(options->chunk_bytes);
  FW_ASSERT(top < ORDERS && block_bytes(top) == options->chunk_bytes);
  struct host_pool *pool = calloc(1, sizeof *pool);
  if (!pool) return STATUS_RESOURCE_EXHAUSTED;
  pool->options = *options;
  pool->top = top;
  pthread_mutex_init(&pool->mutex, NULL);
  if (!chunk_add(pool)) {
    host_pool_close(pool);
    return STATUS_RESOURCE_EXHAUSTED;
  }
  *out = pool;
  return STATUS_OK;
}

void host_pool_close(struct host_pool *pool) {
  if (!pool) return;
  FW_ASSERT(pool->n_out == 0);
  for (struct chunk *chunk = pool->chunks, *next; chunk; chunk = next) {
    next = chunk->next;
    give_below(pool, chunk->memory, pool->options.chunk_bytes);
    free(chunk);
  }
  pthread_mutex_destroy(&pool->mutex);
  free(pool);
}

// The smallest free block that will do, halved until it fits.
static void *split(struct host_pool *pool, int order) {
  int at = order;
  while (at <= pool->top && !pool->free[at])
    at++;
  if (at > pool->top) return NULL;
  struct vacant *block = pool->free[at];
  struct chunk *chunk = chunk_of(pool, block);
  size_t offset = (size_t)((uint8_t *)block - chunk->memory);
  vacant_remove(chunk, block);
  while (at-- > order)
    vacant_add(pool, chunk, offset + block_bytes(at), at);
  return block;
}

void *host_pool_take(struct host_pool *pool, size_t bytes) {
  int order = order_of(bytes);
  pthread_mutex_lock(&pool->mutex);
  void *memory = NULL;
  if (order > pool->top) {
    memory = take_below(pool, bytes);
  } else {
    memory = split(pool, order);
    if (!memory && chunk_add(pool)) memory = split(pool, order);
  }
  if (memory) pool->n_out++;
  pthread_mutex_unlock(&pool->mutex);
  return memory;
}

static void merge(struct host_pool *pool, struct chunk *chunk, size_t offset, int order) {
  for (; order < pool->top; order++) {
    size_t buddy = offset ^ block_bytes(order);
    if (chunk->vacant[buddy / HOST_POOL_BLOCK_BYTES] != order + 1) break;
    vacant_remove(chunk, (struct vacant *)(void *)(chunk->memory + buddy));
    offset &= ~block_bytes(order);
  }
  vacant_add(pool, chunk, offset, order);
}

void host_pool_give(struct host_pool *pool, void *memory, size_t bytes) {
  if (!memory) return;
  int order = order_of(bytes);
  pthread_mutex_lock(&pool->mutex);
  if (order > pool->top) {
    give_below(pool, memory, bytes);
  } else {
    struct chunk *chunk = chunk_of(pool, memory);
    FW_ASSERT(chunk);
    merge(pool, chunk, (size_t)((uint8_t *)memory - chunk->memory), order);
  }
  pool->n_out--;
  pthread_mutex_unlock(&pool->mutex);
}

bool host_pool_holds(const struct host_pool *pool, const void *memory, size_t bytes) {
  const struct chunk *chunk = chunk_of(pool, memory);
  return chunk && bytes <= pool->options.chunk_bytes &&
         (const uint8_t *)memory - chunk->memory <= (ptrdiff_t)(pool->options.chunk_bytes - bytes);
}

int64_t host_pool_bytes(struct host_pool *pool) {
  pthread_mutex_lock(&pool->mutex);
  int64_t bytes = pool->bytes;
  pthread_mutex_unlock(&pool->mutex);
  return bytes;
}
