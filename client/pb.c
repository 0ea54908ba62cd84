#include "client/pb.h"
#include <stdlib.h>
#include <string.h>

void pb_free(struct pb_buf *buf) {
  free(buf->data);
  *buf = (struct pb_buf){0};
}

static bool pb_reserve(struct pb_buf *buf, size_t more) {
  if (buf->failed) return false;
  if (more <= buf->capacity - buf->bytes) return true;
  size_t needed = 0;
  size_t capacity = buf->capacity ? buf->capacity : 256;
  if (__builtin_add_overflow(buf->bytes, more, &needed)) goto fail;
  while (capacity < needed) {
    if (__builtin_mul_overflow(capacity, 2, &capacity)) goto fail;
  }
  uint8_t *data = realloc(buf->data, capacity);
  if (!data) goto fail;
  buf->data = data;
  buf->capacity = capacity;
  return true;
fail:
  buf->failed = true;
  return false;
}

void pb_append(struct pb_buf *buf, const void *data, size_t bytes) {
  if (bytes == 0 || !pb_reserve(buf, bytes)) return;
  memcpy(buf->data + buf->bytes, data, bytes);
  buf->bytes += bytes;
}

void pb_varint(struct pb_buf *buf, uint64_t value) {
  uint8_t out[10];
  size_t n = 0;
  while (value >= 0x80) {
    out[n++] = (uint8_t)(value | 0x80);
    value >>= 7;
  }
  out[n++] = (uint8_t)value;
  pb_append(buf, out, n);
}

void pb_put_varint(struct pb_buf *buf, uint32_t field, uint64_t value) {
  pb_varint(buf, (uint64_t)field << 3 | PB_VARINT);
  pb_varint(buf, value);
}

void pb_put_length(struct pb_buf *buf, uint32_t field, size_t bytes) {
  pb_varint(buf, (uint64_t)field << 3 | PB_BYTES);
  pb_varint(buf, bytes);
}

void pb_put_bytes(struct pb_buf *buf, uint32_t field, const void *data, size_t bytes) {
  pb_put_length(buf, field, bytes);
  pb_append(buf, data, bytes);
}

void pb_put_text(struct pb_buf *buf, uint32_t field, const char *text) {
  pb_put_bytes(buf, field, text, strlen(text));
}

void pb_put_message(struct pb_buf *buf, uint32_t field, const struct pb_buf *message) {
  if (message->failed) buf->failed = true;
  pb_put_bytes(buf, field, message->data, message->bytes);
}

struct pb_reader pb_reader_of(struct slice bytes) {
  // NULL + 0 is undefined in C.
  return (struct pb_reader){.at = bytes.data,
                            .end = bytes.bytes ? bytes.data + bytes.bytes : bytes.data};
}

bool pb_read_varint(struct pb_reader *reader, uint64_t *value) {
  if (reader->at < reader->end && *reader->at < 0x80) { // most tags and lengths
    *value = *reader->at++;
    return true;
  }
  uint64_t result = 0;
  for (unsigned shift = 0; shift < 70; shift += 7) {
    if (reader->at == reader->end) {
      reader->cut = true;
      return false;
    }
    const uint8_t byte = *reader->at++;
    if (shift < 64) result |= (uint64_t)(byte & 0x7f) << shift;
    if (byte < 0x80) {
      *value = result;
      return true;
    }
  }
  reader->malformed = true;
  return false;
}

static bool read_fixed(struct pb_reader *reader, size_t bytes, uint64_t *value) {
  if ((size_t)(reader->end - reader->at) < bytes) {
    reader->cut = true;
    return false;
  }
  *value = 0;
  memcpy(value, reader->at, bytes); // little-endian hosts only, as the wire is
  reader->at += bytes;
  return true;
}

static bool read_bytes(struct pb_reader *reader, struct slice *out) {
  uint64_t length = 0;
  if (!pb_read_varint(reader, &length)) return false;
  if (length > (size_t)(reader->end - reader->at)) {
    reader->cut = true;
    return false;
  }
  *out = (struct slice){reader->at, (size_t)length};
  reader->at += length;
  return true;
}

bool pb_next(struct pb_reader *reader, struct pb_field *field) {
  uint64_t tag = 0;
  if (reader->malformed || reader->cut || reader->at == reader->end) return false;
  if (!pb_read_varint(reader, &tag)) return false;
  *field = (struct pb_field){.number = (uint32_t)(tag >> 3)};
  if (tag >> 3 == 0 || tag > UINT32_MAX) {
    reader->malformed = true;
    return false;
  }
  switch (tag & 7) {
  case PB_VARINT:
    field->type = PB_VARINT;
    return pb_read_varint(reader, &field->value);
  case PB_FIXED64:
    field->type = PB_FIXED64;
    return read_fixed(reader, 8, &field->value);
  case PB_FIXED32:
    field->type = PB_FIXED32;
    return read_fixed(reader, 4, &field->value);
  case PB_BYTES:
    field->type = PB_BYTES;
    return read_bytes(reader, &field->bytes);
  default:
    reader->malformed = true;
    return false;
  }
}

bool slice_is(struct slice slice, const char *text) {
  const size_t length = strlen(text);
  return slice.bytes == length && memcmp(slice.data, text, length) == 0;
}
