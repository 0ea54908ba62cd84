// The CPU back end runs whole plans of an encoder: fused and unfused, any number of threads, mixed
// lengths, against the double reference.
#include "backend/backend.h"
#include "backend/cpu/cpu_device.h"
#include "unit/backend/encoder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <time.h>

#include <cmocka.h>

static uint64_t the_seed;

static double relative_l2(const float *got, const double *expected, size_t n) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < n; i++) {
    double d = (double)got[i] - expected[i];
    difference += d * d;
    norm += expected[i] * expected[i];
  }
  return sqrt(difference / norm);
}

struct rig {
  struct encoder encoder;
  struct plan *plan;
  struct device *device;
  struct bound_plan *bound;
  struct lane *lane;
};

static void rig_open(struct rig *rig, const struct encoder_shape *shape, enum fusion_mode mode,
                     int threads, enum product_kind products, uint64_t seed) {
  struct error err = {0};
  struct backend_options options = {.threads = threads};
  struct plan_limits limits = {.max_tokens = 512, .max_seqs = 64, .max_seqlen = 256};
  encoder_build(&rig->encoder, shape, seed);
  assert_int_equal(backend_cpu.open(&options, &rig->device, &err), STATUS_OK);
  cpu_device_set_products(rig->device, products);
  if (plan_build(&rig->encoder.graph, mode, &backend_cpu.caps(rig->device)->plan, &limits,
                 &rig->plan, &err))
    fail_msg("plan_build: %s", err.message);
  if (backend_cpu.load(rig->device, rig->plan, &rig->encoder.table, &rig->bound, &err))
    fail_msg("load: %s", err.message);
  assert_int_equal(backend_cpu.lane_open(
                       rig->device, &(struct lane_sizes){.arena_bytes = rig->plan->arena_bytes},
                       &rig->lane, &err),
                   STATUS_OK);
  memset(rig->lane->arena, 0xff,
         (size_t)rig->plan->arena_bytes); // NaN in every dtype: nothing may read it
}

static void rig_close(struct rig *rig) {
  backend_cpu.lane_close(rig->device, rig->lane);
  backend_cpu.unload(rig->device, rig->bound);
  backend_cpu.close(rig->device);
  plan_free(rig->plan);
  encoder_free(&rig->encoder);
}

static void rig_run(struct rig *rig, const struct encoder_batch *batch, uint8_t outputs) {
  backend_cpu.copy_in(rig->lane, rig->bound, 0, 0, batch->geometry.n_tokens, batch->ids);
  assert_int_equal(backend_cpu.run(rig->lane, rig->bound, &batch->geometry, outputs), STATUS_OK);
}

// Rows of an output as floats.
static float *rig_output(struct rig *rig, int output, int64_t rows) {
  const struct operand *o = &rig->plan->outputs[output];
  size_t n = (size_t)rows * (size_t)o->cols;
  char *raw = malloc(n * dtype_bytes(o->dtype));
  float *out = malloc(n * sizeof *out);
  backend_cpu.copy_out(rig->lane, rig->bound, output, 0, rows, raw);
  for (size_t i = 0; i < n; i++)
    out[i] = o->dtype == DTYPE_F32 ? ((float *)raw)[i] : bf16_to_f32(((uint16_t *)raw)[i]);
  free(raw);
  return out;
}

static void check_batch(struct rig *rig, const int32_t *lengths, int32_t n, double bound,
                        uint64_t *seed) {
  struct encoder_batch batch;
  encoder_batch_make(&batch, lengths, n, rig->encoder.shape.vocab, seed);
  size_t hidden = (size_t)rig->encoder.shape.hidden,
         tokens = (size_t)batch.geometry.n_tokens * hidden;
  double *want0 = malloc(tokens * sizeof *want0),
         *want1 = malloc((size_t)n * hidden * sizeof *want1);
  encoder_reference(&rig->encoder, &batch.geometry, batch.ids, want0, want1);
  rig_run(rig, &batch, 3);
  float *got0 = rig_output(rig, 0, batch.geometry.n_tokens), *got1 = rig_output(rig, 1, n);
  double e0 = relative_l2(got0, want0, tokens), e1 = relative_l2(got1, want1, (size_t)n * hidden);
  printf("  T %4d B %2d %s %s: hidden %.2e pooled %.2e\n", batch.geometry.n_tokens, n,
         dtype_name(rig->encoder.shape.compute), fusion_name(rig->plan->mode), e0, e1);
  if (!(e0 < bound) || !(e1 < bound))
    fail_msg("error above %g (seed %llu)", bound, (unsigned long long)the_seed);
  free(want0), free(want1), free(got0), free(got1);
  encoder_batch_free(&batch);
}

static void check_all(const struct encoder_shape *shape, double bound, enum product_kind products) {
  static const int32_t one[] = {1}, short_one[] = {25}, tile[] = {64}, odd[] = {65},
                       three[] = {3, 17, 1}, mixed[] = {31, 5, 128, 7, 64, 1, 90, 13},
                       large[] = {256, 200, 56};
  uint64_t seed = the_seed;
  for (int mode = 0; mode < FUSION_MODES; mode++) {
    for (int threads = 1; threads <= 3; threads++) {
      if (products == PRODUCT_LIBRARY && threads != 2) continue;
      struct rig rig;
      rig_open(&rig, shape, (enum fusion_mode)mode, threads, products, seed);
      check_batch(&rig, one, 1, bound, &seed);
      check_batch(&rig, short_one, 1, bound, &seed);
      check_batch(&rig, tile, 1, bound, &seed);
      check_batch(&rig, odd, 1, bound, &seed);
      check_batch(&rig, three, 3, bound, &seed);
      check_batch(&rig, mixed, 8, bound, &seed);
      if (threads == 2) check_batch(&rig, large, 3, bound, &seed);
      rig_close(&rig);
    }
  }
}

static void fp32_plans_match_the_reference(void **state) {
  (void)state;
  struct encoder_shape shape = encoder_small(96, 3, 200, 2, DTYPE_F32);
  check_all(&shape, 1e-5, PRODUCT_LIBRARY);
  check_all(&shape, 1e-5, PRODUCT_OWN);
}

static void causal_plans_match_the_reference(void **state) {
  (void)state;
  struct encoder_shape shape = {.vocab = 50,
                                .positions = 256,
                                .hidden = 80,
                                .heads = 2,
                                .inter = 130,
                                .layers = 1,
                                .compute = DTYPE_F32,
                                .causal = true};
  check_all(&shape, 1e-5, PRODUCT_AUTO);
}

static void bf16_plans_match_the_reference(void **state) {
  (void)state;
  struct encoder_shape shape = encoder_small(96, 3, 200, 1, DTYPE_BF16);
  check_all(&shape, 8e-3, PRODUCT_LIBRARY);
  check_all(&shape, 8e-3, PRODUCT_OWN);
}

static void a_step_that_nobody_needs_is_skipped(void **state) {
  (void)state;
  struct encoder_shape shape = encoder_small(64, 2, 128, 1, DTYPE_F32);
  uint64_t seed = the_seed;
  struct rig rig;
  rig_open(&rig, &shape, FUSION_ON, 2, PRODUCT_AUTO, seed);
  struct encoder_batch batch;
  encoder_batch_make(&batch, (const int32_t[]){9, 4}, 2, shape.vocab, &seed);
  rig_run(&rig, &batch, 1); // the hidden state only: the pooled output keeps its poison
  float *pooled = rig_output(&rig, 1, 2);
  for (int i = 0; i < 2 * shape.hidden; i++)
    assert_true(isnan(pooled[i]));
  free(pooled);
  encoder_batch_free(&batch);
  rig_close(&rig);
}

static void a_result_does_not_depend_on_batch_mates(void **state) {
  (void)state;
  struct encoder_shape shape = encoder_small(96, 3, 200, 2, DTYPE_F32);
  uint64_t seed = the_seed;
  struct rig rig;
  rig_open(&rig, &shape, FUSION_ON, 2, PRODUCT_AUTO, seed);
  struct encoder_batch alone, mixed;
  encoder_batch_make(&alone, (const int32_t[]){21}, 1, shape.vocab, &seed);
  encoder_batch_make(&mixed, (const int32_t[]){100, 21, 33}, 3, shape.vocab, &seed);
  memcpy(mixed.ids + 100, alone.ids, 21 * sizeof *alone.ids);
  rig_run(&rig, &alone, 3);
  float *first = rig_output(&rig, 1, 1);
  rig_run(&rig, &mixed, 3);
  float *second = rig_output(&rig, 1, 3);
  double norm = 0, difference = 0;
  for (int i = 0; i < shape.hidden; i++) {
    double d = (double)first[i] - (double)second[shape.hidden + i];
    difference += d * d, norm += (double)first[i] * (double)first[i];
  }
  printf("  relative difference alone against in a batch: %.2e\n", sqrt(difference / norm));
  assert_true(sqrt(difference / norm) < 1e-6);
  free(first), free(second);
  encoder_batch_free(&alone), encoder_batch_free(&mixed);
  rig_close(&rig);
}

int main(void) {
  the_seed = (uint64_t)time(NULL);
  printf("seed %llu\n", (unsigned long long)the_seed);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(fp32_plans_match_the_reference),
      cmocka_unit_test(causal_plans_match_the_reference),
      cmocka_unit_test(bf16_plans_match_the_reference),
      cmocka_unit_test(a_step_that_nobody_needs_is_skipped),
      cmocka_unit_test(a_result_does_not_depend_on_batch_mates),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
