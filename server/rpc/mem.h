// Small blocks of one loop: free lists by size class, so that the request path makes no call to
// malloc. nghttp2 (per stream, header and frame), answers and output blocks live here. Loop thread
// only. Blocks lie in chunks of 64 KiB; a chunk none of whose blocks was out for MEM_IDLE_TICKS
// goes back to malloc (mem_pool_tick).
#ifndef RPC_MEM_H
#define RPC_MEM_H

#include "base/status.h"
#include <stdint.h>

// Largest pooled block; bigger ones go straight to malloc.
#define MEM_MAX_POOLED_BYTES (16384 - 16)

struct mem_pool;
MUST_USE enum status mem_pool_open(struct mem_pool **out);
void mem_pool_close(struct mem_pool *pool);          // every block must have been given back
void *mem_take(struct mem_pool *pool, size_t bytes); // 16-byte aligned, not zeroed; NULL: no memory
void *mem_resize(struct mem_pool *pool, void *block,
                 size_t bytes);                    // as realloc; `block` may be NULL
void mem_give(struct mem_pool *pool, void *block); // `block` may be NULL
// Time goes on, by about a second. Returns how many bytes were given back: at most 4 MiB.
#define MEM_IDLE_TICKS 10
size_t mem_pool_tick(struct mem_pool *pool);
size_t mem_pool_bytes(const struct mem_pool *pool); // chunks taken now
// For tests: the `nth` mem_take from now on fails, once; 0: none. Returns what was left of an
// earlier order: 0 when that has failed already.
uint64_t mem_pool_fail(struct mem_pool *pool, uint64_t nth);
size_t mem_pool_live(const struct mem_pool *pool); // blocks handed out now

#endif
