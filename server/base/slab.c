// One free list per size class. A freed slab stays on its list while the pool keeps less than
// keep_bytes idle; kept memory still counts against the budget only while handed out, so an idle
// pool never starves another loop.
//
// The lists are stacks, so what the load of the moment does not need sinks to their ends and is
// found there by its age alone.
#include "base/slab.h"

#include "base/copy.h"
#include "base/log.h"
#include <stdlib.h>

#define SLAB_MIN_SHIFT 12 // 4 KiB: below that the class overhead is all there is
#define SLAB_CLASSES 36
#define SLAB_ALIGN 64
// Given back in one tick, but for one slab that is larger: unmapping 4 MiB takes half a
// millisecond.
#define TICK_BYTES ((size_t)4 << 20)
#define TICK_SLABS 256

struct free_list {
  struct slab *first, *last; // last: idle for longest
};
#define LARGE_BYTES ((size_t)64 * 1024)

struct slab_pool {
  struct slab_pool_options options;
  struct free_list free_lists[SLAB_CLASSES];
  size_t idle_bytes, used_bytes;
  uint32_t n_out, tick;
};

bool budget_take(struct budget *budget, int64_t bytes) {
  int64_t before = atomic_fetch_add_explicit(&budget->used_bytes, bytes, memory_order_relaxed);
  if (bytes <= budget->limit_bytes && before <= budget->limit_bytes - bytes) return true;
  atomic_fetch_sub_explicit(&budget->used_bytes, bytes, memory_order_relaxed);
  return false;
}

void budget_give(struct budget *budget, int64_t bytes) {
  atomic_fetch_sub_explicit(&budget->used_bytes, bytes, memory_order_relaxed);
}

// Where the first byte of a large slab lies in its page. The kernel copies an answer into pages
// that it begins with our headers: in a slab that began near the beginning of its page, too, a MiB
// and the headers of its frames would walk through the distances that are slow (base/copy.h).
static size_t large_offset(size_t bytes) {
  return bytes >= LARGE_BYTES ? PAGE_BYTES / 2 : 0;
}

static void *default_alloc(void *arg, size_t bytes) {
  (void)arg;
  size_t offset = large_offset(bytes);
  if (offset == 0) return aligned_alloc(SLAB_ALIGN, bytes);
  uint8_t *memory = aligned_alloc(PAGE_BYTES, bytes + PAGE_BYTES);
  return memory ? memory + offset : NULL;
}

static void default_free(void *arg, void *memory, size_t bytes) {
  (void)arg;
  free((uint8_t *)memory - large_offset(bytes));
}

enum status slab_pool_open(const struct slab_pool_options *options, struct slab_pool **out) {
  struct slab_pool *pool = calloc(1, sizeof *pool);
  if (!pool) return STATUS_RESOURCE_EXHAUSTED;
  pool->options = *options;
  if (!pool->options.host_alloc) {
    pool->options.host_alloc = default_alloc;
    pool->options.host_free = default_free;
  }
  *out = pool;
  return STATUS_OK;
}

static void slab_destroy(struct slab_pool *pool, struct slab *slab) {
  pool->options.host_free(pool->options.arg, slab->data, slab->capacity_bytes);
  free(slab);
}

void slab_pool_close(struct slab_pool *pool) {
  if (!pool) return;
  FW_ASSERT(pool->n_out == 0);
  for (int i = 0; i < SLAB_CLASSES; i++)
    for (struct slab *slab = pool->free_lists[i].first, *next; slab; slab = next) {
      next = slab->next;
      slab_destroy(pool, slab);
    }
  free(pool);
}

static uint32_t class_of(size_t bytes) {
  uint32_t index = 0;
  while (((size_t)1 << (SLAB_MIN_SHIFT + index)) < bytes)
    index++;
  return index;
}

static struct slab *slab_create(struct slab_pool *pool, uint32_t class_index, size_t capacity) {
  struct slab *slab = malloc(sizeof *slab);
  if (!slab) return NULL;
  slab->data = pool->options.host_alloc(pool->options.arg, capacity);
  if (!slab->data) {
    free(slab);
    return NULL;
  }
  slab->capacity_bytes = capacity;
  slab->class_index = class_index;
  return slab;
}

static void list_push(struct free_list *list, struct slab *slab) {
  slab->next = list->first;
  slab->previous = NULL;
  if (list->first)
    list->first->previous = slab;
  else
    list->last = slab;
  list->first = slab;
}

static void list_remove(struct free_list *list, struct slab *slab) {
  if (slab->previous)
    slab->previous->next = slab->next;
  else
    list->first = slab->next;
  if (slab->next)
    slab->next->previous = slab->previous;
  else
    list->last = slab->previous;
}

struct slab *slab_get(struct slab_pool *pool, size_t bytes) {
  if (bytes > pool->options.max_slab_bytes || bytes > (size_t)1
                                                          << (SLAB_MIN_SHIFT + SLAB_CLASSES - 1))
    return NULL;
  uint32_t class_index = class_of(bytes);
  size_t capacity = (size_t)1 << (SLAB_MIN_SHIFT + class_index);
  if (pool->options.budget && !budget_take(pool->options.budget, (int64_t)capacity)) return NULL;
  struct slab *slab = pool->free_lists[class_index].first;
  if (slab) {
    list_remove(&pool->free_lists[class_index], slab);
    pool->idle_bytes -= capacity;
  } else {
    slab = slab_create(pool, class_index, capacity);
    if (!slab) {
      if (pool->options.budget) budget_give(pool->options.budget, (int64_t)capacity);
      return NULL;
    }
  }
  slab->refs = 1;
  pool->used_bytes += capacity;
  pool->n_out++;
  return slab;
}

void slab_ref(struct slab *slab) {
  FW_ASSERT(slab->refs > 0);
  slab->refs++;
}

void slab_put(struct slab_pool *pool, struct slab *slab) {
  if (!slab) return;
  FW_ASSERT(slab->refs > 0);
  if (--slab->refs > 0) return;
  size_t capacity = slab->capacity_bytes;
  pool->used_bytes -= capacity;
  pool->n_out--;
  if (pool->options.budget) budget_give(pool->options.budget, (int64_t)capacity);
  if (pool->idle_bytes + capacity > pool->options.keep_bytes) {
    slab_destroy(pool, slab);
    return;
  }
  slab->idle_tick = pool->tick;
  list_push(&pool->free_lists[slab->class_index], slab);
  pool->idle_bytes += capacity;
}

size_t slab_pool_tick(struct slab_pool *pool) {
  size_t given_bytes = 0;
  int n_given = 0;
  pool->tick++;
  for (int i = 0; i < SLAB_CLASSES; i++) {
    struct free_list *list = &pool->free_lists[i];
    while (list->last && pool->tick - list->last->idle_tick > SLAB_IDLE_TICKS) {
      struct slab *slab = list->last;
      size_t capacity = slab->capacity_bytes;
      if (n_given == TICK_SLABS || (n_given > 0 && given_bytes + capacity > TICK_BYTES))
        return given_bytes;
      FW_ASSERT(!slab->next); // the last one
      list_remove(list, slab);
      slab_destroy(pool, slab);
      pool->idle_bytes -= capacity;
      given_bytes += capacity;
      n_given++;
    }
  }
  return given_bytes;
}

size_t slab_pool_used_bytes(const struct slab_pool *pool) {
  return pool->used_bytes;
}

size_t slab_pool_idle_bytes(const struct slab_pool *pool) {
  return pool->idle_bytes;
}

int64_t slab_pool_fair_bytes(const struct slab_pool *pool, int64_t held_bytes) {
  const struct budget *budget = pool->options.budget;
  if (!budget) return INT64_MAX;
  int64_t used_bytes = atomic_load_explicit(&budget->used_bytes, memory_order_relaxed);
  int64_t free_bytes = budget->limit_bytes - used_bytes;
  return used_bytes <= free_bytes ? INT64_MAX : (free_bytes - held_bytes) / 2;
}
