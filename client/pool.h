// A freeing-is-pushing allocator for nghttp2's small objects (streams, frames, header copies): in
// steady state a call costs no malloc. Blocks go back to a list of their power of two and are never
// returned before pool_deinit. One thread.
#ifndef CLIENT_POOL_H
#define CLIENT_POOL_H

#include "base/status.h"

#define POOL_CLASSES 12 // 32 bytes .. 64 KiB; larger blocks go to malloc

struct pool {
  struct pool_block *free_blocks[POOL_CLASSES];
};

void *pool_malloc(struct pool *pool, size_t bytes);
void *pool_calloc(struct pool *pool, size_t n, size_t bytes);
void *pool_realloc(struct pool *pool, void *memory, size_t bytes);
void pool_free(struct pool *pool, void *memory);
void pool_deinit(struct pool *pool); // blocks still in use are their holder's to free before this

#endif
