#include "client/target.h"
#include "harness/cmocka_all.h"
#include <netinet/in.h>
#include <stdio.h>
#include <sys/un.h>

static void hosts_and_ports_are_told_apart(void **state) {
  (void)state;
  char host[TARGET_NAME_BYTES], port[16];
  assert_true(target_split("localhost:8001", host, port));
  assert_string_equal(host, "localhost");
  assert_string_equal(port, "8001");
  assert_true(target_split("[::1]:9", host, port));
  assert_string_equal(host, "::1");
  static const char *const bad[] = {"",    "h",       ":1",           "h:",    "h:1x",
                                    "::1", "[::1]",   "[::1]9",       "h:1:2", "[]:1",
                                    "h:0", "h:65536", "h:99999999999"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    if (target_split(bad[i], host, port)) fail_msg("accepted '%s'", bad[i]);
  }
}

static struct target resolved(const char *url) {
  struct target target;
  struct error err = {0};
  if (target_resolve(url, &target, &err) != STATUS_OK) fail_msg("%s: %s", url, err.message);
  return target;
}

static void a_scheme_says_whether_tls_is_spoken(void **state) {
  (void)state;
  static const struct {
    const char *url;
    bool tls;
  } cases[] = {{"127.0.0.1:1", false},
               {"grpc://127.0.0.1:1", false},
               {"http://127.0.0.1:1", false},
               {"grpcs://127.0.0.1:1", true},
               {"https://127.0.0.1:1", true}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const struct target target = resolved(cases[i].url);
    assert_int_equal(target.tls, cases[i].tls);
    assert_string_equal(target.authority, "127.0.0.1:1");
    assert_string_equal(target.name, "127.0.0.1");
  }
}

static void literal_addresses_of_both_versions(void **state) {
  (void)state;
  struct target target = resolved("[::1]:81");
  struct sockaddr_in6 v6;
  memcpy(&v6, &target.address, sizeof v6);
  assert_int_equal(v6.sin6_family, AF_INET6);
  assert_int_equal(ntohs(v6.sin6_port), 81);
  assert_string_equal(target.authority, "[::1]:81");
  assert_string_equal(target.name, "::1");
  assert_true(target.local);
  target = resolved("[fe80::7%lo]:81"); // a zone is for the socket, not for the server
  memcpy(&v6, &target.address, sizeof v6);
  assert_true(v6.sin6_scope_id > 0);
  assert_string_equal(target.authority, "[fe80::7]:81");
  assert_false(target.local);
  assert_true(resolved("127.9.9.9:1").local);
  assert_false(resolved("10.0.0.1:1").local);
}

static void unix_sockets_are_paths(void **state) {
  (void)state;
  struct sockaddr_un at;
  struct error err = {0};
  struct target target = resolved("unix:fw.sock");
  memcpy(&at, &target.address, sizeof at);
  assert_int_equal(at.sun_family, AF_UNIX);
  assert_string_equal(at.sun_path, "fw.sock");
  assert_string_equal(target.authority, "localhost");
  assert_true(target.local);
  target = resolved("unix:///run/fw.sock");
  memcpy(&at, &target.address, sizeof at);
  assert_string_equal(at.sun_path, "/run/fw.sock");
  char url[5 + sizeof at.sun_path + 1];
  snprintf(url, sizeof url, "unix:%0*d", (int)sizeof at.sun_path - 1, 0);
  (void)resolved(url);
  snprintf(url, sizeof url, "unix:%0*d", (int)sizeof at.sun_path, 0);
  assert_int_equal(target_resolve(url, &target, &err), STATUS_INVALID_ARGUMENT);
  assert_non_null(strstr(err.message, "107 bytes"));
  assert_int_equal(target_resolve("unix:", &target, &err), STATUS_INVALID_ARGUMENT);
}

static void what_is_no_address_is_told(void **state) {
  (void)state;
  struct target target;
  struct error err = {0};
  assert_int_equal(target_resolve("localhost", &target, &err), STATUS_INVALID_ARGUMENT);
  assert_non_null(strstr(err.message, "--url localhost: expected host:port"));
  assert_int_equal(target_resolve("https://", &target, &err), STATUS_INVALID_ARGUMENT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(hosts_and_ports_are_told_apart),
      cmocka_unit_test(a_scheme_says_whether_tls_is_spoken),
      cmocka_unit_test(literal_addresses_of_both_versions),
      cmocka_unit_test(unix_sockets_are_paths),
      cmocka_unit_test(what_is_no_address_is_told),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
