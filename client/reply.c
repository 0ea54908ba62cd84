#include "client/reply.h"
#include "client/call.h"
#include "client/pb.h"
#include <string.h>

enum {
  RESPONSE_MODEL_NAME = 1,
  RESPONSE_MODEL_VERSION = 2,
  RESPONSE_ID = 3,
  RESPONSE_PARAMETERS = 4,
  RESPONSE_OUTPUTS = 5,
  RESPONSE_RAW = 6,
  MAP_KEY = 1,
  MAP_VALUE = 2,
  PARAMETER_BOOL = 1,
  PARAMETER_INT64 = 2,
  PARAMETER_STRING = 3,
  PARAMETER_DOUBLE = 4,
  PARAMETER_UINT64 = 5,
  OUTPUT_NAME = 1,
  OUTPUT_DATATYPE = 2,
  OUTPUT_SHAPE = 3,
  OUTPUT_CONTENTS = 5,
};

#define KEY(text)                                                                                  \
  { text, sizeof(text) - 1 }
static const struct cost_key {
  const char *name;
  size_t bytes;
} cost_keys[COST_COUNT] = {
    [COST_QUEUE_US] = KEY("queue_us"),
    [COST_COPY_IN_US] = KEY("copy_in_us"),
    [COST_COMPUTE_US] = KEY("compute_us"),
    [COST_COPY_OUT_US] = KEY("copy_out_us"),
    [COST_TOTAL_US] = KEY("total_us"),
    [COST_BATCH_REQUESTS] = KEY("batch_requests"),
    [COST_BATCH_TOKENS] = KEY("batch_tokens"),
    [COST_KERNELS] = KEY("kernels"),
    [COST_READ_BYTES] = KEY("hbm_read_bytes"),
    [COST_WRITE_BYTES] = KEY("hbm_write_bytes"),
    [COST_UNFUSED_BYTES] = KEY("hbm_unfused_bytes"),
    [COST_GBPS] = KEY("achieved_gbps"),
};

const char *cost_name(enum cost cost) {
  return (unsigned)cost < COST_COUNT ? cost_keys[cost].name : "?";
}

static void copy_text(char out[REPLY_TEXT_BYTES], struct slice text) {
  const size_t n = text.bytes < REPLY_TEXT_BYTES ? text.bytes : REPLY_TEXT_BYTES - 1;
  memcpy(out, text.data, n);
  out[n] = 0;
  call_tame(out);
}

// A server writes its parameters in the same order each time: the search begins where the last one
// ended.
static void store_number(struct reply_cost *cost, struct slice key, double value) {
  for (int i = 0; i < COST_COUNT; i++) {
    const int at = (cost->next_key + i) % COST_COUNT;
    if (cost_keys[at].bytes != key.bytes || memcmp(key.data, cost_keys[at].name, key.bytes) != 0)
      continue;
    cost->value[at] = value;
    cost->present |= 1u << at;
    cost->next_key = (at + 1) % COST_COUNT;
    return;
  }
}

static void store_text(struct reply_cost *cost, struct slice key, struct slice value) {
  if (slice_is(key, "fusion")) copy_text(cost->fusion, value);
  if (slice_is(key, "device")) copy_text(cost->device, value);
  if (slice_is(key, "batch_close")) copy_text(cost->batch_close, value);
}

static bool scan_value(struct slice key, struct slice value, struct reply_cost *cost) {
  struct pb_reader reader = pb_reader_of(value);
  struct pb_field field;
  while (pb_next(&reader, &field)) {
    double number = 0;
    if (field.number == PARAMETER_STRING && field.type == PB_BYTES)
      store_text(cost, key, field.bytes);
    if (field.number == PARAMETER_INT64 && field.type == PB_VARINT) {
      store_number(cost, key, (double)(int64_t)field.value);
    }
    if (field.number == PARAMETER_UINT64 && field.type == PB_VARINT) {
      store_number(cost, key, (double)field.value);
    }
    if (field.number == PARAMETER_DOUBLE && field.type == PB_FIXED64) {
      memcpy(&number, &field.value, sizeof number);
      store_number(cost, key, number);
    }
  }
  return !reader.malformed && !reader.cut;
}

static bool scan_parameter(struct slice entry, struct reply_cost *cost) {
  struct pb_reader reader = pb_reader_of(entry);
  struct pb_field field;
  struct slice key = {(const uint8_t *)"", 0}, value = {(const uint8_t *)"", 0};
  while (pb_next(&reader, &field)) {
    if (field.number == MAP_KEY && field.type == PB_BYTES) key = field.bytes;
    if (field.number == MAP_VALUE && field.type == PB_BYTES) value = field.bytes;
  }
  return !reader.malformed && !reader.cut && scan_value(key, value, cost);
}

bool reply_scan_cost(struct slice captured, struct reply_cost *cost) {
  struct pb_reader reader = pb_reader_of(captured);
  struct pb_field field;
  cost->present = 0;
  cost->next_key = 0;
  cost->fusion[0] = cost->device[0] = cost->batch_close[0] = 0;
  while (pb_next(&reader, &field)) {
    if (field.number != RESPONSE_PARAMETERS || field.type != PB_BYTES) continue;
    if (!scan_parameter(field.bytes, cost)) return false;
  }
  return !reader.malformed;
}

static bool parse_shape(const struct pb_field *field, struct reply_output *output) {
  struct pb_reader reader = pb_reader_of(field->bytes);
  uint64_t dim = field->value;
  if (field->type == PB_VARINT) { // not packed: one element
    if (output->rank == TENSOR_RANK) return false;
    output->dims[output->rank++] = (int64_t)dim;
    return true;
  }
  if (field->type != PB_BYTES) return false;
  while (reader.at < reader.end) {
    if (output->rank == TENSOR_RANK || !pb_read_varint(&reader, &dim)) return false;
    output->dims[output->rank++] = (int64_t)dim;
  }
  return true;
}

static enum status parse_output(struct slice bytes, struct reply_output *output,
                                struct error *err) {
  struct pb_reader reader = pb_reader_of(bytes);
  struct pb_field field;
  *output = (struct reply_output){.name = {(const uint8_t *)"", 0}};
  while (pb_next(&reader, &field)) {
    if (field.number == OUTPUT_NAME && field.type == PB_BYTES) output->name = field.bytes;
    if (field.number == OUTPUT_DATATYPE && field.type == PB_BYTES)
      output->type = datatype_of(field.bytes);
    if (field.number == OUTPUT_SHAPE && !parse_shape(&field, output)) reader.malformed = true;
    if (field.number == OUTPUT_CONTENTS) {
      return error_set(err, STATUS_INVALID_ARGUMENT,
                       "output %.*s comes as typed contents; only raw contents are read here",
                       (int)(output->name.bytes & 0xff), (const char *)output->name.data);
    }
  }
  if (reader.malformed || reader.cut) {
    return error_set(err, STATUS_INVALID_ARGUMENT, "malformed output description in the reply");
  }
  return STATUS_OK;
}

static enum status parse_field(const struct pb_field *field, struct reply *reply, int *n_raw,
                               struct error *err) {
  if (field->type != PB_BYTES) return STATUS_OK; // all known fields are length-delimited
  switch (field->number) {
  case RESPONSE_MODEL_NAME:
    reply->model_name = field->bytes;
    return STATUS_OK;
  case RESPONSE_MODEL_VERSION:
    reply->model_version = field->bytes;
    return STATUS_OK;
  case RESPONSE_ID:
    reply->id = field->bytes;
    return STATUS_OK;
  case RESPONSE_PARAMETERS:
    if (scan_parameter(field->bytes, &reply->cost)) return STATUS_OK;
    return error_set(err, STATUS_INVALID_ARGUMENT, "malformed parameter in the reply");
  case RESPONSE_OUTPUTS: {
    struct reply_output output;
    if (reply->n_outputs == REPLY_OUTPUTS) break;
    const enum status status = parse_output(field->bytes, &output, err);
    output.raw = reply->outputs[reply->n_outputs].raw; // raw contents may have come first
    reply->outputs[reply->n_outputs++] = output;
    return status;
  }
  case RESPONSE_RAW:
    if (*n_raw == REPLY_OUTPUTS) break;
    reply->outputs[(*n_raw)++].raw = field->bytes;
    return STATUS_OK;
  default:
    return STATUS_OK;
  }
  return error_set(err, STATUS_INVALID_ARGUMENT, "more than %d outputs in the reply",
                   REPLY_OUTPUTS);
}

static enum status check_output(const struct reply_output *output, struct error *err) {
  size_t bytes = 0;
  char shape[128];
  if (output->type == TYPE_BYTES) return STATUS_OK; // length-prefixed strings: kept as they are
  const enum status status = tensor_bytes(output->type, output->dims, output->rank, &bytes);
  if (status == STATUS_OK && bytes == output->raw.bytes) return STATUS_OK;
  return error_set(err, STATUS_INVALID_ARGUMENT, "output %.*s: %s %s does not fit its %zu bytes",
                   (int)(output->name.bytes & 0xff), (const char *)output->name.data,
                   datatype_name(output->type),
                   shape_text(output->dims, output->rank, shape, sizeof shape), output->raw.bytes);
}

enum status reply_parse(struct slice message, struct reply *reply, struct error *err) {
  struct pb_reader reader = pb_reader_of(message);
  struct pb_field field;
  int n_raw = 0;
  const struct slice empty = {(const uint8_t *)"", 0};
  *reply = (struct reply){.model_name = empty, .model_version = empty, .id = empty};
  while (pb_next(&reader, &field)) {
    const enum status status = parse_field(&field, reply, &n_raw, err);
    if (status != STATUS_OK) return status;
  }
  if (reader.malformed || reader.cut) {
    return error_set(err, STATUS_INVALID_ARGUMENT, "the reply is not a ModelInferResponse");
  }
  if (n_raw != reply->n_outputs) {
    return error_set(err, STATUS_INVALID_ARGUMENT, "the reply has %d outputs but %d raw contents",
                     reply->n_outputs, n_raw);
  }
  for (int i = 0; i < reply->n_outputs; i++) {
    const enum status status = check_output(&reply->outputs[i], err);
    if (status != STATUS_OK) return status;
  }
  return STATUS_OK;
}
