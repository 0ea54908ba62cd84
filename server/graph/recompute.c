// FUSION_AUTO: a cheap result that other kernels read too may be computed again in each of them, so
// that it need not be written. Decided on the finished groups; carried out by planning a copy of
// the graph, in which the nodes that are computed again stand twice.
#include "base/log.h"
#include "graph/cost.h"
#include "graph/planner.h"

#include <stdlib.h>
#include <string.h>

#define AGAIN_NODES_MAX 4 // of one result that is computed again
#define READERS_MAX 8     // groups that read it
#define PAYS 1e-3         // share of the time of the kernels concerned that it must save

// A result, the nodes that make it from what is in memory anyway, and the groups that will.
struct again {
  int32_t tensor;
  struct node_set nodes;
  int32_t readers[READERS_MAX];
  int n_readers;
};

// ---- what may be computed again ----
static bool is_element_wise(const struct planner *planner, int32_t node) {
  const struct op_def *def = op_def_get(planner->nodes[node].op);
  return def->cls == OPC_ROW && !def->whole_row;
}

// Is the tensor in memory whatever is decided here: no result of a row program, or one that others
// need?
static bool is_in_memory(const struct planner *planner, int32_t tensor) {
  int32_t producer = planner->producer[tensor];
  if (producer < 0 || planner->wanted[tensor]) return true;
  int32_t group = planner->group_of[producer];
  if (planner->groups[group].kind != GROUP_ROW) return true;
  for (int32_t i = planner->reader_start[tensor]; i < planner->reader_start[tensor + 1]; i++)
    if (planner->groups[planner->group_of[planner->readers[i]]].kind != GROUP_ROW) return true;
  return false;
}

static bool holds(const struct node_set *set, int32_t node) {
  for (int i = 0; i < set->n; i++)
    if (set->nodes[i] == node) return true;
  return false;
}

// `node` and the element-wise nodes before it, back to tensors in memory. In graph order.
static bool add_ancestors(const struct planner *planner, int32_t node, struct node_set *out) {
  if (holds(out, node)) return true;
  if (!is_element_wise(planner, node)) return false;
  for (int i = 0; i < planner->nodes[node].n_in; i++) {
    int32_t tensor = planner->nodes[node].in[i];
    if (!is_in_memory(planner, tensor) && !add_ancestors(planner, planner->producer[tensor], out))
      return false;
  }
  if (out->n == AGAIN_NODES_MAX) return false;
  node_set_add(out, node);
  return true;
}

// The groups outside its own that read the tensor; false when one of them needs it in memory.
static bool find_readers(const struct planner *planner, int32_t own, struct again *again) {
  int32_t tensor = again->tensor;
  for (int32_t i = planner->reader_start[tensor]; i < planner->reader_start[tensor + 1]; i++) {
    int32_t id = planner->group_of[planner->readers[i]];
    const struct group *group = &planner->groups[id];
    bool known = id == own;
    for (int r = 0; r < again->n_readers; r++)
      known = known || again->readers[r] == id;
    if (known) continue;
    if (group->kind != GROUP_ROW || group->rows != planner->groups[own].rows ||
        again->n_readers == READERS_MAX || group->n_nodes + again->nodes.n > STEP_MAX_NODES)
      return false;
    again->readers[again->n_readers++] = id;
  }
  return again->n_readers > 0;
}

// ---- what pays ----
static double us_of(const struct planner *planner, const struct kernel_work *work) {
  return work_cost(work, &planner->plan->rates, &planner->plan->batch).us;
}

static double us_of_set(struct planner *planner, const struct node_set *set) {
  struct kernel_work work = planner_work(planner, set);
  const struct traffic_rate *write = &work.traffic.write;
  bool idle = write->fixed == 0 && write->per_token == 0 && write->per_seq == 0;
  return idle ? 0 : us_of(planner, &work); // a kernel that has nothing to write is not there
}

static bool pays(struct planner *planner, const struct again *again, int32_t own, int32_t node) {
  struct node_set stays = {.n = 0}, without = {.n_silent = 1};
  node_set_group(planner, &planner->groups[own], &stays);
  node_set_add(&without, node);
  for (int i = 0; i < stays.n; i++)
    if (stays.nodes[i] != node) node_set_add(&without, stays.nodes[i]);
  double now = us_of_set(planner, &stays), then = us_of_set(planner, &without);
  for (int r = 0; r < again->n_readers; r++) {
    struct node_set reader = {.n = 0}, with = again->nodes;
    node_set_group(planner, &planner->groups[again->readers[r]], &reader);
    node_set_group(planner, &planner->groups[again->readers[r]], &with);
    with.n_silent = again->nodes.n;
    now += us_of_set(planner, &reader);
    then += us_of_set(planner, &with);
  }
  return then < now * (1 - PAYS);
}

static bool candidate(struct planner *planner, int32_t node, struct again *again) {
  *again = (struct again){.tensor = planner->nodes[node].out};
  int32_t own = planner->live[node] ? planner->group_of[node] : -1;
  if (own < 0 || planner->groups[own].kind != GROUP_ROW || is_in_memory(planner, again->tensor) ||
      planner_stays_in_tile(planner, again->tensor))
    return false;
  return add_ancestors(planner, node, &again->nodes) && find_readers(planner, own, again) &&
         pays(planner, again, own, node);
}

// ---- the copy of the graph ----
// Views are resolved in it.
static void copy_node(struct again_graph *out, const struct planner *planner, int32_t node,
                      const int32_t *tensor_as) {
  struct node copy = planner->nodes[node];
  for (int i = 0; i < copy.n_in; i++)
    copy.in[i] = tensor_as[copy.in[i]];
  copy.out = tensor_as[copy.out];
  out->node_of[out->graph.n_nodes] = node;
  out->graph.nodes[out->graph.n_nodes++] = copy;
}

// The nodes once more, under tensors of their own.
static void add_copies(const struct planner *planner, const struct again *again,
                       struct again_graph *out, int32_t *tensor_as) {
  for (int i = 0; i < again->nodes.n; i++) {
    int32_t tensor = planner->nodes[again->nodes.nodes[i]].out;
    out->graph.tensors[out->graph.n_tensors] = planner->graph->tensors[tensor];
    out->tensor_of[out->graph.n_tensors] = tensor;
    tensor_as[tensor] = out->graph.n_tensors++;
  }
  for (int i = 0; i < again->nodes.n; i++)
    copy_node(out, planner, again->nodes.nodes[i], tensor_as);
  for (int i = 0; i < again->nodes.n; i++) { // what else reads them reads the first ones
    int32_t tensor = planner->nodes[again->nodes.nodes[i]].out;
    if (tensor != again->tensor) tensor_as[tensor] = tensor;
  }
}

static bool reads(const struct planner *planner, int32_t node, int32_t tensor) {
  for (int i = 0; i < planner->nodes[node].n_in; i++)
    if (planner->nodes[node].in[i] == tensor) return true;
  return false;
}

struct copying {
  const struct planner *planner;
  const struct again *all;
  int32_t n_all;
  int32_t *tensor_as; // by tensor: its name for the node that is being copied
};

// Before node `n` is copied: results that its group computes again get their copies, once a group.
static void prepare_inputs(struct copying *copying, int32_t n, struct again_graph *out,
                           int32_t *copied) {
  const struct planner *planner = copying->planner;
  for (int32_t a = 0; a < copying->n_all; a++) {
    const struct again *again = &copying->all[a];
    if (!planner->live[n] || !reads(planner, n, again->tensor)) continue;
    for (int r = 0; r < again->n_readers; r++) {
      if (again->readers[r] != planner->group_of[n]) continue;
      int32_t *first = &copied[a * READERS_MAX + r];
      if (*first < 0) {
        add_copies(planner, again, out, copying->tensor_as);
        *first = copying->tensor_as[again->tensor];
      }
      copying->tensor_as[again->tensor] = *first;
    }
  }
}

static bool copy_graph(const struct planner *planner, const struct again *all, int32_t n_all,
                       struct again_graph *out) {
  const struct graph *graph = planner->graph;
  size_t more = 0;
  for (int32_t a = 0; a < n_all; a++)
    more += (size_t)all[a].nodes.n * (size_t)all[a].n_readers;
  size_t nodes = (size_t)graph->n_nodes + more, tensors = (size_t)graph->n_tensors + more;
  out->graph = *graph;
  out->graph.n_nodes = 0;
  out->graph.name_slots = NULL;
  out->graph.nodes = calloc(nodes + 1, sizeof *out->graph.nodes);
  out->graph.tensors = calloc(tensors + 1, sizeof *out->graph.tensors);
  out->node_of = calloc(nodes + 1, sizeof *out->node_of);
  out->tensor_of = calloc(tensors + 1, sizeof *out->tensor_of);
  int32_t *tensor_as = calloc((size_t)graph->n_tensors + 1, sizeof *tensor_as);
  int32_t *copied = calloc((size_t)n_all * READERS_MAX + 1, sizeof *copied);
  bool ok = out->graph.nodes && out->graph.tensors && out->node_of && out->tensor_of && tensor_as &&
            copied;
  if (ok) {
    memcpy(out->graph.tensors, graph->tensors, (size_t)graph->n_tensors * sizeof *graph->tensors);
    for (int32_t t = 0; t < graph->n_tensors; t++)
      out->tensor_of[t] = t;
    for (int32_t i = 0; i < n_all * READERS_MAX; i++)
      copied[i] = -1;
    struct copying copying = {planner, all, n_all, tensor_as};
    for (int32_t t = 0; t < graph->n_tensors; t++)
      tensor_as[t] = t;
    for (int32_t n = 0; n < graph->n_nodes; n++) {
      prepare_inputs(&copying, n, out, copied);
      copy_node(out, planner, n, tensor_as);
      for (int32_t a = 0; a < n_all; a++)
        tensor_as[all[a].tensor] = all[a].tensor;
    }
  }
  free(tensor_as), free(copied);
  return ok;
}

enum status planner_recompute(struct planner *planner, struct again_graph *out) {
  int32_t n_nodes = planner->graph->n_nodes, n_all = 0;
  *out = (struct again_graph){0};
  struct again *all = calloc((size_t)AGAIN_MAX, sizeof *all);
  for (int32_t n = 0; all && n < n_nodes && n_all < AGAIN_MAX; n++)
    if (candidate(planner, n, &all[n_all])) n_all++;
  bool ok = all && (n_all == 0 || copy_graph(planner, all, n_all, out));
  free(all);
  if (!ok) again_graph_deinit(out);
  return ok ? STATUS_OK : STATUS_RESOURCE_EXHAUSTED;
}

void again_graph_deinit(struct again_graph *again) {
  free(again->graph.nodes);
  free(again->graph.tensors);
  free(again->node_of);
  free(again->tensor_of);
  *again = (struct again_graph){0};
}

// ---- back to the graph that was asked for ----
// Did every copy end up inside a kernel that uses it?
static bool worked(const struct plan *plan, int32_t n_tensors) {
  for (int32_t s = 0; s < plan->n_steps; s++)
    for (int i = 0; i < plan->steps[s].n_out; i++)
      if (plan->steps[s].out[i].tensor >= n_tensors) return false;
  return true;
}

static double us_of_plan(const struct plan *plan) {
  double us = 0;
  for (int32_t s = 0; s < plan->n_steps; s++)
    us += plan->steps[s].cost.us;
  return us;
}

bool planner_recompute_pays(const struct plan *again, const struct plan *once, int32_t n_tensors) {
  return worked(again, n_tensors) && us_of_plan(again) < us_of_plan(once);
}

void planner_recompute_name(struct plan *plan, const struct again_graph *again) {
  for (int32_t s = 0; s < plan->n_steps; s++)
    for (int i = 0; i < plan->steps[s].n_nodes; i++)
      plan->steps[s].nodes[i] = again->node_of[plan->steps[s].nodes[i]];
  for (int32_t d = 0; d < plan->n_decisions; d++) {
    struct decision *decision = &plan->decisions[d];
    bool copy = again->tensor_of[decision->tensor] != decision->tensor;
    if (copy && decision->fused)
      decision->reason = "computed again here, which costs less than writing and reading it";
    decision->producer = again->node_of[decision->producer];
    decision->consumer = again->node_of[decision->consumer];
    decision->tensor = again->tensor_of[decision->tensor];
  }
}
