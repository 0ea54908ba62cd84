// cmocka needs these before it; one include for tests of several folders.
#ifndef SIM_CMOCKA_ALL_H
#define SIM_CMOCKA_ALL_H
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
static uint64_t test_random_state;
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
#endif
