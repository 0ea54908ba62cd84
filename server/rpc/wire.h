// Protobuf by hand, where copies or counts matter: requests become slices over the message, replies
// are written straight into a buffer. Sans-I/O, no allocation, no state; any thread. Everything
// read here comes from outside.
//
// What the scanner accepts is what Google's parser accepts: fields in any order, packed and
// unpacked numbers, unknown fields (also groups, nested up to a limit) and known fields with a
// wrong wire type are skipped, the last value of a singular field, a map key or a oneof wins.
// Malformed bytes are INTERNAL (as gRPC has it for a message that does not parse), also strings
// that are not UTF-8; counts over bounds.h and NUL bytes in names are INVALID_ARGUMENT.
#ifndef RPC_WIRE_H
#define RPC_WIRE_H

#include "base/slab.h"
#include "bounds.h"

// ---- requests ----
// Which field of InferParameter's oneof was set; values are the field numbers.
enum wire_choice { WIRE_NONE = 0, WIRE_BOOL, WIRE_INT64, WIRE_STRING, WIRE_DOUBLE, WIRE_UINT64 };

struct wire_parameter {
  struct slice key;
  enum wire_choice choice; // WIRE_NONE: an entry without a value
  union {
    uint64_t number; // BOOL (0, 1), INT64 (as two's complement), UINT64
    double real;
    struct slice text;
  };
};

// Fields of InferTensorContents; bit numbers in wire_input.typed.
enum wire_typed {
  TYPED_BOOL = 1,
  TYPED_INT32,
  TYPED_INT64,
  TYPED_UINT32,
  TYPED_UINT64,
  TYPED_FP32,
  TYPED_FP64,
  TYPED_BYTES
};
#define WIRE_CONTENTS_PARTS                                                                        \
  4 // `contents` may be sent in pieces that a parser has to merge; nobody does

struct wire_input {
  struct slice name, datatype;
  int32_t rank;
  int64_t shape[LIMIT_TENSOR_RANK];
  uint32_t typed; // bit TYPED_x: contents of that type are there
  int32_t n_contents;
  struct slice contents[WIRE_CONTENTS_PARTS];
  bool shared_memory; // asks for client shared memory, which we do not have
};

struct wire_output {
  struct slice name;
  bool shared_memory, classification;
};

struct wire_infer { // ModelInferRequest
  struct slice model_name, model_version, id;
  int32_t n_parameters, n_inputs, n_outputs, n_raw;
  struct wire_parameter parameters[LIMIT_REQUEST_PARAMETERS];
  struct wire_input inputs[LIMIT_MODEL_INPUTS];
  struct wire_output outputs[LIMIT_MODEL_OUTPUTS];
  struct slice raw[LIMIT_MODEL_INPUTS]; // raw_input_contents, in order
};

// Slices point into `message`. Only the entries below the counts are written. `err` is filled on
// failure only.
MUST_USE enum status wire_split(struct slice message, struct wire_infer *out, struct error *err);

// The small requests (ModelReady, ModelMetadata, health Check) have at most two strings, fields 1
// and 2.
struct wire_names {
  struct slice first, second;
};
MUST_USE enum status wire_split_names(struct slice message, struct wire_names *out,
                                      struct error *err);

// A message that a parser makes C strings of: the fields of `strings` (bit n: field n) must be
// UTF-8 without NUL bytes, which would make one name of two.
MUST_USE enum status wire_check_strings(struct slice message, uint32_t strings, struct error *err);

// Typed contents of one kind (TYPED_INT32, TYPED_INT64 or TYPED_FP32) into `out`, room for
// `n_elements` in their own type (int32_t, int64_t, float). *found is how many were sent, also when
// that is more or fewer than n_elements (then nothing past the room is written). INTERNAL when a
// number is cut short.
MUST_USE enum status wire_typed_read(const struct wire_input *input, enum wire_typed kind,
                                     void *out, int64_t n_elements, int64_t *found);

bool wire_utf8(struct slice text);
static inline bool slice_is(struct slice slice, const char *text, size_t bytes) {
  return slice.bytes == bytes && __builtin_memcmp(slice.data, text, bytes) == 0;
}

// ---- replies ----
// Writes into a buffer that the caller made large enough; running over sets `over` and writes
// nothing more.
struct wire_writer {
  uint8_t *at, *end;
  bool over;
};
#define WIRE_VARINT_BYTES 10

size_t wire_varint_bytes(uint64_t value);
void wire_put_varint(struct wire_writer *writer, uint64_t value);
void wire_put_raw(struct wire_writer *writer, const void *data, size_t bytes);
void wire_put_bytes(struct wire_writer *writer, uint32_t field, const void *data,
                    size_t bytes); // tag, length, bytes
void wire_put_length(struct wire_writer *writer, uint32_t field,
                     uint64_t bytes); // tag and length only
// One entry of map<string, InferParameter> `field`.
void wire_put_parameter_int(struct wire_writer *writer, uint32_t field, const char *key,
                            size_t key_bytes, int64_t value);
void wire_put_parameter_real(struct wire_writer *writer, uint32_t field, const char *key,
                             size_t key_bytes, double value);
void wire_put_parameter_text(struct wire_writer *writer, uint32_t field, const char *key,
                             size_t key_bytes, const char *text, size_t text_bytes);

#endif
