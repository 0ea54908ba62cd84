// The traffic model against the card's own counters: what docs/TRAFFIC.md says each kind of kernel,
// and whole encoder stacks in both modes, move through memory, beside what the card counted.
//
//   bench_audit [--json FILE] [NAME...]   cases whose names begin with one of NAMEs; all
// Every case is a graph, planned and bound as the daemon does; its steps run at least 50 times,
// taking turns on two arenas. A line: MB read and written a batch, counted once a step
// (compulsory), expected behind a cache of the L2's size (graph/expected.h), counted by the card,
// and the share counted / expected with the band it must lie in. Where every step fits into the L2,
// the share says little, and the count must lie between both bounds. Exit 1 where one does not,
// where a copy of known size is not counted right, or where a formula made wrong by 1.2 would pass
// (the negative control); 77 without a GPU or without its counters.
#include "audit_cases.h"
#include "backend/cuda/cuda_device.h"
#include "counters.h"
#include "graph/expected.h"

#define ROTATION 2    // arenas that take turns
#define REPEATS 50    // batches of a measurement, at least
#define TABLE_ROWS 64 // of one case

static struct device *the_device;
static struct counters counters;
static struct cache_facts cache;
static double l2_bytes;
static FILE *json;
static int n_bad, n_control, n_control_passed;

static void must(bool ok, const char *what) {
  if (ok) return;
  fprintf(stderr, "bench_audit: %s\n", what);
  exit(1);
}

// ---- bands ----
enum band { BAND_STREAM, BAND_PRODUCT, BAND_LIBRARY, BAND_BATCH, BAND_RESIDENT };
static const struct {
  const char *name;
  double low, high;
} bands[] = {{"stream", 0.97, 1.03},
             {"attention, own product", 0.90, 1.10},
             {"library product", 0.80, 1.25},
             {"whole batch", 0.90, 1.10},
             {"L2-resident", 0, 0}};
#define WRITE_LOW 0.97
#define WRITE_HIGH 1.03

// ---- one case on the device ----
struct setup {
  struct encoder e;
  struct encoder_batch batch;
  struct plan *plan;
  struct bound_plan *bound;
  struct lane *lanes[ROTATION];
  struct batch_geometry geometry[ROTATION]; // device addresses, the batch's counts
};

static void build(struct setup *s) {
  const struct audit_case *c = the_case;
  struct encoder *e = &s->e;
  memset(e, 0, sizeof *e);
  e->shape = (struct encoder_shape){.hidden = c->cols,
                                    .heads = c->heads,
                                    .inter = c->n,
                                    .layers = c->layers,
                                    .compute = c->dtype};
  e->seed = 1, e->table.weights = e->weights;
  must(graph_init(&e->graph) == STATUS_OK, "graph_init");
  struct tensor input = {
      .name = "x", .kind = TENSOR_INPUT, .dtype = c->dtype, .rows = ROWS_TOKENS, .cols = c->cols};
  e->graph.outputs[0] = c->build(e, graph_add_tensor(&e->graph, &input));
  if (e->graph.n_outputs == 0) e->graph.n_outputs = 1;
  e->graph.has_sequences = true;
  int32_t *lengths = malloc((size_t)c->seqs * sizeof *lengths);
  for (int32_t i = 0; i < c->seqs; i++)
    lengths[i] = c->length;
  uint64_t seed = 2;
  encoder_batch_make(&s->batch, lengths, c->seqs, 2, &seed);
  free(lengths);
}

// The batch's geometry left on the device by one run; inputs of N(0, 1).
static void first_run(struct setup *s, int turn) {
  struct lane *lane = s->lanes[turn];
  const struct batch_geometry *g = &s->batch.geometry;
  struct lane_times times;
  int done;
  for (int i = 0; i < s->plan->n_inputs; i++) {
    const struct operand *x = &s->plan->inputs[i];
    size_t n = (size_t)g->n_tokens * (size_t)x->cols, bytes = n * dtype_bytes(x->dtype);
    char *rows = backend_cuda.host_alloc(s->bound->device, bytes);
    uint64_t seed = 3;
    for (size_t k = 0; k < n; k++) {
      if (k >= 1 << 20) { // the rest as the first million
        memcpy(rows + k * dtype_bytes(x->dtype), rows + (k - (1 << 20)) * dtype_bytes(x->dtype),
               dtype_bytes(x->dtype));
        continue;
      }
      float value = encoder_normal(&seed);
      if (x->dtype == DTYPE_F32)
        ((float *)(void *)rows)[k] = value;
      else
        ((uint16_t *)(void *)rows)[k] = f32_to_bf16(value);
    }
    backend_cuda.copy_in(lane, s->bound, i, 0, g->n_tokens, rows);
    must(cudaStreamSynchronize(lane->stream) == 0, "copy in");
    must(backend_cuda.run(lane, s->bound, g, 1) == STATUS_OK, "run");
    backend_cuda.submit(lane);
    while ((done = backend_cuda.poll(lane, &times)) == 0)
      ;
    must(done == 1, "the device is lost");
    backend_cuda.host_free(s->bound->device, rows, bytes);
  }
  s->geometry[turn] = lane->geometry;
  s->geometry[turn].n_tokens = g->n_tokens, s->geometry[turn].n_seqs = g->n_seqs;
  s->geometry[turn].max_seqlen = g->max_seqlen, s->geometry[turn].sum_sq = g->sum_sq;
}

static void open_case(struct setup *s) {
  struct error err = {0};
  build(s);
  const struct batch_geometry *g = &s->batch.geometry;
  struct plan_limits limits = {g->n_tokens, g->n_seqs, g->max_seqlen};
  const struct plan_caps *caps = &backend_cuda.caps(the_device)->plan;
  must(plan_build(&s->e.graph, the_case->mode, caps, &limits, &s->plan, &err) == STATUS_OK,
       err.message);
  must(backend_cuda.load(the_device, s->plan, &s->e.table, &s->bound, &err) == STATUS_OK,
       err.message);
  struct lane_sizes sizes = {s->plan->arena_bytes, limits.max_tokens, limits.max_seqs};
  s->bound->buckets.graph_tokens = 0;
  for (int i = 0; i < ROTATION; i++) {
    must(backend_cuda.lane_open(the_device, &sizes, &s->lanes[i], &err) == STATUS_OK, err.message);
    must(backend_cuda.prepare(s->lanes[i], s->bound, &err) == STATUS_OK, err.message);
    first_run(s, i);
  }
}

static void close_case(struct setup *s) {
  backend_cuda.unload(the_device, s->bound);
  for (int i = 0; i < ROTATION; i++)
    backend_cuda.lane_close(the_device, s->lanes[i]);
  plan_free(s->plan);
  encoder_free(&s->e);
  encoder_batch_free(&s->batch);
}

// ---- counting ----
static void run_step(struct setup *s, int turn, int32_t step) {
  struct launch *launch = &s->bound->lanes[s->lanes[turn]->index]->launches[step];
  must(launch->run(launch, &s->geometry[turn], s->lanes[turn]->stream) == 0,
       s->plan->steps[step].label);
}

static void run_batch(struct setup *s, int turn) {
  for (int32_t i = 0; i < s->plan->n_steps; i++)
    run_step(s, turn, i);
  must(cudaStreamSynchronize(s->lanes[turn]->stream) == 0, "run");
}

// Bytes of one batch, as the mean of many in one range. The caches are as batches leave them.
static struct expected count_batches(struct setup *s) {
  struct expected sum;
  int n = s->batch.geometry.n_tokens > 4096 ? REPEATS : 4 * REPEATS;
  for (int i = 0; i < 4; i++)
    run_batch(s, i % ROTATION);
  must(counters_start(&counters) && counters_begin(&counters), counters.message);
  for (int i = 0; i < n; i++)
    run_batch(s, i % ROTATION);
  must(counters_end(&counters) && counters_stop(&counters) &&
           counters_read(&counters, 0, &sum.read, &sum.write),
       counters.message);
  return (struct expected){sum.read / n, sum.write / n};
}

// Bytes of each step, where batches are run step by step.
static void count_steps(struct setup *s, struct expected *steps) {
  int32_t n = s->plan->n_steps;
  int batches = COUNTERS_RANGES / n < 12 ? COUNTERS_RANGES / n : 12;
  batches -= batches % ROTATION;
  memset(steps, 0, (size_t)n * sizeof *steps);
  must(batches > 0, "too many steps for the counters");
  must(counters_start(&counters), counters.message);
  for (int b = 0; b < batches; b++) {
    for (int32_t i = 0; i < n; i++) {
      must(counters_begin(&counters), counters.message);
      run_step(s, b % ROTATION, i);
      must(cudaStreamSynchronize(s->lanes[b % ROTATION]->stream) == 0, "step");
      must(counters_end(&counters), counters.message);
    }
  }
  must(counters_stop(&counters), counters.message);
  for (int r = 0; r < batches * n; r++) {
    double read, write;
    must(counters_read(&counters, r, &read, &write), counters.message);
    steps[r % n].read += read / batches, steps[r % n].write += write / batches;
  }
}

// ---- the model ----
static const struct kernel *kernel_of(const struct setup *s, int32_t step) {
  const struct bound_step *b = &s->bound->steps[step];
  if (!b->choices) return NULL;
  int64_t rows = b->step->rows == ROWS_SEQS ? s->batch.geometry.n_seqs : s->batch.geometry.n_tokens;
  return b->choices[b->step->kind == STEP_ATTENTION ? 0 : bucket_rung(&s->bound->buckets, rows)]
      .kernel;
}

// How the product's kernel walks its result: the kernel that was chosen, which the planner has to
// guess.
static struct product_walk walk_of(const struct kernel *kernel) {
  const struct product_walk *walks = backend_cuda.caps(the_device)->plan.rates.walks;
  if (kernel == &kernel_gemm_sm90) return walks[CLASS_OWN];
  if (kernel == &kernel_gemm_tf32x3 || kernel == &kernel_gemm_f32 || kernel == &kernel_gemm_simple)
    return walks[CLASS_PLAIN];
  if (kernel == &kernel_lt) return walks[CLASS_LIBRARY];
  return (struct product_walk){0};
}

static double rate_at(const struct traffic_rate *r, const struct batch_geometry *g) {
  return r->fixed + r->per_token * g->n_tokens + r->per_seq * g->n_seqs +
         r->per_score * (double)g->sum_sq;
}

static void expect(const struct setup *s, const struct cache_facts *facts, struct expected *steps,
                   struct expected *total) {
  struct product_walk *walks = calloc((size_t)s->plan->n_steps, sizeof *walks);
  for (int32_t i = 0; i < s->plan->n_steps; i++) {
    const struct kernel *kernel = kernel_of(s, i);
    if (kernel && kernel->op == KERNEL_LINEAR) walks[i] = walk_of(kernel);
  }
  struct expected_batch batch = {.n_tokens = s->batch.geometry.n_tokens,
                                 .n_seqs = s->batch.geometry.n_seqs,
                                 .sum_sq = s->batch.geometry.sum_sq,
                                 .outputs = 1,
                                 .n_arenas = ROTATION};
  must(plan_expected(s->plan, facts, walks, &batch, steps, total) == STATUS_OK, "no memory");
  free(walks);
}

// ---- the table ----
struct line {
  const char *name, *kernel;
  enum band band;
  int count; // steps
  struct expected compulsory, low, expected, high, counted, planner;
};

static bool within(double counted, double expected, double low, double high) {
  return counted >= low * expected && counted <= high * expected;
}

static bool between(double counted, double low, double high) {
  return counted >= 0.97 * low && counted <= 1.03 * high;
}

static bool passes(const struct line *l, double wrong) {
  if (l->band == BAND_RESIDENT)
    return between(l->counted.read, l->low.read, l->high.read) &&
           between(l->counted.write, l->low.write, l->high.write);
  return within(l->counted.read, l->expected.read * wrong, bands[l->band].low,
                bands[l->band].high) &&
         within(l->counted.write, l->expected.write * wrong, WRITE_LOW, WRITE_HIGH);
}

static void print_counts(const struct expected *compulsory, const struct expected *expected,
                         const struct expected *counted, bool write) {
  double c = write ? compulsory->write : compulsory->read,
         e = write ? expected->write : expected->read, n = write ? counted->write : counted->read;
  printf(" %8.1f | %8.1f | %8.1f | ", c / 1e6, e / 1e6, n / 1e6);
  printf(e > 1e5 ? "%5.3f |" : "    - |", n / e);
}

static void print_line(const struct line *l, bool judged) {
  bool ok = passes(l, 1);
  printf("| %-36s | %-14s |", l->name, l->kernel);
  print_counts(&l->compulsory, &l->expected, &l->counted, false);
  print_counts(&l->compulsory, &l->expected, &l->counted, true);
  if (judged && l->band == BAND_RESIDENT)
    printf(" %s%.1f to %.1f, %.1f to %.1f", ok ? "L2-resident: " : "OUT OF ITS BOUNDS ",
           l->low.read / 1e6, l->high.read / 1e6, l->low.write / 1e6, l->high.write / 1e6);
  else if (judged)
    printf(" %s", ok ? bands[l->band].name : "OUT OF ITS BAND");
  printf(" |\n");
  if (json)
    fprintf(json,
            "{\"case\": \"%s\", \"dtype\": \"%s\", \"line\": \"%s\", \"kernel\": \"%s\", "
            "\"steps\": %d, "
            "\"judged\": %s, \"read\": {\"compulsory\": %.0f, \"low\": %.0f, \"expected\": %.0f, "
            "\"high\": %.0f, \"counted\": %.0f}, \"write\": {\"compulsory\": %.0f, \"low\": %.0f, "
            "\"expected\": %.0f, \"high\": %.0f, \"counted\": %.0f}, \"planner\": [%.0f, %.0f]}\n",
            the_case->name, dtype_name(the_case->dtype), l->name, l->kernel, l->count,
            judged ? "true" : "false", l->compulsory.read, l->low.read, l->expected.read,
            l->high.read, l->counted.read, l->compulsory.write, l->low.write, l->expected.write,
            l->high.write, l->counted.write, l->planner.read, l->planner.write);
  if (!judged) return;
  n_bad += !ok;
  if (!ok || l->band == BAND_RESIDENT) return;
  n_control++, n_control_passed += passes(l, 1.2) || passes(l, 1 / 1.2);
}

static void add(struct expected *sum, const struct expected *x) {
  sum->read += x->read, sum->write += x->write;
}

static bool same_kind(const struct step *a, const struct step *b) {
  return a->kind == b->kind && !strcmp(a->label, b->label) &&
         (a->kind != STEP_LINEAR || (a->linear.n == b->linear.n && a->linear.k == b->linear.k));
}

static void print_steps(const struct setup *s, const struct line *each) {
  bool *seen = calloc((size_t)s->plan->n_steps, 1);
  for (int32_t i = 0; i < s->plan->n_steps; i++) {
    if (seen[i]) continue;
    struct line sum = each[i];
    for (int32_t j = i + 1; j < s->plan->n_steps; j++) {
      if (!same_kind(&s->plan->steps[i], &s->plan->steps[j])) continue;
      seen[j] = true, sum.count++;
      add(&sum.compulsory, &each[j].compulsory), add(&sum.low, &each[j].low);
      add(&sum.expected, &each[j].expected), add(&sum.high, &each[j].high);
      add(&sum.counted, &each[j].counted), add(&sum.planner, &each[j].planner);
    }
    char name[64];
    snprintf(name, sizeof name, "  %2d %.31s", sum.count, sum.name);
    sum.name = name;
    print_line(&sum, false);
  }
  free(seen);
}

static void run_case(void) {
  static struct setup s;
  memset(&s, 0, sizeof s);
  open_case(&s);
  size_t n = (size_t)s.plan->n_steps;
  struct line *each = calloc(n, sizeof *each);
  struct line all = {.name = the_case->name, .kernel = "", .count = (int)n};
  struct expected *of = calloc(n, sizeof *of);
  const struct cache_facts nothing = {0, 0}, everything = {(int64_t)l2_bytes, 1e18};
  bool resident = true;
  struct expected *member[3] = {&all.expected, &all.high, &all.low};
  const struct cache_facts *facts[3] = {&cache, &nothing, &everything};
  for (int k = 0; k < 3; k++) {
    expect(&s, facts[k], of, member[k]);
    for (size_t i = 0; i < n; i++)
      *(k == 0 ? &each[i].expected : k == 1 ? &each[i].high : &each[i].low) = of[i];
  }
  for (size_t i = 0; i < n; i++) {
    const struct step *step = &s.plan->steps[i];
    const struct kernel *kernel = kernel_of(&s, (int32_t)i);
    each[i].name = step->label, each[i].count = 1;
    each[i].kernel = kernel ? kernel->name : step_kind_name(step->kind);
    each[i].compulsory = (struct expected){rate_at(&step->traffic.read, &s.batch.geometry),
                                           rate_at(&step->traffic.write, &s.batch.geometry)};
    each[i].planner = (struct expected){step->cost.read.expected, step->cost.write.expected};
    resident &= each[i].compulsory.read + each[i].compulsory.write < l2_bytes;
    add(&all.compulsory, &each[i].compulsory), add(&all.planner, &each[i].planner);
    all.band = !kernel                                                  ? BAND_STREAM
               : kernel->op == KERNEL_ATTENTION || kernel != &kernel_lt ? BAND_PRODUCT
                                                                        : BAND_LIBRARY;
  }
  if (n == 1) all.kernel = each[0].kernel;
  if (n > 4) all.band = BAND_BATCH;
  if (resident) all.band = BAND_RESIDENT;
  all.counted = count_batches(&s);
  print_line(&all, true);
  if (n > 1) {
    count_steps(&s, of);
    for (size_t i = 0; i < n; i++)
      each[i].counted = of[i];
    print_steps(&s, each);
  }
  fflush(stdout);
  free(each), free(of);
  close_case(&s);
}

// ---- is the counter right, and how much does the L2 keep? ----
static void count_copy(size_t bytes, int n, double *read, double *write) {
  char *from, *to;
  must(cudaMalloc((void **)&from, bytes) == 0 && cudaMalloc((void **)&to, bytes) == 0, "memory");
  must(cudaMemset(from, 1, bytes) == 0 && cudaDeviceSynchronize() == 0, "memset");
  for (int i = 0; i < 3; i++)
    must(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice) == 0, "copy");
  must(cudaDeviceSynchronize() == 0, "copy");
  must(counters_start(&counters) && counters_begin(&counters), counters.message);
  for (int i = 0; i < n; i++)
    must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, NULL) == 0, "copy");
  must(cudaDeviceSynchronize() == 0, "copy");
  must(counters_end(&counters) && counters_stop(&counters) &&
           counters_read(&counters, 0, read, write),
       counters.message);
  *read /= (double)bytes * n, *write /= (double)bytes * n;
  cudaFree(from), cudaFree(to);
}

static void calibrate(void) {
  double read, write;
  count_copy((size_t)1 << 30, 20, &read, &write);
  printf("a copy of 1 GiB, 20 times: counted / expected read %.4f, write %.4f\n", read, write);
  must(within(read, 1, 0.99, 1.01) && within(write, 1, 0.97, 1.03),
       "the counters do not count a copy right: nothing here would mean anything");
  printf("the same copy again and again, MB read and written each: share that reaches memory\n");
  for (size_t mb = 4; mb <= 64; mb += mb < 32 ? 4 : 8) {
    count_copy(mb * 1000000, 60, &read, &write);
    printf("  %zu: %.3f, %.3f\n", mb, read, write);
  }
}

int main(int argc, char **argv) {
  struct error err = {0};
  struct backend_options options = {.cache_dir = getenv("FUSEWIRE_CUBINS")};
  struct cudaDeviceProp prop;
  int names = 1;
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (backend_cuda.probe() == 0) {
    printf("SKIP: %s\n", backend_cuda.absent());
    return 77;
  }
  if (argc > 2 && !strcmp(argv[1], "--json")) json = fopen(argv[2], "w"), names = 3;
  must(backend_cuda.open(&options, &the_device, &err) == STATUS_OK, err.message);
  must(cudaGetDeviceProperties(&prop, 0) == 0, "properties");
  if (!counters_open(&counters)) {
    printf("SKIP: the card's counters cannot be read: %s\n", counters.message);
    return 77;
  }
  l2_bytes = prop.l2CacheSize;
  cache = cache_facts_of(&backend_cuda.caps(the_device)->plan.rates);
  printf("%s, %d MB of L2\n", prop.name, prop.l2CacheSize / 1000000);
  calibrate();
  printf(
      "MB of a batch: counted once a step (compulsory), expected, counted by the card; its share\n"
      "| work | kernel | read, compulsory | expected | counted | share | written, compulsory | "
      "expected | counted | share | band |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    bool wanted = argc <= names;
    for (int k = names; k < argc; k++)
      wanted |= !strncmp(cases[i].name, argv[k], strlen(argv[k]));
    the_case = &cases[i];
    if (wanted) run_case();
  }
  printf("%d out of their bands; a formula wrong by 1.2 fails %d of the %d others\n", n_bad,
         n_control - n_control_passed, n_control);
  if (json) fclose(json);
  counters_close(&counters);
  backend_cuda.close(the_device);
  return n_bad > 0 || n_control_passed > 0;
}
