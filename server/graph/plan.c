// plan_build: the graph's data flow, then groups (fuse.c), their order (schedule.c), steps
// (steps.c), memory (place.c), bytes (traffic.c).
#include "graph/plan.h"

#include "base/log.h"
#include "graph/cost.h"
#include "graph/planner.h"

#include <stdlib.h>
#include <string.h>

const char *fusion_name(enum fusion_mode mode) {
  static const char *const names[FUSION_MODES] = {"off", "on", "auto"};
  return (unsigned)mode < FUSION_MODES ? names[mode] : "invalid";
}

const char *step_kind_name(enum step_kind kind) {
  static const char *const names[] = {"row",   "linear",  "attention", "scores",
                                      "scale", "softmax", "context"};
  return (unsigned)kind < sizeof names / sizeof *names ? names[kind] : "invalid";
}

const struct row_input *step_row_input(const struct step *step, int i) {
  if (step->kind != STEP_ROW) return NULL;
  if (step->before.n_insts > 0 && i >= step->before_in) {
    int at = i - step->before_in;
    return at < step->before.n_inputs ? &step->before.inputs[at] : NULL;
  }
  return i < step->row.n_inputs ? &step->row.inputs[i] : NULL;
}

enum row_kind step_before_rows(const struct step *step) {
  for (int i = 0; i < step->row.n_inputs; i++)
    if (step->in[i].place == PLACE_STEP && step->row.inputs[i].cls == IN_POOL_CLS) return ROWS_SEQS;
  return ROWS_TOKENS;
}

enum row_kind step_row_space(const struct step *step, int i) {
  bool before = step->before.n_insts > 0 && i >= step->before_in;
  return before ? step_before_rows(step) : step->rows;
}

// ---- what may be planned ----
static enum status check_output(const struct graph *graph, int index, struct error *err) {
  int32_t tensor = graph->outputs[index];
  if (tensor < 0 || tensor >= graph->n_tensors)
    return error_set(err, STATUS_INVALID_ARGUMENT, "output %d is no tensor of the graph", index);
  enum tensor_kind kind = graph->tensors[tensor].kind;
  if (kind != TENSOR_ACTIVATION && kind != TENSOR_INPUT)
    return error_set(err, STATUS_INVALID_ARGUMENT, "output %d, \"%s\", is no activation or input",
                     index, graph->tensors[tensor].name);
  return STATUS_OK;
}

static enum status check_input(const struct tensor *tensor, uint32_t *seen, struct error *err) {
  if (tensor->index < 0 || tensor->index >= LIMIT_MODEL_INPUTS || (*seen >> tensor->index & 1u))
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "input \"%s\" has the signature index %d, expected one of its own in 0..%d",
                     tensor->name, tensor->index, LIMIT_MODEL_INPUTS - 1);
  *seen |= 1u << tensor->index;
  if ((tensor->rows != ROWS_TOKENS && tensor->rows != ROWS_SEQS) || tensor->cols < 1 ||
      tensor->cols > LIMIT_DIM)
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "input \"%s\" has %d columns or rows of a wrong kind", tensor->name,
                     tensor->cols);
  return STATUS_OK;
}

static enum status check_tensors(const struct graph *graph, const struct plan_caps *caps,
                                 struct error *err) {
  uint32_t seen = 0;
  for (int32_t t = 0; t < graph->n_tensors; t++) {
    const struct tensor *tensor = &graph->tensors[t];
    if ((unsigned)tensor->dtype >= DTYPE_COUNT || !caps->dtype_ok[tensor->dtype])
      return error_set(err, STATUS_UNIMPLEMENTED,
                       "tensor \"%s\" is %s, which this device does not compute with", tensor->name,
                       dtype_name(tensor->dtype));
    if (tensor->kind == TENSOR_WEIGHT && tensor->index < 0)
      return error_set(err, STATUS_INVALID_ARGUMENT, "weight \"%s\" has no id", tensor->name);
    enum status status = tensor->kind == TENSOR_INPUT ? check_input(tensor, &seen, err) : STATUS_OK;
    if (status != STATUS_OK) return status;
  }
  return STATUS_OK;
}

static enum status check_request(const struct graph *graph, const struct plan_caps *caps,
                                 const struct plan_limits *limits, struct error *err) {
  FW_ASSERT(caps->epilogue_kinds & 1u << EPI_BIAS); // a product's own bias; see plan.h
  FW_ASSERT(caps->epilogue_max >= 1);
  FW_ASSERT(!caps->row_chains || caps->tile_rows >= 1);
  if (limits->max_tokens < 1 || limits->max_seqs < 1 || limits->max_seqlen < 1)
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "batches of %d tokens, %d sequences of up to %d, expected at least 1 of each",
                     limits->max_tokens, limits->max_seqs, limits->max_seqlen);
  if (graph->n_outputs < 1 || graph->n_outputs > LIMIT_MODEL_OUTPUTS)
    return error_set(err, STATUS_INVALID_ARGUMENT, "%d outputs, expected 1..%d", graph->n_outputs,
                     LIMIT_MODEL_OUTPUTS);
  for (int i = 0; i < graph->n_outputs; i++) {
    enum status status = check_output(graph, i, err);
    if (status != STATUS_OK) return status;
  }
  return check_tensors(graph, caps, err);
}

// ---- data flow ----
static bool is_view(const struct node *node) {
  return op_def_get(node->op)->cls == OPC_VIEW;
}

// Views are resolved: from here on every tensor is named by the one that holds its data.
static void resolve_views(struct planner *planner) {
  const struct graph *graph = planner->graph;
  for (int32_t t = 0; t < graph->n_tensors; t++) {
    planner->root[t] = t;
    planner->producer[t] = -1;
  }
  for (int32_t n = 0; n < graph->n_nodes; n++) {
    struct node *node = &planner->nodes[n];
    *node = graph->nodes[n];
    for (int i = 0; i < node->n_in; i++)
      node->in[i] = planner->root[node->in[i]];
    if (is_view(node))
      planner->root[node->out] = node->in[0];
    else
      planner->producer[node->out] = n;
  }
  for (int i = 0; i < graph->n_outputs; i++)
    planner->wanted[planner->root[graph->outputs[i]]] |= (uint8_t)(1u << i);
}

// A node that leads to no output is not run in any mode.
static void find_live(struct planner *planner, bool *tensor_live) {
  const struct graph *graph = planner->graph;
  for (int32_t t = 0; t < graph->n_tensors; t++)
    tensor_live[t] = planner->wanted[t] != 0;
  for (int32_t n = graph->n_nodes - 1; n >= 0; n--) {
    const struct node *node = &planner->nodes[n];
    if (is_view(node) || !tensor_live[node->out]) continue;
    planner->live[n] = true;
    for (int i = 0; i < node->n_in; i++)
      tensor_live[node->in[i]] = true;
  }
}

static void index_readers(struct planner *planner) {
  const struct graph *graph = planner->graph;
  int32_t *start = planner->reader_start;
  for (int32_t n = 0; n < graph->n_nodes; n++)
    for (int i = 0; planner->live[n] && i < planner->nodes[n].n_in; i++)
      start[planner->nodes[n].in[i] + 1]++;
  for (int32_t t = 0; t < graph->n_tensors; t++)
    start[t + 1] += start[t];
  for (int32_t n = graph->n_nodes - 1; n >= 0;
       n--) // backwards, each list from its end; slice_col counts meanwhile
    for (int i = 0; planner->live[n] && i < planner->nodes[n].n_in; i++) {
      int32_t tensor = planner->nodes[n].in[i];
      planner->readers[start[tensor + 1] - 1 - planner->slice_col[tensor]++] = n;
    }
  memset(planner->slice_col, 0, (size_t)graph->n_tensors * sizeof *planner->slice_col);
}

static void find_outputs(struct planner *planner) {
  for (int32_t n = planner->graph->n_nodes - 1; n >= 0; n--) {
    int32_t tensor = planner->nodes[n].out;
    planner->leads_to[n] = planner->wanted[tensor];
    for (int32_t i = planner->reader_start[tensor]; i < planner->reader_start[tensor + 1]; i++)
      planner->leads_to[n] |= planner->leads_to[planner->readers[i]];
  }
}

// ---- the planner's arrays ----
static void *array(size_t count, size_t bytes, bool *ok) {
  void *memory = calloc(count + 1, bytes);
  *ok = *ok && memory;
  return memory;
}

enum status planner_init(struct planner *planner, const struct graph *graph) {
  size_t tensors = (size_t)graph->n_tensors, nodes = (size_t)graph->n_nodes;
  bool ok = true;
  planner->graph = graph;
  planner->root = array(tensors, sizeof *planner->root, &ok);
  planner->nodes = array(nodes, sizeof *planner->nodes, &ok);
  planner->producer = array(tensors, sizeof *planner->producer, &ok);
  planner->reader_start = array(tensors + 1, sizeof *planner->reader_start, &ok);
  planner->readers = array(nodes * NODE_MAX_INPUTS, sizeof *planner->readers, &ok);
  planner->wanted = array(tensors, sizeof *planner->wanted, &ok);
  planner->live = array(nodes, sizeof *planner->live, &ok);
  planner->leads_to = array(nodes, sizeof *planner->leads_to, &ok);
  planner->groups = array(nodes, sizeof *planner->groups, &ok);
  planner->group_of = array(nodes, sizeof *planner->group_of, &ok);
  planner->next = array(nodes, sizeof *planner->next, &ok);
  planner->in_finish = array(nodes, sizeof *planner->in_finish, &ok);
  planner->finishes = array(nodes, sizeof *planner->finishes, &ok);
  planner->why = array(nodes * NODE_MAX_INPUTS, sizeof *planner->why, &ok);
  planner->order = array(nodes, sizeof *planner->order, &ok);
  planner->seen = array(nodes, sizeof *planner->seen, &ok);
  planner->node_seen = array(nodes, sizeof *planner->node_seen, &ok);
  planner->tensor_seen = array(tensors, sizeof *planner->tensor_seen, &ok);
  planner->stack = array(nodes, sizeof *planner->stack, &ok);
  planner->buffers = array(tensors + nodes, sizeof *planner->buffers, &ok);
  planner->buffer_of = array(tensors, sizeof *planner->buffer_of, &ok);
  planner->slice_col = array(tensors, sizeof *planner->slice_col, &ok);
  bool *tensor_live = array(tensors, sizeof *tensor_live, &ok);
  if (ok) {
    for (size_t n = 0; n < nodes; n++)
      planner->group_of[n] = planner->next[n] = -1;
    resolve_views(planner);
    find_live(planner, tensor_live);
    index_readers(planner);
    find_outputs(planner);
  }
  free(tensor_live);
  return ok ? STATUS_OK
            : error_set(planner->err, STATUS_RESOURCE_EXHAUSTED, "out of memory while planning");
}

void planner_deinit(struct planner *planner) {
  free(planner->root);
  free(planner->nodes);
  free(planner->producer);
  free(planner->reader_start);
  free(planner->readers);
  free(planner->wanted);
  free(planner->live);
  free(planner->leads_to);
  free(planner->groups);
  free(planner->group_of);
  free(planner->next);
  free(planner->in_finish);
  free(planner->finishes);
  free(planner->why);
  free(planner->order);
  free(planner->seen);
  free(planner->node_seen);
  free(planner->tensor_seen);
  free(planner->stack);
  free(planner->buffers);
  free(planner->buffer_of);
  free(planner->slice_col);
}

// ---- costs ----
static enum status predict(struct plan *plan) {
  struct cost total, *steps = calloc((size_t)plan->n_steps + 1, sizeof *steps);
  if (!steps) return STATUS_RESOURCE_EXHAUSTED;
  enum status status = plan_cost(plan, &plan->rates, &plan->batch, 0xff, steps, &total);
  for (int32_t s = 0; s < plan->n_steps; s++)
    plan->steps[s].cost = steps[s];
  free(steps);
  if (status != STATUS_OK) return status;
  for (int32_t d = 0; d < plan->n_decisions; d++) {
    struct decision *decision = &plan->decisions[d];
    decision_cost(decision, &plan->rates, &plan->batch, &decision->apart_cost,
                  &decision->fused_cost);
  }
  return STATUS_OK;
}

// ---- the whole ----
static enum status build(struct planner *planner) {
  enum status status = planner_init(planner, planner->graph);
  if (status != STATUS_OK) return status;
  planner_group(planner);
  status = planner_order(planner);
  if (status == STATUS_OK) status = planner_steps(planner);
  if (status == STATUS_OK) status = planner_place(planner);
  if (status == STATUS_OK) status = planner_decide(planner);
  if (status != STATUS_OK) return status;
  for (int32_t s = 0; s < planner->plan->n_steps; s++)
    step_traffic(&planner->plan->steps[s]);
  status = plan_sum_traffic(planner->plan);
  if (status == STATUS_OK) status = predict(planner->plan);
  if (status == STATUS_OK) return STATUS_OK;
  return error_set(planner->err, status, "out of memory while planning");
}

static struct plan *plan_begin(const struct planner *planner) {
  struct plan *plan = calloc(1, sizeof *plan);
  if (!plan) return NULL;
  const struct plan_caps *caps = planner->caps;
  const struct plan_limits *limits = &planner->limits;
  plan->mode = planner->mode;
  plan->limits = *limits;
  plan->batch = batch_of(caps->usual_tokens > 0 ? caps->usual_tokens : limits->max_tokens,
                         limits->max_seqlen);
  plan->rates = caps->rates.copy > 0 ? caps->rates
                : caps->row_chains   ? device_rates_cpu(1)
                                     : device_rates_gpu();
  return plan;
}

// The same with some results computed more than once, if that is better.
static enum status build_again(struct planner *first) {
  struct again_graph again;
  enum status status = planner_recompute(first, &again);
  if (status != STATUS_OK) return error_set(first->err, status, "out of memory while planning");
  if (again.graph.n_nodes == 0) return STATUS_OK;
  struct planner second = {.graph = &again.graph,
                           .n_own_tensors = first->graph->n_tensors,
                           .mode = first->mode,
                           .caps = first->caps,
                           .limits = first->limits,
                           .err = first->err};
  second.plan = plan_begin(&second);
  status = second.plan
               ? build(&second)
               : error_set(first->err, STATUS_RESOURCE_EXHAUSTED, "out of memory while planning");
  planner_deinit(&second);
  if (status == STATUS_OK &&
      planner_recompute_pays(second.plan, first->plan, first->graph->n_tensors)) {
    planner_recompute_name(second.plan, &again);
    plan_free(first->plan);
    first->plan = second.plan;
  } else {
    plan_free(second.plan);
  }
  again_graph_deinit(&again);
  return status;
}

enum status plan_build(const struct graph *graph, enum fusion_mode mode,
                       const struct plan_caps *caps, const struct plan_limits *limits,
                       struct plan **out, struct error *err) {
  *out = NULL;
  enum status status = check_request(graph, caps, limits, err);
  if (status != STATUS_OK) return status;
  struct planner planner = {
      .graph = graph, .mode = mode, .caps = caps, .limits = *limits, .err = err};
  planner.plan = plan_begin(&planner);
  if (!planner.plan)
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory while planning");
  status = build(&planner);
  if (status == STATUS_OK && mode == FUSION_AUTO) status = build_again(&planner);
  planner_deinit(&planner);
  if (status == STATUS_OK)
    *out = planner.plan;
  else
    plan_free(planner.plan);
  return status;
}

static bool same_steps(const struct step *a, const struct step *b) {
  return a->kind == b->kind && a->chain == b->chain && a->n_nodes == b->n_nodes &&
         memcmp(a->nodes, b->nodes, (size_t)a->n_nodes * sizeof *a->nodes) == 0;
}

bool plan_same(const struct plan *a, const struct plan *b) {
  if (a->n_steps != b->n_steps || a->arena_bytes != b->arena_bytes ||
      a->tile_bytes != b->tile_bytes)
    return false;
  for (int32_t s = 0; s < a->n_steps; s++)
    if (!same_steps(&a->steps[s], &b->steps[s])) return false;
  return true;
}

void plan_free(struct plan *plan) {
  if (!plan) return;
  free(plan->steps);
  free(plan->decisions);
  free(plan->sums);
  free(plan);
}

bool plan_runs(const struct plan *plan, int32_t node) {
  for (int32_t s = 0; s < plan->n_steps; s++)
    for (int i = 0; i < plan->steps[s].n_nodes; i++)
      if (plan->steps[s].nodes[i] == node) return true;
  return false;
}
