// Every allocation of a connection's life fails once, in turn: nothing may crash, leak or be
// answered twice.
#include "loopback.h"
#include "rpc/internal.h"

static void *counting_alloc(void *arg, size_t bytes) {
  int64_t *left = arg;
  if (*left > 0 && --*left == 0) return NULL;
  return aligned_alloc(64, bytes);
}

static void counting_free(void *arg, void *memory, size_t bytes) {
  (void)arg, (void)bytes;
  free(memory);
}

// Calls of every kind, cut into pieces, then a drain. Returns whether the server got through it.
static bool scenario(struct loopback *loop) {
  uint8_t *message = message_make(20000);
  int32_t reset = call_path(loop, "/t.T/Keep");
  for (int i = 0; i < 3; i++) {
    request_send(loop, &(struct request){.path = "/t.T/Echo", .body = message, .bytes = 20005});
    call_path(loop, "/t.T/Fail");
    call_path(loop, "/t.T/Keep");
    call_path(loop, "/t.T/Unknown");
  }
  pump(loop);
  for (int i = 0; i < loop->n_kept; i += 2)
    answer_kept(loop, i);
  (void)nghttp2_submit_rst_stream(loop->client, 0, reset, NGHTTP2_CANCEL);
  pump(loop);
  h2_drain(loop->h2, loop->now_ns);
  for (int i = 0; i < loop->n_kept; i++)
    answer_kept(loop, i);
  pump(loop);
  free(message);
  return h2_finished(loop->h2) && loop->n_handled == 10;
}

static void every_small_allocation_may_fail(void **state) {
  (void)state;
  struct rpc_limits limits = loopback_limits();
  int n_failed = 0;
  for (uint64_t nth = 1;; nth++) {
    struct loopback *loop = loopback_open(&limits);
    mem_pool_fail(loop->rpc->mem, nth);
    scenario(loop);
    bool failed = mem_pool_fail(loop->rpc->mem, 0) == 0;
    h2_lost(loop->h2);
    for (int i = 0; i < loop->n_kept; i++)
      assert_null(call_find(loop->rpc, loop->kept[i]));
    loopback_close(loop); // checks that every slab and block is back
    if (!failed) break;
    n_failed++;
    assert_in_range(nth, 1, 100000);
  }
  print_message("%d allocations failed in turn\n", n_failed);
  assert_true(n_failed > 100);
}

static void every_connection_may_fail_to_open(void **state) {
  (void)state;
  struct rpc_limits limits = loopback_limits();
  struct loopback *loop = loopback_open(&limits);
  struct h2 *other;
  uint64_t nth = 1;
  for (;; nth++) {
    mem_pool_fail(loop->rpc->mem, nth);
    size_t live = mem_pool_live(loop->rpc->mem);
    if (h2_open(loop->rpc, loop, T0, &other) == STATUS_OK) break;
    assert_null(other);
    assert_int_equal(mem_pool_live(loop->rpc->mem), live);
  }
  mem_pool_fail(loop->rpc->mem, 0);
  h2_close(other);
  assert_true(nth > 3);
  loopback_close(loop);
}

static void every_slab_may_fail(void **state) {
  (void)state;
  struct rpc_limits limits = loopback_limits();
  for (int64_t nth = 1; nth < 20; nth++) {
    int64_t left = nth;
    struct loopback *loop = loopback_open(&limits);
    struct slab_pool *pool = loop->rpc->pool;
    struct slab_pool_options options = {.max_slab_bytes = 1 << 20,
                                        .budget = &loop->total,
                                        .arg = &left,
                                        .host_alloc = counting_alloc,
                                        .host_free = counting_free};
    assert_int_equal(slab_pool_open(&options, &loop->rpc->pool), STATUS_OK);
    loop->h2->room.pool = loop->rpc->pool;
    slab_pool_close(pool);
    scenario(loop);
    assert_true(h2_finished(loop->h2)); // one call is refused; the connection lives on
    int refused = 0;
    for (int i = 0; i < MAX_STREAMS; i++)
      refused += loop->seen[i].grpc_status == STATUS_RESOURCE_EXHAUSTED;
    assert_int_equal(refused, left == 0);
    loopback_close(loop);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_small_allocation_may_fail),
      cmocka_unit_test(every_connection_may_fail_to_open),
      cmocka_unit_test(every_slab_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
