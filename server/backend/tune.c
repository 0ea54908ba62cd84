// Products of a model, measured: fused with what follows, and with a kernel of its own for that.
// The nodes of a step become a graph of their own; the two ways are told apart by a table of
// measurements that says what to do, as a finished one would.
#include "backend/measure.h"
#include "backend/probe_plan.h"

#include <stdlib.h>
#include <string.h>

#define FLUSH_COLS 4096
#define ROUNDS 2 // of each way

struct tuner {
  const struct backend_ops *backend;
  struct device *device;
  double seconds;
  int32_t m;
  struct probe_plan flush; // passes over more than the caches hold
  struct error *err;
};

// ---- the nodes of a step as a graph ----
// Tensors of the model's graph in the probe's, by id.
struct mapping {
  int32_t *of; // [n_tensors], -1: not there yet
};

static int32_t mapped(struct probe_plan *probe, const struct graph *graph, struct mapping *map,
                      int32_t tensor) {
  const struct tensor *t = &graph->tensors[tensor];
  if (map->of[tensor] < 0)
    map->of[tensor] = t->kind == TENSOR_WEIGHT ? probe_weight(probe, t->dtype, t->n_rows, t->cols)
                                               : probe_input(probe, t->dtype, t->cols);
  return map->of[tensor];
}

// The tensor of the last node, or -1. A norm behind the product is not of it.
static int32_t copy_nodes(struct probe_plan *probe, const struct graph *graph,
                          const struct step *step, struct mapping *map) {
  int32_t out = -1;
  for (int32_t t = 0; t < graph->n_tensors; t++)
    map->of[t] = -1;
  for (int i = 0; i < step->n_nodes - (step->norm.kind != ROW_NORM_NONE); i++) {
    const struct node *node = &graph->nodes[step->nodes[i]];
    int32_t in[NODE_MAX_INPUTS];
    for (int j = 0; j < node->n_in; j++)
      in[j] = mapped(probe, graph, map, node->in[j]);
    out = map->of[node->out] =
        probe_node(probe, node->op, in, node->n_in, &node->attrs, graph->tensors[node->out].dtype);
  }
  return out;
}

// ---- one shape ----
static enum status time_way(struct tuner *tuner, const struct graph *graph, const struct step *step,
                            const struct measured_shape *shape, bool fused, double *us) {
  struct mapping map = {.of = calloc((size_t)graph->n_tensors + 1, sizeof *map.of)};
  if (!map.of)
    return error_set(tuner->err, STATUS_RESOURCE_EXHAUSTED, "out of memory while measuring");
  struct measured_shape wish = *shape;
  wish.fused_us = fused ? 1 : 2, wish.apart_us = fused ? 2 : 1;
  struct shape_table table = {&wish, 1};
  struct plan_caps caps = tuner->backend->caps(tuner->device)->plan;
  caps.shapes = &table;
  struct probe_plan probe;
  probe_init(&probe, tuner->backend, tuner->device, NULL);
  int32_t y = copy_nodes(&probe, graph, step, &map);
  enum status status = probe_bind(&probe, y, FUSION_AUTO, &caps, tuner->m, tuner->err);
  double seconds = 0;
  if (status == STATUS_OK && (probe.plan->n_steps == 1) != fused)
    status = error_set(tuner->err, STATUS_INTERNAL, "step %s: %d steps while measuring",
                       step->label, probe.plan->n_steps);
  if (status == STATUS_OK)
    status = probe_time(&probe, &tuner->flush, tuner->seconds / ROUNDS, &seconds, tuner->err);
  probe_deinit(&probe);
  free(map.of);
  *us = 1e6 * seconds;
  return status;
}

static bool same_problem(const struct measured_shape *a, const struct measured_shape *b) {
  return a->n == b->n && a->k == b->k && a->m == b->m && a->x_dtype == b->x_dtype &&
         a->y_dtype == b->y_dtype && strcmp(a->epilogue, b->epilogue) == 0;
}

static struct measured_shape *place_of(struct shape_table *table,
                                       const struct measured_shape *shape) {
  for (int32_t i = 0; i < table->n; i++)
    if (same_problem(&table->shapes[i], shape)) return &table->shapes[i];
  return table->n < SHAPES_MAX ? &table->shapes[table->n++] : NULL;
}

// One product whose result goes through more than its own bias.
static bool is_tuned(const struct graph *graph, const struct step *step) {
  const struct node *head = &graph->nodes[step->nodes[0]];
  return step->kind == STEP_LINEAR && step->n_nodes > 1 && step->in[1].n_parts == 1 &&
         step->finish.n_insts == 0 && step->rows == ROWS_TOKENS &&
         step->linear.n_epilogue > (head->n_in > 2);
}

static enum status tune_step(struct tuner *tuner, const struct graph *graph,
                             const struct step *step, struct shape_table *out, int *n) {
  const struct linear_problem *linear = &step->linear;
  struct measured_shape shape = {.n = linear->n,
                                 .k = linear->k,
                                 .m = tuner->m,
                                 .x_dtype = linear->x_dtype,
                                 .y_dtype = linear->y_dtype};
  shape_epilogue(linear->epilogue, linear->n_epilogue, shape.epilogue);
  enum status status = STATUS_OK;
  shape.fused_us = shape.apart_us = __builtin_inf();
  for (int i = 0; i < 2 * ROUNDS && status == STATUS_OK; i++) { // in turn: speeds drift
    double us = 0, *least = i % 2 ? &shape.apart_us : &shape.fused_us;
    status = time_way(tuner, graph, step, &shape, i % 2 == 0, &us);
    if (us < *least) *least = us;
  }
  if (status != STATUS_OK) return status;
  struct measured_shape *place = place_of(out, &shape);
  if (!place)
    return error_set(tuner->err, STATUS_RESOURCE_EXHAUSTED, "more than %d shapes", SHAPES_MAX);
  *place = shape;
  ++*n;
  return STATUS_OK;
}

// ---- all ----
static enum status open_flush(struct tuner *tuner, const struct measure_options *options) {
  int64_t bytes = options->buffer_bytes;
  if (bytes <= 0) bytes = 2 * tuner->backend->caps(tuner->device)->plan.rates.cache_bytes;
  int64_t rows = bytes / (FLUSH_COLS * (int64_t)sizeof(float));
  probe_init(&tuner->flush, tuner->backend, tuner->device, NULL);
  int32_t x = probe_input(&tuner->flush, DTYPE_F32, FLUSH_COLS);
  int32_t y =
      probe_node(&tuner->flush, OP_SCALE, &x, 1, &(struct node_attrs){.factor = 1}, DTYPE_F32);
  return probe_bind(&tuner->flush, y, FUSION_ON, NULL, rows < 1 ? 1 : (int32_t)rows, tuner->err);
}

// Member by member: there are holes between them.
static bool same_product(const struct linear_problem *a, const struct linear_problem *b) {
  bool same = a->n == b->n && a->k == b->k && a->x_dtype == b->x_dtype &&
              a->w_dtype == b->w_dtype && a->y_dtype == b->y_dtype &&
              a->n_epilogue == b->n_epilogue;
  for (int e = 0; same && e < a->n_epilogue; e++) {
    const struct epilogue_op *one = &a->epilogue[e], *other = &b->epilogue[e];
    same = one->kind == other->kind && one->act == other->act && one->operand == other->operand &&
           one->imm == other->imm;
  }
  return same;
}

static bool seen_before(const struct graph *graph, const struct plan *plan, int32_t s) {
  const struct step *step = &plan->steps[s];
  for (int32_t i = 0; i < s; i++)
    if (is_tuned(graph, &plan->steps[i]) && same_product(&plan->steps[i].linear, &step->linear))
      return true;
  return false;
}

int measure_shapes(const struct backend_ops *backend, struct device *device,
                   const struct measure_options *options, const struct graph *graph,
                   const struct plan *plan, int32_t m, struct shape_table *out, struct error *err) {
  struct tuner tuner = {.backend = backend,
                        .device = device,
                        .seconds = options->seconds > 0 ? options->seconds : 0.1,
                        .m = m,
                        .err = err};
  int n = 0;
  enum status status = open_flush(&tuner, options);
  for (int32_t s = 0; s < plan->n_steps && status == STATUS_OK; s++)
    if (is_tuned(graph, &plan->steps[s]) && !seen_before(graph, plan, s))
      status = tune_step(&tuner, graph, &plan->steps[s], out, &n);
  probe_deinit(&tuner.flush);
  return status == STATUS_OK ? n : -1;
}
