// Expected bytes: what of a plan's compulsory traffic reaches memory when a cache stands before it.
//
// traffic.c counts every byte that crosses between steps. A device's last-level cache keeps some of
// them: what one step wrote and the next reads, weights that are still there from the last batch;
// and a product whose operands do not fit reads some of them several times. This model walks the
// steps of consecutive batches over a cache with least-recently-used replacement, and counts what
// misses it and what it writes back. Pure arithmetic on a plan; load time, tests and the audit.
#ifndef GRAPH_EXPECTED_H
#define GRAPH_EXPECTED_H

#include "graph/plan.h"

struct cache_facts {
  int64_t bytes;        // that survive between steps; 0: none, < 0: all
  double product_bytes; // of what a product reads, that survive until its blocks read it again
};

struct expected {
  double read, write;
};
struct step_expected {
  struct expected now; // while the step runs
  double own_write;    // of what the step wrote, whenever that is
};

// One batch of T tokens, B sequences, S = sum of squared lengths, of which `outputs` are wanted, in
// the steady state of equal batches that take turns on `n_arenas` arenas.
struct expected_batch {
  int64_t n_tokens, n_seqs, sum_sq;
  uint8_t outputs;
  int n_arenas;
};
// walks: [n_steps], or NULL for products that read their operands once. steps: [n_steps], zero for
// what does not run, or NULL. RESOURCE_EXHAUSTED: no memory.
MUST_USE enum status plan_expected(const struct plan *plan, const struct cache_facts *cache,
                                   const struct product_walk *walks,
                                   const struct expected_batch *batch, struct expected *steps,
                                   struct expected *total);

MUST_USE enum status plan_expected_steps(const struct plan *plan, const struct cache_facts *cache,
                                         const struct product_walk *walks,
                                         const struct expected_batch *batch,
                                         struct step_expected *steps);

// ---- its formulas, for one kernel ----
struct cache_facts cache_facts_of(const struct device_rates *rates);

struct product_sizes {
  double m, n, k;
  double x_bytes, y_bytes; // of an element
};
// Bytes that the product x [m, k] W^T [n, k] reads beyond each operand once.
double product_read_again(const struct product_sizes *sizes, const struct product_walk *walk,
                          const struct cache_facts *cache);
// Of a tensor that the step before touched, the share that is lost once `passed` bytes passed.
double expected_lost(double passed, const struct cache_facts *cache);

#endif
