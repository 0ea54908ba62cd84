// The writing half of rpc/wire.h.
#include "rpc/wire.h"

#include <string.h>

size_t wire_varint_bytes(uint64_t value) {
  // 7 bits a byte: (bits + 6) / 7 with bits >= 1, without a division.
  int bits = 64 - __builtin_clzll(value | 1);
  return (size_t)((bits * 9 + 64) >> 6);
}

static bool room(struct wire_writer *writer, size_t bytes) {
  if ((size_t)(writer->end - writer->at) >= bytes && !writer->over) return true;
  writer->over = true;
  return false;
}

void wire_put_varint(struct wire_writer *writer, uint64_t value) {
  if (!room(writer, wire_varint_bytes(value))) return;
  while (value >= 0x80) {
    *writer->at++ = (uint8_t)(value | 0x80);
    value >>= 7;
  }
  *writer->at++ = (uint8_t)value;
}

void wire_put_raw(struct wire_writer *writer, const void *data, size_t bytes) {
  if (bytes == 0 || !room(writer, bytes)) return;
  memcpy(writer->at, data, bytes);
  writer->at += bytes;
}

void wire_put_length(struct wire_writer *writer, uint32_t field, uint64_t bytes) {
  wire_put_varint(writer, (uint64_t)field << 3 | 2);
  wire_put_varint(writer, bytes);
}

void wire_put_bytes(struct wire_writer *writer, uint32_t field, const void *data, size_t bytes) {
  wire_put_length(writer, field, bytes);
  wire_put_raw(writer, data, bytes);
}

// Entry { 1: key, 2: InferParameter } up to where the parameter's own bytes begin.
static void parameter_begin(struct wire_writer *writer, uint32_t field, const char *key,
                            size_t key_bytes, size_t value_bytes) {
  size_t entry = 1 + wire_varint_bytes(key_bytes) + key_bytes + 1 + wire_varint_bytes(value_bytes) +
                 value_bytes;
  wire_put_length(writer, field, entry);
  wire_put_bytes(writer, 1, key, key_bytes);
  wire_put_length(writer, 2, value_bytes);
}

void wire_put_parameter_int(struct wire_writer *writer, uint32_t field, const char *key,
                            size_t key_bytes, int64_t value) {
  parameter_begin(writer, field, key, key_bytes, 1 + wire_varint_bytes((uint64_t)value));
  wire_put_varint(writer, WIRE_INT64 << 3);
  wire_put_varint(writer, (uint64_t)value);
}

void wire_put_parameter_real(struct wire_writer *writer, uint32_t field, const char *key,
                             size_t key_bytes, double value) {
  parameter_begin(writer, field, key, key_bytes, 1 + sizeof value);
  wire_put_varint(writer, WIRE_DOUBLE << 3 | 1);
  wire_put_raw(writer, &value, sizeof value);
}

void wire_put_parameter_text(struct wire_writer *writer, uint32_t field, const char *key,
                             size_t key_bytes, const char *text, size_t text_bytes) {
  parameter_begin(writer, field, key, key_bytes, 1 + wire_varint_bytes(text_bytes) + text_bytes);
  wire_put_bytes(writer, WIRE_STRING, text, text_bytes);
}
