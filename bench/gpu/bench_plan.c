// Whole plans of a BERT-shaped encoder stack on the GPU, or of a model file: microseconds of a
// batch by graph replay, and of each kind of step beside what the cost model predicts and its
// floor. The input of a stack is [T, hidden] in the compute dtype, as the peers' encoder stacks
// have it (peers_encoder.py): no embedding, no pooling.
//
//   bench_plan [--dtype bf16|fp16|fp32] [--off] [--steps] [--hidden H] [--heads N] [--inter F]
//              [--layers L] [--chain K] [--pool mean|cls|max] [--auto] [--apart] [--norm]
//              LENGTHS...
//   bench_plan --model FILE [--output I] [--off] [--auto] [--steps] LENGTHS...
// LENGTHS: tokens of each sequence of the batch (128; or 32x128 for 32 of 128; of a model
// without sequences 256x1 is 256 rows). --model: its plans, of its largest batch; with --output
// only what that output (by its number) needs. --chain: K
// pointwise steps on [T, hidden] instead of the stack, with --off a kernel each. --pool: behind the
// stack (or, with --layers 0, behind one LayerNorm) the sequences are pooled and normalised, and
// only that is an output; --apart: by kernels that do not make what they pool. --norm: products do
// the norms behind them, on devices that can. A step's time is
// that of a graph of all steps of its kind alone, divided by their number: its weights come from
// memory, its activations are as warm as they happen to be. Predictions are by the default rates,
// for the plan as a whole: what a step before has left in the cache counts as found. The floor of a
// step is the larger of its bytes at the rate of a copy and its operations at what cuBLAS reaches
// on large products.
#include "backend/cuda/cuda_device.h"
#include "base/clock.h"
#include "graph/cost.h"
#include "model/model.h"
#include "model/weights.h"
#define ENCODER_NARROW_VECTORS 1
#include "unit/backend/encoder.h"

#define COPY_BYTES_PER_US 4.26e6   // bench/results: a copy of 1 GiB, read plus written
#define PRODUCT_FLOPS_PER_US 742e6 // the same run: an 8192^3 bf16 product

#define MAX_SEQS 16384

struct bench_options {
  struct encoder_shape shape;
  enum fusion_mode mode;
  bool steps, apart, norm;
  int pool;      // enum pool_kind, or -1
  int32_t chain; // pointwise steps instead of layers, where not 0
  const char *model;
  uint8_t outputs; // mask
  int32_t lengths[MAX_SEQS];
  int32_t n;
};

static void parse_lengths(struct bench_options *o, const char *text) {
  char *end;
  long length = strtol(text, &end, 10), count = 1;
  if (*end == 'x') count = length, length = strtol(end + 1, &end, 10);
  encoder_check(!*end && length >= 1 && count >= 1, "a length is 128 or 32x128");
  for (long i = 0; i < count && o->n < MAX_SEQS; i++)
    o->lengths[o->n++] = (int32_t)length;
}

static void parse(struct bench_options *o, int argc, char **argv) {
  *o = (struct bench_options){.mode = FUSION_ON, .pool = -1, .outputs = 0xff};
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
    else if (!strcmp(argv[i], "--model") && ++i)
      o->model = value;
    else if (!strcmp(argv[i], "--output") && ++i)
      o->outputs = (uint8_t)(1u << atoi(value));
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
  struct model *model; // NULL: a stack
  struct plan *plan;   // the model's, or our own
  struct bound_plan *bound;
  struct lane *lane;
  struct batch_geometry geometry; // device addresses, the batch's counts
  uint8_t outputs;
  void *rows[LIMIT_MODEL_INPUTS]; // on the host
  size_t row_bytes[LIMIT_MODEL_INPUTS];
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
    if (s->plan->steps[i].needed_by & s->outputs && (!chosen || chosen[i]))
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

// The kernel that a product or an attention runs on.
static const char *kernel_of(const struct setup *s, int32_t i) {
  const struct kernel_choice *choices = s->bound->steps[i].choices;
  if (!choices) return "";
  if (s->plan->steps[i].kind == STEP_ATTENTION) return choices->kernel->name;
  bool seqs = s->plan->steps[i].rows == ROWS_SEQS;
  int64_t rows = seqs ? s->geometry.n_seqs : s->geometry.n_tokens;
  return choices[bucket_rung(&s->bound->buckets, rows)].kernel->name;
}

static void print_steps(struct setup *s, const struct cost *costs) {
  const struct plan *plan = s->plan;
  bool *seen = calloc((size_t)plan->n_steps, 1), *chosen = calloc((size_t)plan->n_steps, 1);
  double sum = 0;
  printf("  %-40s %5s %9s %9s %9s %6s  %s\n", "step", "count", "us each", "predicted", "floor",
         "share", "kernel");
  for (int32_t i = 0; i < plan->n_steps; i++) {
    if (seen[i] || !(plan->steps[i].needed_by & s->outputs)) continue;
    int count = 0;
    double predicted = 0;
    for (int32_t j = 0; j < plan->n_steps; j++) {
      chosen[j] =
          same_kind(&plan->steps[i], &plan->steps[j]) && plan->steps[j].needed_by & s->outputs;
      seen[j] |= chosen[j], count += chosen[j];
      if (chosen[j]) predicted += costs[j].us;
    }
    double us = replay_us(s, chosen), floor = floor_us(&plan->steps[i], &s->geometry);
    char shape[32] = "";
    if (plan->steps[i].kind == STEP_LINEAR)
      snprintf(shape, sizeof shape, " %dx%d", plan->steps[i].linear.k, plan->steps[i].linear.n);
    printf("  %-28.28s%-12s %5d %9.2f %9.2f %9.2f %5.0f%%  %s\n", plan->steps[i].label, shape,
           count, us / count, predicted / count, floor, 100 * floor * count / us, kernel_of(s, i));
    sum += us;
  }
  printf("  sum of the kinds: %.1f us\n", sum);
  free(seen), free(chosen);
}

static void tell(const struct error *err, void *arg) {
  (void)arg;
  fprintf(stderr, "bench_plan: %s\n", err->message);
}

// The plan of a model file, as the daemon would make it; its weights.
static struct weight_table open_model(struct setup *s, const struct bench_options *o,
                                      const struct plan_caps *caps) {
  struct server_conf *conf = calloc(1, sizeof *conf);
  struct error err = {0};
  encoder_check(conf, "no memory");
  server_conf_defaults(conf);
  encoder_check(model_parse(o->model, conf, caps, tell, NULL, &s->model) == STATUS_OK, o->model);
  encoder_check(weights_fill(s->model->weights_owner, &err) == STATUS_OK, err.message);
  free(conf);
  s->plan = s->model->plans[o->mode];
  return weights_table(s->model->weights_owner);
}

static void open_setup(struct setup *s, struct encoder *e, const struct bench_options *o,
                       const struct encoder_batch *batch) {
  struct error err = {0};
  struct backend_options options = {.cache_dir = getenv("FUSEWIRE_CUBINS")};
  struct plan_limits limits = {batch->geometry.n_tokens, o->n, batch->geometry.max_seqlen};
  struct weight_table weights = e->table;
  encoder_check(backend_cuda.open(&options, &s->device, &err) == STATUS_OK, err.message);
  struct plan_caps caps = backend_cuda.caps(s->device)->plan;
  caps.pool_before = caps.pool_before && !o->apart;
  if (o->norm) { // all that there are kernels for, whether they pay or not
    caps.product_norm[0] = (struct norm_columns){96, 768};
    caps.product_norm[1] = (struct norm_columns){128, 1024};
    caps.product_norm_weighed = false;
  }
  if (o->model)
    weights = open_model(s, o, &caps);
  else
    encoder_check(plan_build(&e->graph, o->mode, &caps, &limits, &s->plan, &err) == STATUS_OK,
                  err.message);
  const struct plan_limits *most = &s->plan->limits;
  encoder_check(limits.max_tokens <= most->max_tokens && limits.max_seqs <= most->max_seqs &&
                    limits.max_seqlen <= most->max_seqlen,
                "the batch is larger than the model's largest");
  int64_t start = clock_now_ns();
  encoder_check(backend_cuda.load(s->device, s->plan, &weights, &s->bound, &err) == STATUS_OK,
                err.message);
  int64_t loaded = clock_now_ns();
  struct lane_sizes sizes = {s->plan->arena_bytes, most->max_tokens, most->max_seqs};
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

// Input rows of N(0, 1), numbers (of tokens) 0.
static void fill_input(struct setup *s, int index, const struct encoder_batch *batch) {
  const struct operand *x = &s->plan->inputs[index];
  int64_t rows = x->rows == ROWS_SEQS ? batch->geometry.n_seqs : batch->geometry.n_tokens;
  size_t n = (size_t)rows * (size_t)x->cols, bytes = n * (size_t)dtype_bytes(x->dtype);
  void *values = s->rows[index] = backend_cuda.host_alloc(s->device, bytes);
  uint64_t seed = 3;
  encoder_check(values, "no memory");
  memset(values, 0, s->row_bytes[index] = bytes);
  for (size_t i = 0; i < n && (x->dtype == DTYPE_F32 || dtype_bytes(x->dtype) == 2); i++) {
    float value = encoder_normal(&seed);
    if (x->dtype == DTYPE_F32)
      ((float *)values)[i] = value;
    else
      ((uint16_t *)values)[i] = x->dtype == DTYPE_BF16 ? f32_to_bf16(value) : f32_to_f16(value);
  }
  backend_cuda.copy_in(s->lane, s->bound, index, 0, rows, values);
}

// The batch's geometry is left on the device by one run.
static void first_run(struct setup *s, const struct encoder_batch *batch) {
  struct lane_times times;
  int done;
  for (int i = 0; i < s->plan->n_inputs; i++)
    if (s->plan->inputs[i].place != PLACE_NONE) fill_input(s, i, batch);
  encoder_check(backend_cuda.run(s->lane, s->bound, &batch->geometry, 1) == STATUS_OK, "run");
  backend_cuda.submit(s->lane);
  while ((done = backend_cuda.poll(s->lane, &times)) == 0)
    ;
  encoder_check(done == 1, "the device is lost");
  for (int i = 0; i < LIMIT_MODEL_INPUTS; i++)
    if (s->rows[i]) backend_cuda.host_free(s->device, s->rows[i], s->row_bytes[i]);
  s->geometry = s->lane->geometry;
  s->geometry.n_tokens = batch->geometry.n_tokens;
  s->geometry.n_seqs = batch->geometry.n_seqs;
  s->geometry.max_seqlen = batch->geometry.max_seqlen;
  s->geometry.sum_sq = batch->geometry.sum_sq;
}

// One line of JSON, and the table of steps where it was asked for.
static void report(struct setup *s, const struct bench_options *o) {
  const struct batch_geometry *g = &s->geometry;
  struct batch_size batch = {g->n_tokens, g->n_seqs, g->sum_sq};
  struct cost total, *costs = calloc((size_t)s->plan->n_steps, sizeof *costs);
  encoder_check(costs && plan_cost(s->plan, &s->plan->rates, &batch, s->outputs, costs, &total) ==
                             STATUS_OK,
                "no memory");
  double floor = 0;
  int n = 0;
  for (int32_t i = 0; i < s->plan->n_steps; i++)
    if (s->plan->steps[i].needed_by & s->outputs) floor += floor_us(&s->plan->steps[i], g), n++;
  printf("{\"bench\": \"plan\", ");
  if (s->model)
    printf("\"model\": \"%s\", \"dtype\": \"%s\", ", s->model->name, dtype_name(s->model->compute));
  else
    printf("\"layers\": %d, \"chain\": %d, \"hidden\": %d, \"dtype\": \"%s\", ", o->shape.layers,
           o->chain, o->shape.hidden, dtype_name(o->shape.compute));
  printf("\"fusion\": \"%s\", \"seqs\": %d, \"tokens\": %d, \"steps\": %d, \"us\": %.1f, "
         "\"floor_us\": %.1f, \"predicted_us\": %.1f}\n",
         fusion_name(o->mode), o->n, g->n_tokens, n, replay_us(s, NULL), floor, total.us);
  if (o->steps) print_steps(s, costs);
  free(costs);
}

int main(int argc, char **argv) {
  static struct bench_options o;
  static struct encoder e;
  struct encoder_batch batch;
  struct setup s = {0};
  uint64_t seed = 2;
  if (backend_cuda.probe() == 0) return 77;
  parse(&o, argc, argv);
  s.outputs = o.outputs;
  if (!o.model) build_graph(&e, &o);
  encoder_batch_make(&batch, o.lengths, o.n, 2, &seed);
  open_setup(&s, &e, &o, &batch);
  first_run(&s, &batch);
  report(&s, &o);
  backend_cuda.unload(s.device, s.bound);
  backend_cuda.lane_close(s.device, s.lane);
  backend_cuda.close(s.device);
  if (s.model)
    model_put(s.model);
  else
    plan_free(s.plan), encoder_free(&e);
  encoder_batch_free(&batch);
  return 0;
}
