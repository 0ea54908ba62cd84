// The order in which groups run, and the account of what was fused and why.
#include "base/log.h"
#include "graph/planner.h"

#include <stdlib.h>

// ---- order ----
static int32_t count_waits(const struct planner *planner, int32_t id) {
  int32_t waits = 0;
  for (int32_t node = planner->groups[id].head; node >= 0; node = planner->next[node])
    for (int i = 0; i < planner->nodes[node].n_in; i++) {
      int32_t producer = planner->producer[planner->nodes[node].in[i]];
      waits += producer >= 0 && planner->group_of[producer] != id;
    }
  return waits;
}

// Of the groups whose inputs are there, the one whose last node comes first in the graph.
static int32_t next_ready(const struct planner *planner, const int32_t *waits) {
  int32_t best = -1;
  for (int32_t g = 0; g < planner->n_groups; g++)
    if (waits[g] == 0 && (best < 0 || planner->groups[g].tail < planner->groups[best].tail))
      best = g;
  return best;
}

// Can the group be a part of a chain of steps over tiles of `rows` (place.c)?
static bool may_chain(const struct planner *planner, int32_t id, enum row_kind rows) {
  const struct group *group = &planner->groups[id];
  if (group->rows != rows || group->kind == GROUP_ATTENTION) return false;
  for (int32_t node = group->head; node >= 0; node = planner->next[node])
    if (planner->nodes[node].op == OP_POOL) return false;
  return true;
}

// Can all that read the tensor, and have not run, run now and in the chain over tiles of `rows`
// that makes it?
static bool all_may_chain(const struct planner *planner, int32_t tensor, enum row_kind rows,
                          const int32_t *waits) {
  if (planner->wanted[tensor]) return false;
  for (int32_t i = planner->reader_start[tensor]; i < planner->reader_start[tensor + 1]; i++) {
    int32_t reader = planner->group_of[planner->readers[i]];
    if (waits[reader] >= 0 && (waits[reader] > 0 || !may_chain(planner, reader, rows)))
      return false;
  }
  return true;
}

// Before a chain ends: a group that is ready and whose running now, and not later, leaves a result
// of the chain without readers elsewhere, so that it stays in the tile. The first in the graph of
// these, or -1. `first`: where in the order the chain begins.
static int32_t next_of_chain(const struct planner *planner, const int32_t *waits, int32_t first) {
  int32_t best = -1;
  for (int32_t o = first; o < planner->n_order; o++) {
    const struct group *group = &planner->groups[planner->order[o]];
    for (int32_t node = group->head; node >= 0; node = planner->next[node]) {
      int32_t tensor = planner->nodes[node].out;
      int32_t start = planner->reader_start[tensor], end = planner->reader_start[tensor + 1];
      if (!all_may_chain(planner, tensor, group->rows, waits)) continue;
      for (int32_t i = start; i < end; i++) {
        int32_t reader = planner->group_of[planner->readers[i]];
        if (waits[reader] == 0 &&
            (best < 0 || planner->groups[reader].tail < planner->groups[best].tail))
          best = reader;
      }
    }
  }
  return best;
}

enum status planner_order(struct planner *planner) {
  int32_t *waits = calloc((size_t)planner->n_groups + 1, sizeof *waits);
  int32_t chain = 0; // where in the order the steps begin that may be one chain
  bool chains = planner->caps->row_chains && planner->mode != FUSION_OFF;
  if (!waits)
    return error_set(planner->err, STATUS_RESOURCE_EXHAUSTED, "out of memory while planning");
  for (int32_t g = 0; g < planner->n_groups; g++)
    waits[g] = planner->groups[g].kind == GROUP_DEAD ? -1 : count_waits(planner, g);
  for (int32_t g; (g = next_ready(planner, waits)) >= 0;) {
    if (chains && chain < planner->n_order &&
        !may_chain(planner, g, planner->groups[planner->order[chain]].rows)) {
      int32_t before = next_of_chain(planner, waits, chain);
      if (before >= 0)
        g = before;
      else
        chain = planner->n_order;
    }
    if (!may_chain(planner, g, planner->groups[g].rows)) chain = planner->n_order + 1;
    planner->order[planner->n_order++] = g;
    waits[g] = -1;
    for (int32_t node = planner->groups[g].head; node >= 0; node = planner->next[node]) {
      int32_t tensor = planner->nodes[node].out;
      for (int32_t i = planner->reader_start[tensor]; i < planner->reader_start[tensor + 1]; i++) {
        int32_t reader = planner->group_of[planner->readers[i]];
        if (reader != g) waits[reader]--;
      }
    }
  }
  for (int32_t g = 0; g < planner->n_groups; g++)
    FW_ASSERT(waits[g] == -1); // else a cycle was made above
  free(waits);
  return STATUS_OK;
}

// ---- decisions ----
static const char *fused_reason(const struct planner *planner, int32_t producer, int32_t consumer) {
  const struct group *group = &planner->groups[planner->group_of[consumer]];
  (void)producer;
  if (group->kind == GROUP_LINEAR && planner->finishes[consumer])
    return "on each piece of the product's result, before it is written";
  if (group->norm && consumer == group->tail)
    return "by the product's kernel: its blocks hold whole rows between them";
  if (group->kind == GROUP_ATTENTION)
    return "on each piece of the attention's result, before it is written";
  return group->kind == GROUP_LINEAR ? "in the product's epilogue, on the accumulator"
         : planner->nodes[consumer].op == OP_POOL
             ? "pooled as its rows are made: they are never in memory"
             : "same rows: one program, the tensor stays in registers";
}

static struct decision decide_edge(struct planner *planner, int32_t producer, int32_t consumer,
                                   int input) {
  struct decision decision = {.producer = producer, .consumer = consumer};
  int32_t tensor = planner->nodes[consumer].in[input];
  const struct buffer *buffer = &planner->buffers[planner->buffer_of[tensor]];
  decision.fused = planner->group_of[producer] == planner->group_of[consumer];
  if (decision.fused)
    decision.reason = fused_reason(planner, producer, consumer);
  else if (planner->mode == FUSION_OFF)
    decision.reason = "fusion is off: one kernel an op";
  else if (buffer->place == PLACE_TILE)
    decision.reason =
        "two kernels of one pass, a tile of rows at a time: the tensor stays in cache";
  else
    decision.reason = planner->why[consumer * NODE_MAX_INPUTS + input];
  FW_ASSERT(decision.reason);
  decision.chained = !decision.fused && buffer->place == PLACE_TILE;
  planner_weigh(planner, &decision, tensor);
  return decision;
}

static int32_t count_edges(const struct planner *planner) {
  int32_t edges = 0;
  for (int32_t n = 0; n < planner->graph->n_nodes; n++)
    edges += planner->live[n] ? planner->nodes[n].n_in : 0;
  return edges + planner->graph->n_nodes; // and side-by-side products
}

enum status planner_decide(struct planner *planner) {
  struct plan *plan = planner->plan;
  plan->decisions = calloc((size_t)count_edges(planner) + 1, sizeof *plan->decisions);
  if (!plan->decisions)
    return error_set(planner->err, STATUS_RESOURCE_EXHAUSTED, "out of memory while planning");
  for (int32_t n = 0; n < planner->graph->n_nodes; n++) {
    if (!planner->live[n]) continue;
    for (int i = 0; i < planner->nodes[n].n_in; i++) {
      int32_t producer = planner->producer[planner->nodes[n].in[i]];
      if (producer >= 0)
        plan->decisions[plan->n_decisions++] = decide_edge(planner, producer, n, i);
    }
    const struct group *group = &planner->groups[planner->group_of[n]];
    if (group->n_parts > 1 && n != group->head && planner->nodes[n].op == OP_LINEAR) {
      struct decision *decision = &plan->decisions[plan->n_decisions++];
      *decision = (struct decision){
          .producer = group->head,
          .consumer = n,
          .fused = true,
          .reason = "same input, results feed one attention: one product, weights side by side"};
      planner_weigh(planner, decision, planner->nodes[n].in[0]);
    }
  }
  return STATUS_OK;
}
