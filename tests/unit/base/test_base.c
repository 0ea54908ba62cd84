// status, arena, slab, ring, wake, hist: behaviour that other layers rely on.
#include "base/arena.h"
#include "base/clock.h"
#include "base/copy.h"
#include "base/hist.h"
#include "base/ring.h"
#include "base/share.h"
#include "base/slab.h"
#include "base/wake.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void error_message_is_cut_at_a_character(void **state) {
  (void)state;
  struct error err;
  char text[ERROR_MESSAGE_BYTES + 16];
  memset(text, 'a', sizeof text);
  memcpy(text + ERROR_MESSAGE_BYTES - 2, "\xc3\xa9\xc3\xa9", 5); // é straddles the last byte
  assert_int_equal(error_set(&err, STATUS_NOT_FOUND, "%s", text), STATUS_NOT_FOUND);
  assert_int_equal(strlen(err.message), ERROR_MESSAGE_BYTES - 2);
  assert_int_equal(err.code, STATUS_NOT_FOUND);
  assert_int_equal(error_set(NULL, STATUS_INTERNAL, "x"), STATUS_INTERNAL);
}

static void error_text_has_the_position(void **state) {
  (void)state;
  struct error err;
  char out[128];
  (void)error_set_at(&err, STATUS_INVALID_ARGUMENT, "m.yaml", 3, 7, "bad %d", 5);
  assert_string_equal(error_text(&err, out, sizeof out), "m.yaml:3:7: bad 5");
  // A terminal or a log has it: no control characters, none of C1 either, nothing that is no UTF-8.
  (void)error_set_at(&err, STATUS_INVALID_ARGUMENT, "a\n\x1b[1m.yaml", 1, 2,
                     "\x7f\t\xc2\x9b \xc3\xa9 \xe2\x82\xac \xed\xa0\x80 \xff \xf0\x9f\x98");
  assert_string_equal(error_text(&err, out, sizeof out),
                      "a??[1m.yaml:1:2: ???? \xc3\xa9 \xe2\x82\xac ??? ? ???");
  assert_string_equal(status_name(STATUS_RESOURCE_EXHAUSTED), "RESOURCE_EXHAUSTED");
  assert_string_equal(status_name((enum status)99), "UNKNOWN");
}

static void arena_refuses_what_does_not_fit(void **state) {
  (void)state;
  _Alignas(64) uint8_t memory[128];
  struct arena arena;
  arena_init(&arena, memory, sizeof memory);
  assert_ptr_equal(arena_take(&arena, 3, 1), memory);
  assert_ptr_equal(arena_take(&arena, 8, 64), memory + 64);
  assert_null(arena_take(&arena, SIZE_MAX, 1));
  assert_null(arena_take(&arena, 57, 1));
  assert_non_null(arena_take(&arena, 56, 1));
  arena_reset(&arena);
  assert_ptr_equal(arena_take(&arena, 128, 1), memory);
}

static void slab_budget_is_a_hard_limit(void **state) {
  (void)state;
  struct budget budget = {.limit_bytes = 3 * 4096};
  struct slab_pool_options options = {
      .max_slab_bytes = 1 << 20, .keep_bytes = 4096, .budget = &budget};
  struct slab_pool *pool;
  assert_int_equal(slab_pool_open(&options, &pool), STATUS_OK);
  struct slab *a = slab_get(pool, 1), *b = slab_get(pool, 4097);
  assert_non_null(a);
  assert_non_null(b);
  assert_int_equal(b->capacity_bytes, 8192);
  assert_null(slab_get(pool, 1));             // budget
  assert_null(slab_get(pool, (1 << 20) + 1)); // class
  slab_ref(a);
  slab_put(pool, a);
  assert_int_equal(slab_pool_used_bytes(pool), 12288); // still one reference
  slab_put(pool, a);
  slab_put(pool, b);
  assert_int_equal(budget.used_bytes, 0);
  struct slab *again = slab_get(pool, 100);
  assert_ptr_equal(again, a); // kept for reuse
  slab_put(pool, again);
  assert_false(budget_take(&budget, INT64_MAX));
  assert_int_equal(budget.used_bytes, 0);
  slab_pool_close(pool);
}

static int n_host_blocks;
static void *host_take(void *arg, size_t bytes) {
  (void)arg;
  n_host_blocks++;
  return malloc(bytes);
}
static void host_give(void *arg, void *memory, size_t bytes) {
  (void)arg, (void)bytes;
  n_host_blocks--;
  free(memory);
}

// A burst's slabs go back when nobody has wanted them for a while; those in use again and again
// stay; one tick takes a few MiB.
static void slabs_that_are_idle_go_back(void **state) {
  (void)state;
  struct slab_pool_options options = {.max_slab_bytes = 1 << 20,
                                      .keep_bytes = 64 << 20,
                                      .host_alloc = host_take,
                                      .host_free = host_give};
  struct slab_pool *pool;
  struct slab *burst[40];
  assert_int_equal(slab_pool_open(&options, &pool), STATUS_OK);
  for (int i = 0; i < 20; i++)
    burst[i] = slab_get(pool, 1 << 20);
  for (int i = 20; i < 40; i++)
    burst[i] = slab_get(pool, 4096);
  for (int i = 0; i < 40; i++)
    slab_put(pool, burst[i]);
  assert_int_equal(slab_pool_idle_bytes(pool), (20 << 20) + 20 * 4096);
  for (int tick = 0; tick < SLAB_IDLE_TICKS; tick++) {
    struct slab *a = slab_get(pool, 1 << 20), *b = slab_get(pool, 1 << 20);
    assert_int_equal(slab_pool_tick(pool), 0);
    slab_put(pool, a);
    slab_put(pool, b);
  }
  assert_int_equal(n_host_blocks, 40);
  assert_int_equal(slab_pool_tick(pool), (3 << 20) + 20 * 4096);
  for (int i = 0; i < 4; i++)
    assert_int_equal(slab_pool_tick(pool), i < 3 ? 4 << 20 : 3 << 20);
  assert_int_equal(slab_pool_idle_bytes(pool), 2 << 20);
  assert_int_equal(n_host_blocks, 2);
  for (int tick = 0; tick < 2 * SLAB_IDLE_TICKS; tick++)
    (void)slab_pool_tick(pool);
  assert_int_equal(n_host_blocks, 0);
  slab_pool_close(pool);
}

#define MESSAGES 200000
struct pair {
  struct ring ring;
  struct wake wake;
  uint64_t sum;
};

static void *consume(void *arg) {
  struct pair *pair = arg;
  for (uint64_t got = 0; got < MESSAGES;) {
    void *item = ring_pop(&pair->ring);
    if (!item) {
      wake_wait(&pair->wake, CLOCK_NEVER); // a lost wake-up would hang here
      continue;
    }
    pair->sum += (uintptr_t)item;
    got++;
  }
  return NULL;
}

static void ring_and_wake_lose_nothing(void **state) {
  (void)state;
  static struct pair pair;
  assert_int_equal(ring_init(&pair.ring, 100), STATUS_OK); // rounds to 128
  wake_init(&pair.wake, NULL, NULL);
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, consume, &pair), 0);
  for (uintptr_t i = 1; i <= MESSAGES; i++) {
    while (!ring_push(&pair.ring, (void *)i))
      sched_yield();
    wake_signal(&pair.wake);
  }
  pthread_join(thread, NULL);
  assert_int_equal(pair.sum, (uint64_t)MESSAGES * (MESSAGES + 1) / 2);
  assert_int_equal(ring_size(&pair.ring), 0);
  ring_deinit(&pair.ring);
}

static void ring_refuses_when_full(void **state) {
  (void)state;
  struct ring ring;
  assert_int_equal(ring_init(&ring, 2), STATUS_OK);
  int item;
  assert_true(ring_push(&ring, &item));
  assert_true(ring_push(&ring, &item));
  assert_false(ring_push(&ring, &item));
  assert_ptr_equal(ring_pop(&ring), &item);
  assert_true(ring_push(&ring, &item));
  ring_deinit(&ring);
  assert_int_equal(ring_init(&ring, 0), STATUS_INVALID_ARGUMENT);
}

static void wake_wait_ends_at_its_time(void **state) {
  (void)state;
  struct wake wake;
  wake_init(&wake, NULL, NULL);
  int64_t until = clock_now_ns() + 2 * NS_PER_MS;
  while (clock_now_ns() < until)
    wake_wait(&wake, until);
  wake_signal(&wake);
  wake_wait(&wake, CLOCK_NEVER); // a signal before the wait is not lost
}

static void hist_percentiles_are_within_a_bucket(void **state) {
  (void)state;
  static struct hist hist;
  for (uint64_t v = 1; v <= 10000; v++)
    hist_record(&hist, v * 1000);
  for (double f = 0.01; f < 1; f += 0.07) {
    double exact = f * 1e7, got = (double)hist_percentile(&hist, f);
    if (got < exact * 0.999 || got > exact * 1.13)
      fail_msg("p%.2f: %.0f, exact %.0f", f, got, exact);
  }
  assert_int_equal(hist_count_le(&hist, UINT64_MAX), 10000);
  assert_int_equal(hist_count_le(&hist, 0), 0);
  hist_record(&hist, UINT64_MAX);
  assert_int_equal(hist_percentile(&hist, 1.0), UINT64_MAX);
}

// In every window of every length: never more than one away from n times the share.
static void a_share_is_exact_in_every_window(void **state) {
  (void)state;
  enum { N = 3000 };
  static const double parts[] = {0, 0.001, 0.05, 0.1, 1.0 / 3, 0.5, 0.9, 0.999, 1};
  for (size_t p = 0; p < sizeof parts / sizeof *parts; p++)
    for (uint64_t seed = 0; seed < 3; seed++) {
      static int taken[N + 1]; // among the first i
      struct share share;
      share_init(&share, parts[p], seed);
      for (int i = 0; i < N; i++)
        taken[i + 1] = taken[i] + share_takes(&share);
      for (int from = 0; from < N; from += 7)
        for (int to = from + 1; to <= N; to += 11) {
          double expected = parts[p] * (to - from);
          assert_true(fabs(taken[to] - taken[from] - expected) < 1 + 1e-4);
        }
    }
  struct share fifth, none, all;
  share_init(&fifth, 0.2, 0);
  for (int i = 1; i <= 100; i++)
    assert_int_equal(share_takes(&fifth), i % 5 == 0);
  share_init(&none, 0, 7);
  share_init(&all, 1, 7);
  for (int i = 0; i < 1000; i++)
    assert_true(!share_takes(&none) && share_takes(&all));
}

static void a_seed_moves_a_share(void **state) {
  (void)state;
  struct share a, same, other;
  share_init(&a, 0.1, 1);
  share_init(&same, 0.1, 1);
  share_init(&other, 0.1, 2);
  int differ = 0;
  for (int i = 0; i < 100; i++) {
    bool taken = share_takes(&a);
    assert_int_equal(share_takes(&same), taken);
    differ += share_takes(&other) != taken;
  }
  assert_true(differ > 0);
}

// Every length around one and two pieces, at distances that a copy takes different ways for.
static void long_copies_are_whole(void **state) {
  (void)state;
  enum { MOST = 2 * PAGE_BYTES + 2 };
  uint8_t *from = malloc(MOST + 64), *to = malloc(MOST + 64);
  assert_true(from && to);
  for (size_t i = 0; i < MOST + 64; i++)
    from[i] = (uint8_t)(i * 31 + i / 256);
  const size_t lengths[] = {0, 1, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, MOST - 2, MOST};
  for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++)
    for (size_t at = 0; at < 33; at += 8) {
      memset(to, 0xee, MOST + 64);
      copy_bytes(to + at, from + 1, lengths[l]);
      assert_memory_equal(to + at, from + 1, lengths[l]);
      assert_true(to[at + lengths[l]] == 0xee && (at == 0 || to[at - 1] == 0xee));
    }
  free(from);
  free(to);
}

// Large slabs begin elsewhere in their page than small ones: all of them can be written, to the
// end.
static void slabs_are_aligned_and_whole(void **state) {
  (void)state;
  struct slab_pool_options options = {.max_slab_bytes = 1 << 20, .keep_bytes = 1 << 20};
  struct slab_pool *pool;
  assert_int_equal(slab_pool_open(&options, &pool), STATUS_OK);
  for (size_t bytes = 4096; bytes <= 1 << 20; bytes *= 2) {
    struct slab *slab = slab_get(pool, bytes);
    assert_non_null(slab);
    assert_int_equal((uintptr_t)slab->data % 64, 0);
    memset(slab->data, 1, slab->capacity_bytes);
    slab_put(pool, slab);
  }
  slab_pool_close(pool);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(error_message_is_cut_at_a_character),
      cmocka_unit_test(error_text_has_the_position),
      cmocka_unit_test(arena_refuses_what_does_not_fit),
      cmocka_unit_test(slab_budget_is_a_hard_limit),
      cmocka_unit_test(slabs_that_are_idle_go_back),
      cmocka_unit_test(slabs_are_aligned_and_whole),
      cmocka_unit_test(long_copies_are_whole),
      cmocka_unit_test(ring_and_wake_lose_nothing),
      cmocka_unit_test(ring_refuses_when_full),
      cmocka_unit_test(wake_wait_ends_at_its_time),
      cmocka_unit_test(a_share_is_exact_in_every_window),
      cmocka_unit_test(a_seed_moves_a_share),
      cmocka_unit_test(hist_percentiles_are_within_a_bucket),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
