#include "client/payload.h"
#include "client/pb.h"
#include <stdlib.h>

// Field numbers of the Open Inference Protocol's ModelInferRequest and of its parts.
enum {
  REQUEST_MODEL_NAME = 1,
  REQUEST_MODEL_VERSION = 2,
  REQUEST_PARAMETERS = 4,
  REQUEST_INPUTS = 5,
  REQUEST_OUTPUTS = 6,
  REQUEST_RAW_INPUT_CONTENTS = 7,
  MAP_KEY = 1,
  MAP_VALUE = 2,
  PARAMETER_STRING = 3,
  INPUT_NAME = 1,
  INPUT_DATATYPE = 2,
  INPUT_SHAPE = 3,
  OUTPUT_NAME = 1,
};

void request_input_free(struct request_input *input) {
  for (int i = 0; i < input->n_tensors; i++)
    tensor_free(&input->tensors[i]);
  *input = (struct request_input){0};
}

static void put_parameter(struct pb_buf *out, const char *key, const char *value) {
  struct pb_buf entry = {0}, parameter = {0};
  pb_put_text(&parameter, PARAMETER_STRING, value);
  pb_put_text(&entry, MAP_KEY, key);
  pb_put_message(&entry, MAP_VALUE, &parameter);
  pb_put_message(out, REQUEST_PARAMETERS, &entry);
  pb_free(&entry);
  pb_free(&parameter);
}

static void put_input(struct pb_buf *out, const struct infer_tensor *tensor) {
  struct pb_buf input = {0}, shape = {0};
  pb_put_text(&input, INPUT_NAME, tensor->name);
  pb_put_text(&input, INPUT_DATATYPE, datatype_name(tensor->type));
  for (int i = 0; i < tensor->rank; i++)
    pb_varint(&shape, (uint64_t)tensor->dims[i]);
  pb_put_message(&input, INPUT_SHAPE, &shape); // packed
  pb_put_message(out, REQUEST_INPUTS, &input);
  pb_free(&input);
  pb_free(&shape);
}

static void put_output(struct pb_buf *out, const char *name) {
  struct pb_buf output = {0};
  pb_put_text(&output, OUTPUT_NAME, name);
  pb_put_message(out, REQUEST_OUTPUTS, &output);
  pb_free(&output);
}

static struct pb_buf encode_head(const struct payload_options *options, const char *fusion,
                                 const struct request_input *input, size_t body_bytes) {
  struct pb_buf head = {0};
  pb_append(&head, "\0\0\0\0\0", GRPC_PREFIX_BYTES);
  pb_put_text(&head, REQUEST_MODEL_NAME, options->model);
  if (options->version) pb_put_text(&head, REQUEST_MODEL_VERSION, options->version);
  if (fusion) put_parameter(&head, "fusion", fusion);
  for (int i = 0; i < input->n_tensors; i++)
    put_input(&head, &input->tensors[i]);
  for (int i = 0; options->outputs && i < options->outputs->n; i++) {
    put_output(&head, options->outputs->items[i]);
  }
  const size_t message_bytes = head.bytes - GRPC_PREFIX_BYTES + body_bytes;
  if (head.failed || message_bytes > UINT32_MAX) {
    head.failed = true;
    return head;
  }
  for (int i = 0; i < 4; i++)
    head.data[1 + i] = (uint8_t)(message_bytes >> (8 * (3 - i)));
  return head;
}

static struct pb_buf encode_body(const struct request_input *input) {
  struct pb_buf body = {0};
  for (int i = 0; i < input->n_tensors; i++) {
    pb_put_bytes(&body, REQUEST_RAW_INPUT_CONTENTS, input->tensors[i].data,
                 input->tensors[i].bytes);
  }
  return body;
}

static bool set_reserve(struct payload_set *set) {
  if (set->n < set->capacity) return true;
  const int capacity = set->capacity ? set->capacity * 2 : 16;
  struct payload *items = realloc(set->items, (size_t)capacity * sizeof *items);
  if (!items) return false;
  set->items = items;
  set->capacity = capacity;
  return true;
}

static void payload_free(struct payload *payload) {
  for (int i = 0; i < PAYLOAD_VARIANTS; i++)
    free((void *)(uintptr_t)payload->head[i].data);
  free((void *)(uintptr_t)payload->body.data);
}

enum status payload_set_add(struct payload_set *set, const struct payload_options *options,
                            const struct request_input *input, struct error *err) {
  struct payload payload = {.tokens = input->tokens};
  struct pb_buf body = encode_body(input);
  bool failed = body.failed || !set_reserve(set);
  payload.body = (struct slice){body.data, body.bytes};
  for (int i = 0; i < PAYLOAD_VARIANTS; i++) {
    struct pb_buf head = encode_head(options, options->fusion[i], input, body.bytes);
    payload.head[i] = (struct slice){head.data, head.bytes};
    failed |= head.failed;
  }
  if (failed) {
    payload_free(&payload);
    return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                     "no memory for a request of %zu bytes (or more than 4 GiB in one message)",
                     body.bytes);
  }
  set->items[set->n++] = payload;
  set->total_bytes += payload.body.bytes + payload.head[0].bytes + payload.head[1].bytes;
  return STATUS_OK;
}

void payload_set_free(struct payload_set *set) {
  for (int i = 0; i < set->n; i++)
    payload_free(&set->items[i]);
  free(set->items);
  *set = (struct payload_set){0};
}
