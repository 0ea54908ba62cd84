#include "harness/cmocka_all.h"
#include "rpc/mem.h"

#define BLOCKS 5000
#define BLOCK_BYTES 240 // a block of 256 with its header
#define CHUNK_BYTES 65536

static struct mem_pool *mem;

static int up(void **state) {
  (void)state;
  assert_int_equal(mem_pool_open(&mem), STATUS_OK);
  return 0;
}

static int down(void **state) {
  (void)state;
  mem_pool_close(mem);
  return 0;
}

static void pass(int ticks) {
  for (int i = 0; i < ticks; i++)
    mem_pool_tick(mem);
}

static void *blocks[BLOCKS];
static void take_all(void) {
  for (int i = 0; i < BLOCKS; i++) {
    assert_non_null(blocks[i] = mem_take(mem, BLOCK_BYTES));
    memset(blocks[i], i, BLOCK_BYTES);
  }
}

static bool pooled(void) { // not under AddressSanitizer
  mem_give(mem, mem_take(mem, 1));
  return mem_pool_bytes(mem) > 0;
}

static void blocks_do_not_overlap(void **state) {
  (void)state;
  take_all();
  for (int i = 0; i < BLOCKS; i += 3)
    mem_give(mem, blocks[i]);
  for (int i = 0; i < BLOCKS; i += 3)
    memset(blocks[i] = mem_take(mem, BLOCK_BYTES - (size_t)i % 100), i, BLOCK_BYTES - i % 100);
  for (int i = 0; i < BLOCKS; i++) {
    for (int at = 0; at < BLOCK_BYTES - 100; at++)
      assert_int_equal(((uint8_t *)blocks[i])[at], (uint8_t)i);
    mem_give(mem, blocks[i]);
  }
  assert_int_equal(mem_pool_live(mem), 0);
}

// The busiest moment is not what the pool keeps for ever.
static void what_a_burst_took_goes_back(void **state) {
  (void)state;
  if (!pooled()) skip();
  take_all();
  pass(2 * MEM_IDLE_TICKS); // the small chunk of `pooled` goes
  size_t most = mem_pool_bytes(mem);
  assert_in_range(most, BLOCKS * 256, BLOCKS * 256 + 2 * CHUNK_BYTES);
  pass(2 * MEM_IDLE_TICKS);
  assert_int_equal(mem_pool_bytes(mem), most); // in use, however old
  for (int i = 0; i < BLOCKS; i++)
    mem_give(mem, blocks[i]);
  pass(MEM_IDLE_TICKS);
  assert_int_equal(mem_pool_bytes(mem), most); // it may be wanted again
  pass(1);
  assert_int_equal(mem_pool_bytes(mem), 0);
}

// What the load of the moment needs stays, and nothing else: also when blocks live on in between.
static void a_pool_has_the_size_of_its_load(void **state) {
  (void)state;
  if (!pooled()) skip();
  take_all();
  for (int i = 1; i < BLOCKS; i++) // the first lives on
    mem_give(mem, blocks[i]);
  for (int tick = 0; tick < 3 * MEM_IDLE_TICKS; tick++) {
    void *some[100];
    for (int i = 0; i < 100; i++)
      some[i] = mem_take(mem, BLOCK_BYTES);
    for (int i = 0; i < 100; i++)
      mem_give(mem, some[i]);
    pass(1);
  }
  assert_in_range(mem_pool_bytes(mem), 1, 3 * CHUNK_BYTES);
  assert_int_equal(*(uint8_t *)blocks[0], 0);
  mem_give(mem, blocks[0]);
}

static void one_tick_gives_little(void **state) {
  (void)state;
  if (!pooled()) skip();
  void *large[400];
  for (int i = 0; i < 400; i++) // four to a chunk
    large[i] = mem_take(mem, MEM_MAX_POOLED_BYTES);
  for (int i = 0; i < 400; i++)
    mem_give(mem, large[i]);
  pass(MEM_IDLE_TICKS);
  size_t first = mem_pool_tick(mem), second = mem_pool_tick(mem);
  assert_in_range(first, 4 << 20, (4 << 20) + CHUNK_BYTES);
  assert_in_range(second, 1, first);
  assert_int_equal(mem_pool_bytes(mem), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, up, down)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(blocks_do_not_overlap),
      TEST(what_a_burst_took_goes_back),
      TEST(a_pool_has_the_size_of_its_load),
      TEST(one_tick_gives_little),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
