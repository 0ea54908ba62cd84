// Memory for packed weights in huge pages: a batch of one sentence streams all weights of a model
// once, and with small pages a fifth of its time went to address translation (measured: bench_plan
// 25, 2.36 ms against 1.94 ms).
#ifndef BACKEND_CPU_POOL_H
#define BACKEND_CPU_POOL_H

#include <stddef.h>

struct pool_block;
struct pool {
  struct pool_block *blocks;
};

// 64-byte aligned, not zeroed; NULL when memory is out. Where the system has no huge pages to give,
// small ones do.
void *pool_take(struct pool *pool, size_t bytes);
void pool_deinit(struct pool *pool); // everything at once

#endif
