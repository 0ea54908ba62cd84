#include "client/predict.h"
#include "client/file.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>

#define FORMAT_JSON 1 // of fusewire.proto

static double number_in(const json_t *map, const char *key) {
  const json_t *value = json_object_get(map, key);
  return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static bool read_plan(const json_t *root, const char *name, double *us, double *bytes) {
  const json_t *plan = json_object_get(json_object_get(root, "plans"), name);
  const json_t *total = json_object_get(plan, "total");
  *us = number_in(total, "us");
  *bytes = number_in(total, "read_bytes") + number_in(total, "write_bytes");
  return *us > 0 && *bytes > 0;
}

bool prediction_read(struct slice document, struct prediction *out) {
  json_t *root = json_loadb((const char *)document.data, document.bytes, 0, NULL);
  *out = (struct prediction){0};
  const json_t *batch = json_object_get(root, "batch"), *device = json_object_get(root, "device");
  out->tokens = (int64_t)json_integer_value(json_object_get(batch, "tokens"));
  out->sequences = (int64_t)json_integer_value(json_object_get(batch, "sequences"));
  out->measured_rates = json_is_true(json_object_get(device, "measured"));
  out->present = out->tokens > 0 && read_plan(root, "fused", &out->us[0], &out->bytes[0]) &&
                 read_plan(root, "unfused", &out->us[1], &out->bytes[1]);
  // beside its kernels a batch has a beginning and an end, fused or not
  const double batch_us = number_in(device, "batch_us");
  for (int i = 0; i < 2 && out->present && batch_us >= 0; i++)
    out->us[i] += batch_us;
  json_decref(root);
  if (!out->present)
    snprintf(out->note, sizeof out->note, "the server's explanation lacks times or bytes");
  return out->present;
}

void prediction_ask(struct net *net, const char *model, const char *version, int64_t tokens,
                    int64_t sequences, struct prediction *out) {
  struct error err = {0};
  struct slice document = {0};
  const struct oip_explain ask = {.model = model,
                                  .version = version,
                                  .fusion = "on",
                                  .tokens = tokens,
                                  .sequences = sequences,
                                  .format = FORMAT_JSON};
  const enum status status = oip_explain(net, &ask, &document, &err);
  if (status == STATUS_OK) {
    (void)prediction_read(document, out);
    file_free(&document);
    return;
  }
  *out = (struct prediction){0};
  snprintf(out->note, sizeof out->note, "%s: %.200s", status_name(status), err.message);
}

double prediction_time_ratio(const struct prediction *prediction) {
  return prediction->present ? prediction->us[1] / prediction->us[0] : (double)NAN;
}

double prediction_bytes_ratio(const struct prediction *prediction) {
  return prediction->present ? prediction->bytes[1] / prediction->bytes[0] : (double)NAN;
}
