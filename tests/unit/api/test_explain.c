// The Explain RPC over a fake call layer: its formats, and what it refuses.
#include "harness/cmocka_all.h"

#include "api/api.h"
#include "api/handlers.h"
#include "fake_call.h"
#include "fusewire.pb-c.h"

static struct api api;
static struct wake explainer;
static struct model *model;
static struct device_caps caps = {.name = "fake", .description = "a fake device"};
static struct device *device; // never looked at
static int n_caps_asked;

static const struct device_caps *fake_caps(const struct device *d) {
  (void)d;
  n_caps_asked++;
  return &caps;
}
static const struct backend_ops backend = {.name = "fake", .caps = fake_caps};

static void report(const struct error *err, void *arg) {
  (void)arg;
  print_message("%s\n", err->message);
}

static int set_up(void **state) {
  (void)state;
  static struct server_conf conf;
  server_conf_defaults(&conf);
  caps.plan = (struct plan_caps){.epilogue_kinds = 31, .epilogue_max = EPILOGUE_MAX};
  memset(caps.plan.dtype_ok, 1, sizeof caps.plan.dtype_ok);
  assert_int_equal(model_parse("config/models/mlp.yaml", &conf, &caps.plan, report, NULL, &model),
                   STATUS_OK);
  model->backend = &backend;
  model->devices = &device;
  assert_int_equal(registry_open(&api.registry), STATUS_OK);
  assert_int_equal(registry_add(api.registry, model, NULL), STATUS_OK);
  atomic_store(&api.state, API_SERVING);
  wake_init(&explainer, NULL, NULL);
  api.explainer = &explainer;
  api.n_loops = 1;
  assert_int_equal(ring_init(&api.loops[0].to_explain, API_EXPLAINS), STATUS_OK);
  assert_int_equal(ring_init(&api.loops[0].explained, API_EXPLAINS), STATUS_OK);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  explain_close(&api.loops[0]);
  registry_close(api.registry);
  return 0;
}

static void send_only(const void *bytes, size_t n) {
  memset(&call, 0, offsetof(struct call, reply));
  call.message = (struct slice){bytes, n};
  explain(&call, &api);
}

static enum status send_bytes(const void *bytes, size_t n) {
  send_only(bytes, n);
  if (call.answers == 0) { // the other thread's turn, and the loop's again
    assert_true(api_explain_next(&api));
    assert_int_equal(call.answers, 0);
    explain_answer(&api, NULL, 0);
  }
  assert_false(api_explain_next(&api));
  assert_int_equal(call.answers, 1);
  return call.status;
}

static enum status ask(const char *name, const char *version, int64_t tokens, int64_t sequences,
                       int format) {
  Fusewire__V1__ExplainRequest request = FUSEWIRE__V1__EXPLAIN_REQUEST__INIT;
  uint8_t bytes[8192];
  request.model_name = (char *)(uintptr_t)name;
  request.model_version = (char *)(uintptr_t)version;
  request.tokens = tokens;
  request.sequences = sequences;
  request.format = (Fusewire__V1__ExplainRequest__Format)format;
  size_t n = fusewire__v1__explain_request__get_packed_size(&request);
  assert_true(n <= sizeof bytes);
  fusewire__v1__explain_request__pack(&request, bytes);
  return send_bytes(bytes, n);
}

static void every_format_is_answered(void **state) {
  (void)state;
  static const char *const types[] = {"text/plain", "application/json", "image/svg+xml"};
  static const char *const begins[] = {"mlp, version 1", "{\"schema\"", "<svg "};
  for (int format = 0; format < 3; format++) {
    assert_int_equal(ask("mlp", "", 32, 0, format), STATUS_OK);
    Fusewire__V1__ExplainResponse *reply =
        fusewire__v1__explain_response__unpack(NULL, call.reply_bytes, call.reply);
    assert_non_null(reply);
    assert_string_equal(reply->model_name, "mlp");
    assert_string_equal(reply->model_version, "1");
    assert_string_equal(reply->content_type, types[format]);
    assert_memory_equal(reply->document, begins[format], strlen(begins[format]));
    if (format == 0) assert_non_null(strstr(reply->document, "32 rows"));
    fusewire__v1__explain_response__free_unpacked(reply, NULL);
  }
}

static void what_is_refused_is_named(void **state) {
  (void)state;
  const struct {
    const char *name, *version;
    int64_t tokens, sequences;
    int format;
    enum status status;
    const char *word;
  } cases[] = {
      {"nobody", "", 0, 0, 0, STATUS_NOT_FOUND, "nobody"},
      {"", "", 0, 0, 0, STATUS_NOT_FOUND, "model_name"},
      {"mpl", "", 0, 0, 0, STATUS_NOT_FOUND, "\"mpl\" is served; did you mean \"mlp\"?"},
      {"mlp", "7", 0, 0, 0, STATUS_NOT_FOUND, "model_version"},
      {"mlp", "1", 0, 0, 3, STATUS_INVALID_ARGUMENT, "format: found 3"},
      {"mlp", "1", 0, 0, -1, STATUS_INVALID_ARGUMENT, "format: found -1"},
      {"mlp", "1", -1, 0, 0, STATUS_INVALID_ARGUMENT, "tokens: found -1"},
      {"mlp", "1", 1 << 30, 0, 0, STATUS_INVALID_ARGUMENT, "tokens"},
      {"mlp", "1", 8, 2, 0, STATUS_INVALID_ARGUMENT, "sequences"},
      {"mlp", "1", 8, INT64_MIN, 0, STATUS_INVALID_ARGUMENT, "sequences"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    enum status status =
        ask(cases[i].name, cases[i].version, cases[i].tokens, cases[i].sequences, cases[i].format);
    if (status != cases[i].status || !strstr(call.text, cases[i].word))
      fail_msg("case %zu: %s: %s", i, status_name(status), call.text);
  }
}

static void the_plan_can_be_chosen(void **state) {
  (void)state;
  // field 1 "mlp", field 6 the word
  assert_int_equal(send_bytes("\x0a\x03mlp\x32\x04"
                              "auto",
                              11),
                   STATUS_OK);
  assert_int_equal(send_bytes("\x0a\x03mlp\x32\x02on", 9), STATUS_OK);
  assert_int_equal(send_bytes("\x0a\x03mlp\x32\x03off", 10), STATUS_INVALID_ARGUMENT);
  assert_non_null(strstr(call.text, "fusion: found \"off\", expected \"on\" or \"auto\""));
}

static void requests_that_are_none_are_refused(void **state) {
  (void)state;
  static uint8_t large[5000];
  memset(large, 0, sizeof large);
  assert_int_equal(send_bytes(large, sizeof large), STATUS_INVALID_ARGUMENT);
  assert_non_null(strstr(call.text, "5000 bytes"));
  assert_int_equal(send_bytes("\x0a\x7fmlp", 5), STATUS_INTERNAL);             // cut short
  assert_int_equal(send_bytes("\x0a\x02\xff\xfe", 4), STATUS_INTERNAL);        // not UTF-8
  assert_int_equal(send_bytes("\x0a\x04mlp\0", 6), STATUS_INVALID_ARGUMENT);   // NUL in a name
  assert_int_equal(send_bytes("\x0a\x03mlp\x32\x01\xff", 8), STATUS_INTERNAL); // of a plan
  assert_int_equal(send_bytes("\x0a\x03mlp\x32\x03on\0", 10), STATUS_INVALID_ARGUMENT); // the same
  assert_int_equal(send_bytes("", 0), STATUS_NOT_FOUND);
  int32_t n_nodes = model->graph.n_nodes; // a model that would keep the loop too long
  model->graph.n_nodes = LIMIT_EXPLAIN_NODES + 1;
  assert_int_equal(ask("mlp", "", 0, 0, 0), STATUS_RESOURCE_EXHAUSTED);
  assert_non_null(strstr(call.text, "fusewired explain"));
  model->graph.n_nodes = n_nodes;
  atomic_store(&api.state, API_LOADING);
  assert_int_equal(ask("mlp", "", 0, 0, 0), STATUS_UNAVAILABLE);
  atomic_store(&api.state, API_SERVING);
}

// No more at once than the ring holds; a call that is gone is answered no more, nor explained if it
// goes before its turn; each gives the model back.
static void as_many_as_fit_and_none_that_is_gone(void **state) {
  (void)state;
  static const char mlp[] = "\x0a\x03mlp";
  int refs = atomic_load(&model->refs), n_done = 0;
  for (int i = 0; i < API_EXPLAINS; i++) {
    send_only(mlp, 5);
    assert_int_equal(call.answers, 0);
    if (i % 2) call.cancel(call.cancel_arg, STATUS_CANCELLED);
  }
  assert_int_equal(atomic_load(&model->refs), refs + API_EXPLAINS);
  send_only(mlp, 5);
  assert_int_equal(call.status, STATUS_RESOURCE_EXHAUSTED);
  assert_non_null(strstr(call.text, "8 explanations"));
  memset(&call, 0, offsetof(struct call, reply));
  int writes = n_caps_asked;
  while (api_explain_next(&api))
    n_done++;
  assert_int_equal(n_done, API_EXPLAINS);
  assert_int_equal(n_caps_asked - writes, API_EXPLAINS / 2); // the others were not looked at
  explain_answer(&api, NULL, 0);
  assert_int_equal(call.answers, API_EXPLAINS / 2);
  assert_int_equal(atomic_load(&model->refs), refs);
  assert_int_equal(api.loops[0].n_explains, 0);
  send_only(mlp, 5); // gone without a word, once it is written
  assert_true(api_explain_next(&api));
  call.gone = true;
  explain_answer(&api, NULL, 0);
  assert_int_equal(call.answers, 0);
  call.gone = false;
  send_only(mlp, 5); // still there when the api is closed
  assert_int_equal(atomic_load(&model->refs), refs + 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_format_is_answered),
      cmocka_unit_test(what_is_refused_is_named),
      cmocka_unit_test(the_plan_can_be_chosen),
      cmocka_unit_test(requests_that_are_none_are_refused),
      cmocka_unit_test(as_many_as_fit_and_none_that_is_gone),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
