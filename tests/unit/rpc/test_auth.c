#include "harness/cmocka_all.h"
#include "rpc/auth.h"
#include <stdlib.h>
#include <unistd.h>

static char path[64];

static enum status open_bytes(const char *text, size_t bytes, struct auth **out,
                              struct error *err) {
  snprintf(path, sizeof path, "/tmp/fw-test-auth-XXXXXX");
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, text, bytes), bytes);
  close(fd);
  enum status status = auth_open(path, out, err);
  unlink(path);
  return status;
}

static enum status open_text(const char *text, struct auth **out, struct error *err) {
  return open_bytes(text, strlen(text), out, err);
}

static bool ok(const struct auth *auth, const char *value) {
  return auth_ok(auth, (const uint8_t *)value, strlen(value));
}

static void any_token_of_the_file_is_taken_and_nothing_else(void **state) {
  (void)state;
  struct auth *auth = NULL;
  struct error err;
  assert_int_equal(open_text("# comment\nalpha\n\nbeta-2\r\nalphaalpha", &auth, &err), STATUS_OK);
  assert_true(ok(auth, "Bearer alpha"));
  assert_true(ok(auth, "bEARER beta-2"));
  assert_true(ok(auth, "Bearer alphaalpha"));
  const char *wrong[] = {"",
                         "Bearer",
                         "Bearer ",
                         "alpha",
                         "Bearer alph",
                         "Bearer alphaa",
                         "Bearer alphaalphaalpha",
                         "Bearer  alpha",
                         "Bearer ALPHA",
                         "Bearer # comment",
                         "Basic alpha",
                         "Bearer beta-2\r"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    if (ok(auth, wrong[i])) fail_msg("'%s' is taken", wrong[i]);
  auth_close(auth);
}

static void a_long_comment_is_one_comment(void **state) {
  (void)state;
  struct auth *auth = NULL;
  struct error err;
  static char text[2 * AUTH_MAX_TOKEN_BYTES];
  memset(text, 'x', sizeof text - 1);
  text[0] = '#';
  memcpy(text + sizeof text - 8, "\nalpha\n", 8);
  assert_int_equal(open_text(text, &auth, &err), STATUS_OK);
  assert_true(ok(auth, "Bearer alpha"));
  static char wrong[sizeof text] = "Bearer ";
  for (size_t n = 1; n < AUTH_MAX_TOKEN_BYTES; n++) {
    wrong[6 + n] = 'x';
    if (ok(auth, wrong)) fail_msg("%zu bytes of a comment are taken as a token", n);
  }
  auth_close(auth);
}

static void files_that_cannot_be_are_refused(void **state) {
  (void)state;
  struct auth *auth = NULL;
  struct error err;
  assert_int_equal(open_text("# only this\n\n", &auth, &err), STATUS_INVALID_ARGUMENT);
  assert_int_equal(open_text("two words\n", &auth, &err), STATUS_INVALID_ARGUMENT);
  assert_non_null(strstr(err.message, ":1:"));
  assert_int_equal(open_text("ok\nna\xc3\xafve\n", &auth, &err), STATUS_INVALID_ARGUMENT);
  assert_non_null(strstr(err.message, ":2:"));
  assert_int_equal(open_bytes("ab\0cd\n", 6, &auth, &err), STATUS_INVALID_ARGUMENT);
  assert_int_equal(open_bytes("a\0b\0\n\0", 6, &auth, &err), STATUS_INVALID_ARGUMENT); // UTF-16
  assert_int_equal(auth_open("/tmp", &auth, &err), STATUS_INVALID_ARGUMENT);
  assert_non_null(strstr(err.message, "directory"));
  assert_int_equal(auth_open("/dev/zero", &auth, &err), STATUS_INVALID_ARGUMENT); // without an end
  assert_int_equal(auth_open("/nowhere/tokens", &auth, &err), STATUS_INVALID_ARGUMENT);
  static char text[2 * AUTH_MAX_TOKEN_BYTES];
  memset(text, 'x', sizeof text - 1);
  assert_int_equal(open_text(text, &auth, &err), STATUS_INVALID_ARGUMENT);
  text[0] = 0;
  for (int i = 0; i <= AUTH_MAX_TOKENS; i++)
    strcat(text, "t\n");
  assert_int_equal(open_text(text, &auth, &err), STATUS_INVALID_ARGUMENT);
  assert_null(auth);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(any_token_of_the_file_is_taken_and_nothing_else),
      cmocka_unit_test(a_long_comment_is_one_comment),
      cmocka_unit_test(files_that_cannot_be_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
