// Measuring, with small buffers and little time: that every constant is measured and plausible, and
// that both ways of a product are. Not that the figures are right.
#include "backend/measure.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "unit/graph/blocks.h"

static const struct measure_options quick = {.buffer_bytes = 1 << 20, .seconds = 0.001, .scale = 8};

static struct device *open_device(void) {
  struct backend_options options = {.threads = 2};
  struct device *device;
  struct error err;
  if (backend_cpu.open(&options, &device, &err) != STATUS_OK) fail_msg("%s", err.message);
  return device;
}

static void every_constant_is_measured(void **state) {
  (void)state;
  struct device *device = open_device();
  struct device_rates rates, before = backend_cpu.caps(device)->plan.rates;
  struct error err = {0};
  if (measure_rates(&backend_cpu, device, &quick, &rates, &err) != STATUS_OK)
    fail_msg("%s", err.message);
  const double found[] = {rates.read,    rates.triad,    rates.copy,       rates.write,
                          rates.vector,  rates.epilogue, rates.launch_us,  rates.product[DTYPE_F32],
                          rates.reduced, rates.special,  rates.special_16, rates.softmax};
  const double old[] = {
      before.read,    before.triad,    before.copy,       before.write,
      before.vector,  before.epilogue, before.launch_us,  before.product[DTYPE_F32],
      before.reduced, before.special,  before.special_16, before.softmax};
  for (size_t i = 0; i < sizeof found / sizeof *found; i++)
    if (!(found[i] > 0 && found[i] < 1e18) || found[i] == old[i])
      fail_msg("constant %zu: %g, default %g", i, found[i], old[i]);
  assert_true(rates.finish > 0 && rates.finish < 1e18 && rates.attention_finish > 0);
  // Both are differences of small times, which keep the default where they come out below nothing:
  // beside other programs, several tries.
  for (int i = 0;
       i < 20 && rates.finish == before.finish && rates.attention_finish == before.attention_finish;
       i++)
    assert_int_equal(measure_rates(&backend_cpu, device, &quick, &rates, &err), STATUS_OK);
  assert_true(rates.finish != before.finish || rates.attention_finish != before.attention_finish);
  assert_true(rates.fused_product > 0 && rates.fused_product <= 1);
  assert_int_equal(rates.cache_bytes, before.cache_bytes);
  backend_cpu.close(device);
}

// Two products of one shape and one of another, with different things behind them; one with a bias
// alone, which has nothing to measure.
static void products_are_measured_both_ways(void **state) {
  (void)state;
  struct device *device = open_device();
  struct graph graph;
  struct graph_maker m;
  maker_init(&m, &graph, NULL, DTYPE_F32);
  int32_t x = maker_input(&m, ROWS_TOKENS, 32), y = block_mlp(&m, x, 64);
  y = block_mlp(&m, maker_binary(&m, OP_ADD, y, x), 64);
  output_add(&graph, y);
  struct plan_limits limits = {64, 4, 64};
  struct plan *plan;
  struct error err = {0};
  assert_int_equal(
      plan_build(&graph, FUSION_ON, &backend_cpu.caps(device)->plan, &limits, &plan, &err),
      STATUS_OK);
  struct shape_table table = {calloc(SHAPES_MAX, sizeof(struct measured_shape)), 0};
  for (int round = 0; round < 2; round++) // the second time in place of the first
    if (measure_shapes(&backend_cpu, device, &quick, &graph, plan, 32, &table, &err) != 2)
      fail_msg("%s", err.message);
  assert_int_equal(table.n, 2);
  assert_string_equal(table.shapes[0].epilogue, "bias,gelu");
  assert_string_equal(table.shapes[1].epilogue, "bias,add");
  for (int i = 0; i < 2; i++) {
    assert_int_equal(table.shapes[i].m, 32);
    assert_true(table.shapes[i].fused_us > 0 && table.shapes[i].fused_us < 1e6);
    assert_true(table.shapes[i].apart_us > 0 && table.shapes[i].apart_us < 1e6);
  }
  assert_non_null(shape_find(&table, &plan->steps[0].linear, 40));
  free(table.shapes);
  plan_free(plan);
  graph_deinit(&graph);
  backend_cpu.close(device);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_constant_is_measured),
                                     cmocka_unit_test(products_are_measured_both_ways)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
