// Blocks of host memory out of large chunks, for memory that is dear to get: pinned pages, whose
// allocation takes milliseconds and may wait for the device.
//
// A buddy allocator: sizes are rounded up to a power of two, neighbours that are both free become
// one again, so what one size gave back serves another. Chunks are taken when the free ones do not
// suffice and kept until the end. Blocks above the size of a chunk are taken and given back one by
// one. Any thread; a mutex, since slab pools come here only for what they do not have.
#ifndef BACKEND_CUDA_HOST_POOL_H
#define BACKEND_CUDA_HOST_POOL_H

#include "base/status.h"

#include <stdint.h>

#define HOST_POOL_BLOCK_BYTES 4096 // smallest block, and the alignment of all

struct host_pool_options {
  size_t chunk_bytes;                     // a power of two, HOST_POOL_BLOCK_BYTES and more
  void *(*take)(void *arg, size_t bytes); // page-aligned, or NULL: none left
  void (*give)(void *arg, void *memory, size_t bytes);
  void *arg;
};

struct host_pool;
// Takes the first chunk. RESOURCE_EXHAUSTED when there is none.
MUST_USE enum status host_pool_open(const struct host_pool_options *options,
                                    struct host_pool **out);
void host_pool_close(struct host_pool *pool); // every block must have been given back; NULL is fine
void *host_pool_take(struct host_pool *pool, size_t bytes);              // NULL: none left
void host_pool_give(struct host_pool *pool, void *memory, size_t bytes); // `bytes` as it was asked
// Whether all of it lies in a chunk: without a lock, for the request path.
bool host_pool_holds(const struct host_pool *pool, const void *memory, size_t bytes);
int64_t host_pool_bytes(struct host_pool *pool); // taken from below now, used or not

#endif
