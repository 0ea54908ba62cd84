// Edges: what each decision of the planner was about, and the bytes that go along it in both plans.
#include "explain/facts.h"

#include <stdlib.h>
#include <string.h>

// The operand through which the kernels of node `consumer` read `tensor`; NULL: none does (it is in
// registers).
static const struct operand *read_operand(const struct fact_plan *plan, int32_t consumer,
                                          int32_t tensor, const struct step **reader) {
  if (plan->first_step[consumer] < 0) return NULL;
  for (int32_t s = plan->first_step[consumer]; s <= plan->last_step[consumer]; s++) {
    const struct step *step = &plan->plan->steps[s];
    for (int i = 0; i < step->n_in; i++)
      if (step->in[i].tensor == tensor && step->in[i].place != PLACE_WEIGHT) {
        *reader = step;
        return &step->in[i];
      }
  }
  return NULL;
}

// Is the tensor written to memory by the kernel that makes it? Columns of a wider result have no
// operand of their own there.
static bool is_written(const struct fact_plan *plan, int32_t producer, int32_t tensor) {
  if (plan->last_step[producer] < 0) return false;
  const struct step *step = &plan->plan->steps[plan->last_step[producer]];
  for (int i = 0; i < step->n_out; i++)
    if (step->out[i].tensor == tensor) return step->out[i].place == PLACE_ARENA;
  return false;
}

static bool reads_first_rows(const struct step *step, const struct operand *operand) {
  ptrdiff_t i = operand - step->in;
  const struct row_input *input = step_row_input(step, i);
  return input && (input->cls == IN_POOL_CLS ||
                   (operand->rows == ROWS_TOKENS && step_row_space(step, i) == ROWS_SEQS &&
                    i >= step->row.n_inputs));
}

// Did an earlier edge of this tensor count the read by this kernel?
static bool read_before(const struct facts *facts, const struct fact_plan *plan,
                        const int32_t *previous, int32_t edge, int32_t step) {
  for (int32_t e = previous[edge]; e >= 0; e = previous[e]) {
    int32_t consumer = facts->edges[e].decision->consumer;
    if (!facts->edges[e].beside && plan->first_step[consumer] <= step &&
        step <= plan->last_step[consumer])
      return true;
  }
  return false;
}

static double edge_bytes(const struct facts *facts, const struct fact_plan *plan,
                         const int32_t *previous, int32_t edge) {
  const struct fact_edge *e = &facts->edges[edge];
  int32_t producer = e->decision->producer, consumer = e->decision->consumer;
  const struct step *reader;
  double bytes = 0;
  bool apart = plan->first_step[producer] != plan->first_step[consumer];
  const struct operand *operand = apart ? read_operand(plan, consumer, e->tensor, &reader) : NULL;
  bool crosses = operand && operand->place == PLACE_ARENA;
  if (crosses && !read_before(facts, plan, previous, edge, (int32_t)(reader - plan->plan->steps))) {
    double rows =
        (double)facts_rows(facts, reads_first_rows(reader, operand) ? ROWS_SEQS : operand->rows);
    bytes += rows * operand->cols * (double)dtype_bytes(operand->dtype);
  }
  if (previous[edge] < 0 && (crosses || is_written(plan, producer, e->tensor)))
    bytes += e->tensor_bytes;
  return bytes;
}

// Products side by side: the input that is read once instead of once more.
static void beside_bytes(const struct facts *facts, struct fact_edge *edge) {
  const struct node *node = &facts->model->graph.nodes[edge->decision->consumer];
  edge->tensor = facts->root[node->in[0]];
  edge->beside = true;
}

// The tensor along the edge; -1 when the nodes are side by side.
static int32_t tensor_between(const struct facts *facts, const struct decision *decision) {
  const struct node *node = &facts->model->graph.nodes[decision->consumer];
  for (int i = 0; i < node->n_in; i++) {
    int32_t tensor = facts->root[node->in[i]];
    if (facts->producer[tensor] == decision->producer) return tensor;
  }
  return -1;
}

static uint64_t edge_key(const struct facts *facts, const struct fact_edge *edge) {
  const struct graph *graph = &facts->model->graph;
  const struct decision *decision = edge->decision;
  const struct node *from = &graph->nodes[decision->producer],
                    *to = &graph->nodes[decision->consumer];
  uint64_t hash = hash_name(hash_begin(), graph->tensors[from->out].name);
  hash = hash_name(hash, graph->tensors[to->out].name);
  hash = hash_bytes(hash, &from->op, sizeof from->op);
  hash = hash_bytes(hash, &to->op, sizeof to->op);
  hash = hash_bytes(hash, &decision->fused, sizeof decision->fused);
  hash = hash_bytes(hash, &decision->reason, sizeof decision->reason);
  for (int mode = 0; mode < SIDES; mode++)
    hash = hash_real(hash, edge->bytes[mode]);
  return hash_bytes(hash, &edge->weighed, sizeof edge->weighed);
}

bool facts_edges(struct facts *facts) {
  const struct plan *plan = facts->plans[SIDE_FUSED].plan;
  const struct graph *graph = &facts->model->graph;
  int32_t n = facts->n_edges = plan->n_decisions;
  int32_t *previous = calloc((size_t)n + 1, sizeof *previous);
  int32_t *last = malloc(((size_t)graph->n_tensors + 1) * sizeof *last);
  facts->edges = calloc((size_t)n + 1, sizeof *facts->edges);
  bool ok = previous && last && facts->edges;
  for (int32_t t = 0; ok && t < graph->n_tensors; t++)
    last[t] = -1;
  for (int32_t i = 0; ok && i < n; i++) {
    struct fact_edge *edge = &facts->edges[i];
    edge->decision = &plan->decisions[i];
    edge->tensor = tensor_between(facts, edge->decision);
    edge->weighed =
        decision_cost(edge->decision, facts->rates, &facts->batch, &edge->apart, &edge->fused);
    if (edge->tensor < 0) beside_bytes(facts, edge);
    const struct tensor *tensor = &graph->tensors[edge->tensor];
    edge->tensor_bytes =
        (double)facts_rows(facts, tensor->rows) * tensor->cols * (double)dtype_bytes(tensor->dtype);
    if (!edge->beside) {
      previous[i] = last[edge->tensor];
      last[edge->tensor] = i;
      for (int mode = 0; mode < SIDES; mode++)
        edge->bytes[mode] = edge_bytes(facts, &facts->plans[mode], previous, i);
    }
    edge->alike = edge_key(facts, edge);
  }
  free(previous);
  free(last);
  return ok;
}
