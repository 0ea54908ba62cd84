// Binding a plan to a card: weights and kernels, shared by all lanes. What belongs to one lane is
// made by cuda_prepare (graphs.c).
#include "backend/cuda/choices.h"
#include "backend/cuda/cuda_device.h"
#include "backend/cuda/programs.h"
#include "backend/cuda/weights.h"
#include "base/log.h"
#include "graph/finish_list.h"

#include <stdlib.h>

void cuda_plan_caps(const struct device *device, struct plan_caps *out) {
  *out = (struct plan_caps){
      .row_chains = false, // a chain is one step here: what fuses is in one kernel
      .epilogue_kinds =
          1u << EPI_BIAS | 1u << EPI_ACT | 1u << EPI_SCALE | 1u << EPI_ADD | 1u << EPI_MUL,
      .epilogue_max = EPILOGUE_MAX,
      .vectors_as_compute = true,
      .product_finish = true,
      .finish_lists = true,
      .pool_before = true,
      // The kernel takes more widths (gemm_norm_chunk); this one was faster than two kernels.
      .product_norm = {{384, 384}},
      .product_norm_weighed = true,
  };
  for (int dtype = DTYPE_F32; dtype < DTYPE_COUNT; dtype++)
    out->dtype_ok[dtype] = true;
  out->rates = device_rates_gpu();
  if (device->sm == 90) out->product_norm_dtypes = 1u << DTYPE_BF16 | 1u << DTYPE_F16;
  if (device->sm < 90) // no clusters of blocks
    out->rates.row_bytes /= 8, out->rates.pool_blocks = 1;
}

// ---- weights ----
static int32_t count_weight_operands(const struct plan *plan) {
  int32_t n = 0;
  for (int32_t s = 0; s < plan->n_steps; s++)
    for (int i = 0; i < plan->steps[s].n_in; i++)
      n += plan->steps[s].in[i].place == PLACE_WEIGHT;
  return n;
}

static enum status bind_weights(struct bound_plan *bound, struct upload *upload, int32_t index,
                                const struct weight_table *table, struct error *err) {
  struct bound_step *b = &bound->steps[index];
  for (int i = 0; i < b->step->n_in; i++) {
    const struct operand *operand = &b->step->in[i];
    if (operand->place != PLACE_WEIGHT) continue;
    struct weight_block *block = NULL;
    enum status status = weight_get(upload, table, operand, &block, &b->weights[i], err);
    if (block) bound->blocks[bound->n_blocks++] = block;
    if (status != STATUS_OK) return status;
    for (int part = 0; part < operand->n_parts; part++)
      b->weight_rows[i] += table->weights[operand->weight[part]].rows;
  }
  return STATUS_OK;
}

static enum status bind_all_weights(struct bound_plan *bound, const struct weight_table *table,
                                    struct error *err) {
  struct upload upload;
  enum status status = upload_open(bound->device, &upload, err);
  if (status != STATUS_OK) return status;
  for (int32_t i = 0; status == STATUS_OK && i < bound->plan->n_steps; i++)
    status = bind_weights(bound, &upload, i, table, err);
  struct error *late = status == STATUS_OK ? err : NULL; // keep the first message
  enum status finished = upload_finish(&upload, late);
  upload_close(&upload);
  return status != STATUS_OK ? status : finished;
}

// ---- the plan ----
static void bind_step(struct bound_step *b, const struct step *step) {
  b->step = step;
  if (step->kind != STEP_LINEAR) return;
  b->linear = step->linear;
  if (step->finish.n_insts == 0) return;
  bool listed = finish_as_list(&step->finish, step->finish_in, &b->linear);
  FW_ASSERT(listed); // plan_caps.finish_lists: no other is planned
}

static enum status bound_alloc(struct device *device, const struct plan *plan,
                               struct bound_plan **out, struct error *err) {
  size_t n = (size_t)plan->n_steps + 1, operands = (size_t)count_weight_operands(plan) + 1;
  struct bound_plan *bound = calloc(1, sizeof *bound);
  if (bound) {
    bound->device = device;
    bound->plan = plan;
    bound->steps = calloc(n, sizeof *bound->steps);
    bound->blocks = calloc(operands, sizeof(struct weight_block *));
  }
  *out = bound;
  if (bound && bound->steps && bound->blocks) return STATUS_OK;
  return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a plan of %d steps",
                   plan->n_steps);
}

enum status cuda_load(struct device *device, const struct plan *plan,
                      const struct weight_table *weights, struct bound_plan **out,
                      struct error *err) {
  struct bound_plan *bound = NULL;
  enum status status = cuda_enter(device, err);
  if (status != STATUS_OK) return status;
  status = bound_alloc(device, plan, &bound, err);
  if (status == STATUS_OK) {
    for (int32_t i = 0; i < plan->n_steps; i++)
      bind_step(&bound->steps[i], &plan->steps[i]);
    bucket_set_make(plan, plan->n_steps > 0 ? BUCKET_GRAPH_TOKENS : 0, &bound->buckets);
    status = bind_all_weights(bound, weights, err);
  }
  if (status == STATUS_OK) status = programs_load(bound, err);
  if (status == STATUS_OK) status = choices_make(bound, err);
  if (status == STATUS_OK)
    *out = bound;
  else
    cuda_unload(device, bound);
  return status;
}

void cuda_unload(struct device *device, struct bound_plan *bound) {
  if (!bound) return;
  enum status current = cuda_enter(device, NULL); // a lost device frees nothing more; the host does
  (void)current;
  for (int i = 0; i < LIMIT_LANES; i++)
    if (bound->lanes[i]) cuda_lane_plan_close(device, bound, i);
  if (bound->steps) choices_free(bound);
  programs_unload(bound);
  for (int32_t i = 0; i < bound->n_blocks; i++)
    weight_put(device, bound->blocks[i]);
  free(bound->blocks);
  free(bound->steps);
  free(bound);
}
