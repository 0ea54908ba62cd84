// Binding a plan: weights converted and packed, kernels prepared, scratch memory for every thread.
#include "backend/convert.h"
#include "backend/cpu/cpu_device.h"
#include "base/log.h"
#include "kernels/cpu/epilogue.h"

#include <stdlib.h>
#include <string.h>

// ---- weights ----
struct weight_source {
  const struct cpu_ops *ops;
  const struct weight_table *table;
  const struct operand *operand;
};

// product_read_rows: rows of the parts one after another.
static bool read_weight_rows(void *arg, int32_t first, int32_t rows, void *out) {
  const struct weight_source *source = arg;
  const struct operand *operand = source->operand;
  int32_t base = 0;
  char *to = out;
  for (int part = 0; part < operand->n_parts; part++) {
    const struct weight *w = &source->table->weights[operand->weight[part]];
    int32_t begin = first > base ? first - base : 0, end = first + rows - base;
    if (end > w->rows) end = w->rows;
    if (begin < end) {
      int64_t n = (int64_t)(end - begin) * w->cols;
      convert_weight(source->ops, w, (int64_t)begin * w->cols, n, operand->dtype, to);
      to += (size_t)n * dtype_bytes(operand->dtype);
    }
    base += w->rows;
  }
  return true;
}

// A weight operand other than a product's matrix: where the weight table has it when that will do,
// else converted, once for all plans of the model.
static enum status bind_weight(const struct bound_plan *bound, struct bound_step *b, int in,
                               const struct weight_table *table, struct error *err) {
  const struct operand *operand = &b->step->in[in];
  size_t element = dtype_bytes(operand->dtype);
  int64_t elements = 0;
  for (int part = 0; part < operand->n_parts; part++) {
    const struct weight *w = &table->weights[operand->weight[part]];
    elements += (int64_t)w->rows * w->cols;
    b->weight_rows[in] += w->rows;
  }
  FW_ASSERT(elements > 0); // shapes were checked when the graph was built
  const struct weight *only = &table->weights[operand->weight[0]];
  if (operand->n_parts == 1 && only->stored_dtype == operand->dtype &&
      (uintptr_t)only->data % element == 0) {
    b->weights[in] = (void *)(uintptr_t)only->data;
    return STATUS_OK;
  }
  const struct pack_form form = {operand->dtype, PACKING_ROWS, 1};
  b->weights[in] = (void *)(uintptr_t)packs_find(bound->packs, operand, &form);
  if (b->weights[in]) return STATUS_OK;
  char *out = packs_take(bound->packs, (size_t)elements * element);
  if (!out) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for weight %s", only->name);
  b->weights[in] = out;
  for (int part = 0; part < operand->n_parts; part++) {
    const struct weight *w = &table->weights[operand->weight[part]];
    convert_weight(bound->device->ops, w, 0, (int64_t)w->rows * w->cols, operand->dtype, out);
    out += (size_t)w->rows * (size_t)w->cols * element;
  }
  packs_add(bound->packs, operand, &form, b->weights[in]);
  return STATUS_OK;
}

// ---- steps ----
static bool ranges_overlap(const struct operand *a, const struct operand *b,
                           const struct plan *plan) {
  if (a->place != b->place || (a->place != PLACE_ARENA && a->place != PLACE_TILE)) return false;
  int64_t rows = a->rows == ROWS_SEQS && b->rows == ROWS_SEQS ? plan->limits.max_seqs
                                                              : plan->limits.max_tokens;
  int64_t a_end = a->offset_bytes + rows * a->stride * (int64_t)dtype_bytes(a->dtype);
  int64_t b_end = b->offset_bytes + rows * b->stride * (int64_t)dtype_bytes(b->dtype);
  return a->offset_bytes < b_end && b->offset_bytes < a_end;
}

// Whether borrowing inputs would be unsafe: an output may lie over an input. Strided neighbours in
// one wider buffer count as overlapping, which costs a copy in cache and nothing else.
static bool step_overlaps(const struct step *step, const struct plan *plan) {
  for (int i = 0; i < step->n_in; i++)
    for (int o = 0; o < step->n_out; o++)
      if (ranges_overlap(&step->in[i], &step->out[o], plan)) return true;
  return false;
}

static enum status bind_program(const struct bound_step *b, const struct row_program *program,
                                const struct plan *plan, struct row_kernel **out,
                                struct error *err) {
  *out = calloc(1, sizeof **out);
  if (!*out)
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for step %s", b->step->label);
  if (!row_prepare(*out, program, step_overlaps(b->step, plan)))
    return error_set(err, STATUS_INTERNAL, "step %s: the row program is not well formed",
                     b->step->label);
  return STATUS_OK;
}

// What a step pools may be made by a program of its own, whole rows at a time.
static enum status bind_row(struct bound_step *b, const struct plan *plan, struct error *err) {
  enum status status = bind_program(b, &b->step->row, plan, &b->row, err);
  if (status != STATUS_OK || b->step->before.n_insts == 0) return status;
  b->row->block_cols = b->row->program.cols, b->row->block_rows = 1;
  return bind_program(b, &b->step->before, plan, &b->before, err);
}

// A finish runs on pieces of the result.
static enum status bind_finish(struct bound_step *b, const struct plan *plan, struct error *err) {
  if (b->step->finish.n_insts == 0) return STATUS_OK;
  struct row_program program = b->step->finish;
  program.cols = FINISH_COLS;
  return bind_program(b, &program, plan, &b->finish, err);
}

static enum status bind_linear(struct bound_plan *bound, struct bound_step *b,
                               const struct weight_table *table, struct error *err) {
  struct device *device = bound->device;
  const struct step *step = b->step;
  struct weight_source source = {device->ops, table, &step->in[1]};
  struct product_spec spec = {.problem = step->linear,
                              .finish = step->finish.n_insts > 0,
                              .x_stride = step->in[0].stride,
                              .y_stride = step->out[0].stride,
                              .n_threads = team_size(device->team),
                              .kind = device->product_kind,
                              .features = &device->features,
                              .ops = device->ops,
                              .take = packs_take,
                              .take_arg = bound->packs};
  spec.problem.w_dtype = step->in[1].dtype;
  struct pack_form form = {.dtype = spec.problem.w_dtype};
  form.packing = product_packing(&spec, &form.align);
  spec.packed = packs_find(bound->packs, &step->in[1], &form);
  const char *why = "";
  b->product = product_create(&spec, read_weight_rows, &source, &why);
  if (!b->product)
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "step %s (n %d, k %d): %s", step->label,
                     step->linear.n, step->linear.k, why);
  if (!spec.packed) packs_add(bound->packs, &step->in[1], &form, product_packed(b->product));
  return STATUS_OK;
}

static enum status bind_step(struct bound_plan *bound, int32_t index,
                             const struct weight_table *table, struct error *err) {
  struct bound_step *b = &bound->steps[index];
  FW_ASSERT(bound->plan->steps);
  b->step = &bound->plan->steps[index];
  for (int i = 0; i < b->step->n_in; i++) {
    if (b->step->in[i].place != PLACE_WEIGHT || (b->step->kind == STEP_LINEAR && i == 1)) continue;
    enum status status = bind_weight(bound, b, i, table, err);
    if (status != STATUS_OK) return status;
  }
  if (b->step->kind == STEP_ROW) return bind_row(b, bound->plan, err);
  enum status status = bind_finish(b, bound->plan, err);
  if (status != STATUS_OK) return status;
  if (b->step->kind == STEP_LINEAR) return bind_linear(bound, b, table, err);
  return STATUS_OK;
}

static bool is_row_local(const struct step *step) {
  return step->kind == STEP_ROW || step->kind == STEP_LINEAR;
}

static void find_segments(struct bound_plan *bound) {
  const struct plan *plan = bound->plan;
  FW_ASSERT(bound->segments);
  for (int32_t i = 0; i < plan->n_steps; i++) {
    const struct step *step = &plan->steps[i];
    struct segment *last = bound->n_segments ? &bound->segments[bound->n_segments - 1] : NULL;
    const struct step *before = i ? &plan->steps[i - 1] : NULL;
    if (last && before && is_row_local(step) && is_row_local(before) &&
        step->chain == before->chain) {
      FW_ASSERT(step->rows == before->rows);
      last->count++;
      last->needed_by |= step->needed_by;
      continue;
    }
    bound->segments[bound->n_segments++] = (struct segment){
        .first = i, .count = 1, .row_local = is_row_local(step), .needed_by = step->needed_by};
  }
}

static void find_next_products(struct bound_plan *bound) {
  const struct product *next = NULL;
  for (int32_t i = bound->plan->n_steps - 1; i >= 0; i--) {
    bound->steps[i].next = next;
    if (bound->steps[i].product) next = bound->steps[i].product;
  }
  for (int32_t i = 0; i < bound->n_segments; i++) {
    struct segment *segment = &bound->segments[i];
    for (int32_t s = segment->first; s < segment->first + segment->count && !segment->product; s++)
      segment->product = bound->steps[s].product;
  }
}

// ---- memory of threads ----
static void *take_aligned(size_t bytes) {
  return aligned_alloc(64, (bytes + 64) & ~(size_t)63);
}

static enum status make_threads(struct bound_plan *bound, struct error *err) {
  size_t kernel = 0, product = 0, finish = 0;
  for (int32_t i = 0; i < bound->plan->n_steps; i++) {
    const struct bound_step *b = &bound->steps[i];
    size_t k = b->row                            ? row_scratch_bytes(b->row)
               : b->step->kind >= STEP_ATTENTION ? attention_scratch_bytes(&b->step->attention)
                                                 : 0;
    size_t f = b->finish ? row_scratch_bytes(b->finish) : 0;
    if (b->before) f = row_before_floats(b->before) * sizeof(float) + row_scratch_bytes(b->before);
    if (f > finish) finish = f;
    size_t p = b->product ? product_workspace_bytes(b->product) : 0;
    if (k > kernel) kernel = k;
    if (p > product) product = p;
  }
  int n = team_size(bound->device->team);
  bound->threads = calloc((size_t)n, sizeof *bound->threads);
  for (int t = 0; bound->threads && t < n; t++) {
    struct thread_space *space = &bound->threads[t];
    bound->scratch_bytes += bound->plan->tile_bytes + (int64_t)(kernel + product);
    space->tile = take_aligned((size_t)bound->plan->tile_bytes);
    space->kernel = take_aligned(kernel);
    space->product = take_aligned(product);
    space->finish = take_aligned(finish);
    space->step_ns = calloc((size_t)bound->plan->n_steps + 1, sizeof *space->step_ns);
    if (!space->tile || !space->kernel || !space->product || !space->finish || !space->step_ns)
      goto none;
  }
  if (bound->threads) return STATUS_OK;
none:
  return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for the scratch of %d threads", n);
}

enum status cpu_load(struct device *device, const struct plan *plan,
                     const struct weight_table *weights, struct bound_plan **out,
                     struct error *err) {
  enum status status = STATUS_OK;
  product_thread_init();
  struct bound_plan *bound = calloc(1, sizeof *bound);
  if (!bound) return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a plan");
  size_t n = (size_t)plan->n_steps + 1;
  bound->device = device;
  bound->plan = plan;
  bound->steps = calloc(n, sizeof *bound->steps);
  bound->segments = calloc(n, sizeof *bound->segments);
  bound->states = take_aligned(n * sizeof *bound->states);
  bound->packs = packs_hold(&device->packs, weights);
  if (!bound->steps || !bound->segments || !bound->states || !bound->packs) {
    status = error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a plan of %d steps",
                       plan->n_steps);
    goto out;
  }
  for (int32_t i = 0; i < plan->n_steps; i++) {
    status = bind_step(bound, i, weights, err);
    if (status != STATUS_OK) goto out;
  }
  find_segments(bound);
  find_next_products(bound);
  status = make_threads(bound, err);
out:
  atomic_store(&device->held_bytes[CPU_HELD_WEIGHTS], packs_list_bytes(device->packs, NULL));
  atomic_fetch_add(&device->held_bytes[CPU_HELD_SCRATCH], bound->scratch_bytes);
  if (status == STATUS_OK)
    *out = bound;
  else
    cpu_unload(device, bound);
  return status;
}

void cpu_unload(struct device *device, struct bound_plan *bound) {
  if (!bound) return;
  for (int32_t i = 0; bound->steps && i < bound->plan->n_steps; i++) {
    struct bound_step *b = &bound->steps[i];
    product_destroy(b->product);
    free(b->row);
    free(b->finish);
    free(b->before);
  }
  for (int t = 0; bound->threads && t < team_size(device->team); t++) {
    free(bound->threads[t].tile);
    free(bound->threads[t].kernel);
    free(bound->threads[t].product);
    free(bound->threads[t].finish);
    free(bound->threads[t].step_ns);
  }
  packs_drop(&device->packs, bound->packs);
  atomic_store(&device->held_bytes[CPU_HELD_WEIGHTS], packs_list_bytes(device->packs, NULL));
  atomic_fetch_sub(&device->held_bytes[CPU_HELD_SCRATCH], bound->scratch_bytes);
  free(bound->threads);
  free(bound->states);
  free(bound->segments);
  free(bound->steps);
  free(bound);
}
