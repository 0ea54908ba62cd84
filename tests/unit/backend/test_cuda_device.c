// Cards, lanes and memory of the CUDA back end, up to the loss of the card, which comes last as it
// costs the process. Exits 77 where there is no GPU.
#include "harness/cmocka_all.h"

#include "backend/cuda/cuda_device.h"

#include <pthread.h>

#define COLS 96
#define MAX_TOKENS 4096
#define LANES 3

static const struct backend_ops *const ops = &backend_cuda;

// y = 2 x over [T, COLS]: exact, so that any row of anybody else's is seen.
struct rig {
  struct device *device;
  struct graph graph;
  struct plan *plan;
  struct bound_plan *bound;
  struct lane *lanes[LANES];
};
static struct rig rig;

static struct device *device_open(int64_t headroom_bytes) {
  struct device *device = NULL;
  struct error err;
  struct backend_options options = {.headroom_bytes = headroom_bytes};
  if (ops->open(&options, &device, &err)) fail_msg("open: %s", err.message);
  return device;
}

static void graph_make(struct graph *graph) {
  struct error err;
  struct tensor x = {
      .kind = TENSOR_INPUT, .dtype = DTYPE_F32, .rows = ROWS_TOKENS, .cols = COLS, .name = "x"};
  struct node node = {.op = OP_SCALE, .n_in = 1, .attrs = {.factor = 2}};
  assert_int_equal(graph_init(graph), STATUS_OK);
  node.in[0] = graph_add_tensor(graph, &x);
  for (int i = 1; i < NODE_MAX_INPUTS; i++)
    node.in[i] = -1;
  if (graph_add_node(graph, &node, "y", DTYPE_F32, &graph->outputs[0], &err))
    fail_msg("%s", err.message);
  graph->n_outputs = 1;
}

static int rig_open(void **state) {
  (void)state;
  struct error err;
  struct plan_limits limits = {MAX_TOKENS, MAX_TOKENS, 1};
  struct weight_table none = {0};
  rig.device = device_open(64 << 20);
  graph_make(&rig.graph);
  if (plan_build(&rig.graph, FUSION_ON, &ops->caps(rig.device)->plan, &limits, &rig.plan, &err) ||
      ops->load(rig.device, rig.plan, &none, &rig.bound, &err))
    fail_msg("%s", err.message);
  struct lane_sizes sizes = {rig.plan->arena_bytes, MAX_TOKENS, MAX_TOKENS};
  for (int i = 0; i < LANES; i++)
    if (ops->lane_open(rig.device, &sizes, &rig.lanes[i], &err) ||
        ops->prepare(rig.lanes[i], rig.bound, &err))
      fail_msg("%s", err.message);
  return 0;
}

static int rig_close(void **state) {
  (void)state;
  ops->unload(rig.device, rig.bound);
  for (int i = 0; i < LANES; i++)
    ops->lane_close(rig.device, rig.lanes[i]);
  assert_int_equal(rig.device->lanes_used, 0);
  ops->close(rig.device);
  plan_free(rig.plan);
  graph_deinit(&rig.graph);
  return 0;
}

// ---- batches ----
struct batch {
  float *in, *out; // pinned
  int32_t *cu_seqlens, *positions;
  int64_t *scores_offset;
  int32_t n_tokens;
  bool running;
};

static void batch_make(struct batch *batch) {
  size_t bytes = (size_t)MAX_TOKENS * COLS * sizeof(float);
  batch->in = ops->host_alloc(rig.device, bytes);
  batch->out = ops->host_alloc(rig.device, bytes);
  batch->cu_seqlens = calloc(MAX_TOKENS + 1, sizeof(int32_t));
  batch->positions = calloc(MAX_TOKENS, sizeof(int32_t));
  batch->scores_offset = calloc(MAX_TOKENS + 1, sizeof(int64_t));
  assert_true(batch->in && batch->out);
  for (int32_t i = 0; i <= MAX_TOKENS; i++)
    batch->cu_seqlens[i] = i, batch->scores_offset[i] = i;
}

static void batch_free(struct batch *batch) {
  size_t bytes = (size_t)MAX_TOKENS * COLS * sizeof(float);
  ops->host_free(rig.device, batch->in, bytes);
  ops->host_free(rig.device, batch->out, bytes);
  free(batch->cu_seqlens), free(batch->positions), free(batch->scores_offset);
}

// Copies in and out in random pieces, as the rows of many requests come. `spoil`: NULL, or what is
// put onto the stream in the middle.
static void batch_start(struct lane *lane, struct batch *batch, void (*spoil)(struct lane *lane)) {
  int32_t n = batch->n_tokens = 1 + (int32_t)(test_random() % MAX_TOKENS);
  struct batch_geometry geometry = {.n_tokens = n,
                                    .n_seqs = n,
                                    .max_seqlen = 1,
                                    .sum_sq = n,
                                    .cu_seqlens = batch->cu_seqlens,
                                    .positions = batch->positions,
                                    .scores_offset = batch->scores_offset};
  int32_t gap = test_random() % 2 ? (int32_t)(test_random() % (uint64_t)n) : n;
  for (int64_t i = 0; i < (int64_t)n * COLS; i++)
    batch->in[i] = (float)(int32_t)(test_random() >> 40), batch->out[i] = -1;
  for (int32_t row = 0, rows; row < n; row += rows) {
    rows = 1 + (int32_t)(test_random() % 700);
    if (rows > n - row) rows = n - row;
    if (row <= gap && gap < row + rows) { // a request that left this input out
      ops->zero_in(lane, rig.bound, 0, row, rows);
      memset(batch->in + (int64_t)row * COLS, 0, (size_t)rows * COLS * sizeof(float));
    } else {
      ops->copy_in(lane, rig.bound, 0, row, rows, batch->in + (int64_t)row * COLS);
    }
  }
  assert_int_equal(ops->run(lane, rig.bound, &geometry, 1), STATUS_OK);
  if (spoil) spoil(lane);
  for (int32_t row = 0, rows; row < n; row += rows) {
    rows = 1 + (int32_t)(test_random() % 700);
    if (rows > n - row) rows = n - row;
    ops->copy_out(lane, rig.bound, 0, row, rows, batch->out + (int64_t)row * COLS);
  }
  ops->submit(lane);
  batch->running = true;
}

static void batch_check(struct batch *batch, const struct lane_times *times) {
  assert_true(times->copy_in_ns >= 0 && times->compute_ns > 0 && times->copy_out_ns >= 0);
  for (int64_t i = 0; i < (int64_t)batch->n_tokens * COLS; i++)
    if (batch->out[i] != 2 * batch->in[i])
      fail_msg("element %lld of %d rows is %g, expected %g", (long long)i, batch->n_tokens,
               (double)batch->out[i], (double)(2 * batch->in[i]));
  batch->running = false;
}

// ---- tests ----
static void a_card_says_what_it_is(void **state) {
  (void)state;
  const struct device_caps *caps = ops->caps(rig.device);
  assert_string_equal(caps->name, "cuda");
  assert_non_null(strstr(caps->description, "sm_"));
  assert_true(caps->async && caps->plan.dtype_ok[DTYPE_F32]);
  assert_true(rig.device->sm >= 80);
  struct device *device = NULL;
  struct error err;
  struct backend_options options = {.index = 99};
  assert_int_equal(ops->open(&options, &device, &err), STATUS_NOT_FOUND);
  assert_non_null(strstr(err.message, "cuda:99"));
  assert_null(device);
}

static void the_ledger_adds_up(void **state) {
  (void)state;
  struct device_memory entries[DEVICE_MEMORY_MAX];
  int n = ops->memory(rig.device, entries);
  int64_t sum = 0;
  for (int i = 0; i < n; i++)
    sum += entries[i].bytes;
  assert_int_equal(sum, rig.device->ledger.total_bytes);
  int64_t arenas = atomic_load(&rig.device->ledger.held_bytes[LEDGER_ARENAS]);
  assert_true(arenas >= LANES * rig.plan->arena_bytes);
  // What the driver says is free is no less than what the ledger promises to have.
  size_t free_bytes, total_bytes;
  assert_int_equal(cudaMemGetInfo(&free_bytes, &total_bytes), 0);
  assert_true((int64_t)free_bytes >= ledger_free_bytes(&rig.device->ledger));
}

static void what_does_not_fit_is_refused_with_the_ledger(void **state) {
  (void)state;
  struct error err;
  struct lane *lane = NULL;
  struct lane_sizes sizes = {rig.device->ledger.total_bytes, 16, 16};
  int64_t before = ledger_free_bytes(&rig.device->ledger);
  assert_int_equal(ops->lane_open(rig.device, &sizes, &lane, &err), STATUS_RESOURCE_EXHAUSTED);
  assert_non_null(strstr(err.message, "headroom"));
  assert_non_null(strstr(err.message, "arena"));
  assert_int_equal(ledger_free_bytes(&rig.device->ledger), before);
  assert_false(atomic_load(&rig.device->lost));
}

static void *complaint_of(const char *text) {
  return (void *)(uintptr_t)text;
}

static void *take_and_give(void *arg) {
  (void)arg;
  struct cudaPointerAttributes attributes;
  for (size_t bytes = 1; bytes < 8 << 20; bytes = bytes * 3 + 1) {
    void *memory = ops->host_alloc(rig.device, bytes);
    if (!memory) return complaint_of("no memory");
    memset(memory, 1, bytes);
    if (cudaPointerGetAttributes(&attributes, memory) != 0 || attributes.type != cudaMemoryTypeHost)
      return complaint_of("not pinned");
    ops->host_free(rig.device, memory, bytes);
  }
  return NULL;
}

static void host_memory_is_pinned_on_any_thread(void **state) {
  (void)state;
  pthread_t threads[3];
  void *complaint;
  for (int i = 0; i < 3; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, take_and_give, NULL), 0);
  for (int i = 0; i < 3; i++) {
    pthread_join(threads[i], &complaint);
    if (complaint) fail_msg("%s", (char *)complaint);
  }
}

static void lanes_work_at_once_and_never_mix(void **state) {
  (void)state;
  struct batch batches[LANES] = {0};
  struct lane_times times;
  test_random_seed(20261130);
  for (int i = 0; i < LANES; i++)
    batch_make(&batches[i]);
  for (int done = 0; done < 60;) {
    int i = (int)(test_random() % LANES);
    if (!batches[i].running) {
      batch_start(rig.lanes[i], &batches[i], NULL);
      continue;
    }
    int rc = ops->poll(rig.lanes[i], &times);
    assert_true(rc >= 0);
    if (rc == 0) continue;
    batch_check(&batches[i], &times);
    done++;
  }
  for (int i = 0; i < LANES; i++) {
    while (batches[i].running && ops->poll(rig.lanes[i], &times) == 0)
      ;
    batch_free(&batches[i]);
  }
}

static void nothing_is_allocated_while_batches_run(void **state) {
  (void)state;
  struct batch batch = {0};
  struct lane_times times;
  size_t before, after, total;
  batch_make(&batch);
  assert_int_equal(cudaMemGetInfo(&before, &total), 0);
  for (int k = 0; k < 20; k++) {
    struct lane *lane = rig.lanes[k % LANES];
    batch_start(lane, &batch, NULL);
    while (ops->poll(lane, &times) == 0)
      ;
    batch_check(&batch, &times);
  }
  assert_int_equal(cudaMemGetInfo(&after, &total), 0);
  assert_int_equal(before, after);
  batch_free(&batch);
}

// A kernel that writes where nothing is.
static void spoil(struct lane *lane) {
  char message[JIT_MESSAGE_BYTES];
  struct cubin cubin = {0};
  cudaLibrary_t library;
  cudaKernel_t kernel;
  void *nowhere = (void *)16, *params[] = {&nowhere};
  if (jit_compile(lane->device->jit, "extern \"C\" __global__ void bad(int *p) { *p = 1; }",
                  lane->device->arch, &cubin, message) != 0)
    fail_msg("%s", message);
  assert_int_equal(cudaLibraryLoadData(&library, cubin.data, NULL, NULL, 0, NULL, NULL, 0), 0);
  assert_int_equal(cudaLibraryGetKernel(&kernel, library, "bad"), 0);
  assert_int_equal(
      cudaLaunchKernel(kernel, (dim3){1, 1, 1}, (dim3){1, 1, 1}, params, 0, lane->stream), 0);
  cubin_free(&cubin);
}

static void a_sticky_error_loses_the_card(void **state) {
  (void)state;
  struct batch batches[2] = {0};
  struct lane_times times;
  struct error err;
  void *memory;
  batch_make(&batches[0]);
  batch_make(&batches[1]);
  batch_start(rig.lanes[0], &batches[0], spoil);
  batch_start(rig.lanes[1], &batches[1], NULL);
  int rc;
  while ((rc = ops->poll(rig.lanes[0], &times)) == 0)
    ;
  assert_true(rc < 0);
  assert_true(atomic_load(&rig.device->lost));
  assert_true(ops->poll(rig.lanes[1], &times) < 0); // whatever became of it
  struct batch_geometry geometry = {.n_tokens = 1, .n_seqs = 1, .max_seqlen = 1};
  ops->copy_in(rig.lanes[0], rig.bound, 0, 0, 1, batches[0].in);
  assert_int_equal(ops->run(rig.lanes[0], rig.bound, &geometry, 1), STATUS_UNAVAILABLE);
  assert_int_equal(cuda_memory_take(rig.device, LEDGER_WEIGHTS, 1, "late", &memory, &err),
                   STATUS_UNAVAILABLE);
  assert_null(ops->host_alloc(rig.device, (size_t)200 << 20)); // what is pinned already may be used
  batch_free(&batches[0]);
  batch_free(&batches[1]);
} // and rig_close neither hangs nor dies

int main(void) {
  if (ops->probe() == 0) {
    printf("SKIP: no GPU: %s\n", ops->absent());
    return 77;
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_card_says_what_it_is),
      cmocka_unit_test(the_ledger_adds_up),
      cmocka_unit_test(what_does_not_fit_is_refused_with_the_ledger),
      cmocka_unit_test(host_memory_is_pinned_on_any_thread),
      cmocka_unit_test(lanes_work_at_once_and_never_mix),
      cmocka_unit_test(nothing_is_allocated_while_batches_run),
      cmocka_unit_test(a_sticky_error_loses_the_card),
  };
  return cmocka_run_group_tests(tests, rig_open, rig_close);
}
