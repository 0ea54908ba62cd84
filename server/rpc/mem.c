#include "rpc/mem.h"
#include "base/log.h"
#include <stdlib.h>
#include <string.h>

#define N_CLASSES 10 // 32 bytes to 16 KiB, header included
#define CLASS_MALLOC N_CLASSES
#define CHUNK_BYTES 65536u
#define CHUNK_SPACE (sizeof(struct chunk) + CHUNK_BYTES)
#define TICK_CHUNKS 64 // given back in one tick

// Under AddressSanitizer every block is a block of its own, so that a use after free is seen.
#if defined(__SANITIZE_ADDRESS__)
#define POOLED 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define POOLED 0
#endif
#endif
#ifndef POOLED
#define POOLED 1
#endif

struct chunk;
struct header { // in front of every block; keeps it 16-byte aligned
  uint32_t class_index;
  uint32_t bytes;      // room behind the header, for mem_resize; 0: over 4 GiB is never asked for
  struct chunk *chunk; // that it lies in; unused if it has no class
};
_Static_assert(sizeof(struct header) == 16, "blocks must stay 16-byte aligned");

// Blocks of one class. It counts those that are out, so that it can go back when there are none.
struct chunk {
  struct chunk *next, *previous; // of its class, while it has room
  struct header *free;           // linked through their bodies
  uint32_t class_index, n_out;
  uint32_t n_carved;   // blocks that have ever been out; pages of the others are untouched
  uint32_t empty_tick; // when the last block came back
  bool listed;
};
_Static_assert(sizeof(struct chunk) % 16 == 0, "blocks must stay 16-byte aligned");

struct mem_pool {
  struct chunk *open[N_CLASSES]; // with room; the first one serves
  void *spare;                   // of a chunk's size, for the moment when the system has no memory
  size_t live, n_chunks;
  uint32_t tick;
  uint64_t fail_in; // mem_takes until one fails; 0: none does
};

enum status mem_pool_open(struct mem_pool **out) {
  struct mem_pool *pool = calloc(1, sizeof *pool);
  *out = NULL;
  if (!pool) return STATUS_RESOURCE_EXHAUSTED;
  pool->spare = malloc(CHUNK_SPACE);
  if (!pool->spare) {
    free(pool);
    return STATUS_RESOURCE_EXHAUSTED;
  }
  *out = pool;
  return STATUS_OK;
}

void mem_pool_close(struct mem_pool *pool) {
  if (!pool) return;
  FW_ASSERT(pool->live == 0);
  for (int i = 0; i < N_CLASSES; i++)
    for (struct chunk *chunk = pool->open[i], *next; chunk; chunk = next) {
      next = chunk->next;
      free(chunk);
    }
  free(pool->spare);
  free(pool);
}

static uint32_t class_of(size_t total_bytes) {
  if (total_bytes <= 32) return 0;
  return 64 - (uint32_t)__builtin_clzll(total_bytes - 1) - 5;
}

// One failing malloc is not felt: the spare stands in, and is replaced as soon as there is
// memory again.
static void *spare_take(struct mem_pool *pool) {
  void *spare = pool->spare;
  pool->spare = NULL;
  return spare;
}

static void spare_replace(struct mem_pool *pool) {
  if (!pool->spare) pool->spare = malloc(CHUNK_SPACE);
}

static void list(struct mem_pool *pool, struct chunk *chunk) {
  struct chunk **first = &pool->open[chunk->class_index];
  chunk->next = *first;
  chunk->previous = NULL;
  if (*first) (*first)->previous = chunk;
  *first = chunk;
  chunk->listed = true;
}

static void unlist(struct mem_pool *pool, struct chunk *chunk) {
  if (chunk->previous)
    chunk->previous->next = chunk->next;
  else
    pool->open[chunk->class_index] = chunk->next;
  if (chunk->next) chunk->next->previous = chunk->previous;
  chunk->listed = false;
}

static struct chunk *chunk_open(struct mem_pool *pool, uint32_t class_index) {
  struct chunk *chunk = malloc(CHUNK_SPACE);
  if (chunk)
    spare_replace(pool);
  else if (!(chunk = spare_take(pool)))
    return NULL;
  memset(chunk, 0, sizeof *chunk);
  chunk->class_index = class_index;
  pool->n_chunks++;
  list(pool, chunk);
  return chunk;
}

static struct header **link_of(struct header *free_block) {
  return (struct header **)(free_block + 1);
}

// In a shortage a block of a larger class will do, if there is one.
static struct chunk *chunk_with_room(struct mem_pool *pool, uint32_t class_index) {
  struct chunk *chunk = chunk_open(pool, class_index);
  while (!chunk && ++class_index < N_CLASSES)
    chunk = pool->open[class_index];
  return chunk;
}

static struct header *take_small(struct mem_pool *pool, uint32_t class_index) {
  struct chunk *chunk = pool->open[class_index];
  if (!chunk) {
    if (!(chunk = chunk_with_room(pool, class_index))) return NULL;
    class_index = chunk->class_index;
  }
  struct header *header = chunk->free;
  if (header) {
    chunk->free = *link_of(header);
  } else {
    uint32_t block_bytes = 32u << class_index;
    header = (struct header *)((uint8_t *)(chunk + 1) + (size_t)chunk->n_carved++ * block_bytes);
    *header = (struct header){class_index, block_bytes - (uint32_t)sizeof *header, chunk};
  }
  chunk->n_out++;
  if (!chunk->free && chunk->n_carved == CHUNK_BYTES >> (class_index + 5)) unlist(pool, chunk);
  return header;
}

static void give_small(struct mem_pool *pool, struct header *header) {
  struct chunk *chunk = header->chunk;
  *link_of(header) = chunk->free;
  chunk->free = header;
  if (--chunk->n_out == 0) chunk->empty_tick = pool->tick;
  if (!chunk->listed) list(pool, chunk);
}

size_t mem_pool_tick(struct mem_pool *pool) {
  size_t given_bytes = 0;
  pool->tick++;
  for (int i = 0; i < N_CLASSES; i++)
    for (struct chunk *chunk = pool->open[i], *next; chunk; chunk = next) {
      next = chunk->next;
      if (chunk->n_out > 0 || pool->tick - chunk->empty_tick <= MEM_IDLE_TICKS) continue;
      if (given_bytes == TICK_CHUNKS * CHUNK_SPACE) return given_bytes;
      unlist(pool, chunk);
      free(chunk);
      pool->n_chunks--;
      given_bytes += CHUNK_SPACE;
    }
  return given_bytes;
}

// `must`: a block that grows, for whose owner a failure may be the end.
static struct header *take_large(struct mem_pool *pool, size_t bytes, bool must) {
  if (bytes > UINT32_MAX) return NULL;
  struct header *header = malloc(sizeof *header + bytes);
  if (header)
    spare_replace(pool);
  else if (must && bytes <= CHUNK_BYTES)
    header = spare_take(pool);
  if (!header) return NULL;
  header->class_index = CLASS_MALLOC;
  header->bytes = (uint32_t)bytes;
  return header;
}

static void *take(struct mem_pool *pool, size_t bytes, bool must) {
  struct header *header = POOLED && bytes <= MEM_MAX_POOLED_BYTES
                              ? take_small(pool, class_of(bytes + sizeof *header))
                              : take_large(pool, bytes, must);
  if (!header) return NULL;
  pool->live++;
  return header + 1;
}

void *mem_take(struct mem_pool *pool, size_t bytes) {
  if (pool->fail_in && --pool->fail_in == 0) return NULL;
  return take(pool, bytes, false);
}

void mem_give(struct mem_pool *pool, void *block) {
  if (!block) return;
  struct header *header = (struct header *)block - 1;
  pool->live--;
  if (header->class_index == CLASS_MALLOC)
    free(header);
  else
    give_small(pool, header);
}

void *mem_resize(struct mem_pool *pool, void *block, size_t bytes) {
  if (!block) return take(pool, bytes, false);
  struct header *header = (struct header *)block - 1;
  if (POOLED && bytes <= header->bytes) return block;
  void *moved = take(pool, bytes, true);
  if (!moved) return NULL;
  memcpy(moved, block, bytes < header->bytes ? bytes : header->bytes);
  mem_give(pool, block);
  return moved;
}

uint64_t mem_pool_fail(struct mem_pool *pool, uint64_t nth) {
  uint64_t left = pool->fail_in;
  pool->fail_in = nth;
  return left;
}

size_t mem_pool_live(const struct mem_pool *pool) {
  return pool->live;
}

size_t mem_pool_bytes(const struct mem_pool *pool) {
  return pool->n_chunks * CHUNK_SPACE;
}
