// Every allocation of graph building and planning fails once: an error each time, no crash, nothing
// leaked, and the same plan when memory is back. (The sanitizers bring their own allocator: there
// this test is skipped.)
#include "blocks.h"
#include "graph/plan.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define OWN_ALLOCATOR 0
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OWN_ALLOCATOR 0
#endif
#ifndef OWN_ALLOCATOR
#define OWN_ALLOCATOR 1
#endif

static long fail_in = -1; // -1: never; n: the n-th allocation from now fails
static long live;         // blocks that are not freed yet

#if OWN_ALLOCATOR
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void __libc_free(void *memory);

static bool fails_now(void) {
  return fail_in >= 0 && fail_in-- == 0;
}

static void *counted(void *memory) {
  live += memory != NULL;
  return memory;
}

void *malloc(size_t bytes) {
  return fails_now() ? NULL : counted(__libc_malloc(bytes));
}
void *calloc(size_t count, size_t bytes) {
  return fails_now() ? NULL : counted(__libc_calloc(count, bytes));
}
void *realloc(void *memory, size_t bytes) {
  if (fails_now()) return NULL;
  void *grown = __libc_realloc(memory, bytes);
  if (!memory) live += grown != NULL;
  return grown;
}
void free(void *memory) {
  live -= memory != NULL;
  __libc_free(memory);
}
#endif

static struct plan_caps all_caps(void) {
  struct plan_caps caps = {.row_chains = true,
                           .tile_rows = 8,
                           .tile_bytes = 1 << 20,
                           .epilogue_max = 4,
                           .epilogue_kinds = 0x1f};
  for (int d = 0; d < DTYPE_COUNT; d++)
    caps.dtype_ok[d] = true;
  return caps;
}

static void every_failed_allocation_of_planning_is_an_error(void **state) {
  (void)state;
  if (!OWN_ALLOCATOR) {
    print_message("skipped: the sanitizer has the allocator\n");
    skip();
  }
  static char expected[1 << 17], text[1 << 17];
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_F32);
  block_sentence_encoder(&m, 1, 16, 2, 32, 100);
  struct plan_caps caps = all_caps();
  struct plan_limits limits = {64, 8, 32};
  for (int mode = 0; mode < FUSION_MODES; mode++) {
    struct plan *plan;
    assert_int_equal(plan_build(&graph, (enum fusion_mode)mode, &caps, &limits, &plan, NULL),
                     STATUS_OK);
    plan_dump(plan, &graph, expected, sizeof expected);
    plan_free(plan);
    long failures = 0, before = live;
    for (;; failures++) {
      struct error err = {0};
      fail_in = failures;
      enum status status = plan_build(&graph, (enum fusion_mode)mode, &caps, &limits, &plan, &err);
      bool was_reached = fail_in < 0;
      fail_in = -1;
      if (!was_reached) {
        assert_int_equal(status, STATUS_OK);
        break;
      }
      if (status != STATUS_RESOURCE_EXHAUSTED || plan || live != before)
        fail_msg("allocation %ld: status %d, %ld blocks left, \"%s\"", failures, status,
                 live - before, err.message);
    }
    plan_dump(plan, &graph, text, sizeof text);
    plan_free(plan);
    assert_string_equal(text, expected);
    assert_true(failures > 15);
    assert_int_equal(live, before);
  }
  graph_deinit(&graph);
}

static void every_failed_allocation_of_building_leaves_the_graph_as_it_was(void **state) {
  (void)state;
  if (!OWN_ALLOCATOR) skip();
  long before = live;
  struct graph graph;
  fail_in = 0;
  assert_int_equal(graph_init(&graph), STATUS_RESOURCE_EXHAUSTED);
  assert_int_equal(live, before);
  fail_in = -1;
  assert_int_equal(graph_init(&graph), STATUS_OK);
  struct tensor x = {
      .name = "x", .kind = TENSOR_INPUT, .dtype = DTYPE_F32, .rows = ROWS_TOKENS, .cols = 8};
  fail_in = 0;
  assert_int_equal(graph_add_tensor(&graph, &x), -1);
  assert_int_equal(graph_find_tensor(&graph, "x"), -1);
  int32_t last = graph_add_tensor(&graph, &x);
  assert_int_equal(last, 0);
  for (int i = 0; i < 500; i++) {
    struct node node = {.op = OP_RELU, .in = {last}, .n_in = 1};
    struct error err = {0};
    char name[16];
    snprintf(name, sizeof name, "y%d", i);
    int32_t nodes = graph.n_nodes, tensors = graph.n_tensors;
    fail_in = 0;
    enum status status = graph_add_node(&graph, &node, name, DTYPE_F32, &last, &err);
    fail_in = -1;
    if (status == STATUS_OK) continue;
    assert_int_equal(status, STATUS_RESOURCE_EXHAUSTED);
    assert_true(graph.n_nodes == nodes && graph.n_tensors == tensors);
    assert_int_equal(graph_find_tensor(&graph, name), -1);
    assert_int_equal(graph_add_node(&graph, &node, name, DTYPE_F32, &last, &err), STATUS_OK);
  }
  assert_int_equal(graph.n_nodes, 500);
  graph_deinit(&graph);
  assert_int_equal(live, before);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_failed_allocation_of_planning_is_an_error),
      cmocka_unit_test(every_failed_allocation_of_building_leaves_the_graph_as_it_was),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
