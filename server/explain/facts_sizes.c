// Batch sizes that a GPU's graphs are captured for, and what filling them up costs.
#include "explain/facts.h"

// What a batch of another size takes longer than the one that is explained.
static bool find_waste(const struct facts *facts, const struct batch_size *batch, double *us) {
  const struct fact_plan *fused = &facts->plans[SIDE_FUSED];
  uint8_t all = (uint8_t)((1u << fused->plan->n_outputs) - 1);
  struct cost total;
  if (plan_cost(fused->plan, facts->rates, batch, all, NULL, &total) != STATUS_OK) return false;
  *us = total.us - fused->total.us;
  return true;
}

bool facts_sizes(struct facts *facts) {
  const struct plan *plan = facts->plans[SIDE_FUSED].plan;
  struct fact_sizes *out = &facts->sizes;
  struct bucket_set set;
  struct bucket bucket;
  out->ran_tokens = facts->batch.n_tokens;
  if (facts->caps->graph_tokens == 0 || plan->n_steps == 0) return true;
  bucket_set_make(plan, facts->caps->graph_tokens, &set);
  out->n = set.n_tokens;
  out->n_seqs = set.n_seqs;
  for (int32_t i = 0; i < bucket_count(&set); i++)
    out->n_graphs += bucket_at(&set, i, &bucket);
  for (int32_t i = 0; i < set.n_tokens; i++) {
    int32_t tokens = set.rungs[i], fewest = i > 0 ? set.rungs[i - 1] + 1 : 1;
    double worst = (double)(tokens - fewest) / tokens;
    out->sizes[i] = (struct fact_size){tokens, fewest, worst, worst / 2};
  }
  int32_t at = bucket_rung(&set, facts->batch.n_tokens);
  if (at >= set.n_tokens || set.rungs[at] == facts->batch.n_tokens) return true;
  struct batch_size ran = facts->batch; // attention and pooling see the batch's own sequences
  ran.n_tokens = out->ran_tokens = set.rungs[at];
  return find_waste(facts, &ran, &out->waste_us);
}
