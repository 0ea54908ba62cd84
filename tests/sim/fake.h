// A device and a model for tests of the scheduler and of ModelInfer: no kernels, no threads, and a
// clock that only moves when told to. Included by one .c file a program.
//
// The model: inputs  ids INT64 [batch, seq], mask INT64 [batch, seq] (optional), bias INT64 [batch,
// 2] (optional)
//            outputs tokens INT64 [batch, seq] = 2 * id + 1000 * position + bias[1] of its sequence
//                    sums   INT64 [batch]      = sum of the sequence's ids + bias[0]
//                    same   INT64 [batch, seq] = ids, unchanged, without a step
#ifndef SIM_FAKE_H
#define SIM_FAKE_H

#include "graph/planner.h"
#include "sched/needs.h"
#include "sched/request.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { FAKE_IDS, FAKE_MASK, FAKE_BIAS, FAKE_INPUTS };
enum { FAKE_TOKENS, FAKE_SUMS, FAKE_SAME, FAKE_OUTPUTS };

#define FAKE_MAX_ROWS 4096

struct device {
  struct device_caps caps;
  int64_t now_ns;         // the clock
  int64_t run_ns;         // how long a batch takes
  int64_t token_ns;       // and how much longer by token; then one batch runs after the other,
  int64_t start_ns;       //   this long after it was launched at the earliest
  int64_t free_ns;        // when the last of them ends
  enum status run_status; // what run returns
  bool lost;              // poll says so from now on
  _Atomic bool hangs;     // run does not return
  int hanging_run;        // poll never says yes to this one of n_runs, while `hangs`
  _Atomic bool hung;      // it was asked for
  int fail_call;          // the nth call of prepare, run or poll from now on fails; 0: none
  bool fail_sticky;       // and the device is lost with it
  int64_t clock_ns;       // its own clock less now_ns, for the times in lane_times.span; 0: none
  int32_t max_rows;
  int64_t unfused_adds; // to every result of the unfused plan
  bool host_full;       // host_alloc has none left
  int64_t host_bytes;   // of host_alloc, not given back
  int n_runs, n_copies_in, n_lanes, n_prepared;
};
struct bound_plan {
  enum fusion_mode mode;
};
struct lane {
  struct device *device;
  int64_t *ids, *bias, *tokens, *sums; // [max_rows], bias and sums [max_rows * 2]
  int64_t began_ns, done_ns, ran_ns;
  bool submitted, hangs;
};

static struct device fake_device;
static struct bound_plan fake_bounds[FUSION_MODES] = {{FUSION_OFF}, {FUSION_ON}, {FUSION_AUTO}};

static int fake_probe(void) {
  return 1;
}
static const struct device_caps *fake_caps(const struct device *device) {
  return &device->caps;
}
static void *fake_host_alloc(struct device *device, size_t bytes) {
  void *memory = device->host_full ? NULL : aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (memory) device->host_bytes += (int64_t)bytes;
  return memory;
}
static void fake_host_free(struct device *device, void *memory, size_t bytes) {
  device->host_bytes -= (int64_t)bytes;
  free(memory);
}
static enum status fake_lane_open(struct device *device, const struct lane_sizes *sizes,
                                  struct lane **out, struct error *err) {
  (void)sizes;
  struct lane *lane = calloc(1, sizeof *lane);
  if (!lane) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "fake lane");
  *lane = (struct lane){.device = device};
  lane->ids = calloc((size_t)device->max_rows * 6, sizeof *lane->ids);
  if (!lane->ids) {
    free(lane);
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "fake lane");
  }
  lane->bias = lane->ids + device->max_rows;
  lane->tokens = lane->bias + device->max_rows * 2;
  lane->sums = lane->tokens + device->max_rows;
  device->n_lanes++;
  *out = lane;
  return STATUS_OK;
}
static void fake_lane_close(struct device *device, struct lane *lane) {
  device->n_lanes--;
  free(lane->ids);
  free(lane);
}
static void fake_copy_in(struct lane *lane, const struct bound_plan *bound, int input, int64_t row,
                         int64_t n, const void *rows) {
  (void)bound;
  lane->device->n_copies_in++;
  if (input == FAKE_IDS) memcpy(lane->ids + row, rows, (size_t)n * 8);
  if (input == FAKE_BIAS) memcpy(lane->bias + row * 2, rows, (size_t)n * 16);
}
static void fake_zero_in(struct lane *lane, const struct bound_plan *bound, int input, int64_t row,
                         int64_t n) {
  static const int64_t zeros[FAKE_MAX_ROWS * 2];
  fake_copy_in(lane, bound, input, row, n, zeros);
}
static void fake_copy_out(struct lane *lane, const struct bound_plan *bound, int output,
                          int64_t row, int64_t n, void *rows) {
  (void)bound;
  memcpy(rows, (output == FAKE_TOKENS ? lane->tokens : lane->sums) + row, (size_t)n * 8);
}
// Whether this call is the one that fails.
static bool fake_fails(struct device *device) {
  if (device->fail_call == 0 || --device->fail_call > 0) return false;
  if (device->fail_sticky) device->lost = true;
  return true;
}
static enum status fake_prepare(struct lane *lane, struct bound_plan *bound, struct error *err) {
  (void)bound;
  lane->device->n_prepared++;
  if (!fake_fails(lane->device)) return STATUS_OK;
  return error_set(err, STATUS_RESOURCE_EXHAUSTED, "fake prepare");
}
static enum status fake_run(struct lane *lane, const struct bound_plan *bound,
                            const struct batch_geometry *g, uint8_t outputs) {
  struct device *device = lane->device;
  int64_t adds = bound && bound->mode == FUSION_OFF ? device->unfused_adds : 0;
  device->n_runs++;
  lane->hangs = device->n_runs == device->hanging_run;
  while (!device->caps.async && atomic_load(&device->hangs))
    sched_yield();
  if (device->lost) return STATUS_UNAVAILABLE;
  if (fake_fails(device)) return device->lost ? STATUS_UNAVAILABLE : STATUS_INTERNAL;
  if (device->run_status != STATUS_OK) return device->run_status;
  for (int32_t s = 0; s < g->n_seqs; s++) {
    lane->sums[s] = lane->bias[s * 2] + adds;
    for (int32_t t = g->cu_seqlens[s]; t < g->cu_seqlens[s + 1]; t++) {
      if (outputs & 1u << FAKE_SUMS) lane->sums[s] += lane->ids[t];
      if (outputs & 1u << FAKE_TOKENS)
        lane->tokens[t] = 2 * lane->ids[t] + 1000 * g->positions[t] + lane->bias[s * 2 + 1] + adds;
    }
  }
  lane->began_ns = device->now_ns;
  if (device->token_ns > 0) {
    int64_t ready_ns = device->now_ns + device->start_ns;
    int64_t from_ns = device->free_ns > ready_ns ? device->free_ns : ready_ns;
    lane->ran_ns = device->run_ns + device->token_ns * g->n_tokens;
    lane->done_ns = device->free_ns = from_ns + lane->ran_ns;
  } else if (device->caps.async)
    lane->done_ns = device->now_ns + device->run_ns;
  else
    device->now_ns += device->run_ns;
  return STATUS_OK;
}
static void fake_submit(struct lane *lane) {
  lane->submitted = true;
}
static int fake_poll(struct lane *lane, struct lane_times *times) {
  if (fake_fails(lane->device)) lane->device->lost = true;
  if (lane->device->lost) return -1;
  if (lane->device->caps.async && lane->device->now_ns < lane->done_ns) return 0;
  if (lane->hangs && atomic_load(&lane->device->hangs)) {
    atomic_store(&lane->device->hung, true);
    return 0;
  }
  *times = (struct lane_times){.copy_in_ns = 100,
                               .compute_ns = lane->ran_ns > 0 ? lane->ran_ns : lane->device->run_ns,
                               .copy_out_ns = 200};
  int64_t clock_ns = lane->device->clock_ns;
  if (clock_ns > 0)
    times->span = (struct device_span){lane->began_ns + clock_ns, lane->began_ns + clock_ns + 100,
                                       lane->done_ns + clock_ns - 200, lane->done_ns + clock_ns};
  return 1;
}

static const struct backend_ops fake_backend = {.name = "fake",
                                                .probe = fake_probe,
                                                .caps = fake_caps,
                                                .host_alloc = fake_host_alloc,
                                                .host_free = fake_host_free,
                                                .lane_open = fake_lane_open,
                                                .prepare = fake_prepare,
                                                .lane_close = fake_lane_close,
                                                .copy_in = fake_copy_in,
                                                .zero_in = fake_zero_in,
                                                .copy_out = fake_copy_out,
                                                .run = fake_run,
                                                .submit = fake_submit,
                                                .poll = fake_poll};

static inline void fake_device_reset(bool async) {
  fake_device = (struct device){.now_ns = NS_PER_S, .run_ns = NS_PER_MS, .max_rows = FAKE_MAX_ROWS};
  fake_device.caps.name = "fake";
  fake_device.caps.async = async;
}

static inline void fake_tensor(struct signature_tensor *out, const char *name, int32_t rank,
                               int64_t d1) {
  *out = (struct signature_tensor){
      .dtype = DTYPE_I64, .rank = rank, .dims = {DIM_BATCH, d1}, .row_elements = 1};
  if (d1 == DIM_SEQ)
    out->per_token = true;
  else if (rank == 2)
    out->row_elements = d1;
  strcpy(out->name, name);
  out->name_bytes = strlen(name);
}

static inline struct plan *fake_plan(enum fusion_mode mode, int32_t max_tokens, int32_t max_seqs,
                                     int32_t max_seqlen) {
  struct plan *plan = calloc(1, sizeof *plan);
  struct step *steps = calloc(2, sizeof *steps);
  if (!plan || !steps) abort();
  plan->mode = mode;
  plan->steps = steps;
  plan->n_steps = 2;
  plan->limits = (struct plan_limits){max_tokens, max_seqs, max_seqlen};
  plan->n_inputs = FAKE_INPUTS;
  plan->n_outputs = FAKE_OUTPUTS;
  for (int i = 0; i < FAKE_INPUTS; i++)
    plan->inputs[i] =
        (struct operand){.place = i == FAKE_MASK ? PLACE_NONE : PLACE_ARENA, .tensor = 10 + i};
  for (int o = 0; o < FAKE_OUTPUTS; o++)
    plan->output_is_input[o] = o == FAKE_SAME ? FAKE_IDS : -1;
  for (int s = 0; s < 2; s++) {
    steps[s].kind = STEP_ROW;
    steps[s].needed_by = (uint8_t)(1u << (s == 0 ? FAKE_TOKENS : FAKE_SUMS));
    steps[s].n_in = 2;
    steps[s].in[0] = plan->inputs[FAKE_IDS];
    steps[s].in[1] = plan->inputs[FAKE_BIAS];
    // off moves twice what on moves
    double k = mode == FUSION_OFF ? 2 : 1;
    steps[s].traffic.read = (struct traffic_rate){1000 * k, 8 * k, 16 * k, 0};
    steps[s].traffic.write = (struct traffic_rate){0, 8 * k, 0, 0};
    steps[s].traffic.flops = (struct traffic_rate){0, 50, 0, 0};
  }
  if (plan_sum_traffic(plan) != STATUS_OK) abort();
  return plan;
}

static inline struct model *fake_model(const char *name, int32_t max_tokens, int32_t max_requests,
                                       int64_t max_delay_ns) {
  struct model *model = calloc(1, sizeof *model);
  if (!model) abort();
  strcpy(model->name, name);
  strcpy(model->version, "1");
  fake_tensor(&model->inputs[FAKE_IDS], "ids", 2, DIM_SEQ);
  model->inputs[FAKE_IDS].index_limit = 1000000;
  fake_tensor(&model->inputs[FAKE_MASK], "mask", 2, DIM_SEQ);
  model->inputs[FAKE_MASK].role = ROLE_MASK;
  model->inputs[FAKE_MASK].optional = true;
  fake_tensor(&model->inputs[FAKE_BIAS], "bias", 2, 2);
  model->inputs[FAKE_BIAS].optional = true;
  fake_tensor(&model->outputs[FAKE_TOKENS], "tokens", 2, DIM_SEQ);
  fake_tensor(&model->outputs[FAKE_SUMS], "sums", 1, 0);
  fake_tensor(&model->outputs[FAKE_SAME], "same", 2, DIM_SEQ);
  model->n_inputs = FAKE_INPUTS;
  model->n_outputs = FAKE_OUTPUTS;
  model->has_sequences = true;
  model->max_seqlen = 64;
  model->max_request_rows = max_tokens;
  model->batch = (struct batch_limits){max_tokens, max_requests, max_delay_ns, 64};
  model->fusion_default = FUSION_ON;
  for (int mode = 0; mode < FUSION_MODES; mode++) {
    model->plans[mode] = fake_plan((enum fusion_mode)mode, max_tokens, max_tokens, 64);
    model->fusion_available[mode] = true;
    for (int d = 0; d < LIMIT_DEVICES; d++)
      model->bound[d][mode] = &fake_bounds[mode];
  }
  atomic_store(&model->refs, 1);
  needs_fill(model);
  return model;
}

// As ab.shadow, ab.shadow_tokens and ab.shadow_slots would; core_admit follows.
static inline void fake_shadow(struct model *model, double share, double alarm, int32_t max_rows,
                               int32_t slots) {
  model->shadow.share = share;
  model->shadow.alarm = alarm;
  model->shadow.max_rows = max_rows;
  model->shadow.slots = slots;
  model->shadow.metrics = metrics_shadow_add(model->name, model->version, "fake");
  if (!model->shadow.metrics) abort();
  for (int o = 0; o < FAKE_OUTPUTS; o++)
    if (o != FAKE_SAME)
      model->shadow.outputs[o] =
          metrics_shadow_output(model->shadow.metrics, model->outputs[o].name);
}

// sampled = compared + failed + dropped + pending
static inline bool fake_shadows_add_up(const struct shadow_metrics *metrics) {
  uint64_t n = metrics->compared + metrics->failed + (uint64_t)metrics->pending;
  for (int d = 0; d < SHADOW_DROPS; d++)
    n += metrics->dropped[d];
  return metrics->sampled == n;
}

// One sequence of n tokens without padding, its answer of n ids, admitted now; no deadline.
static inline void fake_request_init(struct request *request, struct model *model, int64_t *ids,
                                     int64_t *answer, int32_t n) {
  *request = (struct request){.model = model,
                              .fusion = FUSION_ON,
                              .outputs = 1u << FAKE_TOKENS,
                              .n_outputs = 1,
                              .n_seqs = 1,
                              .n_tokens = n,
                              .padded_seqlen = n,
                              .sum_sq = (int64_t)n * n,
                              .dense = true,
                              .deadline_ns = CLOCK_NEVER};
  request->inputs[FAKE_IDS] = (struct slice){(uint8_t *)ids, (size_t)n * sizeof *ids};
  request->outputs_data[0] = (uint8_t *)answer;
  request->outputs_bytes[0] = (size_t)n * sizeof *answer;
  request->t_ns[STAGE_ADMITTED] = fake_device.now_ns;
}

static inline void fake_model_free(struct model *model) {
  for (int mode = 0; mode < FUSION_MODES; mode++) {
    free(model->plans[mode]->steps);
    free(model->plans[mode]->sums);
    free(model->plans[mode]);
    free(model->metrics[mode]);
  }
  free(model);
}

#endif
