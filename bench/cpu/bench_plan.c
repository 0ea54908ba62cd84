// Runs an encoder's plan directly on the CPU back end: microseconds and GFLOP/s of each kind of
// step, tokens/s, and the share of the floor, which is oneDNN's own rate for the same products on
// all cores, measured in the same run.
//
//   bench_plan [--bf16] [--off] [--threads N] [--products auto|library|own] [--base] [--seconds S]
//   LENGTHS... LENGTHS: tokens of each sequence of the batch (25; or 30x16 for sixteen of 30)
#include "backend/cpu/cpu_device.h"
#include "base/clock.h"
#include "unit/backend/encoder.h"

struct bench_options {
  struct encoder_shape shape;
  enum fusion_mode mode;
  enum product_kind products;
  int threads;
  double seconds;
  int32_t lengths[1024];
  int32_t n;
};

static void parse_lengths(struct bench_options *o, const char *text) {
  char *end;
  long length = strtol(text, &end, 10), count = 1;
  if (*end == 'x') count = strtol(end + 1, &end, 10);
  if (*end || length < 1 || count < 1) {
    fprintf(stderr, "bench_plan: not a length: %s\n", text);
    exit(2);
  }
  for (long i = 0; i < count && o->n < 1024; i++)
    o->lengths[o->n++] = (int32_t)length;
}

static void parse(struct bench_options *o, int argc, char **argv) {
  *o = (struct bench_options){.mode = FUSION_ON, .seconds = 1.0};
  o->shape = (struct encoder_shape){.vocab = 30522,
                                    .positions = 512,
                                    .hidden = 384,
                                    .heads = 12,
                                    .inter = 1536,
                                    .layers = 6,
                                    .compute = DTYPE_F32};
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--bf16"))
      o->shape.compute = DTYPE_BF16;
    else if (!strcmp(argv[i], "--off"))
      o->mode = FUSION_OFF;
    else if (!strcmp(argv[i], "--base"))
      o->shape.hidden = 768, o->shape.inter = 3072, o->shape.layers = 12;
    else if (!strcmp(argv[i], "--threads") && i + 1 < argc)
      o->threads = atoi(argv[++i]);
    else if (!strcmp(argv[i], "--seconds") && i + 1 < argc)
      o->seconds = atof(argv[++i]);
    else if (!strcmp(argv[i], "--products") && i + 1 < argc) {
      i++;
      for (int k = 0; k < PRODUCT_KINDS; k++)
        if (!strcmp(argv[i], product_kind_name((enum product_kind)k)))
          o->products = (enum product_kind)k;
    } else
      parse_lengths(o, argv[i]);
  }
  if (o->n == 0) parse_lengths(o, "25");
}

static double step_flops(const struct step *s, const struct batch_geometry *g) {
  const struct traffic_rate *r = &s->traffic.flops;
  return r->fixed + r->per_token * g->n_tokens + r->per_seq * g->n_seqs +
         r->per_score * (double)g->sum_sq;
}

static int compare_ns(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

// Steps of one label together.
static void print_steps(const struct plan *plan, const struct batch_geometry *g, const double *ns,
                        double total_ns) {
  bool *seen = calloc((size_t)plan->n_steps, 1);
  printf("  %-44s %5s %10s %6s %9s\n", "step", "count", "us", "%", "GFLOP/s");
  for (int32_t i = 0; i < plan->n_steps; i++) {
    if (seen[i]) continue;
    double sum = 0, flops = 0;
    int count = 0;
    for (int32_t j = i; j < plan->n_steps; j++) {
      bool same = !strcmp(plan->steps[i].label, plan->steps[j].label) &&
                  (plan->steps[i].kind != STEP_LINEAR ||
                   (plan->steps[i].linear.n == plan->steps[j].linear.n &&
                    plan->steps[i].linear.k == plan->steps[j].linear.k));
      if (!same) continue;
      seen[j] = true;
      sum += ns[j], flops += step_flops(&plan->steps[j], g), count++;
    }
    char label[80];
    snprintf(label, sizeof label, "%s", plan->steps[i].label);
    if (plan->steps[i].kind == STEP_LINEAR)
      snprintf(label, sizeof label, "%.40s %dx%d", plan->steps[i].label, plan->steps[i].linear.k,
               plan->steps[i].linear.n);
    printf("  %-44s %5d %10.1f %5.1f%% %9.1f\n", label, count, sum / 1e3, 100 * sum / total_ns,
           sum > 0 ? flops / sum : 0);
  }
  free(seen);
}

static struct bound_plan *load_or_die(struct device *device, const struct plan *plan,
                                      struct encoder *encoder) {
  struct bound_plan *bound = NULL;
  struct error err = {0};
  int64_t start = clock_now_ns();
  if (backend_cpu.load(device, plan, &encoder->table, &bound, &err) != STATUS_OK) {
    fprintf(stderr, "bench_plan: %s\n", err.message);
    exit(1);
  }
  printf("load %.0f ms, arena %.1f MiB, tile %.0f KiB, %d steps\n",
         (double)(clock_now_ns() - start) / 1e6, (double)plan->arena_bytes / 1048576,
         (double)plan->tile_bytes / 1024, plan->n_steps);
  return bound;
}

// Median nanoseconds of a run, repeated for `seconds`; with timing on, the mean of each step as
// well.
static double measure(struct device *device, struct lane *lane, const struct bound_plan *bound,
                      const struct batch_geometry *g, double seconds, double *step_ns,
                      double *least, double *wait_ns) {
  static int64_t samples[100000];
  int32_t n = 0, n_steps = bound->plan->n_steps;
  int64_t *ns = calloc((size_t)n_steps, sizeof *ns),
          end = clock_now_ns() + (int64_t)(seconds * 1e9);
  cpu_device_set_timing(device, step_ns != NULL);
  for (int warm = 0; warm < 3; warm++)
    if (backend_cpu.run(lane, bound, g, 0xff) != STATUS_OK) exit(1);
  while (n < 100000 && (n < 5 || clock_now_ns() < end)) {
    int64_t start = clock_now_ns();
    if (backend_cpu.run(lane, bound, g, 0xff) != STATUS_OK) exit(1);
    samples[n++] = clock_now_ns() - start;
    if (!step_ns) continue;
    backend_cpu.step_times(lane, bound, ns, n_steps);
    double sum = 0;
    for (int32_t i = 0; i < n_steps; i++)
      step_ns[i] += (double)ns[i], sum += (double)ns[i];
    if (*least == 0 || sum < *least) *least = sum;
    *wait_ns += (double)cpu_wait_ns(bound);
  }
  for (int32_t i = 0; step_ns && i < n_steps; i++)
    step_ns[i] /= n;
  if (wait_ns) *wait_ns /= n;
  qsort(samples, (size_t)n, sizeof samples[0], compare_ns);
  free(ns);
  if (!step_ns)
    printf("%d batches: fastest %.1f us, median %.1f, p90 %.1f\n", n, (double)samples[0] / 1e3,
           (double)samples[n / 2] / 1e3, (double)samples[n * 9 / 10] / 1e3);
  return (double)samples[n / 2];
}

int main(int argc, char **argv) {
  static struct bench_options o;
  static struct encoder encoder;
  parse(&o, argc, argv);
  encoder_build(&encoder, &o.shape, 1);
  struct encoder_batch batch;
  uint64_t seed = 2;
  encoder_batch_make(&batch, o.lengths, o.n, o.shape.vocab, &seed);
  struct error err = {0};
  struct device *device;
  struct plan *plan;
  struct lane *lane;
  struct backend_options options = {.threads = o.threads};
  struct plan_limits limits = {batch.geometry.n_tokens, o.n, batch.geometry.max_seqlen};
  encoder_check(backend_cpu.open(&options, &device, &err) == STATUS_OK, err.message);
  cpu_device_set_products(device, o.products);
  const struct device_caps *caps = backend_cpu.caps(device);
  printf("%s; %s fusion %s, products %s\n", caps->description, dtype_name(o.shape.compute),
         fusion_name(o.mode), product_kind_name(o.products));
  encoder_check(plan_build(&encoder.graph, o.mode, &caps->plan, &limits, &plan, &err) == STATUS_OK,
                err.message);
  struct bound_plan *bound = load_or_die(device, plan, &encoder);
  encoder_check(backend_cpu.lane_open(device,
                                      &(struct lane_sizes){.arena_bytes = plan->arena_bytes}, &lane,
                                      &err) == STATUS_OK,
                err.message);
  const struct batch_geometry *g = &batch.geometry;
  backend_cpu.copy_in(lane, bound, 0, 0, g->n_tokens, batch.ids);
  double *step_ns = calloc((size_t)plan->n_steps, sizeof *step_ns), sum = 0, flops = 0, least = 0,
         wait = 0;
  measure(device, lane, bound, g, o.seconds, step_ns, &least, &wait);
  double ns = measure(device, lane, bound, g, o.seconds, NULL, NULL, NULL);
  for (int32_t i = 0; i < plan->n_steps; i++)
    sum += step_ns[i], flops += step_flops(&plan->steps[i], g);
  print_steps(plan, g, step_ns, sum);
  printf("T %d B %d: %.1f us a batch (steps %.1f, at best %.1f; waits %.1f), %.0f tokens/s, %.1f "
         "GFLOP/s, %.0f "
         "sentences/s\n",
         g->n_tokens, o.n, ns / 1e3, sum / 1e3, least / 1e3, wait / 1e3, g->n_tokens / ns * 1e9,
         flops / ns, o.n / ns * 1e9);
  backend_cpu.lane_close(device, lane);
  backend_cpu.unload(device, bound);
  backend_cpu.close(device);
  plan_free(plan);
  encoder_free(&encoder);
  encoder_batch_free(&batch);
  free(step_ns);
  return 0;
}
