// Steps as launches: per step a function and its arguments, prepared once for a lane, so that a run
// is a walk over an array. Which function is decided here, at load.
#include "backend/cuda/launch.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

// ---- what runs ----
static int64_t rows_of(const struct launch *launch, const struct batch_geometry *geometry) {
  return launch->step->rows == ROWS_SEQS ? geometry->n_seqs : geometry->n_tokens;
}

static int run_row(struct launch *launch, const struct batch_geometry *geometry,
                   cudaStream_t stream) {
  launch->row.args.rows = rows_of(launch, geometry);
  return row_kernel_run(launch->row.kernel, &launch->row.args, stream);
}

static int run_linear(struct launch *launch, const struct batch_geometry *geometry,
                      cudaStream_t stream) {
  launch->views.call.m = rows_of(launch, geometry);
  int32_t rung = bucket_rung(launch->views.buckets, launch->views.call.m);
  return kernel_run(&launch->views.choices[rung], &launch->views.call, launch->views.workspace,
                    stream);
}

// device.fast_rows: where the choice is the kernel for few rows, it may split k as m suits it.
static int run_linear_fast(struct launch *launch, const struct batch_geometry *geometry,
                           cudaStream_t stream) {
  int64_t rows = rows_of(launch, geometry);
  int32_t rung = bucket_rung(launch->views.buckets, rows);
  if (launch->views.choices[rung].kernel != &kernel_gemm_small)
    return run_linear(launch, geometry, stream);
  return linear_run_fastest(launch->views.call.linear, launch->views.in, launch->views.out, rows,
                            stream);
}

static int run_attention(struct launch *launch, const struct batch_geometry *geometry,
                         cudaStream_t stream) {
  launch->views.call.geometry = geometry;
  return kernel_run(launch->views.choices, &launch->views.call, launch->views.workspace, stream);
}

static int run_scores(struct launch *launch, const struct batch_geometry *geometry,
                      cudaStream_t stream) {
  return attention_scores(&launch->step->attention, &launch->views.in[0], &launch->views.in[1],
                          launch->views.out[0].data, geometry, stream);
}

static int run_scores_scale(struct launch *launch, const struct batch_geometry *geometry,
                            cudaStream_t stream) {
  return attention_scores_scale(&launch->step->attention, launch->views.out[0].data, geometry,
                                stream);
}

static int run_scores_softmax(struct launch *launch, const struct batch_geometry *geometry,
                              cudaStream_t stream) {
  return attention_scores_softmax(&launch->step->attention, launch->views.out[0].data, geometry,
                                  stream);
}

static int run_context(struct launch *launch, const struct batch_geometry *geometry,
                       cudaStream_t stream) {
  return attention_context(&launch->step->attention, launch->views.in[0].data, &launch->views.in[1],
                           launch->views.out, geometry, stream);
}

// ---- arguments ----
static struct view operand_view(const struct lane *lane, const struct operand *operand,
                                void *weight) {
  struct view v = {.stride = operand->stride, .cols = operand->cols, .dtype = operand->dtype};
  if (operand->place == PLACE_ARENA) {
    v.data = lane->arena + operand->offset_bytes;
  } else if (operand->place == PLACE_WEIGHT) {
    v.data = weight;
    v.stride = operand->cols;
  } else if (operand->place == PLACE_POSITIONS) {
    v.data = (void *)(uintptr_t)lane->geometry.positions;
    v.stride = 1;
  } else {
    // no tiles: plan_caps.row_chains is false. PLACE_STEP: the kernel makes it
    FW_ASSERT(operand->place == PLACE_NONE || operand->place == PLACE_STEP);
  }
  return v;
}

static void prepare_row(const struct lane *lane, const struct bound_step *b,
                        struct launch *launch) {
  const struct step *step = b->step;
  struct row_args *args = &launch->row.args;
  launch->run = run_row;
  launch->row.kernel = b->kernel;
  for (int i = 0; i < step->n_in; i++) {
    struct view v = operand_view(lane, &step->in[i], b->weights[i]);
    args->in[i] = v.data;
    args->in_stride[i] = v.stride;
    args->in_rows[i] = b->weight_rows[i];
    args->index_bytes[i] = (int32_t)dtype_bytes(v.dtype);
  }
  for (int i = 0; i < step->n_out; i++) {
    struct view v = operand_view(lane, &step->out[i], NULL);
    args->out[i] = v.data;
    args->out_stride[i] = v.stride;
  }
  args->positions = lane->geometry.positions;
  args->cu_seqlens = lane->geometry.cu_seqlens;
}

void launch_views(const struct lane *lane, const struct bound_step *b, struct view *in,
                  struct view out[LAUNCH_OUTS]) {
  for (int i = 0; i < b->step->n_in; i++)
    in[i] = operand_view(lane, &b->step->in[i], b->weights[i]);
  const int n = b->step->n_out, saved = b->step->kind == STEP_LINEAR ? step_saved(b->step) : 0;
  for (int i = 0; i < n; i++)
    out[saved > 0 ? (i + 1) % n : i] = operand_view(lane, &b->step->out[i], NULL);
}

struct kernel_call launch_call(const struct device *device, const struct bound_step *b,
                               const struct view *in, const struct view *out) {
  const struct step *step = b->step;
  bool attention = step->kind == STEP_ATTENTION, linear = step->kind == STEP_LINEAR,
       norm = linear && step->norm.kind != ROW_NORM_NONE;
  return (struct kernel_call){.device = &device->kernels,
                              .op = attention ? KERNEL_ATTENTION
                                    : norm    ? KERNEL_LINEAR_NORM
                                              : KERNEL_LINEAR,
                              .in = in,
                              .out = out,
                              .linear = linear ? &b->linear : NULL,
                              .norm = norm ? &step->norm : NULL,
                              .attention = attention ? &step->attention : NULL};
}

static void prepare_views(const struct lane *lane, const struct bound_plan *bound,
                          const struct bound_step *b, struct launch *launch) {
  static int (*const run[])(struct launch *, const struct batch_geometry *, cudaStream_t) = {
      [STEP_LINEAR] = run_linear,
      [STEP_ATTENTION] = run_attention,
      [STEP_SCORES] = run_scores,
      [STEP_SCORES_SCALE] = run_scores_scale,
      [STEP_SCORES_SOFTMAX] = run_scores_softmax,
      [STEP_CONTEXT] = run_context,
  };
  bool fast = b->step->kind == STEP_LINEAR && b->step->norm.kind == ROW_NORM_NONE &&
              bound->device->fast_rows;
  launch->run = fast ? run_linear_fast : run[b->step->kind];
  launch_views(lane, b, launch->views.in, launch->views.out);
  launch->views.call = launch_call(bound->device, b, launch->views.in, launch->views.out);
  launch->views.call.counters = lane->counters;
  launch->views.choices = b->choices;
  launch->views.buckets = &bound->buckets;
  launch->views.workspace = lane->workspace;
}

enum status cuda_launches_make(const struct bound_plan *bound, struct lane *lane,
                               struct lane_plan *out, struct error *err) {
  int32_t n = bound->plan->n_steps;
  FW_ASSERT(bound->plan->arena_bytes <= lane->arena_bytes);
  out->launches = calloc((size_t)n + 1, sizeof *out->launches);
  if (!out->launches)
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for the launches of %d steps", n);
  for (int32_t i = 0; i < n; i++) {
    struct launch *launch = &out->launches[i];
    launch->step = bound->steps[i].step;
    launch->needed_by = launch->step->needed_by;
    if (launch->step->kind == STEP_ROW)
      prepare_row(lane, &bound->steps[i], launch);
    else
      prepare_views(lane, bound, &bound->steps[i], launch);
  }
  return STATUS_OK;
}

int cuda_launch_all(struct lane_plan *plan, int32_t n_steps, const struct batch_geometry *geometry,
                    uint8_t outputs, cudaStream_t stream) {
  for (int32_t i = 0; i < n_steps; i++) {
    struct launch *launch = &plan->launches[i];
    if (!(launch->needed_by & outputs)) continue;
    int rc = launch->run(launch, geometry, stream);
    if (rc != 0) return rc;
  }
  return 0;
}
