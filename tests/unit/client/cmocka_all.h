// cmocka needs these before it; one include for the tests of this folder.
#ifndef UNIT_CLIENT_CMOCKA_ALL_H
#define UNIT_CLIENT_CMOCKA_ALL_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// cmocka 1.1 has no assertion on doubles that prints both values.
#define assert_near(actual, expected, tolerance)                                                   \
  do {                                                                                             \
    const double actual_ = (actual), expected_ = (expected);                                       \
    if (!(actual_ >= expected_ - (tolerance) && actual_ <= expected_ + (tolerance)))               \
      fail_msg("%s = %.9g, expected %.9g +- %.3g", #actual, actual_, expected_,                    \
               (double)(tolerance));                                                               \
  } while (0)
#endif
