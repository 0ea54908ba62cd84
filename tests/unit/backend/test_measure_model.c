// Measuring a device that takes exactly as long as the cost model says with constants that only it
// knows: these must come out again. A constant that is measured as something else than what the
// model means by it (with a batch's own time in it, or behind what hides it) does not.
#include "backend/measure.h"
#include "graph/cost.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

// ---- the device ----
struct device {
  struct device_caps caps; // with the defaults, from which measuring starts
  struct device_rates truth;
  double slow; // times as long that every fourth plan takes; 0: none
  int32_t n_plans;
};
struct bound_plan {
  const struct plan *plan;
  double times;
};
struct lane {
  const struct device *device;
  double us; // of the last batch
};

static const struct device_caps *caps(const struct device *device) {
  return &device->caps;
}

static enum status load(struct device *device, const struct plan *plan,
                        const struct weight_table *weights, struct bound_plan **out,
                        struct error *err) {
  (void)weights, (void)err;
  *out = malloc(sizeof **out);
  assert_non_null(*out);
  **out =
      (struct bound_plan){plan, device->slow > 0 && device->n_plans++ % 4 == 0 ? device->slow : 1};
  return STATUS_OK;
}

static void unload(struct device *device, struct bound_plan *bound) {
  (void)device;
  free(bound);
}

static enum status lane_open(struct device *device, const struct lane_sizes *sizes,
                             struct lane **out, struct error *err) {
  (void)sizes, (void)err;
  *out = malloc(sizeof **out);
  assert_non_null(*out);
  **out = (struct lane){device, 0};
  return STATUS_OK;
}

static void lane_close(struct device *device, struct lane *lane) {
  (void)device;
  free(lane);
}

static void copy_in(struct lane *lane, const struct bound_plan *bound, int input, int64_t row,
                    int64_t n_rows, const void *rows) {
  (void)lane, (void)bound, (void)input, (void)row, (void)n_rows, (void)rows;
}

static void zero_in(struct lane *lane, const struct bound_plan *bound, int input, int64_t row,
                    int64_t n_rows) {
  copy_in(lane, bound, input, row, n_rows, NULL);
}

static enum status run(struct lane *lane, const struct bound_plan *bound,
                       const struct batch_geometry *geometry, uint8_t outputs) {
  struct batch_size batch = {geometry->n_tokens, geometry->n_seqs, geometry->sum_sq};
  struct cost total;
  // as served batches say it: for other bits a GPU has no graphs, and the host's launches would be
  // measured
  assert_int_equal(outputs, (1 << bound->plan->n_outputs) - 1);
  enum status status = plan_cost(bound->plan, &lane->device->truth, &batch, outputs, NULL, &total);
  lane->us = bound->times * (total.us + lane->device->truth.batch_us);
  return status;
}

static void submit(struct lane *lane) {
  (void)lane;
}

static int poll(struct lane *lane, struct lane_times *times) {
  *times = (struct lane_times){.compute_ns = (int64_t)(1e3 * lane->us)};
  return 1;
}

static const struct backend_ops predicted = {.name = "predicted",
                                             .caps = caps,
                                             .load = load,
                                             .unload = unload,
                                             .lane_open = lane_open,
                                             .lane_close = lane_close,
                                             .copy_in = copy_in,
                                             .zero_in = zero_in,
                                             .run = run,
                                             .submit = submit,
                                             .poll = poll};

// ---- what comes out ----
static const struct constant {
  const char *name;
  size_t offset;
  double times; // the default, in truth
  double most;  // times that it may be off
} constants[] = {
#define OF(member) #member, offsetof(struct device_rates, member)
    // A batch's own time is in these four, and part of what was read last is still in the cache. A
    // device writes the one row of a table over and over; to the model it reads as many.
    {OF(read), 0.9, 1.25},
    {OF(triad), 0.9, 1.25},
    {OF(copy), 0.9, 1.25},
    {OF(write), 0.9, 1.7},
    {OF(cache), 1.3, 1.1},
    {OF(vector), 1.2, 1.1},
    {OF(reduced), 0.6, 1.1},
    {OF(special), 1.3, 1.1},
    {OF(special_16), 0.8, 1.1},
    {OF(softmax), 0.8, 1.2}, // the ends of tiles and of rounds are in it
    {OF(attention_f32), 0.8, 1.1},
    {OF(epilogue), 0.7, 1.2},
    {OF(epilogue_f32), 1.5, 1.2},
    {OF(fused_product), 0.9, 1.05},
    {OF(launch_us), 1.4, 1.1},
    {OF(product[DTYPE_F32]), 0.8, 1.15},
    {OF(product[DTYPE_F16]), 0.8, 1.15},
    {OF(product[DTYPE_BF16]), 0.8, 1.15},
#undef OF
};

static double *member(struct device_rates *rates, const struct constant *constant) {
  return (double *)(void *)((char *)rates + constant->offset);
}

static void device_init(struct device *device) {
  *device = (struct device){
      .caps.plan = {.epilogue_max = EPILOGUE_MAX, .epilogue_kinds = 0x1f},
  };
  device->truth = device->caps.plan.rates = device_rates_gpu();
  for (int d = 0; d < DTYPE_COUNT; d++)
    device->caps.plan.dtype_ok[d] = true;
}

// With products that are `scale` times smaller, which takes less time.
static struct device_rates measured(struct device *device, int32_t scale) {
  struct measure_options options = {.seconds = 1e-9, .scale = scale};
  struct device_rates found;
  struct error err = {0};
  if (measure_rates(&predicted, device, &options, &found, &err) != STATUS_OK)
    fail_msg("%s", err.message);
  return found;
}

static void constants_come_out_again(void **state) {
  (void)state;
  struct device device;
  device_init(&device);
  size_t n = sizeof constants / sizeof *constants, n_off = 0;
  for (size_t i = 0; i < n; i++)
    *member(&device.truth, &constants[i]) *= constants[i].times;
  struct device_rates found = measured(&device, 1);
  for (size_t i = 0; i < n; i++) {
    double ratio = *member(&found, &constants[i]) / *member(&device.truth, &constants[i]);
    printf("  %-22s %5.3f of the truth\n", constants[i].name, ratio);
    n_off += !(ratio <= constants[i].most && 1 / ratio <= constants[i].most);
  }
  assert_int_equal(n_off, 0);
}

// Activations that hide behind their product, or seem to take more than they can.
static void epilogues_beyond_belief_are_not_kept(void **state) {
  (void)state;
  struct device device;
  device_init(&device);
  device.truth.epilogue *= 5, device.truth.epilogue_f32 /= 5;
  struct device_rates found = measured(&device, 1), usual = device_rates_gpu();
  assert_true(found.epilogue == usual.epilogue && found.epilogue_f32 == usual.epilogue_f32);
}

// Whichever plans of the two rounds they are that something else on the device slows down.
static void unsteady_steps_are_not_kept(void **state) {
  (void)state;
  struct device_rates usual = device_rates_gpu();
  for (int32_t first = 0; first < 4; first++) {
    struct device device;
    device_init(&device);
    device.truth.launch_us *= 1.4, device.truth.cache *= 1.3;
    device.slow = 2, device.n_plans = first;
    struct device_rates found = measured(&device, 8);
    printf("  from plan %d: launch %.2f us, cache %.1f TB/s\n", first, found.launch_us,
           found.cache / 1e12);
    assert_true(found.launch_us == usual.launch_us && found.cache == usual.cache);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(constants_come_out_again),
      cmocka_unit_test(epilogues_beyond_belief_are_not_kept),
      cmocka_unit_test(unsteady_steps_are_not_kept),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
