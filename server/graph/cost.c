// What a kernel takes: its bytes through memory and the cache, its operations by the units that do
// them, how the two hide behind each other. docs/PLANNER.md has every formula.
#include "graph/cost.h"

#include "base/log.h"
#include "graph/expected.h"
#include "graph/tiles.h"

#include <math.h>
#include <stdlib.h>

#define US 1e6
#define SCORES_US 1.3       // more than another product, for a tile of scores to be written
#define NORM_AFTER_US 1.2   // more than a row program, of the kernel that does the norm of few rows
#define POOL_WARP_COLS 1024 // a warp makes such a row (kernels/codegen/row_tile.c), else a block
#define POOL_WARPS 8
#define POOL_RESIDENT 2 // such blocks that a unit runs at a time

const char *cost_bound_name(enum cost_bound bound) {
  static const char *const names[BOUNDS] = {"memory", "compute", "launch"};
  return (unsigned)bound < BOUNDS ? names[bound] : "invalid";
}

static double least(double a, double b) {
  return a < b ? a : b;
}
static double most(double a, double b) {
  return a > b ? a : b;
}
struct batch_size batch_of(int64_t n_tokens, int64_t length) {
  if (length < 1 || length > n_tokens) length = n_tokens;
  int64_t whole = n_tokens / length, rest = n_tokens % length;
  return (struct batch_size){.n_tokens = n_tokens,
                             .n_seqs = whole + (rest > 0),
                             .sum_sq = whole * length * length + rest * rest};
}

double traffic_at(const struct traffic_rate *rate, const struct batch_size *batch) {
  return rate->fixed + rate->per_token * (double)batch->n_tokens +
         rate->per_seq * (double)batch->n_seqs + rate->per_score * (double)batch->sum_sq;
}

// ---- bytes ----
// Bytes a second of a mix with this share of writes, between the mixes that were measured.
static double bandwidth(const struct device_rates *rates, double writes) {
  const double at[] = {0, 1.0 / 3, 0.5, 1};
  const double rate[] = {rates->read, rates->triad, rates->copy, rates->write};
  int i = writes <= at[1] ? 0 : writes <= at[2] ? 1 : 2;
  return rate[i] + (rate[i + 1] - rate[i]) * (writes - at[i]) / (at[i + 1] - at[i]);
}

enum product_class product_class_of(const struct kernel_work *work,
                                    const struct device_rates *rates) {
  if (rates->plain_dtypes >> work->dtype & 1) return CLASS_PLAIN;
  if (work->norm) return CLASS_OWN;
  bool library = rates->library_epilogues && !(work->epilogue_kinds & ~rates->library_epilogues);
  bool one_dtype = work->y_bytes == dtype_bytes(work->dtype);
  if (!one_dtype && work->epilogue_kinds & 1u << EPI_ADD) // its residual is of the result's dtype
    library = false;
  return library ? CLASS_LIBRARY : CLASS_OWN;
}

// What tiles read again: expected, if the last-level cache held nothing, and at most.
struct again {
  double expected, upper;
};

static struct again read_again(const struct kernel_work *work, const struct device_rates *rates,
                               const struct batch_size *batch) {
  if (work->kind == STEP_ATTENTION) // from the cache
    return (struct again){0, most(traffic_at(&work->again, batch), 0)};
  if (work->kind != STEP_LINEAR) return (struct again){0};
  const struct product_walk *walk = &rates->walks[product_class_of(work, rates)];
  struct cache_facts kept = cache_facts_of(rates), nothing = {0};
  struct product_sizes sizes = {.m = rows_at(work->rows, batch),
                                .n = work->n,
                                .k = work->k,
                                .x_bytes = (double)dtype_bytes(work->dtype),
                                .y_bytes = work->y_bytes};
  return (struct again){.expected = product_read_again(&sizes, walk, &kept),
                        .upper = product_read_again(&sizes, walk, &nothing)};
}

// ---- operations ----
// What a finish takes because it works on pieces, whatever it does.
static double finish_seconds(const struct kernel_work *work, const struct device_rates *rates,
                             const struct batch_size *batch) {
  double rate = work->kind == STEP_ATTENTION ? rates->attention_finish : rates->finish;
  return rate > 0 ? traffic_at(&work->finish_values, batch) / rate : 0;
}

static double vector_seconds(const struct kernel_work *work, const struct device_rates *rates,
                             const struct batch_size *batch) {
  double special = traffic_at(&work->special_flops, batch),
         reduced = traffic_at(&work->reduced_flops, batch),
         others = special + reduced + traffic_at(&work->product_flops, batch) +
                  traffic_at(&work->epilogue_flops, batch) +
                  traffic_at(&work->softmax_flops, batch);
  double plain = traffic_at(&work->traffic.flops, batch) - others;
  return plain / rates->vector + reduced / rates->reduced +
         special / (work->exact ? rates->special : rates->special_16);
}

// ---- one kernel ----
static enum cost_bound bound_of(const struct cost *cost) {
  if (cost->launch_us > cost->memory_us && cost->launch_us > cost->compute_us) return BOUND_LAUNCH;
  return cost->compute_us > cost->memory_us ? BOUND_COMPUTE : BOUND_MEMORY;
}

// On a CPU, what reduces rows passes over them again and again in the core's cache, and waits for
// memory in between; so do the kernels of an unfused attention.
static bool reads_before_it_computes(const struct kernel_work *work) {
  const struct traffic_rate *reduced = &work->reduced_flops;
  return work->kind == STEP_SCORES || work->kind == STEP_CONTEXT ||
         reduced->per_token + reduced->per_seq + reduced->per_score > 0;
}

// The scores of an unfused attention in fp32 are written when a tile is done, and no other hides
// it.
static bool writes_after_it_computes(const struct kernel_work *work,
                                     const struct device_rates *rates) {
  return rates->units > 0 && work->kind == STEP_SCORES && work->dtype == DTYPE_F32;
}

// How long memory, the product and what is behind it take together.
static double together(double memory, double product, double rest, const struct kernel_work *work,
                       const struct device_rates *rates) {
  if ((rates->units == 0 && reads_before_it_computes(work)) ||
      writes_after_it_computes(work, rates))
    return memory + product + rest;
  if (work->kind != STEP_LINEAR || rates->overlap <= 0) return most(memory, product + rest);
  double p = rates->overlap;
  return product <= 0 ? memory + rest : pow(pow(product, p) + pow(memory, p) + pow(rest, p), 1 / p);
}

// Kernels of an unfused attention on a GPU are no faster where the cache has what they read, but
// for the scores in fp32.
static double cache_rate(const struct kernel_work *work, const struct device_rates *rates) {
  bool slow = rates->units > 0 &&
              (work->kind == STEP_SCORES || work->kind == STEP_CONTEXT ||
               work->kind == STEP_SCORES_SOFTMAX) &&
              !writes_after_it_computes(work, rates);
  return slow ? least(rates->copy, rates->cache) : rates->cache;
}

// On a GPU a sequence is folded by one block, or by a few that make its rows. Few sequences keep
// few units busy; and of rows that are made, a round takes as long as a kernel to come into its
// stride.
static void fold_sequences(const struct kernel_work *work, const struct device_rates *rates,
                           const struct batch_size *batch, double *memory, double *rest) {
  if (rates->units == 0 || work->pool_cols == 0 || batch->n_tokens == 0) return;
  double length = (double)batch->sum_sq / (double)batch->n_tokens,
         each = work->pool_makes ? most(rates->pool_blocks, 1) : 1,
         blocks = each * (double)batch->n_seqs;
  *memory = most(*memory, length * work->traffic.read.per_token / (each * rates->unit_load));
  *rest *= rates->units / least(rates->units, most(blocks, 1));
  if (!work->pool_makes) return;
  double at_once = each * (work->pool_cols <= POOL_WARP_COLS ? POOL_WARPS : 1),
         waves = ceil(blocks / (POOL_RESIDENT * rates->units));
  *memory = most(*memory, waves * ceil(length / at_once) * rates->start_us / US);
}

// One more kernel. A product's pipeline has to fill; of the others, those that reduce rows take
// longer than those that read, compute and write.
static double launch_us(const struct kernel_work *work, const struct device_rates *rates,
                        bool starts) {
  if (rates->units == 0) return rates->launch_us + (starts ? rates->start_us : 0);
  if (starts)
    return rates->launch_us + rates->start_us + (work->kind == STEP_SCORES ? SCORES_US : 0);
  const struct traffic_rate *reduced = &work->reduced_flops;
  bool reduces = reduced->per_token + reduced->per_seq + reduced->per_score > 0;
  return rates->launch_us * (reduces ? LAUNCH_REDUCES : LAUNCH_PLAIN);
}

// A product with a norm behind it is one kernel, or of few rows two, with what is between them in
// the cache: the back end takes what is sooner done. `cost` is that of the product alone.
static void price_norm(const struct kernel_work *work, const struct device_rates *rates,
                       const struct batch_size *batch, double memory, struct cost *cost) {
  if (!work->norm || rates->units == 0) return;
  double m = rows_at(work->rows, batch), between = 2 * m * work->n * work->y_bytes / rates->cache,
         product = grouped_seconds(work, rates, m);
  double one = US * most(memory, product) + cost->launch_us,
         two = cost->us + US * between + rates->launch_us + NORM_AFTER_US;
  if (one <= two) {
    cost->compute_us = US * product;
    cost->us = one;
    return;
  }
  cost->launches++;
  cost->launch_us += rates->launch_us + NORM_AFTER_US, cost->memory_us += US * between;
  cost->us = two;
}

// `again`: bytes of operands that are read again, from the cache.
static struct cost price(const struct kernel_work *work, const struct device_rates *rates,
                         const struct batch_size *batch, const struct byte_bounds *read,
                         const struct byte_bounds *write, double again) {
  struct cost cost = {.launches = work->launches, .read = *read, .write = *write};
  cost.flops = traffic_at(&work->traffic.flops, batch);
  double moved = read->expected + write->expected,
         passed = most(read->compulsory + write->compulsory, moved) + again;
  if (work->live_row_bytes > (double)rates->row_bytes) // it spills
    passed += work->live_row_bytes * work->row_passes * rows_at(work->rows, batch);
  double memory = moved > 0 ? moved / bandwidth(rates, write->expected / moved) : 0;
  memory = most(memory, passed / cache_rate(work, rates));
  double product = product_seconds(work, rates, batch),
         rest = finish_seconds(work, rates, batch) + vector_seconds(work, rates, batch);
  if (!epilogue_in_tiles(work, rates)) rest += epilogue_seconds(work, rates, batch);
  fold_sequences(work, rates, batch, &memory, &rest);
  cost.memory_us = US * memory;
  cost.compute_us = US * (product + rest);
  cost.launch_us = work->launches * launch_us(work, rates, product > 0);
  cost.us = US * together(memory, product, rest, work, rates) + cost.launch_us;
  price_norm(work, rates, batch, memory, &cost);
  cost.bound = bound_of(&cost);
  cost.intensity = moved > 0 ? cost.flops / moved : 0;
  return cost;
}

static struct byte_bounds bounds_of(double bytes, double hot, double lost, double room,
                                    const struct again *again) {
  return (struct byte_bounds){.compulsory = bytes,
                              .expected = bytes - hot * (1 - lost) + again->expected,
                              .lower = bytes - least(hot, room),
                              .upper = bytes + again->upper};
}

struct cost work_cost(const struct kernel_work *work, const struct device_rates *rates,
                      const struct batch_size *batch) {
  if (work->launches == 0) return (struct cost){0};
  struct cache_facts kept = cache_facts_of(rates);
  struct again again = read_again(work, rates, batch), none = {0};
  double room = (double)rates->cache_bytes, in = traffic_at(&work->hot_read, batch),
         out = traffic_at(&work->hot_write, batch);
  struct byte_bounds read = bounds_of(traffic_at(&work->traffic.read, batch), in,
                                      expected_lost(in, &kept), room, &again),
                     write = bounds_of(traffic_at(&work->traffic.write, batch), out,
                                       expected_lost(out, &kept), room, &none);
  return price(work, rates, batch, &read, &write, again.upper - again.expected);
}

bool decision_cost(const struct decision *decision, const struct device_rates *rates,
                   const struct batch_size *batch, struct cost *apart, struct cost *fused) {
  struct cost first = work_cost(&decision->first, rates, batch),
              second = work_cost(&decision->second, rates, batch);
  *apart = (struct cost){0};
  cost_add(apart, &first);
  cost_add(apart, &second);
  *fused = work_cost(&decision->both, rates, batch);
  return decision->legal;
}

// ---- a whole plan ----
void cost_add(struct cost *sum, const struct cost *cost) {
  sum->read.compulsory += cost->read.compulsory, sum->write.compulsory += cost->write.compulsory;
  sum->read.expected += cost->read.expected, sum->write.expected += cost->write.expected;
  sum->read.lower += cost->read.lower, sum->write.lower += cost->write.lower;
  sum->read.upper += cost->read.upper, sum->write.upper += cost->write.upper;
  sum->flops += cost->flops;
  sum->launches += cost->launches;
  sum->memory_us += cost->memory_us, sum->compute_us += cost->compute_us;
  sum->launch_us += cost->launch_us, sum->us += cost->us;
  sum->bound = bound_of(sum);
  double moved = sum->read.expected + sum->write.expected;
  sum->intensity = moved > 0 ? sum->flops / moved : 0;
}

// The bytes of each step: as expected, and if the whole cache kept what it can and no product read
// anything again.
struct step_bytes {
  struct step_expected *expected, *least;
  struct product_walk *walks;
};

static enum status walk(const struct plan *plan, const struct device_rates *rates,
                        const struct batch_size *batch, uint8_t outputs, struct step_bytes *out) {
  struct cache_facts kept = cache_facts_of(rates), whole = {rates->cache_bytes, INFINITY};
  struct expected_batch of = {.n_tokens = batch->n_tokens,
                              .n_seqs = batch->n_seqs,
                              .sum_sq = batch->sum_sq,
                              .outputs = outputs,
                              .n_arenas = 1};
  size_t n = (size_t)plan->n_steps + 1;
  out->expected = calloc(n, sizeof *out->expected);
  out->least = calloc(n, sizeof *out->least);
  out->walks = calloc(n, sizeof *out->walks);
  if (!out->expected || !out->least || !out->walks) return STATUS_RESOURCE_EXHAUSTED;
  for (int32_t s = 0; s < plan->n_steps; s++) {
    if (plan->steps[s].kind != STEP_LINEAR) continue;
    struct kernel_work work = step_work(&plan->steps[s]);
    out->walks[s] = rates->walks[product_class_of(&work, rates)];
  }
  enum status status = plan_expected_steps(plan, &kept, out->walks, &of, out->expected);
  if (status != STATUS_OK) return status;
  return plan_expected_steps(plan, &whole, NULL, &of, out->least);
}

static struct byte_bounds step_bounds(double bytes, double expected, double lower, double upper) {
  struct byte_bounds bounds = {bytes, expected, lower, upper};
  bounds.upper = most(bounds.upper, bytes);
  bounds.expected = least(bounds.expected, bounds.upper);
  bounds.lower = least(bounds.lower, least(bytes, bounds.expected));
  return bounds;
}

static struct cost step_cost(const struct step *step, const struct device_rates *rates,
                             const struct batch_size *batch, const struct step_bytes *bytes,
                             int32_t s) {
  struct kernel_work work = step_work(step);
  struct again again = read_again(&work, rates, batch);
  double in = traffic_at(&step->traffic.read, batch), out = traffic_at(&step->traffic.write, batch);
  struct byte_bounds read = step_bounds(in, bytes->expected[s].now.read, bytes->least[s].now.read,
                                        in + again.upper),
                     write = step_bounds(out, bytes->expected[s].own_write,
                                         bytes->least[s].own_write, out);
  return price(&work, rates, batch, &read, &write, again.upper - again.expected);
}

enum status plan_cost(const struct plan *plan, const struct device_rates *rates,
                      const struct batch_size *batch, uint8_t outputs, struct cost *steps,
                      struct cost *total) {
  struct step_bytes bytes = {0};
  enum status status = walk(plan, rates, batch, outputs, &bytes);
  *total = (struct cost){0};
  for (int32_t s = 0; s < plan->n_steps && status == STATUS_OK; s++) {
    struct cost cost = {0};
    if (plan->steps[s].needed_by & outputs)
      cost = step_cost(&plan->steps[s], rates, batch, &bytes, s);
    if (steps) steps[s] = cost;
    cost_add(total, &cost);
  }
  free(bytes.expected), free(bytes.least), free(bytes.walks);
  return status;
}
