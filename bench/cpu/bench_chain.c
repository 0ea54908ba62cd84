// Chains of pointwise steps on a tensor larger than the last-level cache, fused against unfused:
// time and bytes of one batch, directly on the CPU back end, the two in turn.
//
//   bench_chain [--mib M] [--threads N] [--repeats R] [STEPS...]
//   M: MiB of the tensor (1024); STEPS: lengths of chains (1 4 16)
#include "backend/cpu/cpu_device.h"
#include "base/clock.h"
#include "unit/backend/encoder.h"

#define COLS 4096

struct subject {
  struct plan *plan;
  struct bound_plan *bound;
  int64_t best_ns;
};

// scale, bias, scale, bias... as config/models/chain.yaml has it.
static void build_chain(struct encoder *e, int32_t k) {
  *e = (struct encoder){.shape = {.hidden = COLS, .compute = DTYPE_F32}, .seed = 1};
  e->table.weights = e->weights;
  struct tensor input = {
      .kind = TENSOR_INPUT, .dtype = DTYPE_F32, .rows = ROWS_TOKENS, .cols = COLS, .index = 0};
  snprintf(input.name, sizeof input.name, "x");
  encoder_check(graph_init(&e->graph) == STATUS_OK, "graph_init");
  int32_t at = graph_add_tensor(&e->graph, &input);
  for (int32_t i = 0; i < k; i++) {
    struct node node = {.op = OP_SCALE, .in = {at}, .n_in = 1, .attrs = {.factor = 1.01f}};
    if (i % 2)
      node =
          (struct node){.op = OP_BIAS, .in = {at, encoder_weight(e, 1, COLS, 0, 0.02f)}, .n_in = 2};
    at = encoder_node(e, node);
  }
  e->graph.outputs[e->graph.n_outputs++] = at;
}

static void open_subject(struct subject *s, struct device *device, struct encoder *e,
                         enum fusion_mode mode, int32_t rows) {
  struct error err = {0};
  struct plan_limits limits = {rows, 1, rows};
  encoder_check(plan_build(&e->graph, mode, &backend_cpu.caps(device)->plan, &limits, &s->plan,
                           &err) == STATUS_OK,
                err.message);
  encoder_check(backend_cpu.load(device, s->plan, &e->table, &s->bound, &err) == STATUS_OK,
                err.message);
  s->best_ns = INT64_MAX;
}

static void run_once(struct subject *s, struct lane *lane, const struct batch_geometry *g) {
  int64_t start = clock_now_ns();
  encoder_check(backend_cpu.run(lane, s->bound, g, 0xff) == STATUS_OK, "run");
  int64_t ns = clock_now_ns() - start;
  if (ns < s->best_ns) s->best_ns = ns;
}

static void compare(struct device *device, int32_t k, int32_t rows, int repeats) {
  static struct encoder encoder;
  struct subject subjects[2]; // fused, unfused
  struct error err = {0};
  struct encoder_batch batch;
  struct lane *lane;
  uint64_t seed = 2;
  build_chain(&encoder, k);
  encoder_batch_make(&batch, &rows, 1, 2, &seed);
  int64_t arena = 0;
  for (int i = 0; i < 2; i++) {
    open_subject(&subjects[i], device, &encoder, i ? FUSION_OFF : FUSION_ON, rows);
    if (subjects[i].plan->arena_bytes > arena) arena = subjects[i].plan->arena_bytes;
  }
  struct lane_sizes sizes = {arena, rows, 1};
  encoder_check(backend_cpu.lane_open(device, &sizes, &lane, &err) == STATUS_OK, err.message);
  for (int r = 0; r < repeats; r++)
    for (int i = 0; i < 2; i++)
      run_once(&subjects[(i + r) % 2], lane, &batch.geometry);
  double ms[2], gb[2];
  for (int i = 0; i < 2; i++) {
    struct traffic_total t = plan_traffic(subjects[i].plan, 1, rows, 1, 0);
    ms[i] = (double)subjects[i].best_ns / 1e6, gb[i] = (t.read_bytes + t.write_bytes) / 1e9;
    printf("%3d %-8s %10.1f ms %8.2f GB %8.1f GB/s\n", k, i ? "unfused" : "fused", ms[i], gb[i],
           gb[i] / ms[i] * 1e3);
  }
  printf("%3d unfused / fused: time %.2f, bytes %.2f\n", k, ms[1] / ms[0], gb[1] / gb[0]);
  backend_cpu.lane_close(device, lane);
  for (int i = 0; i < 2; i++)
    backend_cpu.unload(device, subjects[i].bound), plan_free(subjects[i].plan);
  encoder_free(&encoder);
  encoder_batch_free(&batch);
}

int main(int argc, char **argv) {
  int32_t ks[16] = {1, 4, 16}, n = 0;
  long mib = 1024;
  int repeats = 3;
  struct backend_options options = {0};
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--mib") && i + 1 < argc)
      mib = atol(argv[++i]);
    else if (!strcmp(argv[i], "--threads") && i + 1 < argc)
      options.threads = atoi(argv[++i]);
    else if (!strcmp(argv[i], "--repeats") && i + 1 < argc)
      repeats = atoi(argv[++i]);
    else if (n < 16)
      ks[n++] = atoi(argv[i]);
  }
  if (n == 0) n = 3;
  struct device *device;
  struct error err = {0};
  encoder_check(mib >= 1 && mib <= 16384 && repeats >= 1, "out of range");
  encoder_check(backend_cpu.open(&options, &device, &err) == STATUS_OK, err.message);
  printf("%s; a tensor of %ld MiB, best of %d\n", backend_cpu.caps(device)->description, mib,
         repeats);
  for (int i = 0; i < n; i++)
    compare(device, ks[i], (int32_t)(mib * (1 << 20) / (COLS * 4)), repeats);
  backend_cpu.close(device);
  return 0;
}
