#include "base/clock.h"
#include "harness/cmocka_all.h"
#include "rpc/call_table.h"

static struct call_table table;

static int up(void **state) {
  (void)state;
  call_table_init(&table);
  return 0;
}

static int down(void **state) {
  (void)state;
  call_table_deinit(&table);
  return 0;
}

static void only_a_call_with_its_handler_is_found(void **state) {
  (void)state;
  struct call *call = call_table_take(&table);
  uint32_t slot = call->slot, generation = call->generation;
  assert_null(call_table_find(&table, slot, generation)); // receiving
  call->state = CALL_HANDLING;
  assert_ptr_equal(call_table_find(&table, slot, generation), call);
  assert_null(call_table_find(&table, slot, generation + 1));
  call->state = CALL_ANSWERED;
  assert_null(call_table_find(&table, slot, generation));
  call_table_put(&table, call);
  assert_null(call_table_find(&table, slot, generation));
}

static void stale_reference_does_not_find_the_slots_next_call(void **state) {
  (void)state;
  struct call *first = call_table_take(&table);
  uint32_t slot = first->slot, generation = first->generation;
  call_table_put(&table, first);
  struct call *second = call_table_take(&table);
  assert_int_equal(second->slot, slot); // reused at once
  second->state = CALL_HANDLING;
  assert_null(call_table_find(&table, slot, generation));
  assert_ptr_equal(call_table_find(&table, slot, second->generation), second);
  call_table_put(&table, second);
}

static void slots_outside_the_table_find_nothing(void **state) {
  (void)state;
  assert_null(call_table_find(&table, 0, 0));
  struct call *call = call_table_take(&table);
  assert_null(call_table_find(&table, CALL_TABLE_CHUNK, 0));
  assert_null(call_table_find(&table, UINT32_MAX, 0));
  call_table_put(&table, call);
}

static void calls_stay_in_place_while_the_table_grows(void **state) {
  (void)state;
  enum { N = 1000 };
  struct call *calls[N];
  for (uint32_t i = 0; i < N; i++) {
    calls[i] = call_table_take(&table);
    calls[i]->state = CALL_HANDLING;
    calls[i]->stream_id = (int32_t)i;
  }
  for (uint32_t i = 0; i < N; i++) {
    assert_ptr_equal(call_table_find(&table, calls[i]->slot, calls[i]->generation), calls[i]);
    assert_int_equal(calls[i]->stream_id, i);
  }
  for (uint32_t i = 0; i < N; i++)
    call_table_put(&table, calls[i]);
}

// ---- deadlines ----

static void deadlines_come_in_order_of_time_and_leave_from_anywhere(void **state) {
  (void)state;
  test_random_seed(99);
  enum { N = 2000 };
  struct deadline nodes[N] = {0};
  struct deadline_heap heap;
  deadline_heap_init(&heap);
  assert_null(deadline_first(&heap));
  for (int i = 0; i < N; i++) {
    nodes[i].at_ns = (int64_t)(test_random() % 500);
    assert_int_equal(deadline_add(&heap, &nodes[i]), STATUS_OK);
  }
  for (int i = 0; i < N; i += 3) {
    deadline_remove(&heap, &nodes[i]);
    deadline_remove(&heap, &nodes[i]); // out already: nothing happens
    assert_int_equal(nodes[i].index, 0);
  }
  int64_t last = -1;
  int n = 0;
  for (struct deadline *first; (first = deadline_first(&heap)); n++) {
    assert_true(first->at_ns >= last);
    assert_int_not_equal((first - nodes) % 3, 0);
    last = first->at_ns;
    deadline_remove(&heap, first);
  }
  assert_int_equal(n, N - (N + 2) / 3);
  deadline_heap_deinit(&heap);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, up, down)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(only_a_call_with_its_handler_is_found),
      TEST(stale_reference_does_not_find_the_slots_next_call),
      TEST(slots_outside_the_table_find_nothing),
      TEST(calls_stay_in_place_while_the_table_grows),
      TEST(deadlines_come_in_order_of_time_and_leave_from_anywhere),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
