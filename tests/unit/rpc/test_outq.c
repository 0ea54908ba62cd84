#include "harness/cmocka_all.h"
#include "rpc/outq.h"

struct body {
  struct out_ref ref;
  int released;
  uint8_t bytes[5000];
};

static void release(struct out_ref *ref) {
  ((struct body *)ref)->released++;
}

static struct body *body_make(uint8_t fill) {
  struct body *body = calloc(1, sizeof *body);
  body->ref = (struct out_ref){1, release};
  memset(body->bytes, fill, sizeof body->bytes);
  return body;
}

static struct mem_pool *mem;
static struct outq queue;

static int up(void **state) {
  (void)state;
  assert_int_equal(mem_pool_open(&mem), STATUS_OK);
  outq_init(&queue, mem);
  return 0;
}

static int down(void **state) {
  (void)state;
  outq_clear(&queue);
  assert_int_equal(mem_pool_live(mem), 0);
  mem_pool_close(mem);
  return 0;
}

static void neighbouring_copies_are_one_slice(void **state) {
  (void)state;
  struct iovec iov[8];
  assert_true(outq_copy(&queue, "abc", 3));
  assert_true(outq_copy(&queue, "", 0));
  assert_true(outq_copy(&queue, "defg", 4));
  assert_int_equal(outq_gather(&queue, iov, 8), 1);
  assert_int_equal(iov[0].iov_len, 7);
  assert_memory_equal(iov[0].iov_base, "abcdefg", 7);
}

static void order_is_kept_between_copies_and_bodies(void **state) {
  (void)state;
  struct body *body = body_make('x');
  assert_true(outq_copy(&queue, "head", 4));
  assert_true(outq_refer(&queue, body->bytes, 1000, &body->ref));
  assert_true(outq_copy(&queue, "tail", 4));
  struct iovec iov[8];
  assert_int_equal(outq_gather(&queue, iov, 8), 3);
  assert_ptr_equal(iov[1].iov_base, body->bytes);
  assert_memory_equal(iov[2].iov_base, "tail", 4);
  assert_int_equal(outq_gather(&queue, iov, 2), 2);
  assert_int_equal(queue.bytes, 1008);
  out_ref_put(&body->ref);
  assert_int_equal(body->released, 0);
  outq_pop(&queue, 1003);
  assert_int_equal(body->released, 0);
  outq_pop(&queue, 1); // its last byte
  assert_int_equal(body->released, 1);
  free(body);
}

static void clear_releases_what_was_borrowed(void **state) {
  (void)state;
  struct body *body = body_make('y');
  for (int i = 0; i < 200; i++) {
    assert_true(outq_copy(&queue, "frame", 5));
    assert_true(outq_refer(&queue, body->bytes, 600, &body->ref));
  }
  out_ref_put(&body->ref);
  outq_clear(&queue);
  assert_int_equal(body->released, 1);
  assert_int_equal(queue.bytes, 0);
  free(body);
}

static void full_is_said_before_memory_grows(void **state) {
  (void)state;
  uint8_t small[100] = {0};
  size_t copied = 0;
  while (!outq_full(&queue)) {
    assert_true(outq_copy(&queue, small, sizeof small));
    copied += sizeof small;
    assert_true(copied < 100000);
  }
  assert_true(queue.n_blocks <= OUTQ_MAX_BLOCKS + 1);
  outq_clear(&queue);
  struct body *body = body_make('z');
  int n = 0;
  for (; !outq_full(&queue); n++)
    assert_true(outq_refer(&queue, body->bytes, sizeof body->bytes, &body->ref));
  assert_in_range(n, 200, 260); // 4 blocks of 64 slices, or 1 MiB
  outq_clear(&queue);
  out_ref_put(&body->ref);
  free(body);
}

static void frame_larger_than_a_block_fits(void **state) {
  (void)state;
  size_t bytes = 40000;
  uint8_t *frame = malloc(bytes);
  for (size_t i = 0; i < bytes; i++)
    frame[i] = (uint8_t)(i * 7);
  assert_true(outq_copy(&queue, frame, bytes));
  struct iovec iov[16];
  int n = outq_gather(&queue, iov, 16);
  size_t at = 0;
  for (int i = 0; i < n; i++) {
    assert_memory_equal(iov[i].iov_base, frame + at, iov[i].iov_len);
    at += iov[i].iov_len;
  }
  assert_int_equal(at, bytes);
  free(frame);
}

// Whatever is appended comes out in order, however it is popped.
static void random_appends_and_pops_keep_the_bytes(void **state) {
  (void)state;
  test_random_seed(7);
  struct body *body = body_make(0);
  for (size_t i = 0; i < sizeof body->bytes; i++)
    body->bytes[i] = (uint8_t)test_random();
  uint8_t *model = malloc(1 << 22);
  size_t in = 0, out = 0;
  while (in < 1 << 21) {
    size_t from = test_random() % 1000, bytes = test_random() % (sizeof body->bytes - 1000);
    bool copy = test_random() % 2;
    assert_true(copy ? outq_copy(&queue, body->bytes + from, bytes)
                     : outq_refer(&queue, body->bytes + from, bytes, &body->ref));
    memcpy(model + in, body->bytes + from, bytes);
    in += bytes;
    assert_int_equal(queue.bytes, in - out);
    struct iovec iov[3];
    int n = outq_gather(&queue, iov, 3);
    size_t at = out;
    for (int i = 0; i < n; i++) {
      assert_memory_equal(iov[i].iov_base, model + at, iov[i].iov_len);
      at += iov[i].iov_len;
    }
    size_t pop = (at - out) ? test_random() % (at - out + 1) : 0;
    outq_pop(&queue, pop);
    out += pop;
  }
  outq_clear(&queue);
  assert_int_equal(body->ref.refs, 1);
  free(model);
  free(body);
}

static void memory_is_pooled_and_keeps_its_contents(void **state) {
  (void)state;
  void *block = mem_take(mem, 100);
  memset(block, 5, 100);
  block = mem_resize(mem, block, 20000);
  assert_non_null(block);
  for (int i = 0; i < 100; i++)
    assert_int_equal(((uint8_t *)block)[i], 5);
  assert_int_equal(mem_pool_live(mem), 1);
  mem_give(mem, block);
  mem_give(mem, NULL);
  for (size_t bytes = 0; bytes < 20000; bytes += 37) {
    uint8_t *piece = mem_take(mem, bytes);
    assert_int_equal((uintptr_t)piece % 16, 0);
    memset(piece, 1, bytes);
    mem_give(mem, piece);
  }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, up, down)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(neighbouring_copies_are_one_slice),       TEST(order_is_kept_between_copies_and_bodies),
      TEST(clear_releases_what_was_borrowed),        TEST(full_is_said_before_memory_grows),
      TEST(frame_larger_than_a_block_fits),          TEST(random_appends_and_pops_keep_the_bytes),
      TEST(memory_is_pooled_and_keeps_its_contents),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
