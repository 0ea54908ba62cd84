// The bytes of a ModelInferResponse: everything but the tensors is written into one small buffer;
// the tensors are borrowed.
//
//   head (copied):  model_name model_version id parameters* outputs*  tag+length of tensor 0
//   payload:        tensor 0 | tag+length of tensor 1 | tensor 1 | ...      in the request's memory
//   until `done`
#include "api/handlers.h"
#include "api/infer.h"
#include "base/log.h"

#include <string.h>

// Field numbers of ModelInferResponse.
enum {
  FIELD_MODEL_NAME = 1,
  FIELD_MODEL_VERSION,
  FIELD_ID,
  FIELD_PARAMETERS,
  FIELD_OUTPUTS,
  FIELD_RAW
};

// A map entry up to its value is the same in every reply but for three lengths; it is made once.
//   22 entry-length  0a key-length key...  12 value-length  tag  [string: length]  value...
struct param {
  uint8_t bytes[48];
  uint8_t n;               // bytes in front of the value
  uint8_t value_length_at; // where value-length stands
};
enum { PARAM_ENTRY_LENGTH_AT = 1 };

enum {
#define PARAM_TEXT(key, expression) PARAM_##key,
#define PARAM_INT(key, expression) PARAM_##key,
#define PARAM_REAL(key, expression) PARAM_##key,
#define PARAM_WHEN(condition)
#include "api/reply_params.def"
#undef PARAM_TEXT
#undef PARAM_INT
#undef PARAM_REAL
#undef PARAM_WHEN
  PARAM_COUNT
};
static struct param params[PARAM_COUNT];

// 20 parameters of at most 64 bytes, the echoed names, and each output's name, type and shape.
#define HEAD_BYTES 8192
_Static_assert(PARAM_COUNT * 96 + 3 * 260 + LIMIT_MODEL_OUTPUTS * (LIMIT_NAME_BYTES + 128) <
                   HEAD_BYTES,
               "head buffer");

static void param_make(struct param *param, const char *key, uint8_t value_tag) {
  size_t key_bytes = strlen(key);
  FW_ASSERT(key_bytes + 7 <= sizeof param->bytes);
  uint8_t *at = param->bytes;
  *at++ = FIELD_PARAMETERS << 3 | 2;
  *at++ = 0;
  *at++ = 1 << 3 | 2;
  *at++ = (uint8_t)key_bytes;
  memcpy(at, key, key_bytes);
  at += key_bytes;
  *at++ = 2 << 3 | 2;
  param->value_length_at = (uint8_t)(at - param->bytes);
  *at++ = 0;
  *at++ = value_tag;
  param->n = (uint8_t)(at - param->bytes);
}

void infer_reply_setup(void) {
#define PARAM_TEXT(key, expression) param_make(&params[PARAM_##key], #key, WIRE_STRING << 3 | 2);
#define PARAM_INT(key, expression) param_make(&params[PARAM_##key], #key, WIRE_INT64 << 3);
#define PARAM_REAL(key, expression) param_make(&params[PARAM_##key], #key, WIRE_DOUBLE << 3 | 1);
#define PARAM_WHEN(condition)
#include "api/reply_params.def"
#undef PARAM_TEXT
#undef PARAM_INT
#undef PARAM_REAL
#undef PARAM_WHEN
}

// The template with its lengths for a value of `bytes` (all under 128, so one byte each); returns
// where the value goes.
static uint8_t *param_begin(uint8_t *at, const struct param *param, size_t bytes) {
  memcpy(at, param->bytes,
         sizeof param->bytes); // constant size: a few vector moves; what is too much is overwritten
  at[param->value_length_at] = (uint8_t)(1 + bytes);
  at[PARAM_ENTRY_LENGTH_AT] = (uint8_t)(param->n - 2 + bytes);
  return at + param->n;
}

static uint8_t *put_text(uint8_t *at, const struct param *param, const char *text) {
  size_t bytes = strlen(text);
  if (bytes > 32) bytes = 32;
  at = param_begin(at, param, 1 + bytes);
  *at++ = (uint8_t)bytes;
  // NOLINTNEXTLINE(bugprone-not-null-terminated-result): the length stands in front
  memcpy(at, text, bytes);
  return at + bytes;
}

static uint8_t *put_int(uint8_t *at, const struct param *param, int64_t value) {
  uint64_t left = (uint64_t)value;
  at = param_begin(at, param, wire_varint_bytes(left));
  for (; left >= 0x80; left >>= 7)
    *at++ = (uint8_t)(left | 0x80);
  *at++ = (uint8_t)left;
  return at;
}

static uint8_t *put_real(uint8_t *at, const struct param *param, double value) {
  at = param_begin(at, param, sizeof value);
  memcpy(at, &value, sizeof value);
  return at + sizeof value;
}

static double us(int64_t ns) {
  return (double)ns / 1e3;
}

// Bytes over nanoseconds are gigabytes over seconds.
static double gbps(const struct request_cost *cost) {
  return cost->compute_ns > 0
             ? (cost->batch_read_bytes + cost->batch_write_bytes) / (double)cost->compute_ns
             : 0.0;
}

static bool measured(const struct request *request) {
  return request->audit && request->cost.audit == AUDIT_MEASURED;
}

static int64_t whole(double bytes) {
  return (int64_t)(bytes + 0.5);
}

static uint8_t *put_parameters(uint8_t *at, const struct api *api, const struct request *request,
                               int64_t total_ns) {
  const struct request_cost *cost = &request->cost;
#define PARAM_TEXT(key, expression) at = put_text(at, &params[PARAM_##key], expression);
#define PARAM_INT(key, expression) at = put_int(at, &params[PARAM_##key], expression);
#define PARAM_REAL(key, expression) at = put_real(at, &params[PARAM_##key], expression);
#define PARAM_WHEN(condition) if (condition)
#include "api/reply_params.def"
#undef PARAM_TEXT
#undef PARAM_INT
#undef PARAM_REAL
#undef PARAM_WHEN
  return at;
}

static void put_output(struct wire_writer *writer, const struct signature_tensor *tensor,
                       const struct request *request) {
  uint8_t body[LIMIT_NAME_BYTES + 128], dims[LIMIT_TENSOR_RANK * WIRE_VARINT_BYTES];
  struct wire_writer inner = {body, body + sizeof body, false},
                     shape = {dims, dims + sizeof dims, false};
  for (int32_t d = 0; d < tensor->rank; d++) {
    int64_t dim = tensor->dims[d];
    if (dim == DIM_BATCH)
      dim = request->n_seqs;
    else if (dim == DIM_SEQ)
      dim = request->padded_seqlen;
    wire_put_varint(&shape, (uint64_t)dim);
  }
  const char *datatype = datatype_name(tensor->dtype);
  wire_put_bytes(&inner, 1, tensor->name, tensor->name_bytes);
  wire_put_bytes(&inner, 2, datatype, strlen(datatype));
  wire_put_bytes(&inner, 3, dims, (size_t)(shape.at - dims));
  FW_ASSERT(!inner.over && !shape.over);
  wire_put_bytes(writer, FIELD_OUTPUTS, body, (size_t)(inner.at - body));
}

// Tensors and, from the second on, their tags; the first one's tag ends the head.
static int payload_fill(struct request *request, struct wire_writer *head, struct slice *payload) {
  int n = 0;
  for (int k = 0; k < request->n_outputs; k++) {
    size_t bytes = request->outputs_bytes[k];
    if (k == 0) {
      wire_put_length(head, FIELD_RAW, bytes);
    } else {
      uint8_t *raw_head = request->raw_heads[k];
      struct wire_writer writer = {raw_head, raw_head + sizeof request->raw_heads[k], false};
      wire_put_length(&writer, FIELD_RAW, bytes);
      payload[n++] = (struct slice){raw_head, (size_t)(writer.at - raw_head)};
    }
    payload[n++] = (struct slice){request->outputs_data[k], bytes};
  }
  return n;
}

// ---- in a stream: ModelStreamInferResponse { error_message = 1; infer_response = 2; } ----
#define STREAM_HEAD_BYTES (1 + WIRE_VARINT_BYTES)

// The answer is a field of the message: its tag and length in front. Returns where it begins.
static uint8_t *wrap(uint8_t *head, size_t head_bytes, const struct slice *payload, int n_payload) {
  uint8_t field[STREAM_HEAD_BYTES];
  struct wire_writer writer = {field, field + sizeof field, false};
  uint64_t bytes = head_bytes;
  for (int i = 0; i < n_payload; i++)
    bytes += payload[i].bytes;
  wire_put_length(&writer, 2, bytes);
  size_t field_bytes = (size_t)(writer.at - field);
  memcpy(head - field_bytes, field, field_bytes);
  return head - field_bytes;
}

void infer_reply_error(struct call *call, const char *message, struct slice model,
                       struct slice version, struct slice id) {
  uint8_t head[ERROR_MESSAGE_BYTES + 2 * LIMIT_NAME_BYTES + LIMIT_REQUEST_ID_BYTES + 64];
  uint8_t inner[2 * LIMIT_NAME_BYTES + LIMIT_REQUEST_ID_BYTES + 32];
  struct wire_writer writer = {head, head + sizeof head, false},
                     response = {inner, inner + sizeof inner, false};
  wire_put_bytes(&writer, 1, message, strlen(message));
  if (model.bytes) wire_put_bytes(&response, FIELD_MODEL_NAME, model.data, model.bytes);
  if (version.bytes) wire_put_bytes(&response, FIELD_MODEL_VERSION, version.data, version.bytes);
  if (id.bytes) wire_put_bytes(&response, FIELD_ID, id.data, id.bytes);
  wire_put_bytes(&writer, 2, inner, (size_t)(response.at - inner));
  FW_ASSERT(!writer.over && !response.over);
  (void)call_send(call, head, (size_t)(writer.at - head), NULL, 0, NULL, NULL);
}

void infer_reply(const struct api *api, struct call *call, struct request *request,
                 void (*done)(void *request)) {
  uint8_t room[STREAM_HEAD_BYTES + HEAD_BYTES], *head = room + STREAM_HEAD_BYTES;
  struct wire_writer writer = {head, room + sizeof room, false};
  struct slice payload[2 * LIMIT_MODEL_OUTPUTS];
  const struct model *model = request->model;
  wire_put_bytes(&writer, FIELD_MODEL_NAME, model->name, strlen(model->name));
  wire_put_bytes(&writer, FIELD_MODEL_VERSION, model->version, strlen(model->version));
  if (request->id_bytes > 0) wire_put_bytes(&writer, FIELD_ID, request->id, request->id_bytes);
  int64_t total_ns = request->t_ns[STAGE_DONE] - request->t_ns[STAGE_MESSAGE];
  writer.at = put_parameters(writer.at, api, request, total_ns);
  for (int k = 0; k < request->n_outputs; k++)
    put_output(&writer, &model->outputs[request->output_order[k]], request);
  int n_payload = payload_fill(request, &writer, payload);
  FW_ASSERT(!writer.over);
  if (!request->item) {
    call_reply(call, head, (size_t)(writer.at - head), payload, n_payload, done, request);
    return;
  }
  head = wrap(head, (size_t)(writer.at - head), payload, n_payload);
  (void)call_send(call, head, (size_t)(writer.at - head), payload, n_payload, done, request);
}
