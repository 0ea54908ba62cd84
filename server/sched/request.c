// The request pool: one block, one free list, one thread.
#include "sched/request.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

struct request_pool {
  struct request *requests;
  struct request *free;                 // recycled ones
  int32_t n_requests, n_touched, n_out; // in the block; ever handed out; handed out now
};

enum status request_pool_open(int32_t n_requests, struct request_pool **out) {
  FW_ASSERT(n_requests > 0);
  struct request_pool *pool = calloc(1, sizeof *pool);
  if (!pool) return STATUS_RESOURCE_EXHAUSTED;
  // Untouched pages of a large pool cost nothing: calloc maps them, request_take touches them one
  // by one.
  pool->requests = calloc((size_t)n_requests, sizeof *pool->requests);
  if (!pool->requests) {
    free(pool);
    return STATUS_RESOURCE_EXHAUSTED;
  }
  pool->n_requests = n_requests;
  *out = pool;
  return STATUS_OK;
}

void request_pool_close(struct request_pool *pool) {
  if (!pool) return;
  FW_ASSERT(pool->n_out == 0);
  free(pool->requests);
  free(pool);
}

struct request *request_take(struct request_pool *pool) {
  struct request *request = pool->free;
  if (request)
    pool->free = request->next;
  else if (pool->n_touched < pool->n_requests)
    request = &pool->requests[pool->n_touched++];
  else
    return NULL;
  pool->n_out++;
  memset(request, 0, offsetof(struct request, id));
  request->pool = pool;
  return request;
}

void request_put(struct request *request) {
  struct request_pool *pool = request->pool;
  FW_ASSERT(pool->n_out > 0);
  pool->n_out--;
  request->next = pool->free;
  pool->free = request;
}
