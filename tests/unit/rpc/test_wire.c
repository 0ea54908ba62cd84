// rpc/wire: what protobuf allows, what it forbids, and what we forbid on top of it.
#include "harness/cmocka_all.h"

#include "open_inference.pb-c.h"
#include "rpc/wire.h"

#include <stdlib.h>
#include <string.h>

// ---- a message under construction ----
struct bytes {
  uint8_t data[65536];
  size_t n;
};

static void put(struct bytes *out, const void *data, size_t n) {
  assert_true(out->n + n <= sizeof out->data);
  if (n > 0) memcpy(out->data + out->n, data, n);
  out->n += n;
}
static void put_varint(struct bytes *out, uint64_t value) {
  for (; value >= 0x80; value >>= 7)
    put(out, &(uint8_t){(uint8_t)(value | 0x80)}, 1);
  put(out, &(uint8_t){(uint8_t)value}, 1);
}
static void put_field(struct bytes *out, uint32_t number, const void *data, size_t n) {
  put_varint(out, number << 3 | 2);
  put_varint(out, n);
  put(out, data, n);
}
static void put_text(struct bytes *out, uint32_t number, const char *text) {
  put_field(out, number, text, strlen(text));
}
static void put_number(struct bytes *out, uint32_t number, uint64_t value) {
  put_varint(out, number << 3);
  put_varint(out, value);
}
static void put_inner(struct bytes *out, uint32_t number, const struct bytes *inner) {
  put_field(out, number, inner->data, inner->n);
}
static struct slice view(const struct bytes *bytes) {
  return (struct slice){bytes->data, bytes->n};
}

static struct wire_infer infer;
static struct error err;

static enum status split(const struct bytes *message) {
  // An exact copy on the heap, so that a read past the end is one that a sanitizer sees.
  uint8_t *copy = malloc(message->n + 1);
  memcpy(copy, message->data, message->n);
  enum status status = wire_split((struct slice){copy, message->n}, &infer, &err);
  free(copy);
  return status;
}
static enum status split_kept(const struct bytes *message) {
  return wire_split(view(message), &infer, &err);
}

static void assert_slice(struct slice slice, const char *text) {
  assert_int_equal(slice.bytes, strlen(text));
  if (slice.bytes > 0) assert_memory_equal(slice.data, text, slice.bytes);
}

static void put_parameter(struct bytes *out, uint32_t field, const char *key,
                          const struct bytes *value) {
  static struct bytes entry;
  entry.n = 0;
  put_text(&entry, 1, key);
  put_inner(&entry, 2, value);
  put_inner(out, field, &entry);
}

// ---- what is accepted ----
static void reads_what_protobuf_c_packs(void **state) {
  (void)state;
  int64_t shape[] = {2, 3}, big = -7;
  Inference__InferParameter value = INFERENCE__INFER_PARAMETER__INIT;
  value.parameter_choice_case = INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_INT64_PARAM;
  value.int64_param = big;
  Inference__ModelInferRequest__ParametersEntry
      entry = INFERENCE__MODEL_INFER_REQUEST__PARAMETERS_ENTRY__INIT,
      *entries[] = {&entry};
  entry.key = (char *)"k";
  entry.value = &value;
  Inference__ModelInferRequest__InferInputTensor
      input = INFERENCE__MODEL_INFER_REQUEST__INFER_INPUT_TENSOR__INIT,
      *inputs[] = {&input};
  input.name = (char *)"x";
  input.datatype = (char *)"FP32";
  input.n_shape = 2;
  input.shape = shape;
  Inference__ModelInferRequest__InferRequestedOutputTensor
      output = INFERENCE__MODEL_INFER_REQUEST__INFER_REQUESTED_OUTPUT_TENSOR__INIT,
      *outputs[] = {&output};
  output.name = (char *)"y";
  ProtobufCBinaryData raw = {5, (uint8_t *)"hello"};
  Inference__ModelInferRequest request = INFERENCE__MODEL_INFER_REQUEST__INIT;
  request.model_name = (char *)"m\xc3\xa4";
  request.model_version = (char *)"1";
  request.id = (char *)"id";
  request.n_parameters = 1, request.parameters = entries;
  request.n_inputs = 1, request.inputs = inputs;
  request.n_outputs = 1, request.outputs = outputs;
  request.n_raw_input_contents = 1, request.raw_input_contents = &raw;
  static struct bytes message;
  message.n = inference__model_infer_request__pack(&request, message.data);
  assert_int_equal(split_kept(&message), STATUS_OK);
  assert_slice(infer.model_name, "m\xc3\xa4");
  assert_slice(infer.model_version, "1");
  assert_slice(infer.id, "id");
  assert_int_equal(infer.n_parameters, 1);
  assert_slice(infer.parameters[0].key, "k");
  assert_int_equal(infer.parameters[0].choice, WIRE_INT64);
  assert_int_equal((int64_t)infer.parameters[0].number, -7);
  assert_int_equal(infer.n_inputs, 1);
  assert_slice(infer.inputs[0].name, "x");
  assert_slice(infer.inputs[0].datatype, "FP32");
  assert_int_equal(infer.inputs[0].rank, 2);
  assert_int_equal(infer.inputs[0].shape[1], 3);
  assert_int_equal(infer.n_outputs, 1);
  assert_slice(infer.outputs[0].name, "y");
  assert_int_equal(infer.n_raw, 1);
  assert_slice(infer.raw[0], "hello");
}

static void payload_is_a_view_of_the_message(void **state) {
  (void)state;
  static struct bytes message;
  message.n = 0;
  put_field(&message, 7, "abcd", 4);
  assert_int_equal(split_kept(&message), STATUS_OK);
  assert_ptr_equal(infer.raw[0].data, message.data + 2);
}

static void an_empty_message_is_an_empty_request(void **state) {
  (void)state;
  assert_int_equal(wire_split((struct slice){NULL, 0}, &infer, &err), STATUS_OK);
  assert_int_equal(infer.model_name.bytes, 0);
  assert_int_equal(infer.n_inputs + infer.n_raw + infer.n_outputs + infer.n_parameters, 0);
}

static void field_order_is_free(void **state) {
  (void)state;
  static struct bytes message, input;
  message.n = input.n = 0;
  put_text(&message, 7, "raw");
  put_number(&input, 3, 4); // shape before the name, unpacked
  put_number(&input, 3, 5);
  put_text(&input, 1, "x");
  put_inner(&message, 5, &input);
  put_text(&message, 1, "m");
  assert_int_equal(split_kept(&message), STATUS_OK);
  assert_slice(infer.model_name, "m");
  assert_int_equal(infer.inputs[0].rank, 2);
  assert_int_equal(infer.inputs[0].shape[0], 4);
  assert_int_equal(infer.inputs[0].shape[1], 5);
}

static void the_last_value_wins(void **state) {
  (void)state;
  static struct bytes message, value;
  message.n = value.n = 0;
  put_text(&message, 1, "first");
  put_text(&message, 1, "second");
  put_number(&value, 1, 1);    // bool
  put_text(&value, 3, "text"); // then a string: the oneof holds the string
  put_parameter(&message, 4, "k", &value);
  value.n = 0;
  put_number(&value, 2, 9);
  put_parameter(&message, 4, "other", &value);
  value.n = 0;
  put_number(&value, 5, 77);
  put_parameter(&message, 4, "k", &value); // the same key again
  assert_int_equal(split_kept(&message), STATUS_OK);
  assert_slice(infer.model_name, "second");
  assert_int_equal(infer.n_parameters, 2);
  assert_slice(infer.parameters[0].key, "k");
  assert_int_equal(infer.parameters[0].choice, WIRE_UINT64);
  assert_int_equal(infer.parameters[0].number, 77);
}

static void a_oneof_set_twice_holds_the_later_member(void **state) {
  (void)state;
  static struct bytes message, value;
  message.n = value.n = 0;
  put_text(&value, 3, "text");
  put_number(&value, 1, 1);
  put_parameter(&message, 4, "k", &value);
  assert_int_equal(split_kept(&message), STATUS_OK);
  assert_int_equal(infer.parameters[0].choice, WIRE_BOOL);
}

static void a_map_entry_may_lack_key_or_value(void **state) {
  (void)state;
  static struct bytes message, entry;
  message.n = entry.n = 0;
  put_inner(&message, 4, &entry);
  assert_int_equal(split_kept(&message), STATUS_OK);
  assert_int_equal(infer.n_parameters, 1);
  assert_int_equal(infer.parameters[0].key.bytes, 0);
  assert_int_equal(infer.parameters[0].choice, WIRE_NONE);
}

static void unknown_fields_and_wrong_wire_types_are_skipped(void **state) {
  (void)state;
  static struct bytes message;
  message.n = 0;
  put_number(&message, 1, 5);       // model_name as a varint
  put_number(&message, 5, 5);       // an input as a varint
  put_varint(&message, 7 << 3 | 5); // raw as fixed32
  put(&message, "abcd", 4);
  put_varint(&message, 99 << 3 | 1); // an unknown fixed64
  put(&message, "abcdefgh", 8);
  put_text(&message, 536870911, "largest field number");
  put_text(&message, 1, "m");
  assert_int_equal(split_kept(&message), STATUS_OK);
  assert_slice(infer.model_name, "m");
  assert_int_equal(infer.n_inputs + infer.n_raw, 0);
}

static void groups_are_skipped_to_their_end(void **state) {
  (void)state;
  static struct bytes message;
  message.n = 0;
  put_varint(&message, 20 << 3 | 3);
  put_text(&message, 1, "not the model name: inside a group");
  put_varint(&message, 21 << 3 | 3);
  put_number(&message, 3, 1);
  put_varint(&message, 21 << 3 | 4);
  put_varint(&message, 20 << 3 | 4);
  put_text(&message, 1, "m");
  assert_int_equal(split_kept(&message), STATUS_OK);
  assert_slice(infer.model_name, "m");
}

// ---- what is refused ----
static void bad_groups_are_refused(void **state) {
  (void)state;
  static struct bytes message;
  message.n = 0;
  put_varint(&message, 20 << 3 | 3); // never ends
  assert_int_equal(split(&message), STATUS_INTERNAL);
  put_varint(&message, 21 << 3 | 4); // ends another one
  assert_int_equal(split(&message), STATUS_INTERNAL);
  message.n = 0;
  put_varint(&message, 20 << 3 | 4); // ends none
  assert_int_equal(split(&message), STATUS_INTERNAL);
  message.n = 0;
  for (int i = 0; i < 10000; i++)
    put_varint(&message, 20 << 3 | 3); // deeper than anything sane
  for (int i = 0; i < 10000; i++)
    put_varint(&message, 20 << 3 | 4);
  assert_int_equal(split(&message), STATUS_INTERNAL);
}

static void malformed_bytes_are_internal(void **state) {
  (void)state;
  static const struct {
    const char *bytes;
    size_t n;
  } cases[] = {
      {"\x0a", 1},                                              // no length
      {"\x0a\x05mod", 5},                                       // shorter than its length
      {"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11},     // a length of 2^64 - 1
      {"\x08\x80", 2},                                          // a varint cut short
      {"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", 12}, // an eleven-byte varint
      {"\x00\x00", 2},                                          // field number 0
      {"\x0e\x00", 2},                                          // wire type 6
      {"\x0f\x00", 2},                                          // wire type 7
      {"\x0d\x00\x00", 3},                                      // fixed32 cut short
      {"\x09\x00\x00\x00\x00\x00\x00\x00", 8},                  // fixed64 cut short
      {"\x2a\x02\x0a\x05", 4},         // an input whose name is longer than the input
      {"\x2a\x03\x1a\x01\x80", 5},     // a packed shape that ends inside a number
      {"\x22\x02\x0a\x05", 4},         // a parameter entry, the same
      {"\x22\x04\x12\x02\x0a\x05", 6}, // a parameter value, the same
      {"\x32\x02\x0a\x05", 4},         // a requested output, the same
      {"\x2a\x04\x2a\x02\x32\x05", 6}, // contents, the same
      {"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00", 11}, // a key beyond 32 bits
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    static struct bytes message;
    message.n = 0;
    put(&message, cases[i].bytes, cases[i].n);
    if (split(&message) != STATUS_INTERNAL) fail_msg("case %zu was accepted", i);
  }
}

static void every_cut_of_a_good_message_is_an_error_or_a_shorter_message(void **state) {
  (void)state;
  static struct bytes message, input, value, cut;
  message.n = input.n = value.n = 0;
  put_text(&message, 1, "model");
  put_number(&value, 2, 300);
  put_parameter(&message, 4, "key", &value);
  put_text(&input, 1, "x");
  put_text(&input, 2, "FP32");
  put_number(&input, 3, 2);
  put_inner(&message, 5, &input);
  put_text(&message, 7, "12345678");
  int ok = 0;
  for (size_t n = 0; n < message.n; n++) {
    cut.n = 0;
    put(&cut, message.data, n);
    enum status status = split(&cut);
    assert_true(status == STATUS_OK || status == STATUS_INTERNAL);
    ok += status == STATUS_OK;
  }
  assert_int_equal(ok, 4); // only between two fields
}

static void text_must_be_utf8(void **state) {
  (void)state;
  static const char *const good[] = {"",
                                     "plain",
                                     "\xc2\x80",
                                     "\xe0\xa0\x80",
                                     "\xed\x9f\xbf",
                                     "\xf0\x90\x80\x80",
                                     "\xf4\x8f\xbf\xbf",
                                     "12345678\xc3\xa9",
                                     "a rather long text, more than one word\xe2\x82\xac"};
  static const char *const bad[] = {"\x80",
                                    "\xc0\x80",
                                    "\xc1\xbf",
                                    "\xc3",
                                    "\xe0\x80\x80",
                                    "\xed\xa0\x80",
                                    "\xf0\x8f\xbf\xbf",
                                    "\xf4\x90\x80\x80",
                                    "\xf5\x80\x80\x80",
                                    "\xff",
                                    "1234567\xff",
                                    "12345678\xff",
                                    "\xe2\x82"};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++)
    if (!wire_utf8((struct slice){(const uint8_t *)good[i], strlen(good[i])}))
      fail_msg("good %zu was refused", i);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    if (wire_utf8((struct slice){(const uint8_t *)bad[i], strlen(bad[i])}))
      fail_msg("bad %zu was accepted", i);
    for (uint32_t field = 1; field <= 3; field++) {
      static struct bytes message;
      message.n = 0;
      put_text(&message, field, bad[i]);
      assert_int_equal(split(&message), STATUS_INTERNAL);
    }
  }
}

static void names_with_nul_are_refused(void **state) {
  (void)state;
  static struct bytes message, inner;
  message.n = inner.n = 0;
  put_field(&message, 1, "mn\0ist", 6);
  assert_int_equal(split(&message), STATUS_INVALID_ARGUMENT);
  message.n = 0;
  put_field(&inner, 1, "x\0", 2);
  put_inner(&message, 5, &inner);
  assert_int_equal(split(&message), STATUS_INVALID_ARGUMENT);
  message.n = 0;
  put_inner(&message, 6, &inner);
  assert_int_equal(split(&message), STATUS_INVALID_ARGUMENT);
  message.n = 0;
  put_field(&message, 3, "i\0d", 3); // an id is only echoed
  assert_int_equal(split(&message), STATUS_OK);
}

static void counts_are_capped(void **state) {
  (void)state;
  static const struct {
    uint32_t field;
    int limit;
  } cases[] = {{4, LIMIT_REQUEST_PARAMETERS},
               {5, LIMIT_MODEL_INPUTS},
               {6, LIMIT_MODEL_OUTPUTS},
               {7, LIMIT_MODEL_INPUTS}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    static struct bytes message, entry;
    message.n = 0;
    for (int i = 0; i <= cases[c].limit; i++) {
      char key[16];
      snprintf(key, sizeof key, "k%d", i); // parameters need different keys to count
      entry.n = 0;
      put_text(&entry, 1, key);
      if (i == cases[c].limit) assert_int_equal(split(&message), STATUS_OK);
      put_inner(&message, cases[c].field, &entry);
    }
    assert_int_equal(split(&message), STATUS_INVALID_ARGUMENT);
  }
  static struct bytes message, input;
  message.n = input.n = 0;
  for (int i = 0; i <= LIMIT_TENSOR_RANK; i++)
    put_number(&input, 3, 1);
  put_inner(&message, 5, &input);
  assert_int_equal(split(&message), STATUS_INVALID_ARGUMENT);
}

static void a_flood_of_entries_costs_no_memory(void **state) {
  (void)state;
  static struct bytes message;
  message.n = 0;
  while (message.n + 2 <= sizeof message.data)
    put(&message, "\x2a\x00", 2);
  assert_int_equal(split(&message), STATUS_INVALID_ARGUMENT);
  message.n = 0;
  while (message.n + 2 <= sizeof message.data)
    put(&message, "\x22\x00", 2); // one key over and over: the last wins
  assert_int_equal(split(&message), STATUS_OK);
  assert_int_equal(infer.n_parameters, 1);
}

static void refusable_tensor_parameters_are_seen(void **state) {
  (void)state;
  static struct bytes message, input, value;
  message.n = input.n = value.n = 0;
  put_text(&value, 3, "region");
  put_parameter(&input, 4, "shared_memory_region", &value);
  put_inner(&message, 5, &input);
  input.n = value.n = 0;
  put_number(&value, 2, 3);
  put_parameter(&input, 2, "classification", &value);
  put_inner(&message, 6, &input);
  assert_int_equal(split_kept(&message), STATUS_OK);
  assert_true(infer.inputs[0].shared_memory);
  assert_true(infer.outputs[0].classification);
  assert_false(infer.outputs[0].shared_memory);
}

// ---- typed contents ----
static void typed_contents_are_read_packed_and_unpacked(void **state) {
  (void)state;
  static struct bytes message, input, contents, packed;
  message.n = input.n = contents.n = packed.n = 0;
  put_varint(&packed, 1);
  put_varint(&packed, (uint64_t)-2);
  put_inner(&contents, TYPED_INT64, &packed);
  put_number(&contents, TYPED_INT64, 3);
  put_inner(&input, 5, &contents);
  put_inner(&input, 5, &contents); // merged: the elements follow one another
  put_inner(&message, 5, &input);
  assert_int_equal(split_kept(&message), STATUS_OK);
  assert_int_equal(infer.inputs[0].typed, 1u << TYPED_INT64);
  int64_t out[6] = {0}, found;
  assert_int_equal(wire_typed_read(&infer.inputs[0], TYPED_INT64, out, 6, &found), STATUS_OK);
  assert_int_equal(found, 6);
  const int64_t expected[6] = {1, -2, 3, 1, -2, 3};
  assert_memory_equal(out, expected, sizeof expected);
  int64_t two[3] = {0, 0, 42}; // room for two: the rest is counted, not written
  assert_int_equal(wire_typed_read(&infer.inputs[0], TYPED_INT64, two, 2, &found), STATUS_OK);
  assert_int_equal(found, 6);
  assert_int_equal(two[2], 42);
}

static void typed_floats_and_int32(void **state) {
  (void)state;
  static struct bytes message, input, contents, packed;
  message.n = input.n = contents.n = packed.n = 0;
  float floats[2] = {1.5f, -0.0f}, out[2];
  int64_t found;
  put_field(&contents, TYPED_FP32, floats, sizeof floats);
  put_varint(&packed, (uint64_t)(int64_t)-5); // a negative int32 takes ten bytes
  put_inner(&contents, TYPED_INT32, &packed);
  put_inner(&input, 5, &contents);
  put_inner(&message, 5, &input);
  assert_int_equal(split_kept(&message), STATUS_OK);
  assert_int_equal(infer.inputs[0].typed, 1u << TYPED_FP32 | 1u << TYPED_INT32);
  assert_int_equal(wire_typed_read(&infer.inputs[0], TYPED_FP32, out, 2, &found), STATUS_OK);
  assert_int_equal(found, 2);
  assert_memory_equal(out, floats, sizeof floats);
  int32_t number;
  assert_int_equal(wire_typed_read(&infer.inputs[0], TYPED_INT32, &number, 1, &found), STATUS_OK);
  assert_int_equal(number, -5);
}

static void typed_contents_cut_inside_a_number_are_malformed(void **state) {
  (void)state;
  static struct bytes message, input, contents;
  int64_t out[4], found;
  message.n = input.n = contents.n = 0;
  put_field(&contents, TYPED_INT64, "\x01\x80", 2);
  put_field(&contents, TYPED_FP32, "abc", 3);
  put_inner(&input, 5, &contents);
  put_inner(&message, 5, &input);
  assert_int_equal(split_kept(&message), STATUS_OK);
  assert_int_equal(wire_typed_read(&infer.inputs[0], TYPED_INT64, out, 4, &found), STATUS_INTERNAL);
  assert_int_equal(wire_typed_read(&infer.inputs[0], TYPED_FP32, out, 4, &found), STATUS_INTERNAL);
}

static void empty_contents_are_no_contents(void **state) {
  (void)state;
  static struct bytes message, input, contents;
  message.n = input.n = contents.n = 0;
  put_field(&contents, TYPED_FP32, "", 0);
  put_inner(&input, 5, &contents);
  put_inner(&message, 5, &input);
  assert_int_equal(split_kept(&message), STATUS_OK);
  assert_int_equal(infer.inputs[0].typed, 0);
}

// ---- small requests and the writer ----
static void names_are_split(void **state) {
  (void)state;
  static struct bytes message;
  struct wire_names names;
  message.n = 0;
  put_text(&message, 2, "7");
  put_text(&message, 1, "model");
  assert_int_equal(wire_split_names(view(&message), &names, &err), STATUS_OK);
  assert_slice(names.first, "model");
  assert_slice(names.second, "7");
  put_text(&message, 1, "\xff");
  assert_int_equal(wire_split_names(view(&message), &names, &err), STATUS_INTERNAL);
}

static void only_the_strings_of_a_message_are_looked_at(void **state) {
  (void)state;
  static struct bytes message;
  message.n = 0;
  put_text(&message, 1, "name");
  put_text(&message, 2, "\xff"); // bytes
  assert_int_equal(wire_check_strings(view(&message), 1u << 1 | 1u << 3, &err), STATUS_OK);
  assert_int_equal(wire_check_strings(view(&message), 1u << 2, &err), STATUS_INTERNAL);
  put_field(&message, 3, "a\0b", 3);
  assert_int_equal(wire_check_strings(view(&message), 1u << 1, &err), STATUS_OK);
  assert_int_equal(wire_check_strings(view(&message), 1u << 1 | 1u << 3, &err),
                   STATUS_INVALID_ARGUMENT);
  put_text(&message, 40, "\xff"); // no bit says anything of it
  struct slice cut = {message.data, message.n - 1};
  assert_int_equal(wire_check_strings(view(&message), 1u << 1, &err), STATUS_OK);
  assert_int_equal(wire_check_strings(cut, 1u << 1, &err), STATUS_INTERNAL);
}

static void varint_lengths_are_right(void **state) {
  (void)state;
  for (int bit = 0; bit < 64; bit++) {
    uint64_t values[] = {UINT64_C(1) << bit, (UINT64_C(1) << bit) - 1};
    for (int i = 0; i < 2; i++) {
      uint8_t room[16];
      struct wire_writer writer = {room, room + sizeof room, false};
      wire_put_varint(&writer, values[i]);
      assert_int_equal(writer.at - room, wire_varint_bytes(values[i]));
    }
  }
}

static void written_parameters_are_read_back_by_protobuf_c(void **state) {
  (void)state;
  uint8_t room[1024];
  struct wire_writer writer = {room, room + sizeof room, false};
  wire_put_bytes(&writer, 1, "m", 1);
  wire_put_parameter_int(&writer, 4, "int", 3, -12345678901);
  wire_put_parameter_real(&writer, 4, "real", 4, 0.25);
  wire_put_parameter_text(&writer, 4, "text", 4, "on", 2);
  wire_put_bytes(&writer, 6, "payload", 7);
  assert_false(writer.over);
  Inference__ModelInferResponse *reply =
      inference__model_infer_response__unpack(NULL, (size_t)(writer.at - room), room);
  assert_non_null(reply);
  assert_string_equal(reply->model_name, "m");
  assert_int_equal(reply->n_parameters, 3);
  assert_string_equal(reply->parameters[0]->key, "int");
  assert_int_equal(reply->parameters[0]->value->int64_param, -12345678901);
  assert_true(reply->parameters[1]->value->double_param == 0.25);
  assert_string_equal(reply->parameters[2]->value->string_param, "on");
  assert_int_equal(reply->raw_output_contents[0].len, 7);
  inference__model_infer_response__free_unpacked(reply, NULL);
}

static void a_full_writer_stops(void **state) {
  (void)state;
  uint8_t room[8] = {0};
  struct wire_writer writer = {room, room + 6, false};
  wire_put_bytes(&writer, 1, "longer than that", 16);
  assert_true(writer.over);
  assert_int_equal(room[6], 0);
  wire_put_varint(&writer, 1);
  assert_true(writer.at <= room + 6);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reads_what_protobuf_c_packs),
      cmocka_unit_test(payload_is_a_view_of_the_message),
      cmocka_unit_test(an_empty_message_is_an_empty_request),
      cmocka_unit_test(field_order_is_free),
      cmocka_unit_test(the_last_value_wins),
      cmocka_unit_test(a_oneof_set_twice_holds_the_later_member),
      cmocka_unit_test(a_map_entry_may_lack_key_or_value),
      cmocka_unit_test(unknown_fields_and_wrong_wire_types_are_skipped),
      cmocka_unit_test(groups_are_skipped_to_their_end),
      cmocka_unit_test(bad_groups_are_refused),
      cmocka_unit_test(malformed_bytes_are_internal),
      cmocka_unit_test(every_cut_of_a_good_message_is_an_error_or_a_shorter_message),
      cmocka_unit_test(text_must_be_utf8),
      cmocka_unit_test(names_with_nul_are_refused),
      cmocka_unit_test(counts_are_capped),
      cmocka_unit_test(a_flood_of_entries_costs_no_memory),
      cmocka_unit_test(refusable_tensor_parameters_are_seen),
      cmocka_unit_test(typed_contents_are_read_packed_and_unpacked),
      cmocka_unit_test(typed_floats_and_int32),
      cmocka_unit_test(typed_contents_cut_inside_a_number_are_malformed),
      cmocka_unit_test(empty_contents_are_no_contents),
      cmocka_unit_test(names_are_split),
      cmocka_unit_test(only_the_strings_of_a_message_are_looked_at),
      cmocka_unit_test(varint_lengths_are_right),
      cmocka_unit_test(written_parameters_are_read_back_by_protobuf_c),
      cmocka_unit_test(a_full_writer_stops),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
