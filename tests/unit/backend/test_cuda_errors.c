// What a CUDA error means: which cost the process, which only the call.
#include "harness/cmocka_all.h"

#include "backend/cuda/errors.h"

static void sticky_errors_lose_the_device(void **state) {
  (void)state;
  // Illegal address, launch timeout, assert, misaligned address, launch failure, ECC, NVLink,
  // unknown.
  const int sticky[] = {700, 702, 710, 716, 719, 214, 220, 999};
  for (size_t i = 0; i < sizeof sticky / sizeof *sticky; i++) {
    assert_int_equal(cuda_fate_of(sticky[i]), CUDA_LOST);
    assert_int_equal(cuda_status_of(sticky[i]), STATUS_UNAVAILABLE);
  }
}

static void a_full_card_is_not_a_lost_one(void **state) {
  (void)state;
  assert_int_equal(cuda_fate_of(2), CUDA_NO_MEMORY);
  assert_int_equal(cuda_status_of(2), STATUS_RESOURCE_EXHAUSTED);
}

static void a_refused_call_is_our_fault(void **state) {
  (void)state;
  // Invalid value, invalid configuration, not supported, launch out of resources, a number of the
  // future.
  const int refused[] = {1, 9, 801, 701, 12345, -1};
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    assert_int_equal(cuda_fate_of(refused[i]), CUDA_REFUSED);
    assert_int_equal(cuda_status_of(refused[i]), STATUS_INTERNAL);
  }
}

static void not_ready_is_no_error(void **state) {
  (void)state;
  assert_int_equal(cuda_fate_of(0), CUDA_FINE);
  assert_int_equal(cuda_fate_of(600), CUDA_FINE);
  assert_int_equal(cuda_status_of(600), STATUS_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sticky_errors_lose_the_device),
      cmocka_unit_test(a_full_card_is_not_a_lost_one),
      cmocka_unit_test(a_refused_call_is_our_fault),
      cmocka_unit_test(not_ready_is_no_error),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
