// The explanation as one JSON object; docs/EXPLAIN.md describes every key.
//
// Written as it comes, an entry of a list a line. A tree of jansson's takes 6 ms for a BERT-base
// (11,000 values), which is long for a thread that serves calls; tests read the result with
// jansson. Every text went through out_clean, so that only quotes and backslashes are left to
// escape.
#include "explain/facts.h"

#include <math.h>

#define SCHEMA "fusewire.explain/1"

struct maker {
  const struct facts *facts;
  struct out *out;
  bool comma; // something stands before in this object or list
};

// ---- JSON ----
static void put_quoted(struct out *out, const char *text) {
  char clean[LIMIT_NAME_BYTES * 2], escaped[2 * sizeof clean];
  size_t n = 0;
  out_clean(text, sizeof clean - 1, clean, sizeof clean);
  for (const char *c = clean; *c; c++) {
    if (*c == '"' || *c == '\\') escaped[n++] = '\\';
    escaped[n++] = *c;
  }
  out_write(out, "\"", 1);
  out_write(out, escaped, n);
  out_write(out, "\"", 1);
}

// Begins a value: what stands before it, and its key (NULL: of a list).
static void begin(struct maker *maker, const char *key) {
  if (maker->comma) out_write(maker->out, ", ", 2);
  maker->comma = true;
  if (!key) return;
  out_write(maker->out, "\"", 1); // keys are ours: nothing to escape
  out_raw(maker->out, key);
  out_write(maker->out, "\": ", 3);
}
static void open_value(struct maker *maker, const char *key, const char *bracket) {
  begin(maker, key);
  out_raw(maker->out, bracket);
  maker->comma = false;
}
static void close_value(struct maker *maker, const char *bracket) {
  out_raw(maker->out, bracket);
  maker->comma = true;
}
// An entry of a long list: on a line of its own.
static void open_entry(struct maker *maker) {
  out_raw(maker->out, maker->comma ? ",\n  {" : "\n  {");
  maker->comma = false;
}
// A key of the outermost object: also.
static void open_part(struct maker *maker, const char *key, const char *bracket) {
  out_raw(maker->out, maker->comma ? ",\n" : "\n");
  maker->comma = false;
  open_value(maker, key, bracket);
}
// What 64 bits do not hold (bytes of attentions over millions of tokens) is the most that they do.
static void set_int(struct maker *maker, const char *key, double value) {
  char digits[24];
  int at = sizeof digits;
  long long whole = value >= 0x1p63 ? INT64_MAX : value > -0x1p63 ? llround(value) : 0;
  begin(maker, key);
  for (unsigned long long rest = whole < 0 ? 0 - (unsigned long long)whole
                                           : (unsigned long long)whole;
       rest > 0 || at == sizeof digits; rest /= 10)
    digits[--at] = (char)('0' + rest % 10);
  if (whole < 0) digits[--at] = '-';
  out_write(maker->out, digits + at, sizeof digits - (size_t)at);
}
static void set_real(struct maker *maker, const char *key, double value) {
  begin(maker, key);
  if (isfinite(value))
    out_add(maker->out, "%.6g", value);
  else
    out_raw(maker->out, "null");
}
static void set_text(struct maker *maker, const char *key, const char *text) {
  begin(maker, key);
  put_quoted(maker->out, text);
}
static void set_bool(struct maker *maker, const char *key, bool value) {
  begin(maker, key);
  out_raw(maker->out, value ? "true" : "false");
}

// ---- model, batch, device ----
static void tensors_json(struct maker *maker, const char *key,
                         const struct signature_tensor *tensors, int32_t n) {
  open_value(maker, key, "[");
  for (int32_t i = 0; i < n; i++) {
    open_value(maker, NULL, "{");
    set_text(maker, "name", tensors[i].name);
    set_text(maker, "dtype", dtype_name(tensors[i].dtype));
    open_value(maker, "shape", "[");
    for (int32_t d = 0; d < tensors[i].rank; d++) {
      int64_t dim = tensors[i].dims[d];
      if (dim < 0)
        set_text(maker, NULL, dim == DIM_BATCH ? "batch" : "seq");
      else
        set_int(maker, NULL, (double)dim);
    }
    close_value(maker, "]");
    close_value(maker, "}");
  }
  close_value(maker, "]");
}

static void model_json(struct maker *maker) {
  const struct model *model = maker->facts->model;
  open_part(maker, "model", "{");
  set_text(maker, "name", model->name);
  set_text(maker, "version", model->version);
  set_text(maker, "compute", dtype_name(model->compute));
  open_value(maker, "fusion", "[");
  for (int mode = 0; mode < FUSION_MODES; mode++)
    if (model->fusion_available[mode]) set_text(maker, NULL, fusion_name((enum fusion_mode)mode));
  close_value(maker, "]");
  set_text(maker, "fusion_default", fusion_name(model->fusion_default));
  set_text(maker, "auto_is", fusion_name(model->auto_is));
  set_int(maker, "max_sequence_length", model->max_seqlen);
  set_int(maker, "max_request_tokens", model->max_request_rows);
  tensors_json(maker, "inputs", model->inputs, model->n_inputs);
  tensors_json(maker, "outputs", model->outputs, model->n_outputs);
  close_value(maker, "}");
}

static void batch_json(struct maker *maker) {
  const struct facts *facts = maker->facts;
  open_part(maker, "batch", "{");
  set_int(maker, "tokens", (double)facts->batch.n_tokens);
  set_int(maker, "sequences", (double)facts->batch.n_seqs);
  set_int(maker, "longest", (double)facts->longest);
  set_int(maker, "sum_of_squares", (double)facts->batch.sum_sq);
  close_value(maker, "}");
}

static void device_json(struct maker *maker) {
  const struct device_rates *rates = maker->facts->rates;
  open_part(maker, "device", "{");
  set_text(maker, "kind", maker->facts->caps->name);
  set_text(maker, "description", maker->facts->caps->description);
  set_bool(maker, "measured", maker->facts->measured);
  set_real(maker, "read_bytes_per_s", rates->read);
  set_real(maker, "triad_bytes_per_s", rates->triad);
  set_real(maker, "copy_bytes_per_s", rates->copy);
  set_real(maker, "write_bytes_per_s", rates->write);
  set_real(maker, "cache_bytes_per_s", rates->cache);
  set_int(maker, "cache_bytes", (double)rates->cache_bytes);
  open_value(maker, "product_flops_per_s", "{");
  for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
    if (rates->product[dtype] > 0)
      set_real(maker, dtype_name((enum dtype)dtype), rates->product[dtype]);
  close_value(maker, "}");
  set_real(maker, "vector_flops_per_s", rates->vector);
  set_real(maker, "special_flops_per_s", rates->special);
  set_real(maker, "launch_us", rates->launch_us);
  set_real(maker, "batch_us", rates->batch_us);
  close_value(maker, "}");
}

// ---- graph ----
static void node_json(struct maker *maker, int32_t index) {
  const struct graph *graph = &maker->facts->model->graph;
  const struct node *node = &graph->nodes[index];
  const struct tensor *result = &graph->tensors[node->out];
  open_entry(maker);
  set_int(maker, "id", index);
  set_text(maker, "op", op_name(node->op));
  set_text(maker, "out", result->name);
  open_value(maker, "in", "[");
  for (int i = 0; i < node->n_in; i++)
    set_text(maker, NULL, graph->tensors[node->in[i]].name);
  close_value(maker, "]");
  set_text(maker, "rows", facts_rows_word(result->rows));
  set_int(maker, "cols", result->cols);
  set_text(maker, "dtype", dtype_name(result->dtype));
  set_int(maker, "line", node->line);
  close_value(maker, "}");
}

static void edge_json(struct maker *maker, const struct fact_edge *edge) {
  const struct decision *decision = edge->decision;
  open_entry(maker);
  set_int(maker, "from", decision->producer);
  set_int(maker, "to", decision->consumer);
  set_text(maker, "kind", edge->beside ? "beside" : "data");
  set_text(maker, "tensor", facts_tensor_name(maker->facts, edge->tensor));
  set_bool(maker, "fused", decision->fused);
  set_bool(maker, "chained", decision->chained);
  set_text(maker, "reason", decision->reason);
  set_int(maker, "tensor_bytes", edge->tensor_bytes);
  set_int(maker, "unfused_bytes", edge->bytes[SIDE_OFF]);
  set_int(maker, "fused_bytes", edge->bytes[SIDE_FUSED]);
  set_real(maker, "apart_us", edge->weighed ? edge->apart.us : NAN);
  set_real(maker, "one_us", edge->weighed ? edge->fused.us : NAN);
  close_value(maker, "}");
}

// ---- plans ----
static void set_cost(struct maker *maker, const struct cost *cost) {
  set_int(maker, "read_bytes", cost->read.compulsory);
  set_int(maker, "write_bytes", cost->write.compulsory);
  set_int(maker, "expected_bytes", facts_expected(cost));
  set_int(maker, "lower_bytes", facts_lower(cost));
  set_int(maker, "upper_bytes", facts_upper(cost));
  set_int(maker, "flops", cost->flops);
  set_real(maker, "memory_us", cost->memory_us);
  set_real(maker, "compute_us", cost->compute_us);
  set_real(maker, "launch_us", cost->launch_us);
  set_real(maker, "us", cost->us);
}

static void operands_json(struct maker *maker, const char *key, const struct operand *operands,
                          int n) {
  open_value(maker, key, "[");
  for (int i = 0; i < n; i++) // what a kernel makes for its own pooling it does not read
    if (operands[i].place != PLACE_STEP)
      set_text(maker, NULL, facts_tensor_name(maker->facts, operands[i].tensor));
  close_value(maker, "]");
}

static void kernel_json(struct maker *maker, const struct fact_plan *plan, int32_t index) {
  const struct fact_kernel *kernel = &plan->kernels[index];
  const struct step *step = kernel->step;
  char label[FACTS_LABEL], point[FACTS_POINT];
  open_entry(maker);
  set_int(maker, "id", index);
  set_text(maker, "label", facts_label(step, label));
  set_text(maker, "kind", step_kind_name(step->kind));
  set_text(maker, "over", facts_rows_word(step->rows));
  set_int(maker, "chain", step->chain);
  open_value(maker, "nodes", "[");
  for (int i = 0; i < step->n_nodes; i++)
    set_int(maker, NULL, step->nodes[i]);
  close_value(maker, "]");
  operands_json(maker, "reads", step->in, step->n_in);
  operands_json(maker, "writes", step->out, step->n_out);
  set_cost(maker, &kernel->cost);
  set_text(maker, "bound", cost_bound_name(kernel->cost.bound));
  set_real(maker, "flops_per_byte", kernel->intensity);
  set_text(maker, "point", facts_point_name(plan->side, kernel->point, point));
  close_value(maker, "}");
}

static void buffer_json(struct maker *maker, const struct fact_plan *plan,
                        const struct fact_buffer *buffer) {
  open_entry(maker);
  set_text(maker, "tensor", facts_tensor_name(maker->facts, buffer->tensor));
  set_text(maker, "place", buffer->place == PLACE_TILE ? "tile" : "arena");
  set_int(maker, "offset", (double)buffer->offset_bytes);
  set_int(maker, "bytes", (double)buffer->bytes);
  set_text(maker, "rows", facts_rows_word(buffer->rows));
  set_int(maker, "cols", buffer->cols);
  set_text(maker, "dtype", dtype_name(buffer->dtype));
  set_int(maker, "first_kernel", buffer->first);
  set_int(maker, "last_kernel", buffer->last);
  set_bool(maker, "input", buffer->first < 0);
  set_bool(maker, "output", buffer->last >= plan->plan->n_steps);
  close_value(maker, "}");
}

static void memory_json(struct maker *maker, const struct fact_plan *plan) {
  open_value(maker, "memory", "{");
  set_int(maker, "arena_bytes", (double)plan->plan->arena_bytes);
  set_int(maker, "tile_bytes", (double)plan->plan->tile_bytes);
  set_int(maker, "max_tokens", plan->plan->limits.max_tokens);
  set_int(maker, "max_sequences", plan->plan->limits.max_seqs);
  set_int(maker, "max_sequence_length", plan->plan->limits.max_seqlen);
  open_value(maker, "buffers", "[");
  for (int32_t b = 0; b < plan->n_buffers; b++)
    buffer_json(maker, plan, &plan->buffers[b]);
  close_value(maker, "]");
  close_value(maker, "}");
}

static void points_json(struct maker *maker, const struct fact_plan *plan) {
  char name[FACTS_POINT], label[FACTS_LABEL];
  open_value(maker, "roofline", "[");
  for (int32_t p = 0; p < plan->n_points; p++) {
    const struct fact_point *point = &plan->points[p];
    const struct fact_kernel *kernel = &plan->kernels[point->kernel];
    open_entry(maker);
    set_text(maker, "point", facts_point_name(plan->side, p, name));
    set_text(maker, "label", facts_label(kernel->step, label));
    set_int(maker, "kernels", point->count);
    set_real(maker, "flops_per_byte", kernel->intensity);
    set_real(maker, "flops_per_s", facts_point_rate(plan, point));
    set_real(maker, "roof_flops_per_s", facts_roof(maker->facts, kernel));
    set_real(maker, "us_in_all", point->us);
    close_value(maker, "}");
  }
  close_value(maker, "]");
}

static void plan_json(struct maker *maker, const struct fact_plan *plan) {
  open_part(maker, plan->side == SIDE_OFF ? "unfused" : "fused", "{");
  set_text(maker, "fusion", fusion_name(plan->plan->mode));
  open_value(maker, "total", "{");
  set_int(maker, "kernels", plan->total.launches);
  set_cost(maker, &plan->total);
  close_value(maker, "}");
  open_value(maker, "kernels", "[");
  for (int32_t k = 0; k < plan->plan->n_steps; k++)
    kernel_json(maker, plan, k);
  close_value(maker, "]");
  memory_json(maker, plan);
  points_json(maker, plan);
  close_value(maker, "}");
}

static void sizes_json(struct maker *maker) {
  const struct fact_sizes *sizes = &maker->facts->sizes;
  open_part(maker, "graph_sizes", "{");
  set_int(maker, "graphs", sizes->n_graphs);
  set_int(maker, "ran_tokens", (double)sizes->ran_tokens);
  set_real(maker, "waste_us", sizes->waste_us);
  open_value(maker, "sizes", "[");
  for (int32_t i = 0; i < sizes->n; i++) {
    open_entry(maker);
    set_int(maker, "tokens", sizes->sizes[i].tokens);
    set_int(maker, "fewest_tokens", sizes->sizes[i].fewest);
    set_real(maker, "worst_waste", sizes->sizes[i].worst);
    set_real(maker, "mean_waste", sizes->sizes[i].mean);
    close_value(maker, "}");
  }
  close_value(maker, "]");
  close_value(maker, "}");
}

// ---- the whole ----
void explain_json(const struct facts *facts, struct out *out) {
  struct maker maker = {.facts = facts, .out = out};
  out_raw(out, "{");
  set_text(&maker, "schema", SCHEMA);
  set_text(&maker, "fusewire", FUSEWIRE_VERSION);
  model_json(&maker);
  batch_json(&maker);
  device_json(&maker);
  open_part(&maker, "nodes", "[");
  for (int32_t n = 0; n < facts->model->graph.n_nodes; n++)
    node_json(&maker, n);
  close_value(&maker, "]");
  open_part(&maker, "edges", "[");
  for (int32_t e = 0; e < facts->n_edges; e++)
    edge_json(&maker, &facts->edges[e]);
  close_value(&maker, "]");
  open_part(&maker, "plans", "{");
  for (int mode = SIDES - 1; mode >= 0; mode--)
    plan_json(&maker, &facts->plans[mode]);
  close_value(&maker, "}");
  if (facts->sizes.n > 0) sizes_json(&maker);
  out_raw(out, "}\n");
}
