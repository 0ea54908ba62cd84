#include "fault/alloc.h"
#include "rpc/mem.h"

#include <stdatomic.h>
#include <stddef.h>

#define OFF INT64_MIN

static _Atomic int64_t countdown = OFF;

void fault_arm(int64_t nth) {
  atomic_store(&countdown, nth);
}

bool fault_disarm(void) {
  int64_t left = atomic_exchange(&countdown, OFF);
  return left < 0 && left != OFF; // -1 once it has fired
}

// Set around what must not fail: see __wrap_mem_resize.
static _Thread_local bool spared;

static bool fails(void) {
  if (spared) return false;
  if (atomic_load_explicit(&countdown, memory_order_relaxed) < 0)
    return false; // off, or fired already
  return atomic_fetch_sub(&countdown, 1) == 0;
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);
char *__wrap_strdup(const char *text);

void *__wrap_malloc(size_t bytes) {
  return fails() ? NULL : __real_malloc(bytes);
}
void *__wrap_calloc(size_t n, size_t bytes) {
  return fails() ? NULL : __real_calloc(n, bytes);
}
void *__wrap_realloc(void *memory, size_t bytes) {
  return fails() ? NULL : __real_realloc(memory, bytes);
}
void *__wrap_aligned_alloc(size_t align, size_t bytes) {
  return fails() ? NULL : __real_aligned_alloc(align, bytes);
}
char *__wrap_strdup(const char *text) {
  return fails() ? NULL : __real_strdup(text);
}

// nghttp2 1.52 does not survive a realloc of its own that fails (rpc/rpc.c says why, and stops
// there). Its pool makes that a matter of long shortage; under AddressSanitizer there is no pool,
// and each of them would be hit, so there they are spared.
#ifdef __SANITIZE_ADDRESS__
#define SPARE_RESIZE true
#else
#define SPARE_RESIZE false
#endif
void *__real_mem_resize(struct mem_pool *pool, void *block, size_t bytes);
void *__wrap_mem_resize(struct mem_pool *pool, void *block, size_t bytes);

void *__wrap_mem_resize(struct mem_pool *pool, void *block, size_t bytes) {
  spared = SPARE_RESIZE;
  void *moved = __real_mem_resize(pool, block, bytes);
  spared = false;
  return moved;
}
