// What a finish behind a product and behind an attention takes because it works on pieces.
#include "backend/meter.h"

#include <math.h>

// Columns of a product's x: little arithmetic, so that the difference is not lost in it.
#define FINISH_INNER 256
#define FINISH_SEQ 128
#define FINISH_FLOPS 2.0

static const struct node_attrs attrs = {.factor = 1.001f, .eps = 1e-5f, .to = DTYPE_F32};

// x W^T or an attention of x, and then, if `finish`, times a factor a column and plus x: seconds.
// Planned without chains, which would do that instead.
static enum status measure_finished(const struct meter *meter, bool attention, bool finish,
                                    double *seconds) {
  struct plan_caps caps = meter->backend->caps(meter->device)->plan;
  struct probe_plan probe;
  caps.row_chains = false;
  probe_init(&probe, meter->backend, meter->device, meter->lane);
  struct node_attrs of = {.heads = FINISH_COLS / HEAD_DIM, .kv_heads = FINISH_COLS / HEAD_DIM};
  int32_t in[3] = {probe_input(&probe, DTYPE_F32, attention ? FINISH_COLS : FINISH_INNER), -1, -1};
  if (attention)
    in[1] = in[2] = in[0];
  else
    in[1] = probe_weight(&probe, DTYPE_F32, FINISH_COLS, FINISH_INNER);
  int32_t y = attention ? probe_node(&probe, OP_ATTENTION, in, 3, &of, DTYPE_F32)
                        : probe_node(&probe, OP_LINEAR, in, 2, &attrs, DTYPE_F32);
  if (finish) {
    int32_t two[2] = {y, probe_weight(&probe, DTYPE_F32, 1, FINISH_COLS)};
    two[0] = probe_node(&probe, OP_MUL, two, 2, &attrs, DTYPE_F32);
    two[1] = probe_input(&probe, DTYPE_F32, FINISH_COLS);
    y = probe_node(&probe, OP_ADD, two, 2, &attrs, DTYPE_F32);
  }
  enum status status =
      probe_bind(&probe, y, FUSION_ON, &caps, attention ? FINISH_SEQ : FINISH_ROWS, meter->err);
  if (status == STATUS_OK && probe.plan->n_steps != 1)
    status = error_set(meter->err, STATUS_INTERNAL, "a finish is %d steps while measuring",
                       probe.plan->n_steps);
  if (status == STATUS_OK)
    status = probe_time(&probe, NULL, meter->options.seconds / ROUNDS, seconds, meter->err);
  probe_deinit(&probe);
  return status;
}

// What is slower about the pieces that a finish works on, beyond the operations.
static enum status measure_finish(const struct meter *meter, bool attention, double *rate) {
  double least[2] = {HUGE_VAL, HUGE_VAL};
  for (int i = 0; i < 2 * ROUNDS; i++) { // in turn
    double seconds = 0;
    enum status status = measure_finished(meter, attention, i % 2, &seconds);
    if (status != STATUS_OK) return status;
    if (seconds > 0 && seconds < least[i % 2]) least[i % 2] = seconds;
  }
  if (!(least[0] < HUGE_VAL && least[1] < HUGE_VAL)) return STATUS_OK;
  double values = (double)(attention ? FINISH_SEQ : FINISH_ROWS) * FINISH_COLS,
         added = least[1] - least[0] - FINISH_FLOPS * values / meter->rates->vector;
  if (added > 0) *rate = values / added; // else a busy machine: the default says more
  return STATUS_OK;
}

enum status measure_finishes(const struct meter *meter) {
  const struct plan_caps *caps = &meter->backend->caps(meter->device)->plan;
  enum status status = STATUS_OK;
  if (caps->product_finish && !caps->finish_lists)
    status = measure_finish(meter, false, &meter->rates->finish);
  if (status == STATUS_OK && caps->attention_finish)
    status = measure_finish(meter, true, &meter->rates->attention_finish);
  return status;
}
