// Whole plans of a BERT-shaped encoder stack on the GPU: microseconds of a batch by graph replay,
// and of each kind of step beside its floor. The input is [T, hidden] in the compute dtype, as the
// peers' encoder stacks have it (peers_encoder.py): no embedding, no pooling.
//
//   bench_plan [--dtype bf16|fp16|fp32] [--off] [--steps] [--hidden H] [--heads N] [--inter F]
//              [--layers L] [--chain K] [--pool mean|cls|max] [--auto] [--apart] [--norm]
//              LENGTHS...
// LENGTHS: tokens of each sequence of the batch (128; or 32x128 for 32 of 128). --chain: K
// pointwise steps on [T, hidden] instead of the stack, with --off a kernel each. --pool: behind the
// stack (or, with --layers 0, behind one LayerNorm) the sequences are pooled and normalised, and
// only that is an output; --apart: by kernels that do not make what they pool. --norm: products do
// the norms behind them, on devices that can. A step's time is
// that of a graph of all steps of its kind alone, divided by their number: its weights come from
// memory, its activations are as warm as they happen to be. The floor of a step is the larger of
// its bytes at the rate of a copy and its operations at what cuBLAS reaches on large products.
#include "backend/cuda/cuda_device.h"
#include "base/clock.h"
#define ENCODER_NARROW_VECTORS 1
#include "unit/backend/encoder.h"

#define COPY_BYTES_PER_US 4.26e6   // bench/results: a copy of 1 GiB, read plus written
#define PRODUCT_FLOPS_PER_US 742e6 // the same run: an 8192^3 bf16 product

struct bench_options {
  struct encoder_shape shape;
  enum fusion_mode mode;
  bool steps, apart, norm;
  int pool;      // enum pool_kind, or -1
  int32_t chain; // pointwise steps instead of layers, where not 0
  int32_t lengths[1024];
  int32_t n;
};

static void parse_lengths(struct bench_options *o, const char *text) {
  char *end;
  long length = strtol(text, &end, 10), count = 1;
  if (*end == 'x') count = length, length = strtol(end + 1, &end, 10);
  encoder_check(!*end && length >= 1 && count >= 1, "a length is 128 or 32x128");
  for (long i = 0; i < count && o->n < 1024; i++)
    o->lengths[o->n++] = (int32_t)length;
}

static void parse(struct bench_options *o, int argc, char **argv) {
  *o = (struct bench_options){.mode = FUSION_ON, .pool = -1};
  o->shape = (struct encoder_shape){
      .hidden = 768, .heads = 12, .inter = 3072, .layers = 12, .compute = DTYPE_BF16};
  for (int i = 1; i < argc; i++) {
    const char *value = i + 1 < argc ? argv[i + 1] : "";
    if (!strcmp(argv[i], "--off"))
      o->mode = FUSION_OFF;
    else if (!strcmp(argv[i], "--steps"))
      o->steps = true;
    else if (!strcmp(argv[i], "--auto"))
      o->mode = FUSION_AUTO;
    else if (!strcmp(argv[i], "--apart"))
      o->apart = true;
    else if (!strcmp(argv[i], "--norm"))
      o->norm = true;
    else if (!strcmp(argv[i], "--pool") && ++i)
      o->pool = !strcmp(value, "cls") ? POOL_CLS : !strcmp(value, "max") ? POOL_MAX : POOL_MEAN;
    else if (!strcmp(argv[i], "--dtype") && ++i)
      o->shape.compute = !strcmp(value, "fp32")   ? DTYPE_F32
                         : !strcmp(value, "fp16") ? DTYPE_F16
                                                  : DTYPE_BF16;
    else if (!strcmp(argv[i], "--hidden") && ++i)
      o->shape.hidden = atoi(value);
    else if (!strcmp(argv[i], "--heads") && ++i)
      o->shape.heads = atoi(value);
    else if (!strcmp(argv[i], "--inter") && ++i)
      o->shape.inter = atoi(value);
    else if (!strcmp(argv[i], "--layers") && ++i)
      o->shape.layers = atoi(value);
    else if (!strcmp(argv[i], "--chain") && ++i)
      o->chain = atoi(value), o->shape.layers = 0;
    else
      parse_lengths(o, argv[i]);
  }
  if (o->n == 0) parse_lengths(o, "128");
}

static void build_graph(struct encoder *e, const struct bench_options *o) {
  const struct encoder_shape *shape = &o->shape;
  int32_t chain = o->chain;
  memset(e, 0, sizeof *e);
  e->shape = *shape;
  e->seed = 1;
  e->table.weights = e->weights;
  encoder_check(graph_init(&e->graph) == STATUS_OK, "graph_init");
  struct tensor input = {.name = "x",
                         .kind = TENSOR_INPUT,
                         .dtype = shape->compute,
                         .rows = ROWS_TOKENS,
                         .cols = shape->hidden};
  int32_t x = graph_add_tensor(&e->graph, &input);
  for (int32_t i = 0; i < shape->layers; i++)
    x = encoder_layer(e, x);
  for (int32_t i = 0; i < chain; i++)
    x = encoder_node(
        e, (struct node){.op = OP_SCALE, .in = {x}, .n_in = 1, .attrs = {.factor = 1.001f}});
  if (o->pool >= 0) {
    if (shape->layers == 0) x = encoder_norm(e, x);
    struct node_attrs attrs = {.pool = (enum pool_kind)o->pool};
    x = encoder_node(e, (struct node){.op = OP_POOL, .in = {x}, .n_in = 1, .attrs = attrs});
    x = encoder_node(
        e, (struct node){.op = OP_NORMALIZE, .in = {x}, .n_in = 1, .attrs = {.eps = 1e-12f}});
  }
  e->graph.outputs[0] = x;
  e->graph.n_outputs = 1;
  e->graph.has_sequences = chain == 0;
}

// ---- measuring ----
struct setup {
  struct device *device;
  struct plan *plan;
  struct bound_plan *bound;
  struct lane *lane;
  struct batch_geometry geometry; // device addresses, the batch's counts
};

static void must(int rc, const char *what) {
  if (rc == 0) return;
  fprintf(stderr, "bench_plan: %s: %s\n", what, cudaGetErrorString((cudaError_t)rc));
  exit(1);
}

static int compare_float(const void *a, const void *b) {
  float x = *(const float *)a, y = *(const float *)b;
  return (x > y) - (x < y);
}

// Median microseconds of one replay of the steps whose bit in `chosen` is set (NULL: all).
static double replay_us(struct setup *s, const bool *chosen) {
  struct lane_plan *launches = s->bound->lanes[s->lane->index];
  cudaStream_t stream = s->lane->stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cudaEvent_t start, stop;
  float times[401], ms = 0;
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "capture");
  for (int32_t i = 0; i < s->plan->n_steps; i++)
    if (!chosen || chosen[i])
      must(launches->launches[i].run(&launches->launches[i], &s->geometry, stream),
           s->plan->steps[i].label);
  must(cudaStreamEndCapture(stream, &graph), "capture");
  must(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  must(cudaEventCreate(&start), "event");
  must(cudaEventCreate(&stop), "event");
  int replays = 4;
  for (int i = 0; i < replays; i++) {
    must(cudaEventRecord(start, stream), "record");
    must(cudaGraphLaunch(exec, stream), "launch");
    must(cudaEventRecord(stop, stream), "record");
    must(cudaEventSynchronize(stop), "run");
    must(cudaEventElapsedTime(&ms, start, stop), "time");
    times[i] = ms;
    if (i == 3) replays = ms > 10 ? 15 : ms < 0.5f ? 400 : (int)(200 / ms);
  }
  qsort(times, (size_t)replays, sizeof *times, compare_float);
  must(cudaGraphExecDestroy(exec), "destroy");
  must(cudaGraphDestroy(graph), "destroy");
  cudaEventDestroy(start), cudaEventDestroy(stop);
  return (double)times[replays / 2] * 1e3;
}

static double rate_at(const struct traffic_rate *r, const struct batch_geometry *g) {
  return r->fixed + r->per_token * g->n_tokens + r->per_seq * g->n_seqs +
         r->per_score * (double)g->sum_sq;
}

static double floor_us(const struct step *step, const struct batch_geometry *g) {
  double bytes = rate_at(&step->traffic.read, g) + rate_at(&step->traffic.write, g);
  double flops = step->kind == STEP_ROW ? 0 : rate_at(&step->traffic.flops, g);
  double by_bytes = bytes / COPY_BYTES_PER_US, by_flops = flops / PRODUCT_FLOPS_PER_US;
  return by_bytes > by_flops ? by_bytes : by_flops;
}

static bool same_kind(const struct step *a, const struct step *b) {
  return a->kind == b->kind && !strcmp(a->label, b->label) &&
         (a->kind != STEP_LINEAR || (a->linear.n == b->linear.n && a->linear.k == b->linear.k));
}

static void print_steps(struct setup *s) {
  const struct plan *plan = s->plan;
  bool *seen = calloc((size_t)plan->n_steps, 1), *chosen = calloc((size_t)plan->n_steps, 1);
  double sum = 0;
  printf("  %-40s %5s %9s %9s %6s\n", "step", "count", "us each", "floor", "share");
  for (int32_t i = 0; i < plan->n_steps; i++) {
    if (seen[i]) continue;
    int count = 0;
    for (int32_t j = 0; j < plan->n_steps; j++) {
      chosen[j] = same_kind(&plan->steps[i], &plan->steps[j]);
      seen[j] |= chosen[j], count += chosen[j];
    }
    double us = replay_us(s, chosen), floor = floor_us(&plan->steps[i], &s->geometry);
    char shape[32] = "";
    if (plan->steps[i].kind == STEP_LINEAR)
      snprintf(shape, sizeof shape, " %dx%d", plan->steps[i].linear.k, plan->steps[i].linear.n);
    printf("  %-28.28s%-12s %5d %9.2f %9.2f %5.0f%%\n", plan->steps[i].label, shape, count,
           us / count, floor, 100 * floor * count / us);
    sum += us;
  }
  printf("  sum of the kinds: %.1f us\n", sum);
  free(seen), free(chosen);
}

static void open_setup(struct setup *s, struct encoder *e, const struct bench_options *o,
                       const struct encoder_batch *batch) {
  struct error err = {0};
  struct backend_options options = {.cache_dir = getenv("FUSEWIRE_CUBINS")};
  struct plan_limits limits = {batch->geometry.n_tokens, o->n, batch->geometry.max_seqlen};
  encoder_check(backend_cuda.open(&options, &s->device, &err) == STATUS_OK, err.message);
  struct plan_caps caps = backend_cuda.caps(s->device)->plan;
  caps.pool_before = caps.pool_before && !o->apart;
  if (o->norm) { // all that there are kernels for, whether they pay or not
    caps.product_norm[0] = (struct norm_columns){96, 768};
    caps.product_norm[1] = (struct norm_columns){128, 1024};
    caps.product_norm_weighed = false;
  }
  encoder_check(plan_build(&e->graph, o->mode, &caps, &limits, &s->plan, &err) == STATUS_OK,
                err.message);
  int64_t start = clock_now_ns();
  encoder_check(backend_cuda.load(s->device, s->plan, &e->table, &s->bound, &err) == STATUS_OK,
                err.message);
  int64_t loaded = clock_now_ns();
  struct lane_sizes sizes = {s->plan->arena_bytes, limits.max_tokens, limits.max_seqs};
  encoder_check(backend_cuda.lane_open(s->device, &sizes, &s->lane, &err) == STATUS_OK,
                err.message);
  int64_t opened = clock_now_ns();
  encoder_check(backend_cuda.prepare(s->lane, s->bound, &err) == STATUS_OK, err.message);
  const struct lane_plan *lane_plan = s->bound->lanes[s->lane->index];
  printf("%s; load %.0f ms, %d graphs in %.0f ms and %.1f MiB\n",
         backend_cuda.caps(s->device)->description, (double)(loaded - start) / 1e6,
         lane_plan->n_graphs, (double)(clock_now_ns() - opened) / 1e6,
         (double)lane_plan->graph_bytes / 1048576);
}

// Input rows of N(0, 1), and the batch's geometry left on the device by one run.
static void first_run(struct setup *s, const struct encoder *e, const struct encoder_batch *batch) {
  const struct operand *x = &s->plan->inputs[0];
  size_t n = (size_t)batch->geometry.n_tokens * (size_t)x->cols;
  char *rows = backend_cuda.host_alloc(s->device, n * 4);
  uint64_t seed = 3;
  for (size_t i = 0; i < n; i++) {
    float value = encoder_normal(&seed);
    if (e->shape.compute == DTYPE_F32)
      ((float *)(void *)rows)[i] = value;
    else
      ((uint16_t *)(void *)rows)[i] =
          e->shape.compute == DTYPE_BF16 ? f32_to_bf16(value) : f32_to_f16(value);
  }
  struct lane_times times;
  int done;
  backend_cuda.copy_in(s->lane, s->bound, 0, 0, batch->geometry.n_tokens, rows);
  encoder_check(backend_cuda.run(s->lane, s->bound, &batch->geometry, 1) == STATUS_OK, "run");
  backend_cuda.submit(s->lane);
  while ((done = backend_cuda.poll(s->lane, &times)) == 0)
    ;
  encoder_check(done == 1, "the device is lost");
  backend_cuda.host_free(s->device, rows, n * 4);
  s->geometry = s->lane->geometry;
  s->geometry.n_tokens = batch->geometry.n_tokens;
  s->geometry.n_seqs = batch->geometry.n_seqs;
  s->geometry.max_seqlen = batch->geometry.max_seqlen;
  s->geometry.sum_sq = batch->geometry.sum_sq;
}

int main(int argc, char **argv) {
  static struct bench_options o;
  static struct encoder e;
  struct encoder_batch batch;
  struct setup s = {0};
  uint64_t seed = 2;
  if (backend_cuda.probe() == 0) return 77;
  parse(&o, argc, argv);
  build_graph(&e, &o);
  encoder_batch_make(&batch, o.lengths, o.n, 2, &seed);
  open_setup(&s, &e, &o, &batch);
  first_run(&s, &e, &batch);
  double us = replay_us(&s, NULL), floor = 0, predicted = 0;
  for (int32_t i = 0; i < s.plan->n_steps; i++)
    floor += floor_us(&s.plan->steps[i], &s.geometry), predicted += s.plan->steps[i].cost.us;
  printf("{\"bench\": \"plan\", \"layers\": %d, \"chain\": %d, \"hidden\": %d, \"dtype\": \"%s\", "
         "\"fusion\": "
         "\"%s\", \"seqs\": %d, \"tokens\": %d, \"steps\": %d, \"us\": %.1f, \"floor_us\": %.1f, "
         "\"predicted_us\": %.1f}\n",
         o.shape.layers, o.chain, o.shape.hidden, dtype_name(o.shape.compute), fusion_name(o.mode),
         o.n, batch.geometry.n_tokens, s.plan->n_steps, us, floor, predicted);
  if (o.steps) print_steps(&s);
  backend_cuda.unload(s.device, s.bound);
  backend_cuda.lane_close(s.device, s.lane);
  backend_cuda.close(s.device);
  plan_free(s.plan);
  encoder_free(&e);
  encoder_batch_free(&batch);
  return 0;
}
