// config/server.yaml: fresh, equal to the defaults; bad files give the right errors.
#include "unit/conf/collect.h"

#include "conf/server_conf.h"

static struct collect collected;
static struct server_conf conf, defaults;

static void defaults_are_those_of_the_table(void **state) {
  (void)state;
  server_conf_defaults(&conf);
  assert_string_equal(conf.listen, "0.0.0.0:8001");
  assert_int_equal(conf.drain_timeout_ms, 30000);
  assert_int_equal(conf.log_level, 1);
  assert_false(conf.triton_names);
  assert_int_equal(conf.n_models, 0);
}

static void the_committed_file_is_what_the_program_prints(void **state) {
  (void)state;
  static char printed[65536], committed[65536];
  size_t bytes = server_conf_print(printed, sizeof printed);
  assert_true(bytes < sizeof printed);
  FILE *file = fopen("config/server.yaml", "rb");
  assert_non_null(file);
  committed[fread(committed, 1, sizeof committed - 1, file)] = '\0';
  fclose(file);
  assert_string_equal(committed, printed); // stale? fusewired --print-config > config/server.yaml
  assert_int_equal(server_conf_print(NULL, 0), bytes); // the bytes needed
}

static void the_committed_file_parses_to_the_defaults(void **state) {
  (void)state;
  collected = (struct collect){0};
  assert_int_equal(server_conf_load("config/server.yaml", &conf, collect_error, &collected),
                   STATUS_OK);
  assert_string_equal(collected.text, "");
  server_conf_defaults(&defaults);
  assert_memory_equal(&conf, &defaults, offsetof(struct server_conf, places));
}

static enum status load_text(const char *text) {
  char path[300];
  const char *folder = temp_folder();
  snprintf(path, sizeof path, "%s/server.yaml", folder);
  write_file(path, text, strlen(text));
  collected = (struct collect){0};
  enum status code = server_conf_load(path, &conf, collect_error, &collected);
  unlink(path);
  rmdir(folder);
  return code;
}

static void what_is_found_later_gets_its_place(void **state) {
  (void)state;
  struct error err;
  assert_int_equal(load_text("tls:\n  key: /a\n  certificate: /b\nmodels: [x, y]\n"), STATUS_OK);
  (void)error_set(&err, STATUS_INVALID_ARGUMENT, "tls.key: of no use");
  server_conf_locate(&conf, &err);
  assert_int_equal(err.line, 2);
  assert_int_equal(err.column, 8);
  assert_string_equal(err.message, "tls.key: of no use");
  assert_non_null(strstr(err.file, "server.yaml"));
  server_conf_locate(&conf, &err); // has one already
  assert_int_equal(err.line, 2);
  const char *const placeless[] = {"tls.client_ca: is a default", "tls.keys: no such key",
                                   "tls.key", "", ": "};
  for (size_t i = 0; i < sizeof placeless / sizeof *placeless; i++) {
    (void)error_set(&err, STATUS_INVALID_ARGUMENT, "%s", placeless[i]);
    server_conf_locate(&conf, &err);
    assert_int_equal(err.line, i == 2 ? 2 : 0);
  }
  server_conf_forget_place(&conf, conf.tls_key);
  (void)error_set(&err, STATUS_INVALID_ARGUMENT, "tls.key: from the command line");
  server_conf_locate(&conf, &err);
  assert_int_equal(err.line, 0);
  server_conf_locate_model(&conf, 1, &err);
  assert_int_equal(err.line, 4);
  assert_int_equal(err.column, 13);
  assert_int_equal(conf.models_place.line, 4);
}

static void refuses(const char *text, const char *errors) {
  enum status code = load_text(text);
  assert_string_equal(collected.text, errors);
  assert_int_equal(code, STATUS_INVALID_ARGUMENT);
}

static void values_replace_defaults(void **state) {
  (void)state;
  assert_int_equal(
      load_text("server: {listen: '127.0.0.1:0', admin: ''}\nbatch:\n  max_tokens: 64\n"
                "log: {format: json}\nmetrics: {triton_names: true}\n"),
      STATUS_OK);
  assert_string_equal(conf.listen, "127.0.0.1:0");
  assert_string_equal(conf.admin, "");
  assert_int_equal(conf.batch_max_tokens, 64);
  assert_int_equal(conf.batch_max_requests, 64); // untouched
  assert_int_equal(conf.log_format, 1);
  assert_true(conf.triton_names);
  assert_int_equal(load_text("trace: {sampling: 0.25, endpoint: 'http://a:1/x'}\n"), STATUS_OK);
  assert_true(conf.trace_sampling == 0.25);
  assert_string_equal(conf.trace_endpoint, "http://a:1/x");
}

static void sections_of_comments_only_are_fine(void **state) {
  (void)state;
  assert_int_equal(load_text("server:\n  # listen: x\nmodels:\n"), STATUS_OK);
  assert_int_equal(load_text(""), STATUS_OK);
}

static void models_are_relative_to_the_file(void **state) {
  (void)state;
  assert_int_equal(load_text("models: [a.yaml, /abs/b.yaml, m/c.yaml]\n"), STATUS_OK);
  assert_int_equal(conf.n_models, 3);
  const char *slash = strrchr(conf.models[0], '/');
  assert_non_null(slash);
  assert_string_equal(slash, "/a.yaml");
  assert_string_equal(conf.models[1], "/abs/b.yaml");
  assert_memory_equal(conf.models[2], conf.models[0], (size_t)(slash - conf.models[0]) + 1);
}

static void every_mistake_is_told_with_its_place(void **state) {
  (void)state;
  refuses("sever: {}\n", "1:1: sever: unknown key \"sever\"; did you mean \"server\"?\n");
  refuses("server:\n  lisen: x\n  loops: 0\n  drain_delay: soon\nlog: {level: loud}\n",
          "2:3: server.lisen: unknown key \"lisen\"; did you mean \"listen\"?\n"
          "3:10: server.loops: expected an integer from 1 to 16, found 0\n"
          "4:16: server.drain_delay: expected an integer from 0 to 600000, found soon\n"
          "5:14: log.level: expected one of debug, info, warn, error, found loud\n");
  refuses("trace: {sampling: 1.5, endpoint: 'a:1'}\n",
          "1:19: trace.sampling: expected a number from 0 to 1, found 1.5\n"
          "1:34: trace.endpoint: expected http:// or https:// and a host, found \"a:1\"\n");
  refuses("device: {kind: gpu}\n", // no misspelt "cpu"
          "1:16: device.kind: expected one of auto, cpu, cuda, found gpu\n");
  refuses("server: 5\n", "1:9: server: expected a map (key: value), found 5\n");
  refuses("models: x\n", "1:9: models: expected a list, found x\n");
  refuses("models: [a, 5, {}]\n", "1:16: models[2]: expected text, found a map\n");
  refuses("batch:\n\tmax_tokens: 5\n", "2:1: a tab where YAML wants spaces\n");
  refuses("batch: {max_tokens: 1, max_tokens: 2}\n",
          "1:24: batch.max_tokens: duplicate key \"max_tokens\"; the first one is at line 1\n");
  refuses(
      "limits:\n  message_bytes: 1048576\n  connection_bytes: 65536\n",
      "2:3: limits: limits.message_bytes (1048576) is more than limits.connection_bytes (65536): "
      "such a message could never be taken\n");
  refuses(
      "audit: {mode: sampled, period: 50}\n",
      "1:8: audit: audit.window (100 ms) is longer than audit.period (50 ms), which it is a part "
      "of\n");
  assert_int_equal(load_text("audit: {mode: continuous, period: 50}\n"), STATUS_OK);
}

static void addresses_are_checked(void **state) {
  (void)state;
  const char *const good[] = {"127.0.0.1:0", ":8001", "[::1]:8001", "localhost:65535"};
  const char *const bad[] = {"nonsense", "1.2.3.4", "::1:80", "[]:80", "[::1]",
                             "a:65536",  "a:",      "a:-1",   "a:http"};
  char text[128], errors[256];
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    snprintf(text, sizeof text, "server: {listen: '%s'}\n", good[i]);
    if (load_text(text) != STATUS_OK) fail_msg("%s is refused", good[i]);
  }
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    snprintf(text, sizeof text, "server: {admin: '%s'}\n", bad[i]);
    snprintf(errors, sizeof errors,
             "1:17: server.admin: expected host:port, [ipv6]:port or :port, found \"%s\"\n",
             bad[i]);
    refuses(text, errors);
  }
  refuses("server: {listen: ''}\n",
          "1:18: server.listen: expected host:port, [ipv6]:port or :port, found \"\"\n");
}

static void places_are_looked_at(void **state) {
  (void)state;
  char path[128], text[256], host[72];
  memset(host, 'x', 64), host[64] = 0; // no label of a name is so long: nobody is asked
  snprintf(text, sizeof text, "server: {admin: '%s:80'}\n", host);
  assert_int_equal(load_text(text), STATUS_INVALID_ARGUMENT);
  assert_non_null(strstr(collected.text, "1:17: server.admin: host \"xxx"));
  memset(path, 'x', sizeof path);
  snprintf(text, sizeof text, "server: {unix: '/%.106s'}\n", path);
  assert_int_equal(load_text(text), STATUS_OK);
  snprintf(text, sizeof text, "server: {unix: '/%.107s'}\n", path);
  refuses(text, "1:16: server.unix: a path of 108 bytes; a Unix socket's has at most 107\n");
  assert_int_equal(load_text("server: {repository: /tmp}\n"), STATUS_OK);
  refuses("server: {repository: /nowhere/x}\n",
          "1:22: server.repository: folder \"/nowhere/x\": No such file or directory\n");
  refuses("server: {repository: /dev/null}\n",
          "1:22: server.repository: \"/dev/null\" is no folder\n");
}

static void a_missing_file_is_not_found(void **state) {
  (void)state;
  collected = (struct collect){0};
  assert_int_equal(server_conf_load("/nonexistent/x.yaml", &conf, collect_error, &collected),
                   STATUS_NOT_FOUND);
  assert_int_equal(collected.n, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(defaults_are_those_of_the_table),
      cmocka_unit_test(the_committed_file_is_what_the_program_prints),
      cmocka_unit_test(the_committed_file_parses_to_the_defaults),
      cmocka_unit_test(what_is_found_later_gets_its_place),
      cmocka_unit_test(values_replace_defaults),
      cmocka_unit_test(sections_of_comments_only_are_fine),
      cmocka_unit_test(models_are_relative_to_the_file),
      cmocka_unit_test(every_mistake_is_told_with_its_place),
      cmocka_unit_test(addresses_are_checked),
      cmocka_unit_test(places_are_looked_at),
      cmocka_unit_test(a_missing_file_is_not_found),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
