// What `fusewire audit` prints of an answer: figures and ratios where they belong, nothing of a
// server's that a terminal would obey, JSON with every field.
#include "harness/cmocka_all.h"

#include "client/audit_print.h"
#include "client/file.h"

#include <jansson.h>

#define TEXT(words) ((char *)(uintptr_t)(words)) // printing only reads

static char name_of_device[] = "cuda:0";

static Fusewire__V1__AuditResponse *answer(void) {
  static Fusewire__V1__AuditResponse reply;
  static Fusewire__V1__AuditDevice device, *devices[] = {&device};
  static Fusewire__V1__AuditModel model, idle, *models[] = {&model, &idle};
  static Fusewire__V1__AuditSize small, large, *sizes[] = {&small, &large};
  static Fusewire__V1__AuditBytes read, write, none;
  static Fusewire__V1__AuditTraffic traffic;
  fusewire__v1__audit_response__init(&reply);
  fusewire__v1__audit_device__init(&device);
  fusewire__v1__audit_model__init(&model);
  fusewire__v1__audit_model__init(&idle);
  fusewire__v1__audit_size__init(&small);
  fusewire__v1__audit_size__init(&large);
  fusewire__v1__audit_bytes__init(&read);
  fusewire__v1__audit_bytes__init(&write);
  fusewire__v1__audit_bytes__init(&none);
  fusewire__v1__audit_traffic__init(&traffic);
  reply.mode = TEXT("sampled"), reply.interval_us = 200, reply.band = 0.1;
  reply.devices = devices, reply.n_devices = 1;
  reply.models = models, reply.n_models = 2;
  device.device = name_of_device, device.state = TEXT("calibrated");
  device.read_factor = 1.0012, device.write_factor = 0.9981, device.calibrations = 3;
  device.samples_evaluated = 5000000000, device.cpu_seconds = 1.25, device.unexplained = 0.034;
  traffic.batches = 1500000, traffic.copies = 999, traffic.other = UINT64_C(7200000000000);
  device.read = &traffic;
  model.model_name = TEXT("m\033[31m\n"), model.model_version = TEXT("1"),
  model.fusion = TEXT("on");
  model.device = name_of_device, model.write_out_of_band = 1, model.alarms = 2, model.lost = 4;
  model.sizes = sizes, model.n_sizes = 2;
  read.measured = 1040000, read.expected = 1000000, read.low = 1, read.high = 2000000;
  write.measured = 40, write.expected = 50;
  small.most_tokens = 16, small.batches = 12, small.shared = 3, small.resident = 2;
  small.read = &read, small.write = &write;
  large.batches = 1, large.read = &none; // no limit; nothing expected; no writes told
  return &reply;
}

static void the_text_has_every_figure(void **state) {
  (void)state;
  struct slice text;
  assert_int_equal(audit_text(answer(), &text, NULL), STATUS_OK);
  const char *at = (const char *)text.data;
  static const char *const words[] = {
      "audit.mode: sampled, a sample every 200 us, band 1 +- 0.1\n",
      "device cuda:0: calibrated\n",
      "1.0012 of what it read, 0.9981 of what it wrote",
      "counted right 3 times, wrong 0; samples lost 0 times",
      "looked at 5000000000, passed over 0; 1.250 s",
      "  read            1.5 MB        999 B       7.2 TB\n",
      "no batch explains 3.4 %",
      "version 1, fusion on, on cuda:0: writes are out of the band\n",
      "left it 2 times; batches without a figure: 4 lost, 0 uncalibrated, 0 skipped",
      "         16        12       3        2    1.04 MB       1 MB   1.040       40 B       50 B  "
      " 0.800\n",
      "       more         1       0        0        0 B        0 B       -        0 B        0 B  "
      "     -\n",
      "1 other pairs of model and plan have no figures.",
  };
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    if (!strstr(at, words[i])) fail_msg("\"%s\" is not in\n%s", words[i], at);
  assert_null(strchr(at, '\033'));
  for (size_t i = 0; i < text.bytes; i++)
    assert_true(at[i] == '\n' || (at[i] >= ' ' && at[i] <= '~'));
  file_free(&text);
}

static void the_json_has_every_field(void **state) {
  (void)state;
  struct slice text;
  json_error_t error;
  assert_int_equal(audit_json(answer(), &text, NULL), STATUS_OK);
  json_t *all = json_loadb((const char *)text.data, text.bytes, JSON_REJECT_DUPLICATES, &error);
  if (!all) fail_msg("%s", error.text);
  assert_string_equal(json_string_value(json_object_get(all, "schema")), AUDIT_SCHEMA);
  assert_int_equal(json_object_size(all), 1 + fusewire__v1__audit_response__descriptor.n_fields);
  const json_t *device = json_array_get(json_object_get(all, "devices"), 0),
               *model = json_array_get(json_object_get(all, "models"), 0);
  assert_int_equal(json_object_size(device), fusewire__v1__audit_device__descriptor.n_fields);
  assert_int_equal(json_object_size(model), fusewire__v1__audit_model__descriptor.n_fields);
  assert_int_equal(json_integer_value(json_object_get(device, "samples_evaluated")), 5000000000);
  assert_true(json_is_null(json_object_get(device, "write")));
  assert_true(json_is_true(json_object_get(model, "write_out_of_band")));
  const json_t *size = json_array_get(json_object_get(model, "sizes"), 0);
  assert_int_equal(json_integer_value(json_object_get(size, "most_tokens")), 16);
  assert_int_equal(json_integer_value(json_object_get(json_object_get(size, "read"), "high")),
                   2000000);
  json_decref(all);
  file_free(&text);
}

static void one_that_is_off_is_one_line(void **state) {
  (void)state;
  Fusewire__V1__AuditResponse reply = FUSEWIRE__V1__AUDIT_RESPONSE__INIT;
  struct slice text;
  reply.mode = TEXT("off");
  assert_int_equal(audit_text(&reply, &text, NULL), STATUS_OK);
  assert_string_equal((const char *)text.data, "audit.mode: off\n");
  file_free(&text);
}

static void a_device_without_counters_has_only_its_reason(void **state) {
  (void)state;
  Fusewire__V1__AuditResponse reply = FUSEWIRE__V1__AUDIT_RESPONSE__INIT;
  Fusewire__V1__AuditDevice device = FUSEWIRE__V1__AUDIT_DEVICE__INIT, *devices[] = {&device};
  Fusewire__V1__AuditTraffic none = FUSEWIRE__V1__AUDIT_TRAFFIC__INIT;
  struct slice text;
  reply.mode = TEXT("sampled"), reply.interval_us = 200, reply.band = 0.1;
  reply.devices = devices, reply.n_devices = 1;
  device.device = TEXT("cpu:0"), device.state = TEXT("refused"),
  device.reason = TEXT("no counters");
  device.read = &none, device.write = &none;
  assert_int_equal(audit_text(&reply, &text, NULL), STATUS_OK);
  assert_string_equal((const char *)text.data,
                      "audit.mode: sampled, a sample every 200 us, band 1 +- 0.1\n\n"
                      "device cpu:0: refused: no counters\n");
  file_free(&text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_text_has_every_figure), cmocka_unit_test(the_json_has_every_field),
      cmocka_unit_test(one_that_is_off_is_one_line),
      cmocka_unit_test(a_device_without_counters_has_only_its_reason)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
