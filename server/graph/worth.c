// FUSION_AUTO: of what may be one kernel, what should be. Every question is answered by the costs
// of both ways for the plan's batch; where both come out alike, fewer kernels win. docs/PLANNER.md.
#include "graph/cost.h"
#include "graph/planner.h"

#include <math.h>

// Predictions closer than this share are alike.
#define ALIKE 1e-3
// A product leaves the library's kernel for ours where that is predicted to gain more than this
// share: where the two were alike, the card's clock had the library's ahead (docs/PLANNER.md).
#define LIBRARY_GAIN 0.01
// Measurements closer than this are: they repeat no better.
#define MEASURED_ALIKE 0.03
// A norm goes into a product that is predicted to be faster by more than this: of fewer rows than
// those it is weighed for, the two are slower together than apart.
#define NORM_GAIN 0.03
// And has so many rows at least: of fewer, products are faster than predicted (docs/PLANNER.md).
#define NORM_ROWS 4096

enum why_not {
  WHY_MEASURED,
  WHY_LIBRARY,
  WHY_COMPUTE,
  WHY_CACHED,
  WHY_EPILOGUE,
  WHY_FINISH,
  WHY_SPILL,
  WHY_SEQUENCES,
  WHY_ROWS,
  WHYS
};
static const char *const why_not[WHYS] = {
    "does not pay: measured on this device for this shape, the product and a kernel after it are "
    "faster than the fused product",
    "does not pay: the product without it runs on a faster kernel, and a small kernel after it "
    "costs less than the difference",
    "does not pay: both are bound by arithmetic, and the bytes saved cost less than the work in "
    "the product's epilogue",
    "does not pay: the tensor stays in the last-level cache between the two kernels, and the work "
    "costs more in the product's epilogue",
    "does not pay: the work costs more in the product's epilogue than a kernel of its own",
    "does not pay: done on each piece of the result the work takes longer than over whole rows, "
    "and "
    "the bytes saved cost less than the difference",
    "does not pay: one kernel would hold more values of a row than fit, and passing over them "
    "again costs more than the bytes saved",
    "does not pay: a few sequences keep few of the device's units busy, and a kernel of its own "
    "makes the rows on all of them",
    "does not pay: blocks that hold whole rows between them keep the device less busy than the "
    "product alone, and a kernel after it costs less than the difference"};

bool planner_is_worth_reason(const char *reason) {
  for (int i = 0; i < WHYS; i++)
    if (reason == why_not[i]) return true;
  return false;
}

static struct cost cost_of(const struct planner *planner, const struct kernel_work *work) {
  return work_cost(work, &planner->plan->rates, &planner->plan->batch);
}

struct both_ways {
  struct cost first, second, one;
  struct kernel_work works[2], one_work;
};

// ---- epilogues ----
// A row op that reads the last result, and nothing else does: it will run after the product,
// whatever is in the epilogue.
static int32_t follower_of(const struct planner *planner, int32_t tensor) {
  int32_t first = planner->reader_start[tensor];
  if (planner->wanted[tensor] || planner->reader_start[tensor + 1] - first != 1) return -1;
  int32_t reader = planner->readers[first];
  const struct node *node = &planner->nodes[reader];
  bool joins = op_def_get(node->op)->cls == OPC_ROW && node->op != OP_POOL;
  return joins && planner->group_of[reader] < 0 ? reader : -1;
}

static double us_with(struct planner *planner, const struct node_set *product,
                      const struct node_set *rest, struct both_ways *ways) {
  planner_pair(planner, product, rest, ways->works);
  ways->first = cost_of(planner, &ways->works[0]);
  ways->second = cost_of(planner, &ways->works[1]);
  return ways->first.us + ways->second.us;
}

static const char *why_not_in_epilogue(const struct planner *planner, const struct both_ways *apart,
                                       const struct both_ways *fused) {
  const struct device_rates *rates = &planner->plan->rates;
  uint32_t kinds = fused->works[0].epilogue_kinds;
  if (rates->library_epilogues && (kinds & ~rates->library_epilogues) &&
      !(apart->works[0].epilogue_kinds & ~rates->library_epilogues) && rates->fused_product < 1)
    return why_not[WHY_LIBRARY];
  if (apart->first.bound == BOUND_COMPUTE && apart->second.bound == BOUND_COMPUTE)
    return why_not[WHY_COMPUTE];
  double hot = traffic_at(&apart->works[1].hot_read, &planner->plan->batch);
  if (hot > 0 && apart->second.read.expected < 0.5 * apart->second.read.compulsory)
    return why_not[WHY_CACHED];
  return why_not[WHY_EPILOGUE];
}

// Does the product run on the library's kernel the one way, on ours the other?
static bool leaves_library(const struct planner *planner, const struct both_ways *from,
                           const struct both_ways *to) {
  const struct device_rates *rates = &planner->plan->rates;
  return rates->library_epilogues && from->works[0].launches > 0 &&
         product_class_of(&from->works[0], rates) == CLASS_LIBRARY &&
         product_class_of(&to->works[0], rates) == CLASS_OWN;
}

// The product with all of its nodes as a step would have it; what was measured of it, or NULL.
static const struct measured_shape *measured(const struct planner *planner,
                                             const struct group *group) {
  const struct graph *graph = planner->graph;
  const struct node *head = &planner->nodes[group->head];
  const struct tensor *x = &graph->tensors[head->in[0]];
  struct linear_problem problem = {.n = graph->tensors[head->out].cols,
                                   .k = x->cols,
                                   .x_dtype = x->dtype,
                                   .y_dtype = graph->tensors[group->out[0]].dtype};
  int32_t product = head->out;
  if (head->n_in > 2)
    problem.epilogue[problem.n_epilogue++] = (struct epilogue_op){.kind = EPI_BIAS};
  for (int32_t n = planner->next[group->head]; n >= 0; n = planner->next[n]) {
    const struct node *node = &planner->nodes[n];
    struct op_fold fold;
    if (!op_def_get(node->op)->fold(graph, node, product, &fold)) return NULL;
    if (fold.has_epilogue) problem.epilogue[problem.n_epilogue++] = fold.epilogue;
    product = node->out;
  }
  const struct batch_size *batch = &planner->plan->batch;
  return shape_find(planner->caps->shapes, &problem,
                    x->rows == ROWS_SEQS ? batch->n_seqs : batch->n_tokens);
}

// The product with all of its nodes and, as a finish, the row op that follows, where the device's
// products might take it; HUGE_VAL where not.
static double us_with_finish(struct planner *planner, const struct node_set *product,
                             int32_t follower) {
  const struct tensor *tensors = planner->graph->tensors;
  struct node_set all = *product, none = {.n = 0};
  struct both_ways ways;
  int32_t head = product->nodes[0];
  if (follower < 0 || !planner->caps->product_finish) return HUGE_VAL;
  const struct tensor *result = &tensors[planner->nodes[head].out],
                      *out = &tensors[planner->nodes[follower].out];
  if (op_def_get(planner->nodes[follower].op)->whole_row || out->rows != result->rows ||
      out->cols != result->cols)
    return HUGE_VAL;
  node_set_add(&all, follower);
  planner->finishes[follower] = 1;
  double us = us_with(planner, &all, &none, &ways);
  planner->finishes[follower] = 0;
  return us;
}

int planner_epilogue_worth(struct planner *planner, const struct group *group, const char **why) {
  int32_t nodes[STEP_MAX_NODES], follower = follower_of(planner, group->out[0]);
  int n = 0, best = 1;
  double best_us = 0;
  const struct measured_shape *shape = measured(planner, group);
  if (shape && group->n_nodes > 1) {
    bool fuse = shape->fused_us <= shape->apart_us * (1 + MEASURED_ALIKE);
    *why = fuse ? NULL : why_not[WHY_MEASURED];
    return fuse ? group->n_nodes : 1;
  }
  struct both_ways best_ways = {0}, ways, all = {0};
  for (int32_t node = group->head; node >= 0; node = planner->next[node])
    nodes[n++] = node;
  for (int keep = 1; keep <= n; keep++) {
    struct node_set product = {.n = 0}, rest = {.n = 0};
    for (int i = 0; i < n; i++)
      node_set_add(i < keep ? &product : &rest, nodes[i]);
    if (follower >= 0) node_set_add(&rest, follower);
    double us = us_with(planner, &product, &rest, &ways);
    if (keep == n) all = ways, us = fmin(us, us_with_finish(planner, &product, follower));
    double alike = leaves_library(planner, &best_ways, &ways) ? -LIBRARY_GAIN : ALIKE;
    if (keep > 1 && us > best_us * (1 + alike)) continue;
    best = keep, best_us = us, best_ways = ways;
  }
  *why = best < n ? why_not_in_epilogue(planner, &best_ways, &all) : NULL;
  return best;
}

// ---- finishes ----
static bool is_among(const struct node_set *set, int32_t node) {
  for (int i = 0; i < set->n; i++)
    if (set->nodes[i] == node) return true;
  return false;
}

// The row op that goes on with what the finish makes, where it makes one thing for that op alone
// and the product's own result is for nobody else: without the finish all would be one row kernel.
static int32_t follower_of_finish(const struct planner *planner, const struct group *group,
                                  const struct node_set *finish) {
  int32_t follower = -1;
  for (int i = -1; i < finish->n; i++) {
    int32_t tensor = i < 0 ? group->out[0] : planner->nodes[finish->nodes[i]].out;
    if (planner->wanted[tensor]) return -1;
    for (int32_t r = planner->reader_start[tensor]; r < planner->reader_start[tensor + 1]; r++) {
      if (is_among(finish, planner->readers[r])) continue;
      if (follower >= 0 || follower_of(planner, tensor) < 0) return -1;
      follower = planner->readers[r];
    }
  }
  return follower;
}

const char *planner_finish_worth(struct planner *planner, const struct group *group,
                                 const struct node_set *finish) {
  struct node_set product = {.n = 0}, all, rest = *finish, then = {.n = 0};
  struct both_ways apart, fused;
  int32_t follower = follower_of_finish(planner, group, finish);
  node_set_group(planner, group, &product);
  all = product;
  for (int i = 0; i < finish->n; i++)
    node_set_add(&all, finish->nodes[i]);
  if (follower >= 0) node_set_add(&rest, follower), node_set_add(&then, follower);
  double apart_us = us_with(planner, &product, &rest, &apart);
  double fused_us = us_with(planner, &all, &then, &fused);
  if (fused_us <= apart_us * (1 + ALIKE)) return NULL;
  struct kernel_work in_rows = fused.works[0]; // as if pieces were no slower than rows
  in_rows.finish_values = (struct traffic_rate){0};
  return cost_of(planner, &in_rows).us + fused.second.us <= apart_us * (1 + ALIKE)
             ? why_not[WHY_FINISH]
             : why_not_in_epilogue(planner, &apart, &fused);
}

// ---- row groups ----
const char *planner_merge_worth(struct planner *planner, const struct group *a,
                                const struct group *b) {
  struct node_set first = {.n = 0}, second = {.n = 0}, one = {.n = 0};
  struct both_ways ways;
  node_set_group(planner, a, &first);
  node_set_group(planner, b, &second);
  one = first;
  node_set_group(planner, b, &one);
  planner_pair(planner, &first, &second, ways.works);
  ways.one_work = planner_work(planner, &one);
  planner_live_values(planner, a, NULL, &ways.works[0]);
  planner_live_values(planner, b, NULL, &ways.works[1]);
  planner_live_values(planner, a, b, &ways.one_work);
  // Without that, one kernel does no more than the two: it moves less and starts once.
  if (ways.one_work.live_row_bytes <= (double)planner->plan->rates.row_bytes) return NULL;
  double apart = cost_of(planner, &ways.works[0]).us + cost_of(planner, &ways.works[1]).us;
  bool pays = cost_of(planner, &ways.one_work).us <= apart * (1 + ALIKE);
  return pays ? NULL : why_not[WHY_SPILL];
}

const char *planner_pool_worth(struct planner *planner, const struct group *a,
                               const struct group *b) {
  struct node_set first = {.n = 0}, second = {.n = 0}, one;
  struct both_ways ways;
  if (planner->plan->rates.units == 0) return NULL; // it moves less, and starts once
  node_set_group(planner, a, &first);
  node_set_group(planner, b, &second);
  one = first;
  node_set_group(planner, b, &one);
  planner_pair(planner, &first, &second, ways.works);
  ways.one_work = planner_work(planner, &one);
  double apart = cost_of(planner, &ways.works[0]).us + cost_of(planner, &ways.works[1]).us;
  bool pays = cost_of(planner, &ways.one_work).us <= apart * (1 + ALIKE);
  return pays ? NULL : why_not[WHY_SEQUENCES];
}

// ---- norms behind products ----
const char *planner_norm_worth(struct planner *planner, const struct group *group, int n_keep,
                               int32_t norm) {
  struct node_set product = {.n = 0}, alone = {.n = 0}, all = {.n = 0}, none = {.n = 0};
  struct both_ways ways;
  for (int32_t node = group->head; node >= 0; node = planner->next[node]) {
    node_set_add(product.n < n_keep ? &product : &alone, node);
    node_set_add(&all, node);
  }
  node_set_add(&alone, norm);
  node_set_add(&all, norm);
  double apart_us = us_with(planner, &product, &alone, &ways);
  double fused_us = us_with(planner, &all, &none, &ways);
  const struct batch_size *batch = &planner->plan->batch;
  int64_t rows = group->rows == ROWS_SEQS ? batch->n_seqs : batch->n_tokens;
  bool few = planner->plan->rates.units > 0 && rows < NORM_ROWS;
  return !few && fused_us < apart_us * (1 - NORM_GAIN) ? NULL : why_not[WHY_ROWS];
}
