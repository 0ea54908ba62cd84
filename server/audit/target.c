#include "audit/target.h"
#include "base/log.h"
#include "graph/cost.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- classes ----
const int32_t audit_size_most[AUDIT_SIZES] = {16, 64, 256, 1024, 4096, 0};
const double audit_ratio_edges[AUDIT_RATIOS] = {0.5,  0.8, 0.9,  0.95, 0.97, 0.99, 1.01, 1.03,
                                                1.05, 1.1, 1.25, 1.5,  2.0,  4.0,  16.0};

int audit_size_of(int64_t tokens) {
  int size = 0;
  while (size < AUDIT_SIZES - 1 && tokens > audit_size_most[size])
    size++;
  return size;
}

// ---- rows ----
// Two modes of twice as many models as serve at once, on each device.
#define ROWS (LIMIT_MODELS * 4 * LIMIT_DEVICES)
static struct series_family rows = SERIES(ROWS);

int audit_row_count(void) {
  return series_count(&rows);
}

struct audit_row *audit_row_at(int index) {
  return series_at(&rows, index);
}

struct audit_row *audit_row_add(const char *model, const char *version, const char *fusion,
                                const char *device) {
  const struct series_labels labels = series_labels(model, version, fusion, device);
  return series_add(&rows, sizeof(struct audit_row), &labels);
}

// ---- the band ----
#define BAND_BATCHES 32        // at least, between two verdicts
#define BAND_NS (2 * NS_PER_S) // and so long
#define BAND_BYTES 1e6         // a batch; of less nothing can be said

static void verdict_add(struct audit_verdict *verdict, double measured, double low, double high) {
  verdict->measured += measured;
  verdict->low += low;
  verdict->high += high;
}

static const char *where_of(const struct audit_row *row, char *out, size_t out_bytes) {
  snprintf(out, out_bytes, "model %s version %s, fusion %s, device %s", row->labels.model,
           row->labels.version, row->labels.fusion, row->labels.device);
  return out;
}

// One line when it leaves its band, one when it is back.
static void verdict_pass(struct audit_row *row, struct audit_verdict *verdict, double band,
                         const char *what, _Atomic bool *shown) {
  char where[LIMIT_NAME_BYTES + 128];
  double low = verdict->low * (1 - band), high = verdict->high * (1 + band);
  bool out = verdict->measured < low || verdict->measured > high, was = verdict->out;
  double expected = verdict->measured < low ? verdict->low : verdict->high;
  int64_t n = row->band.n;
  double share = expected > 0 ? verdict->measured / expected : 0;
  if (verdict->high < BAND_BYTES * (double)n) out = was; // nothing to go by
  *verdict = (struct audit_verdict){.out = out};
  if (out == was) return;
  atomic_store_explicit(shown, out, memory_order_relaxed);
  where_of(row, where, sizeof where);
  if (out) {
    atomic_fetch_add_explicit(&row->alarms, 1, memory_order_relaxed);
    log_warn("audit_band",
             "%s: %lld batches %s %.3f of the device memory that they were expected to, outside "
             "1 +- %.2f",
             where, (long long)n, what, share, band);
  } else {
    log_info("audit_band", "%s: what batches %s is within its band again", where, what);
  }
}

static void band_add(struct audit_row *row, const struct audit_batch *batch, double limit,
                     int64_t now_ns) {
  struct audit_band *band = &row->band;
  const struct batch_bytes *b = &batch->bytes;
  bool wide = b->resident; // only the bounds are certain
  if (band->n++ == 0) band->since_ns = now_ns;
  verdict_add(&band->read, batch->read_bytes, wide ? b->low.read : b->expected.read,
              wide ? b->high.read : b->expected.read);
  verdict_add(&band->write, batch->write_bytes, wide ? b->low.write : b->expected.write,
              wide ? b->high.write : b->expected.write);
  if (band->n < BAND_BATCHES || now_ns - band->since_ns < BAND_NS) return;
  verdict_pass(row, &band->read, limit, "read", &row->read_out);
  verdict_pass(row, &band->write, limit, "wrote", &row->write_out);
  band->n = 0;
}

// ---- one batch ----
static void add(_Atomic uint64_t *sum, double value) {
  if (value > 0) atomic_fetch_add_explicit(sum, (uint64_t)value, memory_order_relaxed);
}

static void hist_add(struct audit_hist *hist, double measured, double expected) {
  int i = 0;
  if (expected < 1) return;
  while (i < AUDIT_RATIOS && measured / expected > audit_ratio_edges[i])
    i++;
  atomic_fetch_add_explicit(&hist->counts[i], 1, memory_order_relaxed);
  double sum = atomic_load_explicit(&hist->sum, memory_order_relaxed);
  atomic_store_explicit(&hist->sum, sum + measured / expected, memory_order_relaxed);
}

void audit_row_measured(struct audit_row *row, const struct audit_batch *batch, double band,
                        int64_t now_ns) {
  struct audit_sums *sums = &row->sizes[audit_size_of(batch->ran_tokens)];
  const struct batch_bytes *b = &batch->bytes;
  bool shared =
      (double)batch->shared_ns > 0.1 * (double)(batch->span.computed_ns - batch->span.computes_ns);
  add(&sums->batches, 1);
  add(&sums->shared, shared);
  add(&sums->resident, b->resident);
  add(&sums->read_measured, batch->read_bytes);
  add(&sums->write_measured, batch->write_bytes);
  add(&sums->read_expected, b->expected.read);
  add(&sums->write_expected, b->expected.write);
  add(&sums->read_low, b->low.read);
  add(&sums->read_high, b->high.read);
  add(&sums->write_low, b->low.write);
  add(&sums->write_high, b->high.write);
  if (shared) return; // what it moved is known only as well as what the others were expected to
  hist_add(&row->read_ratio, batch->read_bytes, b->expected.read);
  hist_add(&row->write_ratio, batch->write_bytes, b->expected.write);
  band_add(row, batch, band, now_ns);
}

void audit_row_unmeasured(struct audit_row *row, enum audit_outcome outcome) {
  atomic_fetch_add_explicit(&row->unmeasured[outcome], 1, memory_order_relaxed);
}

// ---- a model's ----
enum status audit_targets_fill(struct model *model, int device_index, const char *device,
                               struct error *err) {
  for (int mode = 0; mode < FUSION_MODES; mode++) {
    if (!model->fusion_available[mode]) continue;
    struct audit_target *target = calloc(1, sizeof *target);
    if (target)
      target->row =
          audit_row_add(model->name, model->version, fusion_name((enum fusion_mode)mode), device);
    model->audit[device_index][mode] = target;
    if (!target || !target->row)
      return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                       "model \"%s\" version %s: no room for what the audit keeps of it",
                       model->name, model->version);
  }
  return STATUS_OK;
}

// ---- expected bytes ----
// Sizes are asked for in steps: what a batch of about this size moves, as a share of its compulsory
// bytes, is that of all near it. Captured graphs come in few sizes anyway.
static int32_t step_of(int64_t value) {
  int64_t step = 1;
  while (value / step >= 64)
    step *= 2;
  value = (value + step / 2) / step * step;
  return value > INT32_MAX / 2 ? INT32_MAX / 2 : (int32_t)value;
}

static double share_of(double bytes, double compulsory) {
  return compulsory > 0 ? bytes / compulsory : 0;
}

static bool is_resident(const struct plan *plan, const struct batch_size *batch, uint8_t outputs) {
  for (int32_t i = 0; i < plan->n_steps; i++) {
    const struct traffic *t = &plan->steps[i].traffic;
    if ((plan->steps[i].needed_by & outputs) &&
        traffic_at(&t->read, batch) + traffic_at(&t->write, batch) > plan->rates.cache_bytes)
      return false;
  }
  return true;
}

static void estimate_make(struct audit_estimate *out, const struct audit_batch *batch) {
  const struct plan *plan = batch->model->plans[batch->fusion];
  struct batch_size of = {.n_tokens = out->tokens,
                          .n_seqs = (out->tokens + out->length - 1) / out->length,
                          .sum_sq = (int64_t)out->tokens * out->length};
  struct cost cost;
  struct traffic_total once = plan_traffic(plan, out->outputs, of.n_tokens, of.n_seqs, of.sum_sq);
  if (plan_cost(plan, &plan->rates, &of, out->outputs, NULL, &cost) != STATUS_OK) {
    log_warn("audit_estimate", "model %s: no memory to work out what its batches move",
             batch->model->name);
    cost.read = (struct byte_bounds){.expected = once.read_bytes, .upper = once.read_bytes};
    cost.write = (struct byte_bounds){.expected = once.write_bytes, .upper = once.write_bytes};
  }
  out->resident = is_resident(plan, &of, out->outputs);
  out->expected_read = share_of(cost.read.expected, once.read_bytes);
  out->expected_write = share_of(cost.write.expected, once.write_bytes);
  out->low_read = share_of(cost.read.lower, once.read_bytes);
  out->low_write = share_of(cost.write.lower, once.write_bytes);
  out->high_read = share_of(cost.read.upper, once.read_bytes);
  out->high_write = share_of(cost.write.upper, once.write_bytes);
}

static const struct audit_estimate *estimate_of(const struct audit_batch *batch) {
  struct audit_target *target = batch->target;
  int64_t length = batch->n_tokens > 0 ? batch->sum_sq / batch->n_tokens : 1;
  struct audit_estimate key = {.tokens = step_of(batch->ran_tokens),
                               .length = step_of(length < 1 ? 1 : length),
                               .outputs = batch->outputs};
  if (key.length > key.tokens) key.length = key.tokens;
  for (int32_t i = 0; i < target->n_estimates; i++) {
    const struct audit_estimate *known = &target->estimates[i];
    if (known->tokens == key.tokens && known->length == key.length && known->outputs == key.outputs)
      return known;
  }
  struct audit_estimate *slot = &target->estimates[target->next];
  target->next = (target->next + 1) % AUDIT_ESTIMATES;
  if (target->n_estimates < AUDIT_ESTIMATES) target->n_estimates++;
  estimate_make(&key, batch);
  *slot = key;
  return slot;
}

void audit_estimate(struct audit_batch *batch) {
  const struct plan *plan = batch->model->plans[batch->fusion];
  // Rows that fill up a bucket move bytes too; sequences and scores are the batch's own.
  struct traffic_total once =
      plan_traffic(plan, batch->outputs, batch->ran_tokens, batch->n_seqs, batch->sum_sq);
  struct batch_bytes *out = &batch->bytes;
  FW_ASSERT(batch->target);
  const struct audit_estimate *e = estimate_of(batch);
  out->resident = e->resident;
  out->expected.read = once.read_bytes * e->expected_read;
  out->expected.write = once.write_bytes * e->expected_write;
  out->low.read = once.read_bytes * e->low_read;
  out->low.write = once.write_bytes * e->low_write;
  out->high.read = once.read_bytes * e->high_read;
  out->high.write = once.write_bytes * e->high_write;
}
