// The roofline of one kernel, and what a plan's steps find in the cache. docs/PLANNER.md.
#include "graph/cost.h"

#include "base/log.h"

#define US 1e6
#define CACHE_SHARE 0.5      // of the last-level cache: what a stream of other data leaves of it
#define ATTENTION_TILE 128.0 // queries that pass over the keys and values together
#define LOOK_AROUND 256      // steps within which what is in the cache is looked for

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
static double share(double value) {
  return least(most(value, 0), 1);
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

static double rows_at(enum row_kind rows, const struct batch_size *batch) {
  if (rows == ROWS_SEQS) return (double)batch->n_seqs;
  return rows == ROWS_SCORES ? (double)batch->sum_sq : (double)batch->n_tokens;
}

// ---- one kernel ----
// What of its bytes is in the cache, in bytes: as expected, and at best.
struct found {
  double read, read_best, write, write_best;
};

// Bytes a second of a mix with this share of writes, between the mixes that were measured.
static double bandwidth(const struct device_rates *rates, double writes) {
  const double at[] = {0, 1.0 / 3, 0.5, 1};
  const double rate[] = {rates->read, rates->triad, rates->copy, rates->write};
  int i = writes <= at[1] ? 0 : writes <= at[2] ? 1 : 2;
  return rate[i] + (rate[i + 1] - rate[i]) * (writes - at[i]) / (at[i + 1] - at[i]);
}

struct again {
  double expected, upper;
};

// What tiles read again. A product goes by groups of row tiles, each of which passes over the
// weights: those stay in the cache while they are small; a matrix as large as its share of the
// cache comes from memory every time.
static struct again read_again(const struct kernel_work *work, const struct device_rates *rates,
                               const struct batch_size *batch) {
  if (work->kind == STEP_ATTENTION)
    return (struct again){0, most(traffic_at(&work->again, batch), 0)};
  if (work->kind != STEP_LINEAR) return (struct again){0};
  double m = rows_at(work->rows, batch), element = (double)dtype_bytes(work->dtype);
  double x = m * work->k * element, w = (double)work->n * work->k * element;
  double tiles_m = __builtin_ceil(m / rates->tile_m),
         tiles_n = __builtin_ceil(1.0 * work->n / rates->tile_n);
  // A group of tiles passes over the weights once.
  double passes = __builtin_ceil(tiles_m / rates->tile_group),
         room = CACHE_SHARE * (double)rates->cache_bytes;
  double missed = room > 0 ? share(2 * w / room - 1) : 1;
  bool x_in_memory = traffic_at(&work->traffic.read, batch) >= w + x;
  return (struct again){.expected = missed * w * most(passes - 1, 0),
                        .upper = (x_in_memory ? x * (tiles_n - 1) : 0) + w * most(tiles_m - 1, 0)};
}

static double compute_seconds(const struct kernel_work *work, const struct device_rates *rates,
                              const struct batch_size *batch) {
  double product = traffic_at(&work->product_flops, batch),
         epilogue = traffic_at(&work->epilogue_flops, batch);
  double vector = traffic_at(&work->traffic.flops, batch) - product - epilogue;
  double rate =
      rates->product[work->dtype] > 0 ? rates->product[work->dtype] : rates->product[DTYPE_F32];
  if (rates->library_epilogues && (work->epilogue_kinds & ~rates->library_epilogues))
    rate *= rates->fused_product;
  return product / rate + epilogue / rates->epilogue + vector / rates->vector;
}

static enum cost_bound bound_of(const struct cost *cost) {
  if (cost->launch_us > cost->memory_us && cost->launch_us > cost->compute_us) return BOUND_LAUNCH;
  return cost->compute_us > cost->memory_us ? BOUND_COMPUTE : BOUND_MEMORY;
}

static struct byte_bounds bounds_of(double bytes, double found, double found_best,
                                    struct again again) {
  return (struct byte_bounds){.compulsory = bytes,
                              .expected = bytes - found + again.expected,
                              .lower = bytes - found_best,
                              .upper = bytes + again.upper};
}

static struct cost price(const struct kernel_work *work, const struct device_rates *rates,
                         const struct batch_size *batch, const struct found *found) {
  struct cost cost = {.launches = work->launches};
  if (work->launches == 0) return cost;
  struct again again = read_again(work, rates, batch);
  cost.read =
      bounds_of(traffic_at(&work->traffic.read, batch), found->read, found->read_best, again);
  cost.write = bounds_of(traffic_at(&work->traffic.write, batch), found->write, found->write_best,
                         (struct again){0});
  cost.flops = traffic_at(&work->traffic.flops, batch);
  double moved = cost.read.expected + cost.write.expected;
  bool spills = work->live_row_bytes > (double)rates->row_bytes;
  double cached = found->read + found->write + (again.upper - again.expected);
  if (spills) cached += work->live_row_bytes * work->row_passes * rows_at(work->rows, batch);
  double memory = moved > 0 ? moved / bandwidth(rates, cost.write.expected / moved) : 0;
  cost.memory_us = US * most(memory, (moved + cached) / rates->cache);
  cost.compute_us = US * compute_seconds(work, rates, batch);
  cost.launch_us = work->launches * rates->launch_us;
  cost.us = most(cost.memory_us, cost.compute_us) + cost.launch_us;
  cost.bound = bound_of(&cost);
  cost.intensity = moved > 0 ? cost.flops / moved : 0;
  return cost;
}

// Of `bytes` that were touched while `apart` other bytes passed, what is still in a cache of
// `room`: as expected, all while they take no more than the share that streams leave, none once
// they would fill it; at best, as much as it holds.
static double expected_there(double bytes, double apart, double room) {
  if (bytes <= 0 || room <= 0) return 0;
  return bytes * share((room - apart - bytes) / (room * (1 - CACHE_SHARE)));
}
static double best_there(double bytes, double apart, double room) {
  return least(most(room - apart, 0), bytes);
}

struct cost work_cost(const struct kernel_work *work, const struct device_rates *rates,
                      const struct batch_size *batch) {
  double room = (double)rates->cache_bytes, read = traffic_at(&work->hot_read, batch),
         write = traffic_at(&work->hot_write, batch);
  // What the kernel reads otherwise passes through the cache between the writing and the reading.
  struct found found = {.read = expected_there(read, 0, room),
                        .read_best = best_there(read, 0, room),
                        .write = expected_there(write, 0, room),
                        .write_best = best_there(write, 0, room)};
  return price(work, rates, batch, &found);
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

// ---- a step among its neighbours ----
static bool in_arena(const struct operand *operand) {
  return operand->place == PLACE_ARENA;
}

// Columns of one buffer, or the same.
static bool same_memory(const struct operand *a, const struct operand *b) {
  int64_t row = a->stride * (int64_t)dtype_bytes(a->dtype),
          apart = a->offset_bytes - b->offset_bytes;
  return in_arena(a) && in_arena(b) && a->stride == b->stride && apart < row && -apart < row;
}

static double touched_by(const struct step *step, const struct batch_size *batch) {
  return traffic_at(&step->traffic.read, batch) + traffic_at(&step->traffic.write, batch);
}

static bool touches(const struct step *step, const struct operand *operand, bool writes_only) {
  for (int i = 0; i < step->n_out; i++)
    if (same_memory(&step->out[i], operand)) return true;
  for (int i = 0; i < step->n_in && !writes_only; i++)
    if (same_memory(&step->in[i], operand)) return true;
  return false;
}

struct walk {
  const struct plan *plan;
  const struct device_rates *rates;
  const struct batch_size *batch;
  uint8_t outputs;
  double footprint; // bytes that one batch touches
};

// Bytes that passed since `operand` was last touched before step s; inputs were copied in before
// the first step. Infinite beyond the cache.
static double since_touched(const struct walk *walk, int32_t s, const struct operand *operand) {
  double bytes = 0;
  for (int32_t p = s - 1; p >= 0; p--) {
    const struct step *step = &walk->plan->steps[p];
    if (!(step->needed_by & walk->outputs)) continue;
    if (touches(step, operand, false)) return bytes;
    bytes += touched_by(step, walk->batch);
    if (bytes > (double)walk->rates->cache_bytes || s - p > LOOK_AROUND) return __builtin_inf();
  }
  return bytes;
}

// Bytes that pass until the memory of `operand` is written again, in this batch; in the next one,
// all that a batch touches.
static double until_written(const struct walk *walk, int32_t s, const struct operand *operand) {
  double bytes = 0;
  int32_t n = walk->plan->n_steps;
  for (int32_t i = 1;; i++) {
    if (s + i >= n) return walk->footprint;
    const struct step *step = &walk->plan->steps[s + i];
    if (!(step->needed_by & walk->outputs)) continue;
    if (touches(step, operand, true)) return bytes;
    bytes += touched_by(step, walk->batch);
    if (bytes > (double)walk->rates->cache_bytes || i > LOOK_AROUND) return __builtin_inf();
  }
}

static double operand_bytes(const struct operand *operand, const struct batch_size *batch) {
  return (double)operand->cols * (double)dtype_bytes(operand->dtype) *
         rows_at(operand->rows, batch);
}

static bool is_repeated(const struct step *step, int i) {
  for (int j = 0; j < i; j++)
    if (step->in[j].tensor == step->in[i].tensor && step->in[j].place == step->in[i].place)
      return true;
  return false;
}

static bool reads_all_of(const struct step *step, int i) {
  if (step->kind != STEP_ROW || i >= step->row.n_inputs) return true;
  return step->row.inputs[i].cls != IN_GATHER && step->row.inputs[i].cls != IN_POOL_CLS;
}

static struct found found_by(const struct walk *walk, int32_t s) {
  const struct step *step = &walk->plan->steps[s];
  double room = (double)walk->rates->cache_bytes, arena = 0;
  struct found found = {0};
  for (int i = 0; i < step->n_in; i++) {
    const struct operand *operand = &step->in[i];
    if (!in_arena(operand) || is_repeated(step, i) || !reads_all_of(step, i)) continue;
    double bytes = operand_bytes(operand, walk->batch), apart = since_touched(walk, s, operand);
    arena += bytes;
    found.read += expected_there(bytes, apart, room);
    found.read_best += best_there(bytes, apart, room);
  }
  // The rest is weights, tables, indices: they come round once a batch.
  double others = most(traffic_at(&step->traffic.read, walk->batch) - arena, 0);
  found.read +=
      walk->footprint > 0 ? others * expected_there(walk->footprint, 0, room) / walk->footprint : 0;
  found.read_best += walk->footprint > 0 ? others * share(room / walk->footprint) : 0;
  for (int i = 0; i < step->n_out; i++) {
    if (!in_arena(&step->out[i])) continue;
    double bytes = operand_bytes(&step->out[i], walk->batch),
           apart = until_written(walk, s, &step->out[i]);
    found.write += expected_there(bytes, apart, room);
    found.write_best += best_there(bytes, apart, room);
  }
  return found;
}

static double footprint_of(const struct walk *walk) {
  double bytes = 0;
  for (int32_t s = 0; s < walk->plan->n_steps; s++)
    if (walk->plan->steps[s].needed_by & walk->outputs)
      bytes += touched_by(&walk->plan->steps[s], walk->batch);
  return bytes;
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

void plan_cost(const struct plan *plan, const struct device_rates *rates,
               const struct batch_size *batch, uint8_t outputs, struct cost *steps,
               struct cost *total) {
  struct walk walk = {.plan = plan, .rates = rates, .batch = batch, .outputs = outputs};
  walk.footprint = footprint_of(&walk);
  *total = (struct cost){0};
  for (int32_t s = 0; s < plan->n_steps; s++) {
    struct cost cost = {0};
    if (plan->steps[s].needed_by & outputs) {
      struct kernel_work work = step_work(&plan->steps[s]);
      struct found found = found_by(&walk, s);
      cost = price(&work, rates, batch, &found);
    }
    if (steps) steps[s] = cost;
    cost_add(total, &cost);
  }
}
