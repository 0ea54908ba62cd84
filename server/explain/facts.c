#include "explain/facts.h"
#include "graph/op/op.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_TOKENS 128

// ---- the batch ----
static enum status choose_batch(const struct explain_options *options, struct facts *out,
                                struct error *err) {
  const struct model *model = options->model;
  const struct plan_limits *limits = &model->plans[FUSION_ON]->limits;
  int64_t most = limits->max_tokens, longest = model->has_sequences ? limits->max_seqlen : 1;
  int64_t tokens = options->tokens, seqs = options->seqs;
  if (tokens < 0 || tokens > most)
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "tokens: found %lld, expected 1 to %lld (batch.max_tokens)", (long long)tokens,
                     (long long)most);
  if (tokens == 0) tokens = DEFAULT_TOKENS < most ? DEFAULT_TOKENS : most;
  if (seqs == 0) seqs = (tokens + longest - 1) / longest;
  if (seqs < 0 || seqs > tokens || seqs > limits->max_seqs)
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "sequences: found %lld, expected 1 to the number of tokens, %lld",
                     (long long)options->seqs, (long long)tokens);
  int64_t length = tokens / seqs, longer = tokens % seqs; // so many are one token longer
  out->longest = length + (longer > 0);
  if (out->longest > longest && !model->has_sequences)
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "sequences: found %lld; the rows of this model are no sequences: leave it out",
                     (long long)options->seqs);
  if (out->longest > longest)
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "sequences: %lld tokens in %lld are up to %lld long, expected at most %lld",
                     (long long)tokens, (long long)seqs, (long long)out->longest,
                     (long long)longest);
  out->batch = (struct batch_size){.n_tokens = tokens,
                                   .n_seqs = seqs,
                                   .sum_sq = (seqs - longer) * length * length +
                                             longer * (length + 1) * (length + 1)};
  return STATUS_OK;
}

int64_t facts_rows(const struct facts *facts, enum row_kind rows) {
  if (rows == ROWS_TOKENS) return facts->batch.n_tokens;
  if (rows == ROWS_SEQS) return facts->batch.n_seqs;
  return rows == ROWS_SCORES ? facts->batch.sum_sq : 1;
}

// ---- the graph ----
static bool resolve_views(struct facts *facts) {
  const struct graph *graph = &facts->model->graph;
  facts->root = malloc(((size_t)graph->n_tensors + 1) * sizeof *facts->root);
  facts->producer = malloc(((size_t)graph->n_tensors + 1) * sizeof *facts->producer);
  if (!facts->root || !facts->producer) return false;
  for (int32_t t = 0; t < graph->n_tensors; t++) {
    facts->root[t] = t;
    facts->producer[t] = -1;
  }
  for (int32_t n = 0; n < graph->n_nodes; n++) {
    const struct node *node = &graph->nodes[n];
    if (op_def_get(node->op)->cls == OPC_VIEW)
      facts->root[node->out] = facts->root[node->in[0]];
    else
      facts->producer[node->out] = n;
  }
  return true;
}

static bool fold_nodes(struct facts *facts) {
  const struct graph *graph = &facts->model->graph;
  uint64_t *keys = calloc((size_t)graph->n_nodes + 1, sizeof *keys);
  if (!keys) return false;
  for (int32_t n = 0; n < graph->n_nodes; n++) {
    const struct node *node = &graph->nodes[n];
    const struct tensor *out = &graph->tensors[node->out];
    uint64_t hash = hash_bytes(hash_name(hash_begin(), out->name), &node->op, sizeof node->op);
    hash = hash_bytes(hash, &out->cols, sizeof out->cols);
    hash = hash_bytes(hash, &out->dtype, sizeof out->dtype);
    for (int i = 0; i < node->n_in; i++) { // how far back, or which weight
      int32_t back = n - facts->producer[facts->root[node->in[i]]];
      if (graph->tensors[node->in[i]].kind == TENSOR_ACTIVATION)
        hash = hash_bytes(hash, &back, sizeof back);
      else
        hash = hash_name(hash, graph->tensors[node->in[i]].name);
    }
    keys[n] = hash;
  }
  facts->node_folds = fold_make(keys, graph->n_nodes, &facts->n_node_folds);
  free(keys);
  return facts->node_folds != NULL;
}

const char *facts_tensor_name(const struct facts *facts, int32_t tensor) {
  return tensor < 0 ? "(scores)" : facts->model->graph.tensors[tensor].name;
}

// ---- kernels ----
static uint64_t work_key(const struct fact_kernel *kernel) {
  const struct step *step = kernel->step;
  const struct cost *cost = &kernel->cost;
  uint64_t hash = hash_bytes(hash_begin(), step->label, strlen(step->label));
  hash = hash_bytes(hash, &step->kind, sizeof step->kind);
  hash = hash_real(hash_real(hash, cost->read.compulsory), cost->write.compulsory);
  return hash_real(hash, cost->flops);
}

static bool cost_kernels(const struct facts *facts, struct fact_plan *out) {
  const struct plan *plan = out->plan;
  struct cost *costs = calloc((size_t)plan->n_steps + 1, sizeof *costs);
  out->kernels = calloc((size_t)plan->n_steps + 1, sizeof *out->kernels);
  if (!costs || !out->kernels) {
    free(costs);
    return false;
  }
  uint8_t all = (uint8_t)((1u << plan->n_outputs) - 1);
  if (plan_cost(plan, facts->rates, &facts->batch, all, costs, &out->total) != STATUS_OK) {
    free(costs);
    return false;
  }
  for (int32_t s = 0; s < plan->n_steps; s++) {
    struct fact_kernel *kernel = &out->kernels[s];
    kernel->step = &plan->steps[s];
    kernel->cost = costs[s];
    double moved = facts_moved(&kernel->cost);
    kernel->intensity = moved > 0 ? kernel->cost.flops / moved : INFINITY;
    if (kernel->step->n_out == 0) continue;
    kernel->alike =
        hash_name(work_key(kernel), facts_tensor_name(facts, kernel->step->out[0].tensor));
  }
  free(costs);
  return true;
}

// Kernels of the same work, found by sorting nothing: there are few kinds of them.
static bool find_points(struct fact_plan *out) {
  int32_t n = out->plan->n_steps;
  uint64_t *keys = calloc((size_t)n + 1, sizeof *keys);
  out->points = calloc((size_t)n + 1, sizeof *out->points);
  for (int32_t k = 0; keys && out->points && k < n; k++) {
    uint64_t key = work_key(&out->kernels[k]);
    int32_t p = 0;
    while (p < out->n_points && keys[p] != key)
      p++;
    if (p == out->n_points) {
      keys[p] = key;
      out->points[out->n_points++] = (struct fact_point){.kernel = k};
    }
    out->kernels[k].point = p;
    out->points[p].count++;
    out->points[p].us += out->kernels[k].cost.us;
  }
  bool ok = keys && out->points;
  free(keys);
  return ok;
}

static bool fold_kernels(struct fact_plan *out) {
  int32_t n = out->plan->n_steps;
  uint64_t *keys = calloc((size_t)n + 1, sizeof *keys);
  if (!keys) return false;
  for (int32_t k = 0; k < n; k++)
    keys[k] = out->kernels[k].alike;
  out->folds = fold_make(keys, n, &out->n_folds);
  free(keys);
  return out->folds != NULL;
}

static bool index_nodes(const struct facts *facts, struct fact_plan *out) {
  int32_t n_nodes = facts->model->graph.n_nodes;
  out->first_step = malloc(((size_t)n_nodes + 1) * sizeof *out->first_step);
  out->last_step = malloc(((size_t)n_nodes + 1) * sizeof *out->last_step);
  if (!out->first_step || !out->last_step) return false;
  for (int32_t n = 0; n < n_nodes; n++)
    out->first_step[n] = out->last_step[n] = -1;
  for (int32_t s = 0; s < out->plan->n_steps; s++) {
    const struct step *step = &out->plan->steps[s];
    for (int i = 0; i < step->n_nodes; i++) {
      int32_t node = step->nodes[i];
      if (out->first_step[node] < 0)
        out->first_step[node] = out->last_step[node] = s;
      else if (step->n_nodes == 1 && out->last_step[node] == s - 1)
        out->last_step[node] = s; // the parts of an unfused attention
      // else computed again there: the first kernel that does stands for it
    }
  }
  return true;
}

static double score_bytes(const struct facts *facts, const struct plan *plan) {
  double bytes = 0;
  for (int32_t s = 0; s < plan->n_steps; s++) {
    const struct step *step = &plan->steps[s];
    for (int i = 0; i < step->n_in + step->n_out; i++) {
      const struct operand *operand = i < step->n_in ? &step->in[i] : &step->out[i - step->n_in];
      if (operand->tensor >= 0) continue;
      bytes += (double)facts->batch.sum_sq * operand->cols * (double)dtype_bytes(operand->dtype);
    }
  }
  return bytes;
}

static enum fusion_mode fused_mode(const struct explain_options *options) {
  enum fusion_mode mode = options->fusion;
  if (mode == FUSION_OFF) mode = options->model->fusion_default;
  return mode == FUSION_OFF ? FUSION_ON : mode;
}

static bool make_plan(const struct facts *facts, const struct plan *plan, enum side side,
                      struct fact_plan *out) {
  out->side = side;
  out->plan = plan;
  out->score_bytes = score_bytes(facts, plan);
  return cost_kernels(facts, out) && find_points(out) && fold_kernels(out) &&
         index_nodes(facts, out) && facts_buffers(facts, out);
}

// ---- the whole ----
enum status facts_make(const struct explain_options *options, struct facts *out,
                       struct error *err) {
  const struct model *model = options->model;
  *out = (struct facts){.model = model,
                        .caps = options->caps,
                        .rates = &model->plans[FUSION_ON]->rates,
                        .measured = options->rates_measured};
  enum status status = choose_batch(options, out, err);
  if (status != STATUS_OK) return status;
  bool ok = resolve_views(out) && fold_nodes(out);
  const struct plan *plans[SIDES] = {model->plans[FUSION_OFF], model->plans[fused_mode(options)]};
  for (int side = 0; ok && side < SIDES; side++)
    ok = make_plan(out, plans[side], (enum side)side, &out->plans[side]);
  if (ok && facts_sizes(out) && facts_edges(out)) return STATUS_OK;
  return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for the explanation");
}

static void plan_facts_free(struct fact_plan *plan) {
  free(plan->kernels);
  free(plan->folds);
  free(plan->points);
  free(plan->buffers);
  free(plan->buffer_folds);
  free(plan->first_step);
  free(plan->last_step);
}

void facts_free(struct facts *facts) {
  for (int mode = 0; mode < SIDES; mode++)
    plan_facts_free(&facts->plans[mode]);
  free(facts->root);
  free(facts->producer);
  free(facts->edges);
  free(facts->node_folds);
  *facts = (struct facts){0};
}
