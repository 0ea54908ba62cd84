#include "client/npy.h"
#include "client/file.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NPY_MAGIC "\x93NUMPY"
#define NPY_HEADER_MAX (64 * 1024) // a shape of 8 numbers needs 300 bytes

// The header is a Python dict literal; this is a cursor over its text.
struct cursor {
  const char *at, *end;
};

static void skip_space(struct cursor *cursor) {
  while (cursor->at < cursor->end && strchr(" \t\r\n", *cursor->at) && *cursor->at)
    cursor->at++;
}

static bool take_char(struct cursor *cursor, char expected) {
  skip_space(cursor);
  if (cursor->at == cursor->end || *cursor->at != expected) return false;
  cursor->at++;
  return true;
}

static bool take_word(struct cursor *cursor, const char *word) {
  const size_t length = strlen(word);
  skip_space(cursor);
  if ((size_t)(cursor->end - cursor->at) < length || memcmp(cursor->at, word, length) != 0) {
    return false;
  }
  cursor->at += length;
  return true;
}

// 'text' or "text", without escapes.
static bool take_quoted(struct cursor *cursor, struct slice *out) {
  skip_space(cursor);
  if (cursor->at == cursor->end || (*cursor->at != '\'' && *cursor->at != '"')) return false;
  const char quote = *cursor->at++;
  const char *close = memchr(cursor->at, quote, (size_t)(cursor->end - cursor->at));
  if (!close) return false;
  *out = (struct slice){(const uint8_t *)cursor->at, (size_t)(close - cursor->at)};
  cursor->at = close + 1;
  return memchr(out->data, '\\', out->bytes) == NULL;
}

static bool take_number(struct cursor *cursor, int64_t *out) {
  int64_t value = 0;
  skip_space(cursor);
  if (cursor->at == cursor->end || *cursor->at < '0' || *cursor->at > '9') return false;
  while (cursor->at < cursor->end && *cursor->at >= '0' && *cursor->at <= '9') {
    if (__builtin_mul_overflow(value, 10, &value) ||
        __builtin_add_overflow(value, *cursor->at - '0', &value)) {
      return false;
    }
    cursor->at++;
  }
  if (cursor->at < cursor->end && *cursor->at == 'L') cursor->at++; // Python 2 wrote 128L
  *out = value;
  return true;
}

// (), (3,), (2, 3), (2, 3,)
static bool take_shape(struct cursor *cursor, struct infer_tensor *out) {
  if (!take_char(cursor, '(')) return false;
  out->rank = 0;
  while (!take_char(cursor, ')')) {
    if (out->rank == TENSOR_RANK || !take_number(cursor, &out->dims[out->rank])) return false;
    out->rank++;
    if (take_char(cursor, ',')) continue;
    return out->rank > 1 && take_char(cursor, ')'); // (3) is a number, not a shape
  }
  return true;
}

static enum datatype type_of_descr(struct slice descr) {
  char text[8];
  if (descr.bytes != 3) return TYPE_NONE;
  memcpy(text, descr.data, 3);
  text[3] = 0;
  if (text[2] == '1' && (text[0] == '<' || text[0] == '=')) text[0] = '|'; // one byte has no order
  if (text[0] == '=') text[0] = '<';
  for (int type = TYPE_BOOL; type < TYPE_COUNT; type++) {
    const char *npy = datatype_npy((enum datatype)type);
    if (npy && strcmp(npy, text) == 0) return (enum datatype)type;
  }
  return TYPE_NONE;
}

enum { KEY_DESCR = 1, KEY_ORDER = 2, KEY_SHAPE = 4, KEY_ALL = 7 };

struct header {
  struct slice descr;
  bool fortran;
  int keys; // seen
};

static bool take_entry(struct cursor *cursor, struct header *header, struct infer_tensor *out) {
  struct slice key;
  if (!take_quoted(cursor, &key) || !take_char(cursor, ':')) return false;
  const bool descr = key.bytes == 5 && memcmp(key.data, "descr", 5) == 0;
  const bool order = key.bytes == 13 && memcmp(key.data, "fortran_order", 13) == 0;
  const bool shape = key.bytes == 5 && memcmp(key.data, "shape", 5) == 0;
  const int bit = descr ? KEY_DESCR : order ? KEY_ORDER : shape ? KEY_SHAPE : 0;
  if (bit == 0 || header->keys & bit) return false;
  header->keys |= bit;
  if (descr) return take_quoted(cursor, &header->descr);
  if (shape) return take_shape(cursor, out);
  header->fortran = take_word(cursor, "True");
  return header->fortran || take_word(cursor, "False");
}

static enum status parse_header(struct cursor cursor, struct infer_tensor *out, struct error *err) {
  struct header header = {0};
  if (!take_char(&cursor, '{')) goto malformed;
  while (!take_char(&cursor, '}')) {
    if (!take_entry(&cursor, &header, out)) goto malformed;
    if (take_char(&cursor, ',')) continue;
    if (take_char(&cursor, '}')) break;
    goto malformed;
  }
  skip_space(&cursor);
  if (cursor.at != cursor.end || header.keys != KEY_ALL) goto malformed;
  out->type = type_of_descr(header.descr);
  if (out->type == TYPE_NONE) {
    return error_set(
        err, STATUS_INVALID_ARGUMENT,
        ".npy type '%.*s' is not served; expected little-endian numbers such as <f4 or <i8",
        (int)(header.descr.bytes < 32 ? header.descr.bytes : 32), (const char *)header.descr.data);
  }
  int long_dims = 0;
  for (int i = 0; i < out->rank; i++)
    long_dims += out->dims[i] != 1;
  if (header.fortran && long_dims > 1) {
    return error_set(err, STATUS_INVALID_ARGUMENT,
                     ".npy data is in Fortran order; expected C order (numpy.ascontiguousarray)");
  }
  return STATUS_OK;
malformed:
  return error_set(
      err, STATUS_INVALID_ARGUMENT,
      ".npy header is malformed; expected {'descr': ..., 'fortran_order': ..., 'shape': ...} "
      "with at most %d dimensions",
      TENSOR_RANK);
}

enum status npy_parse(struct slice file, struct infer_tensor *out, struct slice *data,
                      struct error *err) {
  if (file.bytes < 6 || memcmp(file.data, NPY_MAGIC, 6) != 0) {
    return error_set(err, STATUS_INVALID_ARGUMENT, "not an .npy file (no \\x93NUMPY at its start)");
  }
  if (file.bytes < 10) {
    return error_set(err, STATUS_INVALID_ARGUMENT, ".npy of %zu bytes has no whole header",
                     file.bytes);
  }
  const int major = file.data[6];
  size_t prefix = 10;
  size_t length = (size_t)file.data[8] | (size_t)file.data[9] << 8;
  if (major < 1 || major > 3) {
    return error_set(err, STATUS_INVALID_ARGUMENT, ".npy version %d; expected 1, 2 or 3", major);
  }
  if (major > 1) {
    prefix = 12;
    if (file.bytes < prefix) goto cut;
    length |= (size_t)file.data[10] << 16 | (size_t)file.data[11] << 24;
  }
  if (length > NPY_HEADER_MAX || length > file.bytes - prefix) goto cut;
  const char *text = (const char *)file.data + prefix;
  enum status status = parse_header((struct cursor){text, text + length}, out, err);
  if (status != STATUS_OK) return status;

  size_t bytes = 0;
  char shape[128];
  *data = (struct slice){file.data + prefix + length, file.bytes - prefix - length};
  status = tensor_bytes(out->type, out->dims, out->rank, &bytes);
  if (status == STATUS_OK && bytes == data->bytes) return STATUS_OK;
  return error_set(err, STATUS_INVALID_ARGUMENT,
                   ".npy holds %zu bytes of data; %s %s does not fit that", data->bytes,
                   datatype_name(out->type), shape_text(out->dims, out->rank, shape, sizeof shape));
cut:
  return error_set(err, STATUS_INVALID_ARGUMENT,
                   ".npy header of %zu bytes does not fit a file of %zu bytes", length, file.bytes);
}

enum status npy_read(const char *path, struct infer_tensor *out, struct error *err) {
  struct slice file = {0};
  struct slice data = {0};
  struct error cause = {0};
  enum status status = file_read(path, &file, err);
  if (status != STATUS_OK) return status;
  status = npy_parse(file, out, &data, &cause);
  if (status != STATUS_OK) {
    error_set(err, status, "%s: %s", path, cause.message);
  } else {
    out->data = malloc(data.bytes ? data.bytes : 1);
    out->bytes = data.bytes;
    if (out->data && data.data)
      memcpy(out->data, data.data, data.bytes);
    else
      status = error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: no memory", path);
  }
  file_free(&file);
  return status;
}

enum status npy_write(const char *path, enum datatype type, const int64_t *dims, int rank,
                      struct slice data, struct error *err) {
  char shape[256] = "";
  char header[512];
  size_t used = 0;
  const char *descr = datatype_npy(type);
  if (!descr) {
    return error_set(err, STATUS_INVALID_ARGUMENT, "%s has no .npy type", datatype_name(type));
  }
  for (int i = 0; i < rank; i++) {
    used += (size_t)snprintf(shape + used, sizeof shape - used, "%" PRId64 ", ", dims[i]);
  }
  int length = snprintf(header + 10, sizeof header - 10,
                        "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, shape);
  while ((length + 11) % 64 != 0)
    header[10 + length++] = ' '; // data starts on a multiple of 64
  header[10 + length++] = '\n';
  static const char start[8] = {'\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0};
  memcpy(header, start, sizeof start);
  header[8] = (char)(length & 0xff);
  header[9] = (char)(length >> 8);
  const struct slice parts[2] = {{(const uint8_t *)header, (size_t)length + 10}, data};
  return file_write(path, parts, 2, err);
}
