// What is written by hand must read the same through generated code, and the other way round.
#include "client/payload.h"
#include "client/pb.h"
#include "client/reply.h"
#include "harness/cmocka_all.h"
#include "open_inference.pb-c.h"

static Inference__ModelInferRequest *unpack_request(const struct payload *payload, int variant) {
  const struct slice head = payload->head[variant], body = payload->body;
  const size_t bytes = head.bytes + body.bytes - GRPC_PREFIX_BYTES;
  const uint8_t *p = head.data;
  uint8_t *message = malloc(bytes);
  assert_int_equal(p[0], 0);
  assert_int_equal((size_t)p[1] << 24 | (size_t)p[2] << 16 | (size_t)p[3] << 8 | p[4], bytes);
  memcpy(message, head.data + GRPC_PREFIX_BYTES, head.bytes - GRPC_PREFIX_BYTES);
  if (body.bytes) memcpy(message + head.bytes - GRPC_PREFIX_BYTES, body.data, body.bytes);
  Inference__ModelInferRequest *request =
      inference__model_infer_request__unpack(NULL, bytes, message);
  free(message);
  assert_non_null(request);
  return request;
}

static void requests_read_the_same_through_generated_code(void **state) {
  (void)state;
  struct request_input input = {.n_tensors = 2, .tokens = 6};
  const struct infer_tensor ids = {"input_ids", TYPE_INT64, 2, {2, 300}, NULL, 0};
  const struct infer_tensor mask = {"attention_mask", TYPE_INT64, 2, {2, 3}, NULL, 0};
  const struct text_list outputs = {{"sentence_embedding"}, 1};
  const struct payload_options options = {
      .model = "m", .version = "7", .outputs = &outputs, .fusion = {"on", "off"}};
  struct payload_set set = {0};
  struct error err;
  input.tensors[0] = ids;
  input.tensors[1] = mask;
  for (int i = 0; i < 2; i++)
    assert_int_equal(tensor_alloc(&input.tensors[i], SIZE_MAX, &err), 0);
  for (size_t i = 0; i < input.tensors[0].bytes; i++)
    input.tensors[0].data[i] = (uint8_t)i;
  assert_int_equal(payload_set_add(&set, &options, &input, &err), 0);
  assert_int_equal(set.items[0].tokens, 6);
  for (int variant = 0; variant < 2; variant++) {
    Inference__ModelInferRequest *r = unpack_request(&set.items[0], variant);
    assert_string_equal(r->model_name, "m");
    assert_string_equal(r->model_version, "7");
    assert_int_equal(r->n_parameters, 1);
    assert_string_equal(r->parameters[0]->key, "fusion");
    assert_string_equal(r->parameters[0]->value->string_param, variant ? "off" : "on");
    assert_int_equal(r->n_inputs, 2);
    assert_string_equal(r->inputs[0]->name, "input_ids");
    assert_string_equal(r->inputs[0]->datatype, "INT64");
    assert_int_equal(r->inputs[0]->n_shape, 2);
    assert_int_equal(r->inputs[0]->shape[1], 300);
    assert_int_equal(r->n_outputs, 1);
    assert_string_equal(r->outputs[0]->name, "sentence_embedding");
    assert_int_equal(r->n_raw_input_contents, 2);
    assert_int_equal(r->raw_input_contents[0].len, 4800);
    assert_memory_equal(r->raw_input_contents[0].data, input.tensors[0].data, 4800);
    inference__model_infer_request__free_unpacked(r, NULL);
  }
  request_input_free(&input);
  payload_set_free(&set);
}

static void a_parameter_that_is_not_asked_for_is_not_sent(void **state) {
  (void)state;
  struct request_input input = {.n_tensors = 0};
  const struct payload_options options = {.model = "m"};
  struct payload_set set = {0};
  struct error err;
  assert_int_equal(payload_set_add(&set, &options, &input, &err), 0);
  Inference__ModelInferRequest *r = unpack_request(&set.items[0], 0);
  assert_int_equal(r->n_parameters, 0);
  assert_string_equal(r->model_version, "");
  inference__model_infer_request__free_unpacked(r, NULL);
  payload_set_free(&set);
}

// ---- replies ----

// Generated structs hold char *; nothing writes through them here.
#define TEXT(literal) ((char *)(uintptr_t)(literal))
typedef Inference__InferParameter Parameter;
typedef Inference__ModelInferResponse__ParametersEntry Entry;

static size_t pack_reply(uint8_t *out, bool with_outputs) {
  static uint8_t values[16];
  int64_t shape[2] = {1, 4};
  Parameter i = INFERENCE__INFER_PARAMETER__INIT, d = INFERENCE__INFER_PARAMETER__INIT,
            s = INFERENCE__INFER_PARAMETER__INIT, u = INFERENCE__INFER_PARAMETER__INIT;
  i.parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_INT64_PARAM;
  i.int64_param = 123456789012;
  d.parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_DOUBLE_PARAM;
  d.double_param = 12.75;
  s.parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_STRING_PARAM;
  s.string_param = TEXT("on");
  u.parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_UINT64_PARAM;
  u.uint64_param = 5;
  Entry entries[4] = {INFERENCE__MODEL_INFER_RESPONSE__PARAMETERS_ENTRY__INIT,
                      INFERENCE__MODEL_INFER_RESPONSE__PARAMETERS_ENTRY__INIT,
                      INFERENCE__MODEL_INFER_RESPONSE__PARAMETERS_ENTRY__INIT,
                      INFERENCE__MODEL_INFER_RESPONSE__PARAMETERS_ENTRY__INIT};
  entries[0].key = TEXT("hbm_read_bytes"), entries[0].value = &i;
  entries[1].key = TEXT("compute_us"), entries[1].value = &d;
  entries[2].key = TEXT("fusion"), entries[2].value = &s;
  entries[3].key = TEXT("kernels"), entries[3].value = &u;
  Entry *entry_list[4] = {&entries[0], &entries[1], &entries[2], &entries[3]};
  Inference__ModelInferResponse__InferOutputTensor output =
      INFERENCE__MODEL_INFER_RESPONSE__INFER_OUTPUT_TENSOR__INIT;
  Inference__ModelInferResponse__InferOutputTensor *output_list[1] = {&output};
  output.name = TEXT("y");
  output.datatype = TEXT("FP32");
  output.n_shape = 2;
  output.shape = shape;
  ProtobufCBinaryData raw = {sizeof values, values};
  Inference__ModelInferResponse reply = INFERENCE__MODEL_INFER_RESPONSE__INIT;
  reply.model_name = TEXT("m");
  reply.n_parameters = 4;
  reply.parameters = entry_list;
  if (with_outputs) {
    reply.n_outputs = 1;
    reply.outputs = output_list;
    reply.n_raw_output_contents = 1;
    reply.raw_output_contents = &raw;
  }
  return inference__model_infer_response__pack(&reply, out);
}

static void cost_is_read_from_generated_bytes(void **state) {
  (void)state;
  uint8_t bytes[1024];
  struct reply_cost cost;
  const size_t n = pack_reply(bytes, false);
  assert_true(reply_scan_cost((struct slice){bytes, n}, &cost));
  assert_int_equal(cost.present,
                   1u << COST_READ_BYTES | 1u << COST_COMPUTE_US | 1u << COST_KERNELS);
  assert_near(cost.value[COST_READ_BYTES], 123456789012.0, 0);
  assert_near(cost.value[COST_COMPUTE_US], 12.75, 0);
  assert_near(cost.value[COST_KERNELS], 5, 0);
  assert_string_equal(cost.fusion, "on");
}

static void cost_needs_only_the_start_of_a_long_reply(void **state) {
  (void)state;
  uint8_t bytes[1024];
  struct reply_cost cost;
  const size_t all = pack_reply(bytes, true);
  assert_true(reply_scan_cost((struct slice){bytes, all - 10}, &cost)); // cut within the payload
  assert_near(cost.value[COST_COMPUTE_US], 12.75, 0);
  assert_true(cost.present != 0);
}

static void outputs_are_slices_of_the_reply(void **state) {
  (void)state;
  uint8_t bytes[1024];
  struct reply reply;
  struct error err;
  const size_t n = pack_reply(bytes, true);
  assert_int_equal(reply_parse((struct slice){bytes, n}, &reply, &err), 0);
  assert_int_equal(reply.n_outputs, 1);
  assert_true(slice_is(reply.outputs[0].name, "y"));
  assert_int_equal(reply.outputs[0].type, TYPE_FP32);
  assert_int_equal(reply.outputs[0].dims[1], 4);
  assert_int_equal(reply.outputs[0].raw.bytes, 16);
  assert_in_range((uintptr_t)reply.outputs[0].raw.data, (uintptr_t)bytes,
                  (uintptr_t)bytes + n - 16);
}

static void every_truncated_reply_is_refused(void **state) {
  (void)state;
  uint8_t bytes[1024];
  struct reply reply;
  struct error err;
  const size_t all = pack_reply(bytes, true);
  for (size_t n = 1; n < all; n++) {
    uint8_t *cut = malloc(n);
    struct reply_cost cost;
    memcpy(cut, bytes, n);
    // A cut between fields is a shorter message, but then outputs and payloads no longer pair up or
    // are missing.
    const enum status status = reply_parse((struct slice){cut, n}, &reply, &err);
    if (status == STATUS_OK && reply.n_outputs > 0) fail_msg("accepted %zu of %zu bytes", n, all);
    (void)reply_scan_cost((struct slice){cut, n}, &cost);
    free(cut);
  }
}

static void a_payload_that_does_not_fit_its_shape_is_refused(void **state) {
  (void)state;
  struct pb_buf message = {0}, output = {0};
  struct reply reply;
  struct error err;
  pb_put_text(&output, 1, "y");
  pb_put_text(&output, 2, "FP32");
  pb_put_varint(&output, 3, 1u << 31);   // not packed
  pb_put_varint(&output, 3, UINT64_MAX); // -1
  pb_put_message(&message, 5, &output);
  pb_put_bytes(&message, 6, "1234", 4);
  assert_int_equal(reply_parse((struct slice){message.data, message.bytes}, &reply, &err),
                   STATUS_INVALID_ARGUMENT);
  pb_free(&message);
  pb_free(&output);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(requests_read_the_same_through_generated_code),
      cmocka_unit_test(a_parameter_that_is_not_asked_for_is_not_sent),
      cmocka_unit_test(cost_is_read_from_generated_bytes),
      cmocka_unit_test(cost_needs_only_the_start_of_a_long_reply),
      cmocka_unit_test(outputs_are_slices_of_the_reply),
      cmocka_unit_test(every_truncated_reply_is_refused),
      cmocka_unit_test(a_payload_that_does_not_fit_its_shape_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
