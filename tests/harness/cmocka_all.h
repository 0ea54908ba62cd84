// cmocka needs these before it; one include for tests of several folders.
#ifndef HARNESS_CMOCKA_ALL_H
#define HARNESS_CMOCKA_ALL_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// A small generator with a printed seed, so that a failure can be run again (TEST_SEED in the
// environment).
static uint64_t test_random_state __attribute__((unused));
static inline uint64_t test_random(void) {
  test_random_state ^= test_random_state << 13;
  test_random_state ^= test_random_state >> 7;
  test_random_state ^= test_random_state << 17;
  return test_random_state;
}
static inline void test_random_seed(uint64_t seed) {
  const char *text = getenv("TEST_SEED");
  test_random_state = text ? strtoull(text, NULL, 0) : seed;
  print_message("seed %llu\n", (unsigned long long)test_random_state);
}

// cmocka 1.1 has no assertion on doubles that prints both values.
#define assert_near(actual, expected, tolerance)                                                   \
  do {                                                                                             \
    const double actual_ = (actual), expected_ = (expected);                                       \
    if (!(actual_ >= expected_ - (tolerance) && actual_ <= expected_ + (tolerance)))               \
      fail_msg("%s = %.9g, expected %.9g +- %.3g", #actual, actual_, expected_,                    \
               (double)(tolerance));                                                               \
  } while (0)
#endif
