#include "client/audit_print.h"

#include "client/call.h"
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN 128 // bytes of a text of the server

static const char *tame(const char *text, char out[SHOWN]) {
  snprintf(out, SHOWN, "%s", text ? text : "");
  call_tame(out);
  return out;
}

// ---- text ----
static const char *bytes_text(uint64_t bytes, char out[32]) {
  static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  double value = (double)bytes;
  int unit = 0;
  for (; value >= 999.5 && unit < 5; unit++)
    value /= 1000;
  snprintf(out, 32, unit == 0 ? "%.0f %s" : "%.3g %s", value, units[unit]);
  return out;
}

static const char *ratio_text(const Fusewire__V1__AuditBytes *bytes, char out[32]) {
  if (!bytes || bytes->expected == 0) return "-";
  snprintf(out, 32, "%.3f", (double)bytes->measured / (double)bytes->expected);
  return out;
}

static void traffic_text(FILE *out, const char *name, const Fusewire__V1__AuditTraffic *traffic) {
  char a[32], b[32], c[32];
  if (!traffic) return;
  fprintf(out, "  %-9s %12s %12s %12s\n", name, bytes_text(traffic->batches, a),
          bytes_text(traffic->copies, b), bytes_text(traffic->other, c));
}

// A device whose counters were never read, as a CPU, has nothing but a reason to tell.
static bool counted(const Fusewire__V1__AuditDevice *device) {
  return device->calibrations > 0 || device->calibrations_failed > 0 || device->losses > 0 ||
         device->samples_evaluated > 0 || device->samples_passed > 0;
}

static void device_text(FILE *out, const Fusewire__V1__AuditDevice *device) {
  char name[SHOWN], state[SHOWN], reason[SHOWN];
  fprintf(out, "\ndevice %s: %s", tame(device->device, name), tame(device->state, state));
  if (device->reason && device->reason[0]) fprintf(out, ": %s", tame(device->reason, reason));
  fputs("\n", out);
  if (!counted(device)) return;
  if (device->read_factor > 0 || device->write_factor > 0)
    fprintf(out, "  of a copy of known size: %.4f of what it read, %.4f of what it wrote\n",
            device->read_factor, device->write_factor);
  fprintf(out,
          "  copies of known size counted right %" PRIu64 " times, wrong %" PRIu64
          "; samples lost %" PRIu64 " times\n  samples looked at %" PRIu64 ", passed over %" PRIu64
          "; %.3f s of CPU\n",
          device->calibrations, device->calibrations_failed, device->losses,
          device->samples_evaluated, device->samples_passed, device->cpu_seconds);
  if (!device->read && !device->write) return;
  fprintf(out, "  %-9s %12s %12s %12s\n", "counted", "in batches", "in copies", "other");
  traffic_text(out, "read", device->read);
  traffic_text(out, "written", device->write);
  fprintf(out, "  of the last seconds' traffic no batch explains %.1f %%\n",
          100 * device->unexplained);
}

static void size_text(FILE *out, const Fusewire__V1__AuditSize *size) {
  char most[32] = "more", text[6][32];
  const Fusewire__V1__AuditBytes none = FUSEWIRE__V1__AUDIT_BYTES__INIT;
  const Fusewire__V1__AuditBytes *read = size->read ? size->read : &none,
                                 *write = size->write ? size->write : &none;
  if (size->most_tokens > 0) snprintf(most, sizeof most, "%" PRIu32, size->most_tokens);
  fprintf(out, "  %9s %9" PRIu64 " %7" PRIu64 " %8" PRIu64 " %10s %10s %7s %10s %10s %7s\n", most,
          size->batches, size->shared, size->resident, bytes_text(read->measured, text[0]),
          bytes_text(read->expected, text[1]), ratio_text(read, text[2]),
          bytes_text(write->measured, text[3]), bytes_text(write->expected, text[4]),
          ratio_text(write, text[5]));
}

static void model_text(FILE *out, const Fusewire__V1__AuditModel *model) {
  static const char *const bands[] = {"in the band", "reads are out of the band",
                                      "writes are out of the band",
                                      "reads and writes are out of the band"};
  char name[SHOWN], version[SHOWN], fusion[SHOWN], device[SHOWN];
  int band = (model->read_out_of_band ? 1 : 0) + (model->write_out_of_band ? 2 : 0);
  fprintf(out, "\nmodel %s version %s, fusion %s, on %s: %s\n", tame(model->model_name, name),
          tame(model->model_version, version), tame(model->fusion, fusion),
          tame(model->device, device), bands[band]);
  fprintf(out,
          "  left it %" PRIu64 " times; batches without a figure: %" PRIu64 " lost, %" PRIu64
          " uncalibrated, %" PRIu64 " skipped\n",
          model->alarms, model->lost, model->uncalibrated, model->skipped);
  if (model->n_sizes == 0) return;
  fprintf(out, "  %9s %9s %7s %8s %10s %10s %7s %10s %10s %7s\n", "tokens to", "batches", "shared",
          "resident", "read", "expected", "ratio", "written", "expected", "ratio");
  for (size_t s = 0; s < model->n_sizes; s++)
    size_text(out, model->sizes[s]);
}

static void text_of(FILE *out, const Fusewire__V1__AuditResponse *reply) {
  char mode[SHOWN];
  fprintf(out, "audit.mode: %s", tame(reply->mode, mode));
  if (reply->n_devices > 0)
    fprintf(out, ", a sample every %" PRIu32 " us, band 1 +- %.3g", reply->interval_us,
            reply->band);
  fputs("\n", out);
  for (size_t d = 0; d < reply->n_devices; d++)
    device_text(out, reply->devices[d]);
  size_t idle = 0;
  for (size_t m = 0; m < reply->n_models; m++) {
    const Fusewire__V1__AuditModel *model = reply->models[m];
    bool ran = model->n_sizes > 0 || model->lost + model->uncalibrated + model->skipped > 0;
    if (ran)
      model_text(out, model);
    else
      idle++;
  }
  if (idle > 0)
    fprintf(out, "\n%zu%s pairs of model and plan have no figures.\n", idle,
            idle < reply->n_models ? " other" : "");
}

enum status audit_text(const Fusewire__V1__AuditResponse *reply, struct slice *out,
                       struct error *err) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *file = open_memstream(&text, &bytes);
  if (file) text_of(file, reply);
  if (!file || fclose(file) != 0) {
    free(text);
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for the text");
  }
  *out = (struct slice){(const uint8_t *)text, bytes};
  return STATUS_OK;
}

// ---- JSON ----
static json_t *message_json(const ProtobufCMessage *message);

// NULL: of a type that no message of the audit has.
static json_t *value_json(const ProtobufCFieldDescriptor *field, const void *at) {
  switch (field->type) {
  case PROTOBUF_C_TYPE_UINT32:
    return json_integer(*(const uint32_t *)at);
  case PROTOBUF_C_TYPE_UINT64: // none gets near to 2^63
    return json_integer((json_int_t) * (const uint64_t *)at);
  case PROTOBUF_C_TYPE_DOUBLE:
    return isfinite(*(const double *)at) ? json_real(*(const double *)at) : json_null();
  case PROTOBUF_C_TYPE_BOOL:
    return json_boolean(*(const protobuf_c_boolean *)at);
  case PROTOBUF_C_TYPE_STRING: {
    char text[SHOWN];
    return json_string(tame(*(char *const *)at, text));
  }
  case PROTOBUF_C_TYPE_MESSAGE: {
    const ProtobufCMessage *message = *(ProtobufCMessage *const *)at;
    return message ? message_json(message) : json_null();
  }
  default:
    return NULL;
  }
}

static json_t *message_json(const ProtobufCMessage *message) {
  json_t *out = json_object();
  for (unsigned f = 0; f < message->descriptor->n_fields; f++) {
    const ProtobufCFieldDescriptor *field = &message->descriptor->fields[f];
    const char *at = (const char *)message + field->offset;
    json_t *value = NULL;
    if (field->label == PROTOBUF_C_LABEL_REPEATED) { // of messages only
      size_t n = *(const size_t *)(const void *)((const char *)message + field->quantifier_offset);
      ProtobufCMessage *const *list = *(ProtobufCMessage * *const *)(const void *)at;
      value = json_array();
      for (size_t i = 0; i < n; i++)
        json_array_append_new(value, message_json(list[i]));
    } else {
      value = value_json(field, at);
    }
    json_object_set_new(out, field->name, value);
  }
  return out;
}

enum status audit_json(const Fusewire__V1__AuditResponse *reply, struct slice *out,
                       struct error *err) {
  json_t *object = json_object(), *fields = message_json(&reply->base);
  json_object_set_new(object, "schema", json_string(AUDIT_SCHEMA));
  json_object_update(object, fields);
  json_decref(fields);
  char *text = json_dumps(object, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
  json_decref(object);
  size_t bytes = text ? strlen(text) : 0;
  char *line = text ? realloc(text, bytes + 2) : NULL;
  if (!line) {
    free(text);
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for the JSON");
  }
  line[bytes] = '\n', line[bytes + 1] = '\0';
  *out = (struct slice){(const uint8_t *)line, bytes + 1};
  return STATUS_OK;
}
