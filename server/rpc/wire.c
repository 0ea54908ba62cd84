// The scanner. field_next is the only function that moves through bytes; everything else is a loop
// over fields and a switch over (number, wire type), in which a wrong wire type falls into
// `default` and is skipped like any unknown field.
#include "rpc/wire.h"
#include "base/utf8.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors are little-endian on the wire");

enum wire_type { TYPE_VARINT, TYPE_FIXED64, TYPE_BYTES, TYPE_GROUP, TYPE_GROUP_END, TYPE_FIXED32 };
#define KEY(number, type) (((number) << 3) | (type))
#define GROUP_DEPTH 32 // nesting of skipped groups; no message of ours has any

struct reader {
  const uint8_t *at, *end;
};

struct field {
  uint32_t key;       // number << 3 | wire type, as on the wire
  uint64_t number;    // varint and fixed values
  struct slice bytes; // length-delimited ones
};

static bool varint_read(struct reader *reader, uint64_t *out) {
  if (reader->at < reader->end && *reader->at < 0x80) {
    *out = *reader->at++;
    return true;
  }
  uint64_t value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    if (reader->at == reader->end) return false;
    uint8_t byte = *reader->at++;
    value |= (uint64_t)(byte & 0x7f) << shift;
    if (byte < 0x80) {
      *out = value;
      return true;
    }
  }
  return false; // an eleventh byte
}

static bool key_read(struct reader *reader, uint32_t *out) {
  uint64_t key;
  if (!varint_read(reader, &key) || key > UINT32_MAX || key < KEY(1, 0)) return false;
  *out = (uint32_t)key;
  return true;
}

// The value after `key`, groups aside.
static bool value_read(struct reader *reader, struct field *field) {
  size_t left = (size_t)(reader->end - reader->at);
  switch (field->key & 7) {
  case TYPE_VARINT:
    return varint_read(reader, &field->number);
  case TYPE_FIXED64:
    if (left < 8) return false;
    memcpy(&field->number, reader->at, 8);
    reader->at += 8;
    return true;
  case TYPE_FIXED32: {
    if (left < 4) return false;
    uint32_t value;
    memcpy(&value, reader->at, 4);
    field->number = value;
    reader->at += 4;
    return true;
  }
  case TYPE_BYTES: {
    uint64_t bytes;
    if (!varint_read(reader, &bytes) || bytes > (uint64_t)(reader->end - reader->at)) return false;
    field->bytes = (struct slice){reader->at, (size_t)bytes};
    reader->at += bytes;
    return true;
  }
  default:
    return false;
  }
}

// Skips to the end of the group whose start key was just read. Iterative: depth costs no stack.
static bool group_skip(struct reader *reader, uint32_t start) {
  uint32_t open[GROUP_DEPTH];
  int depth = 0;
  open[depth++] = start >> 3;
  while (depth > 0) {
    struct field field;
    if (!key_read(reader, &field.key)) return false;
    uint32_t type = field.key & 7;
    if (type == TYPE_GROUP) {
      if (depth == GROUP_DEPTH) return false;
      open[depth++] = field.key >> 3;
    } else if (type == TYPE_GROUP_END) {
      if (open[--depth] != field.key >> 3) return false;
    } else if (!value_read(reader, &field)) {
      return false;
    }
  }
  return true;
}

// 1: the next field; 0: the end; -1: malformed. Groups are skipped.
static int field_next(struct reader *reader, struct field *field) {
  while (reader->at < reader->end) {
    if (!key_read(reader, &field->key)) return -1;
    if ((field->key & 7) != TYPE_GROUP) return value_read(reader, field) ? 1 : -1;
    if (!group_skip(reader, field->key)) return -1;
  }
  return 0;
}

static struct reader reader_of(struct slice bytes) {
  // An empty slice may have no address at all; arithmetic on NULL is not for us.
  static const uint8_t nothing[1];
  if (bytes.bytes == 0) return (struct reader){nothing, nothing};
  return (struct reader){bytes.data, bytes.data + bytes.bytes};
}

bool wire_utf8(struct slice text) {
  const uint8_t *at = text.data, *end = text.data + text.bytes;
  while (at < end) {
    uint64_t word;
    if (end - at >= 8 && (memcpy(&word, at, 8), (word & 0x8080808080808080ull) == 0)) {
      at += 8;
      continue;
    }
    size_t bytes = utf8_bytes(at, (size_t)(end - at));
    if (bytes == 0) return false;
    at += bytes;
  }
  return true;
}

// ---- errors ----
static enum status malformed(struct error *err, const char *message, const char *where) {
  return error_set(err, STATUS_INTERNAL, "request is not a valid %s: %s is malformed", message,
                   where);
}

static enum status text_check(struct slice text, bool is_name, const char *what,
                              struct error *err) {
  if (!wire_utf8(text)) return error_set(err, STATUS_INTERNAL, "%s is not valid UTF-8", what);
  if (is_name && text.bytes > 0 && memchr(text.data, 0, text.bytes))
    return error_set(err, STATUS_INVALID_ARGUMENT, "%s contains a NUL byte; names have none", what);
  return STATUS_OK;
}

// ---- parameters ----
// InferParameter: a oneof; a later member replaces an earlier one.
static bool parameter_value(struct slice bytes, struct wire_parameter *out) {
  struct reader reader = reader_of(bytes);
  struct field field;
  int got;
  while ((got = field_next(&reader, &field)) > 0) {
    switch (field.key) {
    case KEY(WIRE_BOOL, TYPE_VARINT):
      out->choice = WIRE_BOOL, out->number = field.number != 0;
      break;
    case KEY(WIRE_INT64, TYPE_VARINT):
      out->choice = WIRE_INT64, out->number = field.number;
      break;
    case KEY(WIRE_STRING, TYPE_BYTES):
      out->choice = WIRE_STRING, out->text = field.bytes;
      break;
    case KEY(WIRE_DOUBLE, TYPE_FIXED64):
      out->choice = WIRE_DOUBLE;
      memcpy(&out->real, &field.number, sizeof out->real);
      break;
    case KEY(WIRE_UINT64, TYPE_VARINT):
      out->choice = WIRE_UINT64, out->number = field.number;
      break;
    default:
      break;
    }
  }
  return got == 0;
}

// An entry of map<string, InferParameter>: key 1, value 2, either may be missing.
static enum status parameter_entry(struct slice bytes, struct wire_parameter *out,
                                   struct error *err) {
  struct reader reader = reader_of(bytes);
  struct field field;
  int got;
  *out = (struct wire_parameter){.key = {bytes.data, 0}};
  while ((got = field_next(&reader, &field)) > 0) {
    if (field.key == KEY(1, TYPE_BYTES)) out->key = field.bytes;
    if (field.key == KEY(2, TYPE_BYTES) && !parameter_value(field.bytes, out)) got = -1;
    if (got < 0) break;
  }
  if (got < 0) return malformed(err, "ModelInferRequest", "an entry of parameters");
  enum status status = text_check(out->key, true, "the key of a parameter", err);
  if (status == STATUS_OK && out->choice == WIRE_STRING)
    status = text_check(out->text, false, "the value of a parameter", err);
  return status;
}

static enum status parameter_add(struct wire_infer *out, struct slice bytes, struct error *err) {
  struct wire_parameter entry;
  enum status status = parameter_entry(bytes, &entry, err);
  if (status != STATUS_OK) return status;
  for (int32_t i = 0; i < out->n_parameters; i++) {
    struct slice key = out->parameters[i].key;
    if (key.bytes != entry.key.bytes ||
        (key.bytes > 0 && memcmp(key.data, entry.key.data, key.bytes) != 0))
      continue;
    out->parameters[i] = entry; // the last entry of a key wins
    return STATUS_OK;
  }
  if (out->n_parameters == LIMIT_REQUEST_PARAMETERS)
    return error_set(err, STATUS_INVALID_ARGUMENT, "request has more than %d parameters",
                     LIMIT_REQUEST_PARAMETERS);
  out->parameters[out->n_parameters++] = entry;
  return STATUS_OK;
}

// Parameters of one tensor: only those that ask for something we must refuse are looked at.
static enum status tensor_parameter(struct slice bytes, bool *shared_memory, bool *classification,
                                    struct error *err) {
  static const char shm[] = "shared_memory_region", classes[] = "classification";
  struct wire_parameter entry;
  enum status status = parameter_entry(bytes, &entry, err);
  if (status != STATUS_OK || entry.key.bytes == 0) return status;
  if (slice_is(entry.key, shm, sizeof shm - 1)) *shared_memory = true;
  if (classification && slice_is(entry.key, classes, sizeof classes - 1)) *classification = true;
  return STATUS_OK;
}

// ---- inputs and outputs ----
static enum status shape_add(struct wire_input *input, uint64_t value, struct error *err) {
  if (input->rank == LIMIT_TENSOR_RANK)
    return error_set(err, STATUS_INVALID_ARGUMENT, "an input's shape has more than %d dimensions",
                     LIMIT_TENSOR_RANK);
  input->shape[input->rank++] = (int64_t)value;
  return STATUS_OK;
}

static enum status shape_packed(struct wire_input *input, struct slice bytes, struct error *err) {
  struct reader reader = reader_of(bytes);
  while (reader.at < reader.end) {
    uint64_t value;
    if (!varint_read(&reader, &value))
      return malformed(err, "ModelInferRequest", "an input's shape");
    enum status status = shape_add(input, value, err);
    if (status != STATUS_OK) return status;
  }
  return STATUS_OK;
}

// Whether a field of InferTensorContents has the wire type of its kind: packed, or one number at a
// time.
static bool typed_field_ok(uint32_t number, uint32_t type) {
  if (number < TYPED_BOOL || number > TYPED_BYTES) return false;
  if (type == TYPE_BYTES) return true;
  if (number == TYPED_FP32) return type == TYPE_FIXED32;
  if (number == TYPED_FP64) return type == TYPE_FIXED64;
  return number != TYPED_BYTES && type == TYPE_VARINT;
}

static enum status contents_add(struct wire_input *input, struct slice bytes, struct error *err) {
  if (input->n_contents == WIRE_CONTENTS_PARTS)
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     "an input's contents come in more than %d pieces", WIRE_CONTENTS_PARTS);
  input->contents[input->n_contents++] = bytes;
  struct reader reader = reader_of(bytes);
  struct field field;
  int got;
  while ((got = field_next(&reader, &field)) > 0) {
    uint32_t type = field.key & 7;
    bool empty = type == TYPE_BYTES && field.bytes.bytes == 0 && field.key >> 3 != TYPED_BYTES;
    if (typed_field_ok(field.key >> 3, type) && !empty) input->typed |= 1u << (field.key >> 3);
  }
  return got == 0 ? STATUS_OK : malformed(err, "ModelInferRequest", "an input's contents");
}

static enum status input_read(struct slice bytes, struct wire_input *out, struct error *err) {
  struct reader reader = reader_of(bytes);
  struct field field;
  int got;
  out->name = out->datatype = (struct slice){bytes.data, 0};
  out->rank = out->n_contents = 0;
  out->typed = 0;
  out->shared_memory = false;
  while ((got = field_next(&reader, &field)) > 0) {
    enum status status = STATUS_OK;
    switch (field.key) {
    case KEY(1, TYPE_BYTES):
      out->name = field.bytes;
      status = text_check(field.bytes, true, "the name of an input", err);
      break;
    case KEY(2, TYPE_BYTES):
      out->datatype = field.bytes;
      status = text_check(field.bytes, true, "the datatype of an input", err);
      break;
    case KEY(3, TYPE_BYTES):
      status = shape_packed(out, field.bytes, err);
      break;
    case KEY(3, TYPE_VARINT):
      status = shape_add(out, field.number, err);
      break;
    case KEY(4, TYPE_BYTES):
      status = tensor_parameter(field.bytes, &out->shared_memory, NULL, err);
      break;
    case KEY(5, TYPE_BYTES):
      status = contents_add(out, field.bytes, err);
      break;
    default:
      break;
    }
    if (status != STATUS_OK) return status;
  }
  return got == 0 ? STATUS_OK : malformed(err, "ModelInferRequest", "an entry of inputs");
}

static enum status output_read(struct slice bytes, struct wire_output *out, struct error *err) {
  struct reader reader = reader_of(bytes);
  struct field field;
  int got;
  *out = (struct wire_output){.name = {bytes.data, 0}};
  while ((got = field_next(&reader, &field)) > 0) {
    enum status status = STATUS_OK;
    if (field.key == KEY(1, TYPE_BYTES)) {
      out->name = field.bytes;
      status = text_check(field.bytes, true, "the name of an output", err);
    } else if (field.key == KEY(2, TYPE_BYTES)) {
      status = tensor_parameter(field.bytes, &out->shared_memory, &out->classification, err);
    }
    if (status != STATUS_OK) return status;
  }
  return got == 0 ? STATUS_OK : malformed(err, "ModelInferRequest", "an entry of outputs");
}

static enum status too_many(struct error *err, int limit, const char *what) {
  return error_set(err, STATUS_INVALID_ARGUMENT, "request has more than %d %s", limit, what);
}

static enum status infer_field(struct wire_infer *out, const struct field *field,
                               struct error *err) {
  switch (field->key) {
  case KEY(1, TYPE_BYTES):
    out->model_name = field->bytes;
    return text_check(field->bytes, true, "model_name", err);
  case KEY(2, TYPE_BYTES):
    out->model_version = field->bytes;
    return text_check(field->bytes, true, "model_version", err);
  case KEY(3, TYPE_BYTES):
    out->id = field->bytes;
    return text_check(field->bytes, false, "id", err);
  case KEY(4, TYPE_BYTES):
    return parameter_add(out, field->bytes, err);
  case KEY(5, TYPE_BYTES):
    if (out->n_inputs == LIMIT_MODEL_INPUTS) return too_many(err, LIMIT_MODEL_INPUTS, "inputs");
    return input_read(field->bytes, &out->inputs[out->n_inputs++], err);
  case KEY(6, TYPE_BYTES):
    if (out->n_outputs == LIMIT_MODEL_OUTPUTS) return too_many(err, LIMIT_MODEL_OUTPUTS, "outputs");
    return output_read(field->bytes, &out->outputs[out->n_outputs++], err);
  case KEY(7, TYPE_BYTES):
    if (out->n_raw == LIMIT_MODEL_INPUTS)
      return too_many(err, LIMIT_MODEL_INPUTS, "raw_input_contents");
    out->raw[out->n_raw++] = field->bytes;
    return STATUS_OK;
  default:
    return STATUS_OK;
  }
}

enum status wire_split(struct slice message, struct wire_infer *out, struct error *err) {
  struct reader reader = reader_of(message);
  struct slice empty = {reader.at, 0};
  struct field field;
  int got;
  out->model_name = out->model_version = out->id = empty;
  out->n_parameters = out->n_inputs = out->n_outputs = out->n_raw = 0;
  while ((got = field_next(&reader, &field)) > 0) {
    enum status status = infer_field(out, &field, err);
    if (status != STATUS_OK) return status;
  }
  return got == 0 ? STATUS_OK : malformed(err, "ModelInferRequest", "a field of the message");
}

enum status wire_split_names(struct slice message, struct wire_names *out, struct error *err) {
  struct reader reader = reader_of(message);
  struct field field;
  int got;
  out->first = out->second = (struct slice){reader.at, 0};
  while ((got = field_next(&reader, &field)) > 0) {
    enum status status = STATUS_OK;
    if (field.key == KEY(1, TYPE_BYTES)) {
      out->first = field.bytes;
      status = text_check(field.bytes, true, "name", err);
    } else if (field.key == KEY(2, TYPE_BYTES)) {
      out->second = field.bytes;
      status = text_check(field.bytes, true, "version", err);
    }
    if (status != STATUS_OK) return status;
  }
  return got == 0 ? STATUS_OK : malformed(err, "protobuf message", "a field");
}

enum status wire_check_strings(struct slice message, uint32_t strings, struct error *err) {
  struct reader reader = reader_of(message);
  struct field field;
  int got;
  while ((got = field_next(&reader, &field)) > 0) {
    uint32_t number = field.key >> 3;
    if ((field.key & 7) != TYPE_BYTES || number > 31 || !(strings >> number & 1)) continue;
    enum status status = text_check(field.bytes, true, "name", err);
    if (status != STATUS_OK) return status;
  }
  return got == 0 ? STATUS_OK : malformed(err, "protobuf message", "a field");
}

// ---- typed contents ----
struct typed_sink {
  enum wire_typed kind;
  uint8_t *out;
  int64_t n, room;
};

static void typed_put(struct typed_sink *sink, uint64_t value) {
  if (sink->n < sink->room) {
    if (sink->kind == TYPED_INT64) {
      memcpy(sink->out + sink->n * 8, &value, 8);
    } else { // INT32 keeps the low half of a sign-extended varint, FP32 has its bits there
      uint32_t low = (uint32_t)value;
      memcpy(sink->out + sink->n * 4, &low, 4);
    }
  }
  sink->n++;
}

static bool typed_packed(struct typed_sink *sink, struct slice bytes) {
  struct reader reader = reader_of(bytes);
  if (sink->kind == TYPED_FP32 && bytes.bytes % 4 != 0) return false;
  while (reader.at < reader.end) {
    uint64_t value;
    if (sink->kind == TYPED_FP32) {
      uint32_t bits;
      memcpy(&bits, reader.at, 4);
      reader.at += 4;
      value = bits;
    } else if (!varint_read(&reader, &value)) {
      return false;
    }
    typed_put(sink, value);
  }
  return true;
}

enum status wire_typed_read(const struct wire_input *input, enum wire_typed kind, void *out,
                            int64_t n_elements, int64_t *found) {
  struct typed_sink sink = {kind, out, 0, n_elements};
  bool ok = true;
  for (int32_t part = 0; ok && part < input->n_contents; part++) {
    struct reader reader = reader_of(input->contents[part]);
    struct field field;
    while (ok && field_next(&reader, &field) > 0) {
      uint32_t type = field.key & 7;
      if (field.key >> 3 != (uint32_t)kind || !typed_field_ok(kind, type)) continue;
      if (type == TYPE_BYTES)
        ok = typed_packed(&sink, field.bytes);
      else
        typed_put(&sink, field.number);
    }
  }
  *found = sink.n;
  return ok ? STATUS_OK : STATUS_INTERNAL;
}
