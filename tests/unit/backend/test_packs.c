// Packed weights are kept once for all plans of a model.
#include "backend/cpu/cpu_device.h"
#include "unit/backend/encoder.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static struct operand parts(int32_t a, int32_t b) {
  struct operand operand = {.place = PLACE_WEIGHT, .n_parts = b < 0 ? 1 : 2};
  operand.weight[0] = a, operand.weight[1] = b;
  return operand;
}

static const struct weight weights[] = {
    {"a", DTYPE_F32, 64, 8, NULL}, {"b", DTYPE_F32, 40, 8, NULL}, {"c", DTYPE_F32, 64, 8, NULL}};
static const struct weight_table table = {weights, 3};

static void parts_are_found_alone_and_together(void **state) {
  (void)state;
  struct packs *list = NULL, *packs = packs_hold(&list, &table);
  struct pack_form form = {DTYPE_F32, 32, 32}, other = {DTYPE_F32, 16, 16};
  struct operand ab = parts(0, 1), ba = parts(1, 0), a = parts(0, -1), b = parts(1, -1),
                 c = parts(2, -1);
  char *memory = packs_take(packs, (64 + 64) * 8 * 4);
  assert_null(packs_find(packs, &ab, &form));
  packs_add(packs, &ab, &form, memory);
  assert_ptr_equal(packs_find(packs, &ab, &form), memory);
  assert_ptr_equal(packs_find(packs, &a, &form), memory);
  assert_ptr_equal(packs_find(packs, &b, &form), memory + 64 * 8 * 4);
  assert_null(packs_find(packs, &c, &form));
  assert_null(packs_find(packs, &ba, &form)); // the other way round they do not lie
  assert_null(packs_find(packs, &a, &other));
  packs_drop(&list, packs);
  assert_null(list);
}

static void a_part_that_begins_inside_a_panel_is_not_shared(void **state) {
  (void)state;
  struct packs *list = NULL, *packs = packs_hold(&list, &table);
  struct pack_form form = {DTYPE_F32, 32, 32};
  struct operand bc = parts(1, 2), b = parts(1, -1), c = parts(2, -1);
  char *memory = packs_take(packs, (64 + 64) * 8 * 4);
  packs_add(packs, &bc, &form, memory);
  assert_ptr_equal(packs_find(packs, &b, &form), memory);
  assert_null(packs_find(packs, &c, &form));
  packs_drop(&list, packs);
}

// The other plans of an encoder find every matrix that the fused one packed, and every vector and
// table that it converted.
static void all_plans_share(enum dtype compute, int64_t expected) {
  static struct encoder encoder;
  struct encoder_shape shape = {.vocab = 50,
                                .positions = 16,
                                .hidden = 64,
                                .heads = 2,
                                .inter = 128,
                                .layers = 2,
                                .compute = compute};
  encoder_build(&encoder, &shape, 1);
  struct error err;
  struct device *device;
  struct plan *plans[FUSION_MODES];
  struct bound_plan *bound[FUSION_MODES];
  static const enum fusion_mode order[FUSION_MODES] = {FUSION_ON, FUSION_AUTO, FUSION_OFF};
  struct backend_options options = {.threads = 2};
  struct plan_limits limits = {16, 2, 16};
  assert_int_equal(backend_cpu.open(&options, &device, &err), STATUS_OK);
  if (device->ops->isa < CPU_AVX2) skip(); // the library keeps its own
  cpu_device_set_products(device, PRODUCT_OWN);
  int64_t bytes[FUSION_MODES];
  for (int i = 0; i < FUSION_MODES; i++) {
    assert_int_equal(plan_build(&encoder.graph, order[i], &backend_cpu.caps(device)->plan, &limits,
                                &plans[i], &err),
                     STATUS_OK);
    assert_int_equal(backend_cpu.load(device, plans[i], &encoder.table, &bound[i], &err),
                     STATUS_OK);
    bytes[i] = packs_bytes(device->packs);
  }
  assert_int_equal(bytes[0], expected);
  assert_int_equal(bytes[1], bytes[0]);
  assert_int_equal(bytes[2], bytes[0]);
  for (int i = 0; i < FUSION_MODES; i++) {
    assert_non_null(device->packs); // another plan's still
    backend_cpu.unload(device, bound[i]);
    plan_free(plans[i]);
  }
  assert_null(device->packs);
  backend_cpu.close(device);
  encoder_free(&encoder);
}

#define MATRICES (2 * (4 * 64 * 64 + 2 * 64 * 128)) // of two layers
#define QKV_BIASES (2 * 3 * 64)                     // side by side

static void fused_and_unfused_plans_share_all_matrices(void **state) {
  (void)state;
  all_plans_share(DTYPE_F32, (MATRICES + QKV_BIASES) * 4);
}

// Tables are as wide as the products' operands there; vectors stay as they are, but for those that
// are put side by side. No plan has its own.
static void weights_that_are_converted_are_shared_too(void **state) {
  (void)state;
  int64_t tables = (50 + 16) * 64;
  all_plans_share(DTYPE_BF16, (MATRICES + tables) * 2 + QKV_BIASES * 4);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(parts_are_found_alone_and_together),
      cmocka_unit_test(a_part_that_begins_inside_a_panel_is_not_shared),
      cmocka_unit_test(fused_and_unfused_plans_share_all_matrices),
      cmocka_unit_test(weights_that_are_converted_are_shared_too),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
