#include "backend/probe_plan.h"

#include "base/clock.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILL_ROWS 64 // of an input, at a time

void probe_init(struct probe_plan *probe, const struct backend_ops *backend, struct device *device,
                struct lane *lane) {
  *probe = (struct probe_plan){
      .backend = backend, .device = device, .lane = lane, .borrowed = lane != NULL};
  probe->failed = graph_init(&probe->graph) != STATUS_OK;
  probe->table.weights = probe->weights;
}

void probe_deinit(struct probe_plan *probe) {
  if (probe->lane && !probe->borrowed) probe->backend->lane_close(probe->device, probe->lane);
  if (probe->bound) probe->backend->unload(probe->device, probe->bound);
  plan_free(probe->plan);
  graph_deinit(&probe->graph);
  for (int32_t i = 0; i < probe->table.n_weights; i++)
    free((void *)(uintptr_t)probe->weights[i].data);
  free(probe->positions);
}

// ---- the graph ----
static uint32_t random_bits(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(*state >> 33);
}

static void random_floats(float *out, int64_t n, uint64_t seed) {
  for (int64_t i = 0; i < n; i++)
    out[i] = ((float)(random_bits(&seed) >> 7) * 0x1p-23f - 1.0f) * 0.1f;
}

static int32_t add_tensor(struct probe_plan *probe, struct tensor tensor) {
  snprintf(tensor.name, sizeof tensor.name, "p%d", probe->n_names++);
  int32_t id = probe->failed ? -1 : graph_add_tensor(&probe->graph, &tensor);
  probe->failed = probe->failed || id < 0;
  return id;
}

int32_t probe_input(struct probe_plan *probe, enum dtype dtype, int32_t cols) {
  int32_t index = 0;
  for (int32_t t = 0; t < probe->graph.n_tensors; t++)
    index += probe->graph.tensors[t].kind == TENSOR_INPUT;
  return add_tensor(
      probe,
      (struct tensor){
          .kind = TENSOR_INPUT, .dtype = dtype, .rows = ROWS_TOKENS, .cols = cols, .index = index});
}

int32_t probe_weight(struct probe_plan *probe, enum dtype dtype, int32_t rows, int32_t cols) {
  int32_t id = probe->table.n_weights;
  int64_t n = (int64_t)rows * cols;
  float *data = id < PROBE_WEIGHTS ? malloc((size_t)n * sizeof *data) : NULL;
  if (!data) {
    probe->failed = true;
    return -1;
  }
  random_floats(data, n, (uint64_t)id + 1);
  probe->weights[id] = (struct weight){"probe", DTYPE_F32, rows, cols, data};
  probe->table.n_weights++;
  return add_tensor(probe, (struct tensor){.kind = TENSOR_WEIGHT,
                                           .dtype = dtype,
                                           .rows = ROWS_FIXED,
                                           .n_rows = rows,
                                           .cols = cols,
                                           .index = id});
}

int32_t probe_node(struct probe_plan *probe, enum op op, const int32_t *in, int n_in,
                   const struct node_attrs *attrs, enum dtype dtype) {
  struct node node = {.op = op, .n_in = (uint8_t)n_in};
  if (attrs) node.attrs = *attrs;
  for (int i = 0; i < n_in && !probe->failed; i++) {
    node.in[i] = in[i];
    probe->failed = in[i] < 0;
  }
  char name[24];
  int32_t out = -1;
  snprintf(name, sizeof name, "p%d", probe->n_names++);
  if (probe->failed || graph_add_node(&probe->graph, &node, name, dtype, &out, NULL) != STATUS_OK) {
    probe->failed = true;
    return -1;
  }
  return out;
}

// ---- bound ----
static enum status fill_input(struct probe_plan *probe, int input, int32_t n_rows,
                              struct error *err) {
  const struct operand *operand = &probe->plan->inputs[input];
  if (operand->place != PLACE_ARENA) return STATUS_OK;
  if (operand->dtype == DTYPE_I32 || operand->dtype == DTYPE_I64) { // indices
    probe->backend->zero_in(probe->lane, probe->bound, input, 0, n_rows);
    return STATUS_OK;
  }
  int64_t n = (int64_t)FILL_ROWS * operand->cols;
  float *rows = malloc((size_t)n * sizeof *rows);
  if (!rows) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory while measuring");
  random_floats(rows, n, 99);
  uint16_t *narrow = (uint16_t *)(void *)rows; // in place: each is written behind what is read
  for (int64_t i = 0; i < n && operand->dtype != DTYPE_F32; i++) {
    float value = rows[i];
    narrow[i] = operand->dtype == DTYPE_BF16 ? f32_to_bf16(value) : f32_to_f16(value);
  }
  for (int32_t row = 0; row < n_rows; row += FILL_ROWS)
    probe->backend->copy_in(probe->lane, probe->bound, input, row,
                            n_rows - row < FILL_ROWS ? n_rows - row : FILL_ROWS, rows);
  double seconds;
  enum status status = probe_run(probe, &seconds, err); // `rows` must live until it is done
  free(rows);
  return status;
}

static enum status make_geometry(struct probe_plan *probe, int32_t n_tokens, struct error *err) {
  probe->positions = calloc((size_t)n_tokens, sizeof *probe->positions);
  if (!probe->positions)
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory while measuring");
  probe->cu_seqlens[1] = n_tokens;
  probe->scores_offset[1] = (int64_t)n_tokens * n_tokens;
  probe->geometry = (struct batch_geometry){.n_tokens = n_tokens,
                                            .n_seqs = 1,
                                            .max_seqlen = n_tokens,
                                            .sum_sq = (int64_t)n_tokens * n_tokens,
                                            .cu_seqlens = probe->cu_seqlens,
                                            .positions = probe->positions,
                                            .scores_offset = probe->scores_offset};
  return STATUS_OK;
}

enum status probe_bind(struct probe_plan *probe, int32_t output, enum fusion_mode mode,
                       const struct plan_caps *caps, int32_t n_tokens, struct error *err) {
  const struct backend_ops *backend = probe->backend;
  if (probe->failed || output < 0)
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory while measuring");
  probe->graph.outputs[0] = output;
  probe->graph.n_outputs = 1;
  probe->graph.has_sequences = true;
  struct plan_limits limits = {.max_tokens = n_tokens, .max_seqs = 1, .max_seqlen = n_tokens};
  if (!caps) caps = &backend->caps(probe->device)->plan;
  enum status status = plan_build(&probe->graph, mode, caps, &limits, &probe->plan, err);
  if (status == STATUS_OK)
    status = backend->load(probe->device, probe->plan, &probe->table, &probe->bound, err);
  struct lane_sizes sizes = {.max_tokens = n_tokens, .max_seqs = 1};
  if (status == STATUS_OK && !probe->lane) {
    sizes.arena_bytes = probe->plan->arena_bytes;
    status = backend->lane_open(probe->device, &sizes, &probe->lane, err);
  }
  if (status == STATUS_OK && backend->prepare)
    status = backend->prepare(probe->lane, probe->bound, err);
  if (status == STATUS_OK) status = make_geometry(probe, n_tokens, err);
  for (int i = 0; status == STATUS_OK && i < probe->plan->n_inputs; i++)
    status = fill_input(probe, i, n_tokens, err);
  return status;
}

enum status probe_run(struct probe_plan *probe, double *seconds, struct error *err) {
  struct lane_times times = {0};
  // all of its outputs, and no bit more: a GPU has graphs for the sets of outputs that there are
  uint8_t outputs = (uint8_t)((1u << probe->plan->n_outputs) - 1);
  enum status status = probe->backend->run(probe->lane, probe->bound, &probe->geometry, outputs);
  if (status != STATUS_OK) return error_set(err, status, "a run while measuring failed");
  probe->backend->submit(probe->lane);
  int done;
  while ((done = probe->backend->poll(probe->lane, &times)) == 0)
    sched_yield();
  if (done < 0) return error_set(err, STATUS_UNAVAILABLE, "the device was lost while measuring");
  *seconds = (double)times.compute_ns / (double)NS_PER_S;
  return STATUS_OK;
}

enum status probe_time(struct probe_plan *probe, struct probe_plan *between, double seconds,
                       double *least, struct error *err) {
  double run = 0;
  enum status status = probe_run(probe, &run, err);
  int64_t end = clock_now_ns() + (int64_t)(seconds * (double)NS_PER_S);
  *least = __builtin_inf();
  for (int n = 0; status == STATUS_OK && (n < 3 || clock_now_ns() < end); n++) {
    if (between) status = probe_run(between, &run, err);
    if (status == STATUS_OK) status = probe_run(probe, &run, err);
    if (run < *least) *least = run;
  }
  return status;
}
