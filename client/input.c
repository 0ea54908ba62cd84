#include "client/input.h"
#include "client/file.h"
#include "client/npy.h"
#include "client/spec.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define LINE_TOKENS_MAX (1 << 20) // of one request

enum role { ROLE_IDS, ROLE_MASK, ROLE_LENGTHS, ROLE_ZEROS, ROLE_POSITIONS, ROLE_VALUES };

static bool ends_with(const char *text, const char *end) {
  const size_t n = strlen(text), n_end = strlen(end);
  return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

static bool is_float(enum datatype type) {
  return type == TYPE_FP16 || type == TYPE_BF16 || type == TYPE_FP32 || type == TYPE_FP64;
}

bool input_has_sequences(const struct oip_model *model) {
  for (int i = 0; i < model->n_inputs; i++) {
    for (int d = 1; d < model->inputs[i].rank; d++) {
      if (model->inputs[i].dims[d] < 0) return true;
    }
  }
  return false;
}

static enum role role_of(const struct oip_model *model, const struct oip_tensor *tensor) {
  if (ends_with(tensor->name, "mask")) return ROLE_MASK;
  if (ends_with(tensor->name, "lengths")) return ROLE_LENGTHS;
  if (is_float(tensor->type)) return ROLE_VALUES;
  if (ends_with(tensor->name, "type_ids")) return ROLE_ZEROS;
  if (ends_with(tensor->name, "position_ids")) return ROLE_POSITIONS;
  const bool one_a_row = tensor->rank == 1 && tensor->dims[0] < 0;
  return one_a_row && input_has_sequences(model) ? ROLE_LENGTHS : ROLE_IDS;
}

static bool tells_padding(const struct oip_model *model) {
  for (int i = 0; i < model->n_inputs; i++) {
    const enum role role = role_of(model, &model->inputs[i]);
    if (role == ROLE_MASK || role == ROLE_LENGTHS) return true;
  }
  return false;
}

bool input_takes_ids(const struct oip_model *model) {
  for (int i = 0; i < model->n_inputs; i++)
    if (role_of(model, &model->inputs[i]) == ROLE_IDS) return true;
  return false;
}

// ---- filling a tensor ---------------------------------------------------------------------------

static void store(struct infer_tensor *tensor, size_t index, int64_t value) {
  const float as_float = (float)value;
  const double as_double = (double)value;
  switch (tensor->type) {
  case TYPE_FP32:
    memcpy(tensor->data + index * 4, &as_float, 4);
    return;
  case TYPE_FP64:
    memcpy(tensor->data + index * 8, &as_double, 8);
    return;
  case TYPE_FP16:
    memcpy(tensor->data + index * 2, value ? "\x00\x3c" : "\0\0", 2);
    return; // 1.0: masks only
  case TYPE_BF16:
    memcpy(tensor->data + index * 2, value ? "\x80\x3f" : "\0\0", 2);
    return;
  default: {
    const size_t bytes = datatype_bytes(tensor->type);
    memcpy(tensor->data + index * bytes, &value, bytes); // little-endian
  }
  }
}

// Values of a network's input: between -1 and 1.
static void store_random(struct infer_tensor *tensor, size_t index, struct rng *rng) {
  const double value = 2 * rng_unit(rng) - 1;
  const float as_float = (float)value;
  const uint64_t bits = rng_next(rng);
  const uint16_t fp16 = (uint16_t)(0x3800 | (bits & 0x83ff)),
                 bf16 = (uint16_t)(0x3f00 | (bits & 0x807f));
  switch (tensor->type) {
  case TYPE_FP32:
    memcpy(tensor->data + index * 4, &as_float, 4);
    return;
  case TYPE_FP64:
    memcpy(tensor->data + index * 8, &value, 8);
    return;
  case TYPE_FP16:
    memcpy(tensor->data + index * 2, &fp16, 2);
    return;
  case TYPE_BF16:
    memcpy(tensor->data + index * 2, &bf16, 2);
    return;
  default:
    store(tensor, index, (int64_t)(bits & 0x7f));
    return;
  }
}

static void fill_row(struct infer_tensor *tensor, enum role role, const struct input_rows *rows,
                     int64_t row, size_t per_row, const int64_t *ids, int64_t max_id,
                     struct rng *rng) {
  const size_t length = (size_t)rows->lengths[row];
  const size_t start = (size_t)row * per_row;
  for (size_t i = 0; i < per_row; i++) {
    const bool real = i < length;
    switch (role) {
    case ROLE_MASK:
      store(tensor, start + i, real);
      break;
    case ROLE_LENGTHS:
      store(tensor, start + i, rows->lengths[row]);
      break;
    case ROLE_ZEROS:
      break; // as allocated
    case ROLE_POSITIONS:
      store(tensor, start + i, (int64_t)i);
      break;
    case ROLE_IDS:
      if (real) store(tensor, start + i, ids ? ids[i] : rng_between(rng, 1, max_id));
      break;
    case ROLE_VALUES:
      store_random(tensor, start + i, rng);
      break;
    }
  }
}

static int64_t longest(const struct input_rows *rows) {
  int64_t longest = 1;
  for (int64_t i = 0; i < rows->n; i++) {
    if (rows->lengths[i] > longest) longest = rows->lengths[i];
  }
  return longest;
}

static enum status make_tensor(const struct oip_model *model, const struct oip_tensor *in,
                               const struct input_rows *rows, int64_t max_id, size_t most,
                               struct rng *rng, struct infer_tensor *out, struct error *err) {
  const int64_t sequence = longest(rows);
  const int64_t *ids = rows->ids;
  *out = (struct infer_tensor){.type = in->type, .rank = in->rank};
  memcpy(out->name, in->name, sizeof out->name);
  for (int d = 0; d < in->rank; d++) {
    out->dims[d] = in->dims[d] >= 0 ? in->dims[d] : d == 0 ? rows->n : sequence;
  }
  const enum status status = tensor_alloc(out, most, err);
  if (status != STATUS_OK || out->bytes == 0) return status;
  const int64_t n_rows = in->rank > 0 && in->dims[0] < 0 ? rows->n : 1;
  const size_t per_row = out->bytes / datatype_bytes(out->type) / (size_t)n_rows;
  for (int64_t row = 0; row < n_rows; row++) {
    fill_row(out, role_of(model, in), rows, row, per_row, ids, max_id, rng);
    if (ids) ids += rows->lengths[row];
  }
  return STATUS_OK;
}

enum status input_make(const struct oip_model *model, const struct input_rows *rows, int64_t max_id,
                       struct rng *rng, struct request_input *out, struct error *err) {
  size_t room = UINT32_MAX; // of a gRPC message
  *out = (struct request_input){0};
  for (int i = 0; i < model->n_inputs; i++) {
    struct infer_tensor *tensor = &out->tensors[out->n_tensors++];
    const enum status status =
        make_tensor(model, &model->inputs[i], rows, max_id, room, rng, tensor, err);
    room -= tensor->bytes;
    if (status == STATUS_OK) continue;
    request_input_free(out);
    return status;
  }
  out->tokens = rows->n;
  if (!input_has_sequences(model)) return STATUS_OK;
  out->tokens = rows->n * longest(rows);
  if (!tells_padding(model)) return STATUS_OK;
  out->tokens = 0;
  for (int64_t i = 0; i < rows->n; i++)
    out->tokens += rows->lengths[i];
  return STATUS_OK;
}

// ---- token ids from a file ----------------------------------------------------------------------

struct line_reader {
  const char *path;
  int line;
  int64_t batch;
  struct { // rows collected for the next request
    int64_t *items;
    int64_t n, capacity;
  } lengths, ids;
  input_add add;
  void *arg;
};

static enum status line_error(const struct line_reader *reader, const char *what,
                              struct error *err) {
  return error_set_at(err, STATUS_INVALID_ARGUMENT, reader->path, reader->line, 1, "%s", what);
}

static bool push(int64_t **items, int64_t *n, int64_t *capacity, int64_t value) {
  if (*n == *capacity) {
    const int64_t larger = *capacity ? *capacity * 2 : 256;
    int64_t *grown = realloc(*items, (size_t)larger * sizeof **items);
    if (!grown) return false;
    *items = grown;
    *capacity = larger;
  }
  (*items)[(*n)++] = value;
  return true;
}
#define PUSH(list, value) push(&(list).items, &(list).n, &(list).capacity, value)

static enum status take_row(struct line_reader *reader, const json_t *row, struct error *err) {
  const size_t n = json_array_size(row);
  if (n == 0) return line_error(reader, "expected an array of token ids, not empty", err);
  if (reader->ids.n + (int64_t)n > LINE_TOKENS_MAX)
    return line_error(reader, "too many tokens", err);
  for (size_t i = 0; i < n; i++) {
    const json_t *id = json_array_get(row, i);
    if (!json_is_integer(id)) return line_error(reader, "token ids must be whole numbers", err);
    if (!PUSH(reader->ids, json_integer_value(id))) return line_error(reader, "no memory", err);
  }
  return PUSH(reader->lengths, (int64_t)n) ? STATUS_OK : line_error(reader, "no memory", err);
}

static enum status give_request(struct line_reader *reader, struct error *err) {
  const struct input_rows rows = {reader->lengths.n, reader->lengths.items, reader->ids.items};
  const enum status status = rows.n ? reader->add(&rows, reader->arg, err) : STATUS_OK;
  reader->lengths.n = reader->ids.n = 0;
  return status;
}

static enum status take_line(struct line_reader *reader, const char *text, size_t bytes,
                             struct error *err) {
  json_error_t json_error;
  json_t *root = json_loadb(text, bytes, 0, &json_error);
  if (!root) return line_error(reader, json_error.text, err);
  const json_t *value = json_is_object(root) ? json_object_get(root, "input_ids") : root;
  enum status status = STATUS_OK;
  if (!json_is_array(value)) {
    status = line_error(reader, "expected an array of token ids, or an object with input_ids", err);
  } else if (json_is_array(json_array_get(value, 0))) { // a whole request
    for (size_t i = 0; i < json_array_size(value) && status == STATUS_OK; i++) {
      status = take_row(reader, json_array_get(value, i), err);
    }
    if (status == STATUS_OK) status = give_request(reader, err);
  } else {
    status = take_row(reader, value, err);
    if (status == STATUS_OK && reader->lengths.n == reader->batch)
      status = give_request(reader, err);
  }
  json_decref(root);
  return status;
}

static bool blank(const char *text, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) {
    if (!strchr(" \t\r", text[i]) || !text[i]) return false;
  }
  return true;
}

enum status input_read_lines(const char *path, int64_t batch, input_add add, void *arg,
                             struct error *err) {
  struct line_reader reader = {.path = path, .batch = batch, .add = add, .arg = arg};
  struct slice file;
  enum status status = file_read(path, &file, err);
  if (status != STATUS_OK) return status;
  const char *at = (const char *)file.data, *end = at + file.bytes;
  while (at < end && status == STATUS_OK) {
    const char *newline = memchr(at, '\n', (size_t)(end - at));
    const size_t bytes = (size_t)((newline ? newline : end) - at);
    reader.line++;
    if (!blank(at, bytes)) status = take_line(&reader, at, bytes, err);
    at += bytes + 1;
  }
  if (status == STATUS_OK) status = give_request(&reader, err); // the last, smaller batch
  free(reader.lengths.items);
  free(reader.ids.items);
  file_free(&file);
  return status;
}

// ---- tensors from files -------------------------------------------------------------------------

static enum status read_raw(const char *path, struct infer_tensor *tensor, struct error *err) {
  struct slice file;
  char shape[128];
  size_t bytes = 0;
  enum status status = tensor_bytes(tensor->type, tensor->dims, tensor->rank, &bytes);
  if (status != STATUS_OK)
    return error_set(err, status, "--input %s: the shape is too large", tensor->name);
  status = file_read(path, &file, err);
  if (status != STATUS_OK) return status;
  if (file.bytes == bytes) {
    tensor->data = (uint8_t *)(uintptr_t)file.data;
    tensor->bytes = bytes;
    return STATUS_OK;
  }
  status = error_set(err, STATUS_INVALID_ARGUMENT, "%s: %zu bytes; %s %s needs %zu", path,
                     file.bytes, datatype_name(tensor->type),
                     shape_text(tensor->dims, tensor->rank, shape, sizeof shape), bytes);
  file_free(&file);
  return status;
}

static enum status read_tensor(const char *spec, struct infer_tensor *out, struct error *err) {
  const char *path = NULL;
  enum status status = spec_input(spec, out, &path, err);
  if (status != STATUS_OK) return status;
  if (out->type != TYPE_NONE && out->rank >= 0) return read_raw(path, out, err);
  const enum datatype forced = out->type;
  status = npy_read(path, out, err);
  if (status != STATUS_OK || forced == TYPE_NONE) return status;
  if (datatype_bytes(forced) == datatype_bytes(out->type)) {
    out->type = forced; // the same bits read as another type: how BF16 comes out of an .npy
    return STATUS_OK;
  }
  status = error_set(err, STATUS_INVALID_ARGUMENT, "%s holds %s; it cannot be read as %s", path,
                     datatype_name(out->type), datatype_name(forced));
  return status;
}

enum status input_from_files(const struct text_list *specs, struct request_input *out,
                             struct error *err) {
  *out = (struct request_input){0};
  for (int i = 0; i < specs->n; i++) {
    if (out->n_tensors == PAYLOAD_INPUTS) {
      request_input_free(out);
      return error_set(err, STATUS_INVALID_ARGUMENT, "more than %d inputs", PAYLOAD_INPUTS);
    }
    const enum status status = read_tensor(specs->items[i], &out->tensors[out->n_tensors++], err);
    if (status == STATUS_OK) continue;
    request_input_free(out);
    return status;
  }
  const struct infer_tensor *first = &out->tensors[0];
  out->tokens = first->rank > 0 ? first->dims[0] : 1;
  if (first->rank == 2 && !is_float(first->type)) out->tokens *= first->dims[1];
  return STATUS_OK;
}
