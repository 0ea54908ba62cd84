// The CUDA back end runs whole plans: encoders and random graphs, fused and unfused, in every
// dtype, against the double reference; the same bits alone and in company, replayed and launched
// step by step. Exits 77 where there is no GPU.
#include "backend/backend.h"
#include "backend/cuda/cuda_device.h"
#define ENCODER_NARROW_VECTORS 1
#include "unit/backend/encoder.h"
#include "unit/graph/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <time.h>

#include <cmocka.h>

static const struct backend_ops *const ops = &backend_cuda;
static uint64_t the_seed;
static struct device *the_device;
static struct lane_times last_times;

static double bound_of(enum dtype dtype) {
  return dtype == DTYPE_F32 ? 1e-5 : dtype == DTYPE_F16 ? 2e-3 : 8e-3;
}

// A plain cudaMemset does not keep the lane's stream waiting, and returns before it is done.
static void fill_nan(char *memory, size_t bytes) {
  assert_int_equal(cudaMemset(memory, 0xff, bytes), 0);
  assert_int_equal(cudaDeviceSynchronize(), 0);
}

// ---- one plan on one lane ----
struct rig {
  const struct graph *graph;
  struct plan *plan;
  struct bound_plan *bound;
  struct lane *lane;
};

// What FUSION_AUTO goes by: others after each rig, the same for rigs that are open together.
static uint32_t odd_constants;
static int n_finished; // products that run a finish as a list

static void rig_open(struct rig *rig, const struct graph *graph, const struct weight_table *weights,
                     enum fusion_mode mode, const struct plan_limits *limits) {
  struct error err = {0};
  *rig = (struct rig){.graph = graph};
  struct plan_caps caps = ops->caps(the_device)->plan;
  caps.rates = odd_rates(odd_constants * 2654435761u >> 8);
  if (odd_constants % 2) { // norms by products, of all widths that there are kernels for
    caps.product_norm[0] = (struct norm_columns){96, 768};
    caps.product_norm[1] = (struct norm_columns){128, 1024};
    caps.product_norm_weighed = false;
  }
  if (plan_build(graph, mode, &caps, limits, &rig->plan, &err))
    fail_msg("plan_build: %s", err.message);
  for (int32_t s = 0; s < rig->plan->n_steps; s++) {
    const struct step *step = &rig->plan->steps[s];
    n_finished += step->kind == STEP_LINEAR && step->finish.n_insts > 0;
  }
  if (ops->load(the_device, rig->plan, weights, &rig->bound, &err))
    fail_msg("load: %s", err.message);
  struct lane_sizes sizes = {rig->plan->arena_bytes, limits->max_tokens, limits->max_seqs};
  if (ops->lane_open(the_device, &sizes, &rig->lane, &err)) fail_msg("lane_open: %s", err.message);
  // NaN in every dtype: nothing may read it
  if (rig->plan->arena_bytes > 0) fill_nan(rig->lane->arena, (size_t)rig->plan->arena_bytes);
  if (ops->prepare(rig->lane, rig->bound, &err)) fail_msg("prepare: %s", err.message);
}

static void rig_close(struct rig *rig) {
  ops->unload(the_device, rig->bound);
  ops->lane_close(the_device, rig->lane);
  plan_free(rig->plan);
  odd_constants++;
}

static void *host_take(size_t bytes) {
  void *memory = ops->host_alloc(the_device, bytes > 0 ? bytes : 1);
  assert_non_null(memory);
  return memory;
}

static size_t output_bytes(const struct rig *rig, int output, int64_t rows) {
  const struct operand *o = &rig->plan->outputs[output];
  return (size_t)rows * (size_t)o->cols * dtype_bytes(o->dtype);
}

static int64_t output_rows(const struct rig *rig, int output, const struct batch_geometry *g) {
  return rig->plan->outputs[output].rows == ROWS_SEQS ? g->n_seqs : g->n_tokens;
}

// inputs[i]: rows of signature input i, or NULL. Fills the outputs of the mask; each is malloc'ed.
static void rig_run(struct rig *rig, const struct batch_geometry *g, void *const *inputs,
                    uint8_t mask, void **outputs) {
  void *in[LIMIT_MODEL_INPUTS] = {0}, *out[LIMIT_MODEL_OUTPUTS] = {0};
  size_t in_bytes[LIMIT_MODEL_INPUTS] = {0};
  for (int i = 0; i < rig->plan->n_inputs; i++) {
    const struct operand *o = &rig->plan->inputs[i];
    if (o->place == PLACE_NONE || !inputs[i]) continue;
    int64_t rows = o->rows == ROWS_SEQS ? g->n_seqs : g->n_tokens;
    in_bytes[i] = (size_t)rows * (size_t)o->cols * dtype_bytes(o->dtype);
    in[i] = host_take(in_bytes[i]);
    memcpy(in[i], inputs[i], in_bytes[i]);
    ops->copy_in(rig->lane, rig->bound, i, 0, rows, in[i]);
  }
  assert_int_equal(ops->run(rig->lane, rig->bound, g, mask), STATUS_OK);
  for (int i = 0; i < rig->plan->n_outputs; i++) {
    if (!(mask >> i & 1) || rig->plan->outputs[i].place != PLACE_ARENA) continue;
    int64_t rows = output_rows(rig, i, g);
    out[i] = host_take(output_bytes(rig, i, rows));
    ops->copy_out(rig->lane, rig->bound, i, 0, rows, out[i]);
  }
  ops->submit(rig->lane);
  int done;
  memset(&last_times, 0, sizeof last_times);
  while ((done = ops->poll(rig->lane, &last_times)) == 0)
    ;
  if (done < 0) fail_msg("the device is lost");
  for (int i = 0; i < LIMIT_MODEL_OUTPUTS; i++) {
    if (!out[i]) continue;
    size_t bytes = output_bytes(rig, i, output_rows(rig, i, g));
    outputs[i] = malloc(bytes + 1);
    memcpy(outputs[i], out[i], bytes);
    ops->host_free(the_device, out[i], bytes > 0 ? bytes : 1);
  }
  for (int i = 0; i < LIMIT_MODEL_INPUTS; i++)
    if (in[i]) ops->host_free(the_device, in[i], in_bytes[i] > 0 ? in_bytes[i] : 1);
}

static double output_distance(const struct rig *rig, int output, int64_t rows, const void *typed,
                              const double *want) {
  const struct operand *o = &rig->plan->outputs[output];
  int64_t n = rows * o->cols;
  double *found = malloc((size_t)n * sizeof *found + 8);
  for (int64_t i = 0; i < n; i++)
    found[i] = typed_get(typed, o->dtype, i);
  double off = distance(found, want, n);
  free(found);
  return off;
}

// ---- encoders ----
static void run_encoder(struct rig *rig, const struct encoder_batch *batch, uint8_t mask,
                        void **outputs) {
  void *inputs[LIMIT_MODEL_INPUTS] = {batch->ids};
  rig_run(rig, &batch->geometry, inputs, mask, outputs);
}

static void check_batch(struct rig *rig, const struct encoder *e, const int32_t *lengths, int32_t n,
                        uint64_t *seed) {
  struct encoder_batch batch;
  encoder_batch_make(&batch, lengths, n, e->shape.vocab, seed);
  size_t hidden = (size_t)e->shape.hidden, tokens = (size_t)batch.geometry.n_tokens * hidden;
  double *want[2] = {malloc(tokens * sizeof(double)), malloc((size_t)n * hidden * sizeof(double))};
  encoder_reference(e, &batch.geometry, batch.ids, want[0], want[1]);
  void *got[2];
  run_encoder(rig, &batch, 3, got);
  double e0 = output_distance(rig, 0, batch.geometry.n_tokens, got[0], want[0]);
  double e1 = output_distance(rig, 1, n, got[1], want[1]);
  printf("  T %4d B %2d %s %s: hidden %.2e pooled %.2e\n", batch.geometry.n_tokens, n,
         dtype_name(e->shape.compute), fusion_name(rig->plan->mode), e0, e1);
  double bound = bound_of(e->shape.compute);
  if (!(e0 < bound) || !(e1 < bound))
    fail_msg("error above %g (seed %llu)", bound, (unsigned long long)the_seed);
  for (int i = 0; i < 2; i++)
    free(want[i]), free(got[i]);
  encoder_batch_free(&batch);
}

static const struct plan_limits encoder_limits = {
    .max_tokens = 600, .max_seqs = 64, .max_seqlen = 256};

static void check_encoder(const struct encoder_shape *shape) {
  static const int32_t one[] = {1}, short_one[] = {25}, tile[] = {64}, odd[] = {65},
                       three[] = {3, 17, 1}, mixed[] = {31, 5, 128, 7, 64, 1, 90, 13},
                       large[] = {256, 200, 56};
  uint64_t seed = the_seed;
  struct encoder e;
  encoder_build(&e, shape, seed);
  for (int mode = 0; mode < FUSION_MODES; mode++) {
    struct rig rig;
    rig_open(&rig, &e.graph, &e.table, (enum fusion_mode)mode, &encoder_limits);
    check_batch(&rig, &e, large, 3, &seed); // the largest first: its leavings are behind the others
    check_batch(&rig, &e, one, 1, &seed);
    check_batch(&rig, &e, short_one, 1, &seed);
    check_batch(&rig, &e, tile, 1, &seed);
    check_batch(&rig, &e, odd, 1, &seed);
    check_batch(&rig, &e, three, 3, &seed);
    check_batch(&rig, &e, mixed, 8, &seed);
    rig_close(&rig);
  }
  encoder_free(&e);
}

static void plans_match_the_reference(void **state) {
  (void)state;
  static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
  for (int d = 0; d < 3; d++) {
    struct encoder_shape shape = encoder_small(96, 3, 200, 1, dtypes[d]);
    check_encoder(&shape); // head size 32: the fast attention
    shape.hidden = 90, shape.inter = 130, shape.heads = 2, shape.causal = true;
    check_encoder(&shape); // rows that are not 16-byte aligned, head size 45
  }
}

static void a_step_that_nobody_needs_is_skipped(void **state) {
  (void)state;
  struct encoder_shape shape = encoder_small(64, 2, 128, 1, DTYPE_F32);
  uint64_t seed = the_seed;
  struct encoder e;
  struct rig rig;
  encoder_build(&e, &shape, seed);
  rig_open(&rig, &e.graph, &e.table, FUSION_ON, &encoder_limits);
  const struct operand *pooled = &rig.plan->outputs[1];
  fill_nan(rig.lane->arena + pooled->offset_bytes, 64);
  struct encoder_batch batch;
  encoder_batch_make(&batch, (const int32_t[]){9, 4}, 2, shape.vocab, &seed);
  void *outputs[2];
  run_encoder(&rig, &batch, 1, outputs);
  uint32_t found[16];
  assert_int_equal(
      cudaMemcpy(found, rig.lane->arena + pooled->offset_bytes, 64, cudaMemcpyDeviceToHost), 0);
  for (int i = 0; i < 16; i++)
    assert_int_equal(found[i], 0xffffffffu);
  free(outputs[0]);
  encoder_batch_free(&batch);
  rig_close(&rig);
  encoder_free(&e);
}

// ---- the same bits ----
// Sequence `first` of a batch of n random ones, alone at index `at`: its rows of both outputs.
static void rows_in_company(struct rig *rig, const struct encoder *e, int32_t length,
                            const int64_t *ids, int32_t n, int32_t at, uint64_t *seed,
                            void **rows) {
  int32_t lengths[64];
  for (int32_t i = 0; i < n; i++)
    lengths[i] = 1 + (int32_t)(encoder_random(seed) % 16);
  lengths[at] = length;
  struct encoder_batch batch;
  encoder_batch_make(&batch, lengths, n, e->shape.vocab, seed);
  memcpy(batch.ids + batch.cu[at], ids, (size_t)length * sizeof *ids);
  void *got[2];
  run_encoder(rig, &batch, 3, got);
  size_t row = (size_t)e->shape.hidden * dtype_bytes(e->shape.compute);
  rows[0] = malloc((size_t)length * row);
  rows[1] = malloc(row);
  memcpy(rows[0], (char *)got[0] + (size_t)batch.cu[at] * row, (size_t)length * row);
  memcpy(rows[1], (char *)got[1] + (size_t)at * row, row);
  free(got[0]), free(got[1]);
  encoder_batch_free(&batch);
}

static void check_company(struct rig *rig, const struct encoder *e, uint64_t *seed) {
  int32_t length = 21;
  int64_t ids[21];
  void *alone[2], *rows[2];
  for (int i = 0; i < length; i++)
    ids[i] = encoder_random(seed) % (uint32_t)e->shape.vocab;
  rows_in_company(rig, e, length, ids, 1, 0, seed, alone);
  size_t row = (size_t)e->shape.hidden * dtype_bytes(e->shape.compute);
  for (int32_t n = 1; n <= 64; n++) {
    int32_t at = (int32_t)(encoder_random(seed) % (uint32_t)n);
    rows_in_company(rig, e, length, ids, n, at, seed, rows);
    if (memcmp(rows[0], alone[0], (size_t)length * row) || memcmp(rows[1], alone[1], row))
      fail_msg("%s %s: a sequence has other bits as number %d of %d than alone (seed %llu)",
               dtype_name(e->shape.compute), fusion_name(rig->plan->mode), at, n,
               (unsigned long long)the_seed);
    free(rows[0]), free(rows[1]);
  }
  free(alone[0]), free(alone[1]);
}

static void a_result_does_not_depend_on_batch_mates(void **state) {
  (void)state;
  static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
  struct plan_limits limits = {.max_tokens = 64 * 16 + 32, .max_seqs = 64, .max_seqlen = 256};
  for (int d = 0; d < 3; d++) {
    struct encoder_shape shape = encoder_small(128, 2, 512, 2, dtypes[d]);
    uint64_t seed = the_seed;
    struct encoder e;
    encoder_build(&e, &shape, seed);
    for (int mode = 0; mode < FUSION_MODES; mode++) {
      struct rig rig;
      rig_open(&rig, &e.graph, &e.table, (enum fusion_mode)mode, &limits);
      check_company(&rig, &e, &seed);
      rig_close(&rig);
    }
    encoder_free(&e);
  }
}

// A replayed graph and the same steps launched one by one at the batch's own size.
static void a_replay_has_the_bits_of_its_launches(void **state) {
  (void)state;
  struct encoder_shape shape = encoder_small(96, 3, 200, 1, DTYPE_BF16);
  uint64_t seed = the_seed;
  struct encoder e;
  encoder_build(&e, &shape, seed);
  for (int mode = 0; mode < FUSION_MODES; mode++) {
    struct rig graphs, steps;
    rig_open(&graphs, &e.graph, &e.table, (enum fusion_mode)mode, &encoder_limits);
    the_device->timing = true;
    rig_open(&steps, &e.graph, &e.table, (enum fusion_mode)mode, &encoder_limits);
    the_device->timing = false;
    assert_true(graphs.bound->lanes[graphs.lane->index]->n_graphs > 0);
    struct encoder_batch batch;
    encoder_batch_make(&batch, (const int32_t[]){70, 3, 33}, 3, shape.vocab, &seed);
    void *a[2], *b[2];
    run_encoder(&graphs, &batch, 3, a);
    run_encoder(&steps, &batch, 3, b);
    assert_memory_equal(a[0], b[0], output_bytes(&graphs, 0, 106));
    assert_memory_equal(a[1], b[1], output_bytes(&graphs, 1, 3));
    int64_t ns[256] = {0};
    int n = ops->step_times(steps.lane, steps.bound, ns, 256);
    assert_int_equal(n, steps.plan->n_steps);
    for (int i = 0; i < n; i++)
      assert_true(ns[i] > 0);
    for (int i = 0; i < 2; i++)
      free(a[i]), free(b[i]);
    encoder_batch_free(&batch);
    rig_close(&steps);
    rig_close(&graphs);
  }
  encoder_free(&e);
}

static void both_modes_of_a_model_share_its_weights(void **state) {
  (void)state;
  struct encoder_shape shape = encoder_small(128, 2, 256, 2, DTYPE_BF16);
  struct encoder e;
  struct rig on, off;
  encoder_build(&e, &shape, the_seed);
  int64_t before = the_device->ledger.held_bytes[LEDGER_WEIGHTS];
  rig_open(&on, &e.graph, &e.table, FUSION_ON, &encoder_limits);
  int64_t one = the_device->ledger.held_bytes[LEDGER_WEIGHTS];
  rig_open(&off, &e.graph, &e.table, FUSION_OFF, &encoder_limits);
  assert_true(one > before);
  assert_int_equal(the_device->ledger.held_bytes[LEDGER_WEIGHTS], one);
  rig_close(&on); // what is left holds what it needs
  uint64_t seed = the_seed;
  check_batch(&off, &e, (const int32_t[]){5, 9}, 2, &seed);
  rig_close(&off);
  assert_int_equal(the_device->ledger.held_bytes[LEDGER_WEIGHTS], before);
  assert_null(the_device->weights);
  encoder_free(&e);
}

static void padding_replays_and_fallbacks_are_counted(void **state) {
  (void)state;
  static const int32_t hidden[] = {128, 90}; // 90: rows of 180 bytes, which no fast kernel takes
  for (int i = 0; i < 2; i++) {
    struct encoder_shape shape = encoder_small(hidden[i], 2, 256, 1, DTYPE_BF16);
    uint64_t seed = the_seed;
    struct encoder e;
    struct rig rig;
    encoder_build(&e, &shape, seed);
    rig_open(&rig, &e.graph, &e.table, FUSION_ON, &encoder_limits);
    check_batch(&rig, &e, (const int32_t[]){60, 5}, 2, &seed);
    assert_true(last_times.replayed);
    assert_int_equal(last_times.ran_tokens, 128);
    if (hidden[i] == 128)
      assert_int_equal(last_times.fallbacks, 0);
    else
      assert_true(last_times.fallbacks > 0);
    rig_close(&rig);
    encoder_free(&e);
  }
}

// device.fast_rows gives up equal bits, not accuracy.
static void fast_rows_match_the_reference(void **state) {
  (void)state;
  struct encoder_shape shape = encoder_small(256, 4, 1024, 1, DTYPE_BF16);
  uint64_t seed = the_seed;
  struct encoder e;
  struct rig rig;
  encoder_build(&e, &shape, seed);
  the_device->fast_rows = true;
  rig_open(&rig, &e.graph, &e.table, FUSION_ON, &encoder_limits);
  the_device->fast_rows = false;
  check_batch(&rig, &e, (const int32_t[]){5}, 1, &seed);
  check_batch(&rig, &e, (const int32_t[]){200, 31}, 2, &seed);
  rig_close(&rig);
  encoder_free(&e);
}

// ---- sentence models ----
// x -> [linear] -> layer norm -> pool -> normalize: one kernel behind the product. Its rows alone
// and among others.
static struct rig *sentence_open(struct rig *rig, struct graph *graph, struct world *world,
                                 struct weight_table *table, struct rng *rng, enum dtype dtype,
                                 enum pool_kind kind, int32_t cols, enum fusion_mode mode) {
  struct graph_maker m;
  maker_init(&m, graph, rng, dtype);
  int32_t x = maker_input(&m, ROWS_TOKENS, cols),
          n = maker_layer_norm(&m, maker_binary(&m, OP_ADD, x, maker_linear(&m, x, cols, true)));
  int32_t p = maker_node(&m, OP_POOL, &n, 1, (struct node_attrs){.pool = kind});
  graph->outputs[0] = maker_unary(&m, OP_NORMALIZE, p), graph->n_outputs = 1;
  world_init(world, graph, rng);
  world_run_nodes(world);
  *table = (struct weight_table){world_weights(world), graph->n_tensors};
  struct plan_limits limits = {.max_tokens = 4096, .max_seqs = 64, .max_seqlen = 2048};
  rig_open(rig, graph, table, mode, &limits);
  return rig;
}

static void *sentence_run(struct rig *rig, const int32_t *cu, int32_t n, char *rows) {
  int32_t *positions = calloc((size_t)cu[n] + 1, sizeof *positions);
  struct batch_geometry g = {
      .n_tokens = cu[n], .n_seqs = n, .cu_seqlens = cu, .positions = positions};
  int64_t *scores = calloc((size_t)n + 1, sizeof *scores);
  for (int32_t s = 0, at = 0; s < n; s++) {
    int32_t length = cu[s + 1] - cu[s];
    for (int32_t i = 0; i < length; i++)
      positions[at++] = i;
    if (length > g.max_seqlen) g.max_seqlen = length;
    g.sum_sq += (int64_t)length * length;
    scores[s + 1] = g.sum_sq;
  }
  g.scores_offset = scores;
  void *inputs[LIMIT_MODEL_INPUTS] = {rows}, *outputs[LIMIT_MODEL_OUTPUTS] = {0};
  rig_run(rig, &g, inputs, 1, outputs);
  free(positions), free(scores);
  return outputs[0];
}

static void check_sentences(enum dtype dtype, enum pool_kind kind, int32_t cols,
                            enum fusion_mode mode, struct rng *rng) {
  static const int32_t lengths[] = {5, 1, 64, 65, 700, 2, 300, 17};
  struct graph graph;
  struct world world;
  struct weight_table table;
  struct rig rig;
  sentence_open(&rig, &graph, &world, &table, rng, dtype, kind, cols, mode);
  bool makes = false;
  for (int32_t s = 0; s < rig.plan->n_steps; s++)
    makes = makes || (rig.plan->steps[s].kind == STEP_ROW && rig.plan->steps[s].before.n_insts > 0);
  if (mode == FUSION_ON) assert_true(makes);
  // the world's own batch, against the reference
  void *inputs[LIMIT_MODEL_INPUTS] = {world.typed[0]}, *outputs[LIMIT_MODEL_OUTPUTS] = {0};
  rig_run(&rig, &world.geometry, inputs, 1, outputs);
  double off =
      output_distance(&rig, 0, world.geometry.n_seqs, outputs[0], world.values[graph.outputs[0]]);
  if (!(off < 4 * bound_of(dtype))) // the world rounds after every node
    fail_msg("%s, %d columns, pooling %d, fusion %s: off by %g", dtype_name(dtype), cols, kind,
             fusion_name(mode), off);
  free(outputs[0]);
  // each of eight sequences alone, and in their company
  int32_t cu[9] = {0};
  for (int i = 0; i < 8; i++)
    cu[i + 1] = cu[i] + lengths[i];
  size_t row = (size_t)cols * dtype_bytes(dtype);
  char *rows = malloc((size_t)cu[8] * row);
  for (int64_t i = 0; i < (int64_t)cu[8] * cols; i++) {
    float value = (float)rng_uniform(rng);
    if (dtype == DTYPE_F32)
      ((float *)rows)[i] = value;
    else
      ((uint16_t *)rows)[i] = dtype == DTYPE_BF16 ? f32_to_bf16(value) : f32_to_f16(value);
  }
  char *all = sentence_run(&rig, cu, 8, rows);
  for (int i = 0; i < 8; i++) {
    int32_t own[2] = {0, lengths[i]};
    char *one = sentence_run(&rig, own, 1, rows + (size_t)cu[i] * row);
    if (memcmp(all + (size_t)i * row, one, row) != 0)
      fail_msg("%s, %d columns, pooling %d, fusion %s: sequence %d has other bits alone",
               dtype_name(dtype), cols, kind, fusion_name(mode), i);
    free(one);
  }
  free(all), free(rows);
  rig_close(&rig);
  free((void *)(uintptr_t)table.weights);
  world_deinit(&world);
  graph_deinit(&graph);
}

static void poolings_make_their_rows(void **state) {
  (void)state;
  static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
  static const enum pool_kind kinds[] = {POOL_MEAN, POOL_CLS, POOL_MAX};
  static const int32_t cols[] = {8, 96, 768};
  struct rng rng = {.state = the_seed};
  for (int d = 0; d < 3; d++)
    for (int k = 0; k < 3; k++)
      for (int mode = 0; mode < FUSION_MODES; mode++)
        check_sentences(dtypes[d], kinds[k], cols[(d + k) % 3], (enum fusion_mode)mode, &rng);
}

// ---- random graphs ----
static void random_graph(enum dtype dtype, int round, double tolerance) {
  struct rng rng = {.state = (uint64_t)round * 104729 + 3 + (uint64_t)dtype};
  struct graph graph;
  struct graph_maker maker;
  struct world world;
  maker_init(&maker, &graph, &rng, dtype);
  maker_random(&maker, 1 + rng_below(&rng, 40));
  world_init(&world, &graph, &rng);
  world_run_nodes(&world);
  struct weight *weights = world_weights(&world);
  void *inputs[LIMIT_MODEL_INPUTS] = {0};
  for (int32_t t = 0; t < graph.n_tensors; t++) {
    const struct tensor *tensor = &graph.tensors[t];
    if (tensor->kind == TENSOR_INPUT) inputs[tensor->index] = world.typed[t];
  }
  struct weight_table table = {weights, graph.n_tensors};
  struct plan_limits limits = world_limits(&world, &rng);
  for (int mode = 0; mode < FUSION_MODES; mode++) {
    struct rig rig;
    rig_open(&rig, &graph, &table, (enum fusion_mode)mode, &limits);
    for (int pass = 0; pass < 4; pass++) {  // the second meets the first one's leavings
      int all = (1 << graph.n_outputs) - 1; // any other set of outputs may have no graph
      uint8_t mask = (uint8_t)(pass < 2 ? all : 1 + rng_below(&rng, all));
      void *outputs[LIMIT_MODEL_OUTPUTS] = {0};
      rig_run(&rig, &world.geometry, inputs, mask, outputs);
      for (int i = 0; i < graph.n_outputs; i++) {
        if (!outputs[i]) continue;
        int32_t t = graph.outputs[i];
        double off = output_distance(&rig, i, tensor_rows(&world, t), outputs[i], world.values[t]);
        if (!(off < tolerance))
          fail_msg("%s round %d, fusion %s: output %d is off by %g", dtype_name(dtype), round,
                   fusion_name((enum fusion_mode)mode), i, off);
        free(outputs[i]);
      }
    }
    rig_close(&rig);
  }
  free(weights);
  world_deinit(&world);
  graph_deinit(&graph);
}

static void random_graphs_match_the_reference(void **state) {
  (void)state;
  const char *rounds = getenv("FUSEWIRE_ROUNDS");
  int n = rounds ? atoi(rounds) : 12;
  n_finished = 0;
  for (int round = 0; round < n; round++) {
    random_graph(DTYPE_F32, round, 1e-3);
    random_graph(DTYPE_BF16, round, 0.15);
    random_graph(DTYPE_F16, round, 0.05);
  }
  printf("  %d products with a finish\n", n_finished);
  assert_true(n_finished > 0);
}

// Products with a bias, as model files have it, are the library's in both modes on Hopper, where
// what is behind them is what the library does; those with an activation in their epilogue ours.
static void products_run_on_the_kernels_that_they_are_meant_for(void **state) {
  (void)state;
  if (the_device->sm != 90 || !the_device->lt) skip();
  struct encoder_shape shape = encoder_small(768, 12, 3072, 1, DTYPE_BF16);
  struct plan_limits limits = {.max_tokens = 4096, .max_seqs = 64, .max_seqlen = 256};
  struct encoder e;
  encoder_build(&e, &shape, the_seed);
  for (int mode = FUSION_OFF; mode <= FUSION_ON; mode++) {
    struct rig rig;
    int products = 0;
    odd_constants = 0;
    rig_open(&rig, &e.graph, &e.table, (enum fusion_mode)mode, &limits);
    for (int32_t s = 0; s < rig.plan->n_steps; s++) {
      const struct bound_step *b = &rig.bound->steps[s];
      if (b->step->kind != STEP_LINEAR) continue;
      const char *name = b->choices[rig.bound->buckets.n_rungs - 1].kernel->name;
      bool activates = strstr(b->step->label, "gelu") != NULL;
      products++;
      if (strcmp(name, activates ? "gemm_sm90" : "cublaslt") != 0)
        fail_msg("fusion %s: %s runs on %s", fusion_name((enum fusion_mode)mode), b->step->label,
                 name);
    }
    assert_int_equal(products, mode == FUSION_ON ? 4 : 6);
    rig_close(&rig);
  }
  encoder_free(&e);
}

// test_cuda_plans [PATTERN]: only the tests whose names match.
int main(int argc, char **argv) {
  struct error err = {0};
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  struct backend_options options = {.cache_dir = getenv("FUSEWIRE_CUBINS")};
  if (ops->probe() == 0) {
    printf("skipped: no GPU: %s\n", ops->absent());
    return 77;
  }
  the_seed = (uint64_t)time(NULL);
  printf("seed %llu\n", (unsigned long long)the_seed);
  if (ops->open(&options, &the_device, &err) != STATUS_OK) {
    fprintf(stderr, "%s\n", err.message);
    return 1;
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(plans_match_the_reference),
      cmocka_unit_test(a_step_that_nobody_needs_is_skipped),
      cmocka_unit_test(a_result_does_not_depend_on_batch_mates),
      cmocka_unit_test(a_replay_has_the_bits_of_its_launches),
      cmocka_unit_test(both_modes_of_a_model_share_its_weights),
      cmocka_unit_test(padding_replays_and_fallbacks_are_counted),
      cmocka_unit_test(fast_rows_match_the_reference),
      cmocka_unit_test(poolings_make_their_rows),
      cmocka_unit_test(random_graphs_match_the_reference),
      cmocka_unit_test(products_run_on_the_kernels_that_they_are_meant_for),
  };
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  if (!failed) ops->close(the_device); // a failed test leaves its memory behind
  return failed;
}
