// What the audit tells a client: the Audit RPC over a fake call layer, and the parameters of a
// reply that was asked to count.
#include "harness/cmocka_all.h"

#include "api/api.h"
#include "api/handlers.h"
#include "api/infer.h"
#include "audit/audit.h"
#include "fake_call.h"
#include "fusewire.pb-c.h"
#include "open_inference.pb-c.h"
#include "sim/fake.h"
#include "sim/fake_counters.h"

static struct api api;
static struct model *model;
static struct audits audits;
static struct backend_ops backend;

static int set_up(void **state) {
  (void)state;
  fake_device_reset(true);
  fake_counters_reset(&fake_device.now_ns);
  backend = fake_backend;
  backend.counters = &fake_counter_ops;
  model = fake_model("m", 64, 8, 0);
  struct audit_options options = {.mode = AUDIT_SAMPLED,
                                  .backend = &backend,
                                  .device = &fake_device,
                                  .name = "fake:0",
                                  .interval_ns = 250 * NS_PER_US,
                                  .window_ns = NS_PER_MS,
                                  .period_ns = NS_PER_S,
                                  .band = 0.25,
                                  .cpu = 1};
  assert_int_equal(audit_open(&options, &audits.list[0], NULL), STATUS_OK);
  audits.n = 1;
  assert_int_equal(audit_targets_fill(model, 0, "fake:0", NULL), STATUS_OK);
  assert_int_equal(registry_open(&api.registry), STATUS_OK);
  assert_int_equal(registry_add(api.registry, model, NULL), STATUS_OK);
  model_get(model);
  atomic_store(&api.state, API_SERVING);
  api.audits = &audits;
  infer_reply_setup();
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  registry_close(api.registry);
  audit_close(audits.list[0]);
  for (int mode = 0; mode < FUSION_MODES; mode++)
    free(model->audit[0][mode]);
  fake_model_free(model);
  return 0;
}

static Fusewire__V1__AuditResponse *ask(const char *name, enum status expected) {
  Fusewire__V1__AuditRequest request = FUSEWIRE__V1__AUDIT_REQUEST__INIT;
  static uint8_t bytes[512];
  request.model_name = (char *)(uintptr_t)name;
  memset(&call, 0, offsetof(struct call, reply));
  call.message = (struct slice){bytes, fusewire__v1__audit_request__pack(&request, bytes)};
  audit(&call, &api);
  assert_int_equal(call.answers, 1);
  assert_int_equal(call.status, expected);
  if (expected != STATUS_OK) return NULL;
  Fusewire__V1__AuditResponse *reply =
      fusewire__v1__audit_response__unpack(NULL, call.reply_bytes, call.reply);
  assert_non_null(reply);
  return reply;
}

static struct audit_batch a_batch(double read, double write, int32_t tokens) {
  return (struct audit_batch){.target = model->audit[0][FUSION_ON],
                              .ran_tokens = tokens,
                              .span = {1, 1, 1001, 1001},
                              .read_bytes = read,
                              .write_bytes = write,
                              .bytes = {{1000, 100}, {500, 50}, {2000, 200}, false}};
}

static void an_audit_that_is_off(void **state) {
  (void)state;
  api.audits = NULL;
  Fusewire__V1__AuditResponse *reply = ask("", STATUS_OK);
  assert_string_equal(reply->mode, "off");
  assert_int_equal(reply->n_devices + reply->n_models, 0);
  fusewire__v1__audit_response__free_unpacked(reply, NULL);
}

static void sums_of_a_model(void **state) {
  (void)state;
  struct audit_row *row = model->audit[0][FUSION_ON]->row;
  struct audit_batch one = a_batch(1100, 90, 10), two = a_batch(900, 95, 12),
                     large = a_batch(1500, 150, 5000), shared = a_batch(7, 7, 9);
  shared.shared_ns = 200;
  audit_row_measured(row, &one, 0.1, 0);
  audit_row_measured(row, &two, 0.1, 0);
  audit_row_measured(row, &large, 0.1, 0);
  audit_row_measured(row, &shared, 0.1, 0);
  audit_row_unmeasured(row, AUDIT_LOST);
  audit_row_unmeasured(row, AUDIT_SKIPPED);
  audit_row_unmeasured(row, AUDIT_SKIPPED);
  Fusewire__V1__AuditResponse *reply = ask("m", STATUS_OK);
  assert_string_equal(reply->mode, "sampled");
  assert_int_equal(reply->interval_us, 250);
  assert_true(reply->band == 0.25);
  assert_int_equal(reply->n_devices, 1);
  assert_string_equal(reply->devices[0]->device, "fake:0");
  assert_string_equal(reply->devices[0]->state, "uncalibrated");
  assert_int_equal(reply->n_models, FUSION_MODES);
  const Fusewire__V1__AuditModel *m = NULL;
  for (size_t i = 0; i < reply->n_models; i++)
    if (!strcmp(reply->models[i]->fusion, "on")) m = reply->models[i];
  assert_non_null(m);
  assert_int_equal(m->n_sizes, 2);
  assert_int_equal(m->sizes[0]->most_tokens, 16);
  assert_int_equal(m->sizes[0]->batches, 3);
  assert_int_equal(m->sizes[0]->shared, 1);
  assert_int_equal(m->sizes[0]->read->measured, 2007);
  assert_int_equal(m->sizes[0]->read->expected, 3000);
  assert_int_equal(m->sizes[0]->write->low, 150);
  assert_int_equal(m->sizes[0]->write->high, 600);
  assert_int_equal(m->sizes[1]->most_tokens, 0);
  assert_int_equal(m->sizes[1]->write->measured, 150);
  assert_int_equal(m->lost, 1);
  assert_int_equal(m->skipped, 2);
  fusewire__v1__audit_response__free_unpacked(reply, NULL);
}

static void the_metrics_say_the_same(void **state) {
  (void)state;
  static char text[1 << 18];
  struct audit_row *row = model->audit[0][FUSION_OFF]->row;
  struct audit_batch one = a_batch(1100, 90, 10);
  audit_row_measured(row, &one, 0.1, 0);
  audit_metrics(&audits);
  size_t n = metrics_expose(text, sizeof text, false);
  assert_true(n < sizeof text);
#define LABELS "{model=\"m\",version=\"1\",fusion=\"off\",device=\"fake:0\""
  static const char *const lines[] = {
      "fusewire_audit_batches_total" LABELS ",tokens=\"16\"} 1\n",
      "fusewire_audit_measured_bytes_total" LABELS ",tokens=\"16\",direction=\"read\"} 1100\n",
      "fusewire_audit_expected_bytes_total" LABELS ",tokens=\"16\",direction=\"write\"} 100\n",
      "fusewire_audit_ratio_bucket" LABELS ",direction=\"read\",le=\"1.05\"} 0\n",
      "fusewire_audit_ratio_bucket" LABELS ",direction=\"read\",le=\"1.1\"} 1\n",
      "fusewire_audit_ratio_bucket" LABELS ",direction=\"write\",le=\"0.9\"} 1\n",
      "fusewire_audit_ratio_sum" LABELS ",direction=\"write\"} 0.9\n",
      "fusewire_audit_unmeasured_batches_total" LABELS ",reason=\"lost\"} 0\n",
      "fusewire_audit_out_of_band" LABELS ",direction=\"read\"} 0\n",
      "fusewire_audit_calibrated{device=\"fake:0\"} 0\n",
      "fusewire_audit_unexplained_ratio{device=\"fake:0\"} 0\n",
      "fusewire_audit_traffic_bytes_total{device=\"fake:0\",direction=\"write\",part=\"other\"} 0",
  };
  for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
    if (!strstr(text, lines[i])) fail_msg("not in /metrics: %s", lines[i]);
}

static void only_models_that_are_there(void **state) {
  (void)state;
  ask("nobody", STATUS_NOT_FOUND);
  assert_non_null(strstr(call.text, "no model \"nobody\""));
  atomic_store(&api.state, API_LOADING);
  ask("", STATUS_UNAVAILABLE);
}

// ---- a reply ----
static const Inference__InferParameter *parameter(const Inference__ModelInferResponse *reply,
                                                  const char *key) {
  for (size_t i = 0; i < reply->n_parameters; i++)
    if (!strcmp(reply->parameters[i]->key, key)) return reply->parameters[i]->value;
  return NULL;
}

static void nothing(void *arg) {
  (void)arg;
}

static Inference__ModelInferResponse *answer(bool wants, enum audit_outcome outcome) {
  static struct request request;
  static int64_t out[4];
  request = (struct request){.model = model,
                             .fusion = FUSION_ON,
                             .audit = wants,
                             .n_seqs = 1,
                             .padded_seqlen = 4,
                             .n_outputs = 1,
                             .output_order = {FAKE_TOKENS},
                             .outputs_data = {(uint8_t *)out},
                             .outputs_bytes = {sizeof out},
                             .cost = {.audit = outcome,
                                      .read_measured = 123456789.4,
                                      .write_measured = 1.5,
                                      .read_expected = 123000000,
                                      .write_expected = 0}};
  memset(&call, 0, offsetof(struct call, reply));
  infer_reply(&api, &call, &request, nothing);
  Inference__ModelInferResponse *reply =
      inference__model_infer_response__unpack(NULL, call.reply_bytes, call.reply);
  assert_non_null(reply);
  assert_int_equal(reply->n_outputs, 1);
  return reply;
}

static void a_reply_tells_what_was_counted(void **state) {
  (void)state;
  Inference__ModelInferResponse *reply = answer(true, AUDIT_MEASURED);
  assert_string_equal(parameter(reply, "audit")->string_param, "measured");
  assert_int_equal(parameter(reply, "hbm_read_measured_bytes")->int64_param, 123456789);
  assert_int_equal(parameter(reply, "hbm_write_measured_bytes")->int64_param, 2);
  assert_int_equal(parameter(reply, "hbm_read_expected_bytes")->int64_param, 123000000);
  assert_int_equal(parameter(reply, "hbm_write_expected_bytes")->int64_param, 0);
  inference__model_infer_response__free_unpacked(reply, NULL);
}

static void a_reply_without_a_figure_has_none(void **state) {
  (void)state;
  static const char *const words[] = {"none",         "",        "late",   "lost",
                                      "uncalibrated", "skipped", "refused"};
  for (int outcome = 0; outcome < AUDIT_OUTCOMES; outcome++) {
    if (outcome == AUDIT_MEASURED) continue;
    Inference__ModelInferResponse *reply = answer(true, (enum audit_outcome)outcome);
    assert_string_equal(parameter(reply, "audit")->string_param, words[outcome]);
    assert_null(parameter(reply, "hbm_read_measured_bytes"));
    assert_null(parameter(reply, "hbm_write_expected_bytes"));
    inference__model_infer_response__free_unpacked(reply, NULL);
  }
}

static void who_did_not_ask_is_not_told(void **state) {
  (void)state;
  Inference__ModelInferResponse *reply = answer(false, AUDIT_MEASURED);
  assert_null(parameter(reply, "audit"));
  assert_null(parameter(reply, "hbm_read_measured_bytes"));
  assert_non_null(parameter(reply, "hbm_read_bytes"));
  inference__model_infer_response__free_unpacked(reply, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(sums_of_a_model, set_up, tear_down),
      cmocka_unit_test_setup_teardown(the_metrics_say_the_same, set_up, tear_down),
      cmocka_unit_test_setup_teardown(an_audit_that_is_off, set_up, tear_down),
      cmocka_unit_test_setup_teardown(only_models_that_are_there, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_reply_tells_what_was_counted, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_reply_without_a_figure_has_none, set_up, tear_down),
      cmocka_unit_test_setup_teardown(who_did_not_ask_is_not_told, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
