#include "rpc/mem.h"
#include "base/log.h"
#include <stdlib.h>
#include <string.h>

#define N_CLASSES 10 // 32 bytes to 16 KiB, header included
#define CLASS_MALLOC N_CLASSES
#define CHUNK_BYTES 65536

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

struct header { // in front of every block; keeps it 16-byte aligned
  uint32_t class_index;
  uint32_t bytes; // room behind the header, for mem_resize; 0: over 4 GiB is never asked for
  struct header *next;
};
_Static_assert(sizeof(struct header) == 16, "blocks must stay 16-byte aligned");

struct chunk {
  struct chunk *next;
  uint64_t pad;
};

struct mem_pool {
  struct header *free_lists[N_CLASSES];
  struct chunk *chunks, *spare; // spare: for the moment when the system has no memory
  uint8_t *bump, *bump_end;     // the newest chunk's unused rest
  size_t live;
  uint64_t fail_in; // mem_takes until one fails; 0: none does
};

enum status mem_pool_open(struct mem_pool **out) {
  struct mem_pool *pool = calloc(1, sizeof *pool);
  *out = NULL;
  if (!pool) return STATUS_RESOURCE_EXHAUSTED;
  pool->spare = malloc(sizeof *pool->spare + CHUNK_BYTES);
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
  for (struct chunk *chunk = pool->chunks, *next; chunk; chunk = next) {
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

// One failing malloc is not felt: the spare chunk stands in, and is replaced as soon as there is
// memory again.
static void *spare_take(struct mem_pool *pool) {
  void *spare = pool->spare;
  pool->spare = NULL;
  return spare;
}

static void spare_replace(struct mem_pool *pool) {
  if (!pool->spare) pool->spare = malloc(sizeof *pool->spare + CHUNK_BYTES);
}

static struct chunk *chunk_take(struct mem_pool *pool) {
  struct chunk *chunk = malloc(sizeof *chunk + CHUNK_BYTES);
  if (!chunk) return spare_take(pool);
  spare_replace(pool);
  return chunk;
}

// What is left of the old chunk is smaller than one block of this class; it is given up (at most a
// quarter).
static struct header *carve(struct mem_pool *pool, uint32_t class_index) {
  size_t bytes = (size_t)32 << class_index;
  if ((size_t)(pool->bump_end - pool->bump) < bytes) {
    struct chunk *chunk = chunk_take(pool);
    if (!chunk) return NULL;
    chunk->next = pool->chunks;
    pool->chunks = chunk;
    pool->bump = (uint8_t *)(chunk + 1);
    pool->bump_end = pool->bump + CHUNK_BYTES;
  }
  struct header *header = (struct header *)pool->bump;
  pool->bump += bytes;
  header->class_index = class_index;
  header->bytes = (uint32_t)(bytes - sizeof *header);
  return header;
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
  struct header *header;
  if (!POOLED || bytes > MEM_MAX_POOLED_BYTES) {
    header = take_large(pool, bytes, must);
  } else {
    uint32_t class_index = class_of(bytes + sizeof *header);
    header = pool->free_lists[class_index];
    if (header)
      pool->free_lists[class_index] = header->next;
    else
      header = carve(pool, class_index);
  }
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
  if (header->class_index == CLASS_MALLOC) {
    free(header);
    return;
  }
  header->next = pool->free_lists[header->class_index];
  pool->free_lists[header->class_index] = header;
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
