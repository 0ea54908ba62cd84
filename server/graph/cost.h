// What a plan is predicted to cost: a roofline by step, with the device's constants. Pure
// functions; docs/PLANNER.md states the model, docs/TRAFFIC.md that of the bytes. Not for the
// request path.
#ifndef GRAPH_COST_H
#define GRAPH_COST_H

#include "graph/plan.h"

// Shares of launch_us that a kernel of rows takes on a GPU: one that reads, computes and writes,
// and one that reduces rows.
#define LAUNCH_PLAIN 0.75
#define LAUNCH_REDUCES 1.13

// A batch of n_tokens in sequences of `length` (the last one may be shorter).
struct batch_size batch_of(int64_t n_tokens, int64_t length);

double traffic_at(const struct traffic_rate *rate, const struct batch_size *batch);
void cost_add(struct cost *sum, const struct cost *cost);

struct kernel_work step_work(const struct step *step);

// The kernels that a product with this epilogue runs on.
enum product_class product_class_of(const struct kernel_work *work,
                                    const struct device_rates *rates);

// One kernel on its own, what it reads and writes not in cache but for its `hot` bytes.
struct cost work_cost(const struct kernel_work *work, const struct device_rates *rates,
                      const struct batch_size *batch);

// The steps that `outputs` (mask of signature outputs) needs, in their order, as they run batch
// after batch: what an earlier one left in the cache is found there (graph/expected.h). Fills
// steps[n_steps] unless it is NULL (a step that is not needed: zeros), and the sum.
// RESOURCE_EXHAUSTED: no memory.
MUST_USE enum status plan_cost(const struct plan *plan, const struct device_rates *rates,
                               const struct batch_size *batch, uint8_t outputs, struct cost *steps,
                               struct cost *total);

// Decision i of the plan: its two kernels and its one. False when it had no choice.
bool decision_cost(const struct decision *decision, const struct device_rates *rates,
                   const struct batch_size *batch, struct cost *apart, struct cost *fused);

#endif
