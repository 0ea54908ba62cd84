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

// The order in which a product's kernel computes its result, which decides what it reads again:
// blocks of `rows` x `cols` at a time (0: all), all columns of some rows before the next rows.
struct product_walk {
  int32_t rows, cols;
  bool roughly; // an order that is not known so well, and loses x by and by
};

struct expected {
  double read, write;
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

#endif
