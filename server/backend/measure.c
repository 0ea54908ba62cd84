// Constants of the cost model. Each is the time of a plan that does one thing: an element-wise op
// on more than the caches hold, a chain of them on less, a product with much arithmetic.
#include "backend/meter.h"
#include "graph/cost.h"

#include <math.h>

#define COLS 4096      // of the matrices that stand for memory
#define CHAIN 16       // ops of a chain
#define LONG_CHAIN 32  // of one that is bound by its operations
#define FEW 4          // steps of a chain of kernels, a batch's beginning and end with them,
#define MANY 16        // and of the one that is held against it
#define LONGER 3       // times as many of each on a GPU, so that they take tens of microseconds
#define AGREED 1.3     // times that two rounds of one figure may part
#define CREDIBLE 2.0   // times that a GPU's epilogues may be quicker or slower than the default
#define NORMS 8        // in a row: that many take longer than the bytes of their rows
#define NORM_COLS 1024 // of the rows that they norm
#define NORM_FLOPS 7.0
#define GELU_FLOPS 8.0   // as docs/TRAFFIC.md counts it
#define LEAST_SHARE 0.02 // of a whole, that a part of it takes at least: less cannot be measured
#define SMALL_ROWS 128   // of a GPU's batch whose bytes take no time beside its steps
#define SMALL_COLS 768
#define SOFTMAX_FLOPS 6.0 // a score, as docs/TRAFFIC.md counts them

static const struct node_attrs attrs = {.factor = 1.001f, .eps = 1e-5f, .to = DTYPE_F32};

static int32_t unary(struct probe_plan *probe, enum op op, int32_t x, enum dtype dtype) {
  return probe_node(probe, op, &x, 1, &attrs, dtype);
}

static enum status time_of(const struct meter *meter, struct probe_plan *probe, int32_t output,
                           enum fusion_mode mode, int32_t n_tokens, double *seconds) {
  enum status status = probe_bind(probe, output, mode, NULL, n_tokens, meter->err);
  if (status == STATUS_OK)
    status = probe_time(probe, NULL, meter->options.seconds, seconds, meter->err);
  probe_deinit(probe);
  return status;
}

// ---- memory ----
static int32_t memory_rows(const struct meter *meter) {
  int64_t rows = meter->options.buffer_bytes / (COLS * (int64_t)sizeof(float));
  return rows < 1 ? 1 : rows > 1 << 20 ? 1 << 20 : (int32_t)rows;
}

// Of a matrix that takes an eighth of the cache, or half of what is to be no longer in it.
static int32_t cached_rows(const struct meter *meter) {
  int64_t bytes = meter->rates->cache_bytes / 8;
  if (bytes > meter->options.buffer_bytes / 2) bytes = meter->options.buffer_bytes / 2;
  int64_t rows = bytes / (COLS * (int64_t)sizeof(float));
  return rows < 1 ? 1 : rows > 1 << 20 ? 1 << 20 : (int32_t)rows;
}

enum traffic_mix { MIX_READ, MIX_TRIAD, MIX_COPY, MIX_WRITE };

static enum status measure_mix(const struct meter *meter, enum traffic_mix mix, double *rate) {
  static const double passes[] = {1, 3, 2, 1};
  struct probe_plan probe;
  int32_t y = -1, rows = memory_rows(meter);
  double seconds = 0;
  probe_init(&probe, meter->backend, meter->device, meter->lane);
  if (mix == MIX_WRITE) { // the one row of a table, over and over
    int32_t in[2] = {probe_input(&probe, DTYPE_I32, 1), probe_weight(&probe, DTYPE_F32, 1, COLS)};
    y = probe_node(&probe, OP_EMBEDDING, in, 2, &attrs, DTYPE_F32);
  } else {
    int32_t in[2] = {probe_input(&probe, DTYPE_F32, COLS), -1};
    if (mix == MIX_READ) y = unary(&probe, OP_REDUCE, in[0], DTYPE_INVALID);
    if (mix == MIX_COPY) y = unary(&probe, OP_SCALE, in[0], DTYPE_INVALID);
    if (mix == MIX_TRIAD) {
      in[1] = probe_input(&probe, DTYPE_F32, COLS);
      y = probe_node(&probe, OP_ADD, in, 2, &attrs, DTYPE_F32);
    }
  }
  enum status status = time_of(meter, &probe, y, FUSION_ON, rows, &seconds);
  if (status == STATUS_OK && seconds > 0)
    *rate = passes[mix] * rows * COLS * (double)sizeof(float) / seconds;
  return status;
}

// `op` n times on [rows, cols] of `dtype`: seconds.
static enum status measure_chain(const struct meter *meter, enum op op, int n, enum dtype dtype,
                                 enum fusion_mode mode, int32_t rows, int32_t cols,
                                 double *seconds) {
  struct probe_plan probe;
  probe_init(&probe, meter->backend, meter->device, meter->lane);
  int32_t y = probe_input(&probe, dtype, cols);
  for (int i = 0; i < n; i++)
    y = unary(&probe, op, y, dtype);
  return time_of(meter, &probe, y, mode, rows, seconds);
}

// A GPU does in a millisecond what would take a core minutes.
static bool is_wide(const struct meter *meter) {
  return meter->backend->caps(meter->device)->n_threads == 0;
}

static bool has_bf16(const struct meter *meter) {
  return meter->backend->caps(meter->device)->plan.dtype_ok[DTYPE_BF16];
}

// Whose bytes take least beside the operations; a CPU's conversions would take more.
static enum dtype small_dtype(const struct meter *meter) {
  return is_wide(meter) && has_bf16(meter) ? DTYPE_BF16 : DTYPE_F32;
}

// n small steps of the kinds that models have between their products, in turn, each a kernel.
static enum status measure_steps(const struct meter *meter, int n, double *seconds) {
  enum dtype dtype = small_dtype(meter);
  struct probe_plan probe;
  probe_init(&probe, meter->backend, meter->device, meter->lane);
  int32_t x = probe_input(&probe, dtype, SMALL_COLS), y = x,
          gamma = probe_weight(&probe, dtype, 1, SMALL_COLS),
          beta = probe_weight(&probe, dtype, 1, SMALL_COLS);
  for (int i = 0; i < n; i++) {
    if (i % 3 == 0) y = unary(&probe, OP_GELU, y, dtype);
    if (i % 3 == 1) y = probe_node(&probe, OP_ADD, (int32_t[]){y, x}, 2, &attrs, dtype);
    if (i % 3 == 2)
      y = probe_node(&probe, OP_LAYER_NORM, (int32_t[]){y, gamma, beta}, 3, &attrs, dtype);
  }
  return time_of(meter, &probe, y, FUSION_OFF, SMALL_ROWS, seconds);
}

// On a CPU, whose steps cost less, of one kind and next to nothing to do.
static enum status measure_tiny_steps(const struct meter *meter, int n, double *seconds) {
  return measure_chain(meter, OP_SCALE, n, DTYPE_F32, FUSION_OFF, 1, 64, seconds);
}

static enum status measure_cached_steps(const struct meter *meter, int n, double *seconds) {
  return measure_chain(meter, OP_SCALE, n, DTYPE_F32, FUSION_OFF, cached_rows(meter), COLS,
                       seconds);
}

// Seconds of one step more in a plan of nothing else: a batch's beginning and end are in the short
// plan and in the long one.
struct slope {
  double each;        // by the fastest of all rounds
  double least, most; // by one round
};

static enum status measure_slope(const struct meter *meter,
                                 enum status (*steps)(const struct meter *, int, double *),
                                 struct slope *out) {
  int times = is_wide(meter) ? LONGER : 1;
  double few = HUGE_VAL, many = HUGE_VAL;
  *out = (struct slope){0, HUGE_VAL, 0};
  for (int i = 0; i < ROUNDS; i++) {
    double a = 0, b = 0;
    enum status status = steps(meter, times * FEW, &a);
    if (status == STATUS_OK) status = steps(meter, times * MANY, &b);
    if (status != STATUS_OK) return status;
    double each = (b - a) / (times * (MANY - FEW));
    out->least = fmin(out->least, each), out->most = fmax(out->most, each);
    few = fmin(few, a), many = fmin(many, b);
  }
  out->each = (many - few) / (times * (MANY - FEW));
  if (out->each <= 0) out->each = many / (times * MANY); // a busy machine
  return STATUS_OK;
}

// A GPU's rounds must agree, or the default says more: its steps take as long as their bytes, or
// longer. A CPU's default is for some other CPU.
static bool is_steady(const struct meter *meter, double least, double most) {
  return !is_wide(meter) || (least > 0 && most <= AGREED * least);
}

// One more step in a plan, beside the bytes that it moves in the cache: a GELU and a LayerNorm read
// one matrix and write one, a sum reads two. The LayerNorm takes more of a launch than the others.
static enum status measure_launch(struct meter *meter) {
  struct device_rates *rates = meter->rates;
  bool wide = is_wide(meter);
  double bytes =
             wide ? 7.0 / 3 * SMALL_ROWS * SMALL_COLS * (double)dtype_bytes(small_dtype(meter)) : 0,
         moving = bytes / rates->cache, share = wide ? (2 * LAUNCH_PLAIN + LAUNCH_REDUCES) / 3 : 1;
  struct slope slope;
  enum status status = measure_chain(meter, OP_SCALE, 1, DTYPE_F32, FUSION_ON,
                                     wide ? SMALL_ROWS : 1, wide ? SMALL_COLS : 64, &meter->alone);
  if (status == STATUS_OK)
    status = measure_slope(meter, wide ? measure_steps : measure_tiny_steps, &slope);
  if (status == STATUS_OK && slope.each > moving && is_steady(meter, slope.least, slope.most))
    rates->launch_us = 1e6 * (slope.each - moving) / share;
  return status;
}

// A step that reads and writes an eighth of the cache each, less what a step costs by itself.
static enum status measure_cache(const struct meter *meter) {
  struct device_rates *rates = meter->rates;
  double launch = rates->launch_us * (is_wide(meter) ? LAUNCH_PLAIN : 1) / 1e6;
  struct slope slope;
  enum status status = measure_slope(meter, measure_cached_steps, &slope);
  if (status != STATUS_OK) return status;
  if (slope.each > launch && is_steady(meter, slope.least - launch, slope.most - launch))
    rates->cache = 2.0 * cached_rows(meter) * COLS * sizeof(float) / (slope.each - launch);
  if (rates->cache < rates->copy) rates->cache = rates->copy;
  return STATUS_OK;
}

// What is left of a whole without a part, which is something.
static double rest_of(double whole, double part) {
  return whole - part > LEAST_SHARE * whole ? whole - part : LEAST_SHARE * whole;
}

// Operations of `op` a second in one kernel, on what the cache holds.
static enum status measure_op(const struct meter *meter, enum op op, int n, enum dtype dtype,
                              double flops, double *rate) {
  double seconds = 0;
  int32_t rows = cached_rows(meter) * (n / CHAIN);
  enum status status = measure_chain(meter, op, n, dtype, FUSION_ON, rows, COLS, &seconds);
  if (status == STATUS_OK && seconds > 0)
    *rate = flops * n * rows * COLS / rest_of(seconds, meter->alone);
  return status;
}

// A quarter of the cache: several rounds of a GPU's blocks, since one waits for its reductions.
static int32_t norm_rows(const struct meter *meter) {
  return 2 * cached_rows(meter) * (COLS / NORM_COLS);
}

// LayerNorms of the same rows, one after another.
static enum status measure_norms(const struct meter *meter) {
  struct probe_plan probe;
  double seconds = 0;
  int32_t rows = norm_rows(meter);
  probe_init(&probe, meter->backend, meter->device, meter->lane);
  int32_t in[3] = {probe_input(&probe, DTYPE_F32, NORM_COLS),
                   probe_weight(&probe, DTYPE_F32, 1, NORM_COLS),
                   probe_weight(&probe, DTYPE_F32, 1, NORM_COLS)};
  for (int i = 0; i < NORMS; i++)
    in[0] = probe_node(&probe, OP_LAYER_NORM, in, 3, &attrs, DTYPE_F32);
  enum status status = time_of(meter, &probe, in[0], FUSION_ON, rows, &seconds);
  if (status == STATUS_OK && seconds > 0)
    meter->rates->reduced = NORM_FLOPS * NORMS * rows * NORM_COLS / rest_of(seconds, meter->alone);
  return status;
}

static enum status measure_vector(const struct meter *meter) {
  struct device_rates *rates = meter->rates;
  enum status status =
      measure_op(meter, OP_SCALE, LONG_CHAIN, small_dtype(meter), 1, &rates->vector);
  if (status == STATUS_OK) status = measure_norms(meter);
  if (status == STATUS_OK)
    status = measure_op(meter, OP_GELU, CHAIN, DTYPE_F32, GELU_FLOPS, &rates->special);
  if (status != STATUS_OK) return status;
  if (!has_bf16(meter)) {
    rates->special_16 = rates->special;
    return STATUS_OK;
  }
  return measure_op(meter, OP_GELU, CHAIN, DTYPE_BF16, GELU_FLOPS, &rates->special_16);
}

// ---- products ----
struct product_shape {
  int32_t m, n, k;
};

// [m, k] x [n, k], and behind it `act`, unless that is OP_LINEAR: seconds.
static enum status measure_product(const struct meter *meter, enum dtype dtype,
                                   const struct product_shape *shape, enum op act,
                                   double *seconds) {
  struct probe_plan probe;
  probe_init(&probe, meter->backend, meter->device, meter->lane);
  int32_t in[2] = {probe_input(&probe, dtype, shape->k),
                   probe_weight(&probe, dtype, shape->n, shape->k)};
  int32_t y = probe_node(&probe, OP_LINEAR, in, 2, &attrs, dtype);
  if (act != OP_LINEAR) y = unary(&probe, act, y, dtype);
  return time_of(meter, &probe, y, FUSION_ON, shape->m, seconds);
}

static struct product_shape large_product(const struct meter *meter) {
  int32_t scale = meter->options.scale > 0 ? meter->options.scale : 1,
          n = (is_wide(meter) ? 4096 : 1024) / scale;
  return (struct product_shape){(is_wide(meter) ? 8192 : 512) / scale, n, n};
}

static enum status measure_products(const struct meter *meter) {
  static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
  const struct plan_caps *caps = &meter->backend->caps(meter->device)->plan;
  enum status status = STATUS_OK;
  struct product_shape of = large_product(meter);
  for (int d = 0; d < 3 && status == STATUS_OK; d++) {
    double seconds = 0;
    if (!caps->dtype_ok[dtypes[d]]) continue;
    status = measure_product(meter, dtypes[d], &of, OP_LINEAR, &seconds);
    if (status == STATUS_OK && seconds > 0)
      meter->rates->product[dtypes[d]] = 2.0 * of.m * of.n * of.k / seconds;
  }
  return status;
}

// The one that the device's products are made for.
static enum dtype epilogue_dtype(const struct meter *meter) {
  const double *rate = meter->rates->product;
  return has_bf16(meter) && rate[DTYPE_BF16] > 1.2 * rate[DTYPE_F32] ? DTYPE_BF16 : DTYPE_F32;
}

// One product with each of `acts` behind it, in turn, since speeds drift and it is differences that
// count: the least seconds of each, HUGE_VAL where there are none.
static enum status measure_acts(const struct meter *meter, enum dtype dtype,
                                const struct product_shape *shape, const enum op acts[2],
                                double least[2]) {
  least[0] = least[1] = HUGE_VAL;
  for (int i = 0; i < 2 * ROUNDS; i++) {
    double seconds = 0;
    enum status status = measure_product(meter, dtype, shape, acts[i % 2], &seconds);
    if (status != STATUS_OK) return status;
    if (seconds > 0 && seconds < least[i % 2]) least[i % 2] = seconds;
  }
  return STATUS_OK;
}

// A ReLU behind a product costs nothing, but is none of a library's epilogues: what is slower then
// is the kernel.
static enum status measure_fused(const struct meter *meter) {
  static const enum op acts[2] = {OP_LINEAR, OP_RELU};
  struct product_shape of = large_product(meter);
  double least[2];
  enum status status = measure_acts(meter, epilogue_dtype(meter), &of, acts, least);
  if (status == STATUS_OK && least[0] < HUGE_VAL && least[1] < HUGE_VAL)
    meter->rates->fused_product = least[1] > least[0] ? least[0] / least[1] : 1;
  return status;
}

// Seconds of work behind a product that takes `alone` without it and `both` with it. On a GPU part
// of it hides behind the arithmetic (graph/cost.c): what it takes is more than what it adds.
static double behind_product(const struct meter *meter, double alone, double both) {
  double p = meter->rates->overlap, least = LEAST_SHARE * alone;
  if (p <= 0) return both < alone + least ? least : both - alone;
  if (both < alone + least) return 0; // all of it hides
  return pow(pow(both, p) - pow(alone, p), 1 / p);
}

// What a GELU takes behind a product, more than a ReLU, which the same kernel has (a product in
// fp32 alone, whose kernel has all); of few enough columns of x for it to be a good part of the
// whole. On a GPU in 16 bits it may hide behind the product and its writes all but wholly, and what
// little is left says nothing: then the default stands.
static enum status measure_epilogue(const struct meter *meter, enum dtype dtype, double *rate) {
  const struct device_rates *rates = meter->rates;
  // where all products in fp32 are of one kernel, the whole epilogue hides behind nothing
  const bool plain = is_wide(meter) && dtype == DTYPE_F32 && rates->plain_dtypes >> dtype & 1;
  const enum op acts[2] = {plain ? OP_LINEAR : OP_RELU, OP_GELU};
  struct product_shape of = large_product(meter);
  double least[2], values = (double)of.m * of.n;
  of.k /= 8;
  enum status status = measure_acts(meter, dtype, &of, acts, least);
  if (status != STATUS_OK || !(least[0] < HUGE_VAL && least[1] < HUGE_VAL)) return status;
  double start = meter->alone + rates->start_us / 1e6, product = rest_of(least[0], start);
  double both = product + least[1] - least[0],
         behind = plain ? rest_of(both, product) : behind_product(meter, product, both),
         found = GELU_FLOPS * values / behind;
  bool credible = behind > 0 && found < CREDIBLE * *rate && found > *rate / CREDIBLE;
  if (credible || rates->overlap <= 0) *rate = found;
  return STATUS_OK;
}

static enum status measure_epilogues(const struct meter *meter) {
  struct device_rates *rates = meter->rates;
  enum dtype dtype = epilogue_dtype(meter);
  enum status status = measure_fused(meter);
  if (status == STATUS_OK) status = measure_epilogue(meter, dtype, &rates->epilogue);
  if (status == STATUS_OK && dtype != DTYPE_F32 && (rates->epilogue_f32 > 0 || !is_wide(meter)))
    status = measure_epilogue(meter, DTYPE_F32, &rates->epilogue_f32);
  return status;
}

// An attention over one sequence, and its scores.
static enum status measure_attention(const struct meter *meter, enum dtype dtype, double *scores,
                                     double *seconds) {
  int32_t heads = is_wide(meter) ? 16 : 4, m = large_product(meter).m;
  struct probe_plan probe;
  probe_init(&probe, meter->backend, meter->device, meter->lane);
  int32_t in[3];
  for (int i = 0; i < 3; i++)
    in[i] = probe_input(&probe, dtype, heads * HEAD_DIM);
  struct node_attrs of = {.heads = heads, .kv_heads = heads};
  int32_t y = probe_node(&probe, OP_ATTENTION, in, 3, &of, dtype);
  *scores = (double)heads * m * m, *seconds = 0;
  return time_of(meter, &probe, y, FUSION_ON, m, seconds);
}

// What a fused attention does between its products, beside these at their own rate; and, where
// products in fp32 have a kernel that attention has not, these beside that.
static enum status measure_softmax(const struct meter *meter) {
  struct device_rates *rates = meter->rates;
  // a CPU's attention computes in fp32 in any case
  enum dtype dtype = is_wide(meter) ? epilogue_dtype(meter) : DTYPE_F32;
  double scores, seconds;
  enum status status = measure_attention(meter, dtype, &scores, &seconds);
  if (status != STATUS_OK || seconds <= 0) return status;
  rates->softmax =
      SOFTMAX_FLOPS * scores / rest_of(seconds, 4.0 * HEAD_DIM * scores / rates->product[dtype]);
  if (dtype == DTYPE_F32 || !(rates->attention_f32 > 0)) return STATUS_OK;
  status = measure_attention(meter, DTYPE_F32, &scores, &seconds);
  if (status != STATUS_OK || seconds <= 0) return status;
  rates->attention_f32 =
      4.0 * HEAD_DIM * scores / rest_of(seconds, SOFTMAX_FLOPS * scores / rates->softmax);
  return STATUS_OK;
}

// ---- all ----
static struct measure_options with_defaults(const struct measure_options *options,
                                            const struct device_rates *rates) {
  struct measure_options out = *options;
  if (out.buffer_bytes <= 0) out.buffer_bytes = 2 * rates->cache_bytes;
  if (out.seconds <= 0) out.seconds = 0.1;
  return out;
}

static int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}

// One arena for all: the three matrices of a sum, of a gated product, or two of a chain in cache.
static enum status open_lane(struct meter *meter) {
  struct product_shape product = large_product(meter);
  int64_t rows = larger(memory_rows(meter), cached_rows(meter)),
          floats = larger(rows * COLS,
                          larger((int64_t)product.m * product.n, FINISH_ROWS * FINISH_COLS));
  struct lane_sizes sizes = {
      .arena_bytes = 3 * (int64_t)sizeof(float) * floats + (1 << 20),
      .max_tokens = (int32_t)larger(larger(rows, norm_rows(meter)), larger(product.m, FINISH_ROWS)),
      .max_seqs = 1};
  return meter->backend->lane_open(meter->device, &sizes, &meter->lane, meter->err);
}

enum status measure_rates(const struct backend_ops *backend, struct device *device,
                          const struct measure_options *options, struct device_rates *out,
                          struct error *err) {
  *out = backend->caps(device)->plan.rates;
  struct meter meter = {backend, device, NULL, with_defaults(options, out), out, err, 0};
  double *const mixes[] = {&out->read, &out->triad, &out->copy, &out->write};
  enum status status = open_lane(&meter);
  for (int mix = MIX_READ; mix <= MIX_WRITE && status == STATUS_OK; mix++)
    status = measure_mix(&meter, (enum traffic_mix)mix, mixes[mix]);
  if (status == STATUS_OK) status = measure_launch(&meter);
  if (status == STATUS_OK) status = measure_cache(&meter);
  if (status == STATUS_OK) status = measure_vector(&meter);
  if (status == STATUS_OK) status = measure_products(&meter);
  if (status == STATUS_OK) status = measure_epilogues(&meter);
  if (status == STATUS_OK) status = measure_softmax(&meter);
  if (status == STATUS_OK) status = measure_finishes(&meter);
  if (meter.lane) backend->lane_close(device, meter.lane);
  return status;
}
