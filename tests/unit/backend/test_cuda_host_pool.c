// The pool of pinned host memory, over ordinary memory: blocks do not overlap, come back together,
// and little is taken from below.
#include "harness/cmocka_all.h"

#include "backend/cuda/host_pool.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK ((size_t)64 * 1024)

static int n_taken, n_given, fail_after;

static void *take(void *arg, size_t bytes) {
  (void)arg;
  if (fail_after >= 0 && n_taken >= fail_after) return NULL;
  n_taken++;
  return aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
}
static void give(void *arg, void *memory, size_t bytes) {
  (void)arg, (void)bytes;
  n_given++;
  free(memory);
}

static struct host_pool *pool_open(void) {
  struct host_pool_options options = {.chunk_bytes = CHUNK, .take = take, .give = give};
  struct host_pool *pool = NULL;
  n_taken = n_given = 0;
  fail_after = -1;
  assert_int_equal(host_pool_open(&options, &pool), STATUS_OK);
  assert_int_equal(n_taken, 1);
  return pool;
}

static void pool_end(struct host_pool *pool) {
  host_pool_close(pool);
  assert_int_equal(n_taken, n_given);
}

static void a_chunk_serves_many_small_blocks(void **state) {
  (void)state;
  struct host_pool *pool = pool_open();
  void *blocks[16];
  for (int i = 0; i < 16; i++) {
    blocks[i] = host_pool_take(pool, 4096 - (size_t)i);
    assert_non_null(blocks[i]);
    assert_int_equal((uintptr_t)blocks[i] % 4096, 0);
    memset(blocks[i], i, 4096);
  }
  assert_int_equal(n_taken, 1);
  for (int i = 0; i < 16; i++) {
    assert_int_equal(*(unsigned char *)blocks[i], i);
    host_pool_give(pool, blocks[i], 4096 - (size_t)i);
  }
  pool_end(pool);
}

static void what_small_blocks_gave_back_serves_a_large_one(void **state) {
  (void)state;
  struct host_pool *pool = pool_open();
  void *blocks[16];
  for (int i = 0; i < 16; i++)
    blocks[i] = host_pool_take(pool, 1);
  for (int i = 0; i < 16; i++)
    host_pool_give(pool, blocks[(i * 7) % 16], 1);
  void *all = host_pool_take(pool, CHUNK);
  assert_non_null(all);
  assert_int_equal(n_taken, 1);
  host_pool_give(pool, all, CHUNK);
  pool_end(pool);
}

static void more_than_a_chunk_is_taken_and_given_back(void **state) {
  (void)state;
  struct host_pool *pool = pool_open();
  void *big = host_pool_take(pool, CHUNK + 1);
  assert_non_null(big);
  memset(big, 1, CHUNK + 1);
  assert_int_equal(host_pool_bytes(pool), 2 * CHUNK + 1);
  host_pool_give(pool, big, CHUNK + 1);
  assert_int_equal(n_given, 1);
  assert_int_equal(host_pool_bytes(pool), CHUNK);
  pool_end(pool);
}

static void without_memory_below_there_is_none(void **state) {
  (void)state;
  struct host_pool_options options = {.chunk_bytes = CHUNK, .take = take, .give = give};
  struct host_pool *pool = NULL;
  n_taken = n_given = fail_after = 0;
  assert_int_equal(host_pool_open(&options, &pool), STATUS_RESOURCE_EXHAUSTED);
  pool = pool_open();
  fail_after = 1;
  void *all = host_pool_take(pool, CHUNK);
  assert_non_null(all);
  assert_null(host_pool_take(pool, 1));
  assert_null(host_pool_take(pool, 2 * CHUNK));
  host_pool_give(pool, all, CHUNK);
  assert_non_null(all = host_pool_take(pool, 1)); // the pool is none the worse for it
  host_pool_give(pool, all, 1);
  pool_end(pool);
}

// Random takes and gives; each block holds its own number in every byte as long as it lives.
static void storm(struct host_pool *pool, uint32_t seed, int rounds) {
  enum { N = 40 };
  struct {
    uint8_t *memory;
    size_t bytes;
  } blocks[N] = {0};
  for (int i = 0; i < rounds; i++) {
    seed = seed * 1664525 + 1013904223;
    uint32_t at = seed >> 8 & 0xffff, k = at % N;
    if (blocks[k].memory) {
      for (size_t b = 0; b < blocks[k].bytes; b += 509)
        if (blocks[k].memory[b] != (uint8_t)k) abort();
      host_pool_give(pool, blocks[k].memory, blocks[k].bytes);
      blocks[k].memory = NULL;
    } else {
      blocks[k].bytes = 1 + (seed >> 12) % (CHUNK / 3);
      blocks[k].memory = host_pool_take(pool, blocks[k].bytes);
      if (blocks[k].memory) memset(blocks[k].memory, (int)k, blocks[k].bytes);
    }
  }
  for (int k = 0; k < N; k++)
    host_pool_give(pool, blocks[k].memory, blocks[k].bytes);
}

static void *storm_main(void *arg) {
  storm(arg, (uint32_t)(uintptr_t)pthread_self(), 20000);
  return NULL;
}

static void blocks_never_overlap(void **state) {
  (void)state;
  for (uint32_t seed = 1; seed <= 20; seed++) {
    struct host_pool *pool = pool_open();
    storm(pool, seed, 3000);
    int taken = n_taken;
    void *all = host_pool_take(pool, CHUNK); // everything came together again
    assert_int_equal(n_taken, taken);
    host_pool_give(pool, all, CHUNK);
    pool_end(pool);
  }
}

static void threads_share_it(void **state) {
  (void)state;
  struct host_pool *pool = pool_open();
  pthread_t threads[4];
  for (int i = 0; i < 4; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, storm_main, pool), 0);
  for (int i = 0; i < 4; i++)
    pthread_join(threads[i], NULL);
  pool_end(pool);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_chunk_serves_many_small_blocks),
      cmocka_unit_test(what_small_blocks_gave_back_serves_a_large_one),
      cmocka_unit_test(more_than_a_chunk_is_taken_and_given_back),
      cmocka_unit_test(without_memory_below_there_is_none),
      cmocka_unit_test(blocks_never_overlap),
      cmocka_unit_test(threads_share_it),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
