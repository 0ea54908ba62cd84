#include "client/connect.h"
#include "harness/cmocka_all.h"
#include <stdio.h>

static struct error err;
static char token[NET_TOKEN_BYTES];

static enum status read_token(const char *text) {
  err = (struct error){0};
  token[0] = 0;
  return connect_token((struct slice){(const uint8_t *)text, strlen(text)}, "FILE", token, &err);
}

static void the_first_line_that_says_something_is_the_token(void **state) {
  (void)state;
  static const struct {
    const char *text, *token;
  } cases[] = {{"abc", "abc"},
               {"abc\n", "abc"},
               {"abc\r\nlater", "abc"},
               {"\n  \n# of the build machine\n\t a.b-c_d~e+f/== \nsecond\n", "a.b-c_d~e+f/=="}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    assert_int_equal(read_token(cases[i].text), STATUS_OK);
    assert_string_equal(token, cases[i].token);
  }
}

static void what_is_no_token_is_told_without_showing_it(void **state) {
  (void)state;
  assert_int_equal(read_token(""), STATUS_INVALID_ARGUMENT);
  assert_int_equal(read_token("# nothing\n\n"), STATUS_INVALID_ARGUMENT);
  assert_string_equal(err.message, "FILE: no token in it");
  assert_int_equal(read_token("se cret\n"), STATUS_INVALID_ARGUMENT);
  assert_non_null(strstr(err.message, "byte 3 of the token is 0x20"));
  assert_null(strstr(err.message, "cret"));
  assert_int_equal(read_token("s\xc3\xa9\n"), STATUS_INVALID_ARGUMENT);
}

static void a_token_has_a_longest_length(void **state) {
  (void)state;
  static char text[NET_TOKEN_BYTES + 1];
  memset(text, 'x', NET_TOKEN_BYTES - 1);
  assert_int_equal(read_token(text), STATUS_OK);
  assert_int_equal(strlen(token), NET_TOKEN_BYTES - 1);
  text[NET_TOKEN_BYTES - 1] = 'x';
  assert_int_equal(read_token(text), STATUS_INVALID_ARGUMENT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_first_line_that_says_something_is_the_token),
      cmocka_unit_test(what_is_no_token_is_told_without_showing_it),
      cmocka_unit_test(a_token_has_a_longest_length),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
